"""Arguments that are read before Hydra sees them: list[0].key, zip, comma lists.

python -m pytest tests/lab/experiment/test_overrides.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.lab.experiment.overrides import check_key, expand_choices, parse_arguments, parse_zip, rewrite_indices

names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
paths = st.lists(st.tuples(names, st.none() | st.integers(0, 12)), min_size=1, max_size=4)


@given(paths, st.text(max_size=20))
def test_indices_of_keys_become_dots_and_values_do_not_change(path, value):
    key = ".".join(name + ("" if index is None else f"[{index}]") for name, index in path)
    expected = ".".join(name + ("" if index is None else f".{index}") for name, index in path)
    assert rewrite_indices(f"{key}={value}") == f"{expected}={value}"
    assert rewrite_indices(rewrite_indices(f"{key}={value}")) == rewrite_indices(f"{key}={value}")


def test_values_in_brackets_do_not_change():
    assert rewrite_indices("experiment.test.tensor_shape=[3,224,224],[3,384,384]").endswith("=[3,224,224],[3,384,384]")


sizes = st.dictionaries(names, st.integers(1, 4), min_size=1, max_size=4)


@given(sizes)
def test_lists_give_their_product_with_the_last_changing_fastest(given_sizes):
    choices = {key: [f"{key}={n}" for n in range(size)] for key, size in given_sizes.items()}
    assert expand_choices(choices, []) == [list(one) for one in product(*choices.values())]


@given(sizes, st.integers(1, 5))
def test_paired_lists_change_together_and_others_give_a_product(given_sizes, pairs):
    choices = {f"z.{key}": [f"z.{key}={n}" for n in range(size)] for key, size in given_sizes.items()}
    choices |= {"a.one": [f"a.one={n}" for n in range(pairs)], "a.two": [f"a.two={n}" for n in range(pairs)]}
    jobs = expand_choices(choices, [("one", "a.two")])
    rest = [list(one) for one in product(*(c for k, c in choices.items() if not k.startswith("a.")))]
    expected = {tuple(sorted([*one, f"a.one={n}", f"a.two={n}"])) for one in rest for n in range(pairs)}
    assert {tuple(sorted(job)) for job in jobs} == expected
    assert len(jobs) == len(expected)


@pytest.mark.parametrize(
    ("choices", "zips", "message"),
    [
        ({"a": ["a=1"], "b": ["b=1", "b=2"]}, [("a", "b")], "a has 1, b has 2"),
        ({"a": ["a=1"]}, [("a", "c")], "zip names 'c'"),
        ({"x.a": ["1"], "y.a": ["2"], "b": ["3"]}, [("a", "b")], "x.a or y.a"),
        ({"a": ["1"], "b": ["2"], "c": ["3"]}, [("a", "b"), ("b", "c")], "twice"),
    ],
)
def test_an_impossible_pairing_is_an_error(choices, zips, message):
    with pytest.raises(InputError, match=message):
        expand_choices(choices, zips)


@pytest.mark.parametrize("word", ["zip=a,b", "zip=[a]", "zip=[a,]", "zip="])
def test_a_pairing_names_two_or_more(word):
    with pytest.raises(InputError):
        parse_zip(word)


def test_arguments_are_split_into_overrides_pairings_and_flags():
    arguments = parse_arguments(
        ["experiment=a", "--cfg", "job", "b[0].c=1,2", "zip=[c,d]", "--config-dir=folder", "-m"]
    )
    assert arguments.overrides == ("experiment=a", "b.0.c=1,2")
    assert arguments.zips == (("c", "d"),)
    assert arguments.flags == ("--cfg=job", "--config-dir=folder", "-m")
    assert arguments.shows_config
    assert not parse_arguments(["-m", "a=1"]).shows_config


@dataclass
class Inner:
    size: int = 1


@dataclass
class Outer:
    inner: Inner = field(default_factory=Inner)
    many: list[Inner] = field(default_factory=list)
    some: list[int] | None = None


@pytest.mark.parametrize("key", ["top", "top.inner.size", "top.many.3.size", "top.some", "hydra/launcher", "+top.some"])
def test_a_key_of_the_schema_passes(key):
    check_key(key, Outer, "top")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("top.inner.sise", "did you mean 'size'"),
        ("top.many.0.sise", "'sise'"),
        ("top.nothing", "inner, many, some"),
        ("other.key", "all begin with 'top.'"),
        ("top.some.x", "no settings of its own"),
    ],
)
def test_an_error_lists_the_keys_of_the_schema(key, message):
    with pytest.raises(InputError, match=message):
        check_key(key, Outer, "top")
