"""What is read before Hydra sees it: list[0].key, zip, comma lists.

python -m pytest tests/lab/experiment/test_words.py
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.lab.experiment.words import expanded, parted, refuse_unknown, rewritten, zipped

names = st.from_regex(r"[a-z]{1,6}", fullmatch=True)
paths = st.lists(st.tuples(names, st.none() | st.integers(0, 12)), min_size=1, max_size=4)


@given(paths, st.text(max_size=20))
def test_indices_become_dots_in_keys_and_values_stay(path, value):
    key = ".".join(name + ("" if index is None else f"[{index}]") for name, index in path)
    wanted = ".".join(name + ("" if index is None else f".{index}") for name, index in path)
    assert rewritten(f"{key}={value}") == f"{wanted}={value}"
    assert rewritten(rewritten(f"{key}={value}")) == rewritten(f"{key}={value}")


def test_bracketed_values_are_left_alone():
    assert rewritten("experiment.test.tensor_shape=[3,224,224],[3,384,384]").endswith("=[3,224,224],[3,384,384]")


sizes = st.dictionaries(names, st.integers(1, 4), min_size=1, max_size=4)


@given(sizes)
def test_lists_are_their_product_the_last_moving_fastest(given_sizes):
    choices = {key: [f"{key}={n}" for n in range(size)] for key, size in given_sizes.items()}
    assert expanded(choices, []) == [list(one) for one in product(*choices.values())]


@given(sizes, st.integers(1, 5))
def test_paired_lists_move_together_and_the_rest_is_still_a_product(given_sizes, pairs):
    choices = {f"z.{key}": [f"z.{key}={n}" for n in range(size)] for key, size in given_sizes.items()}
    choices |= {"a.one": [f"a.one={n}" for n in range(pairs)], "a.two": [f"a.two={n}" for n in range(pairs)]}
    jobs = expanded(choices, [("one", "a.two")])
    rest = [list(one) for one in product(*(c for k, c in choices.items() if not k.startswith("a.")))]
    wanted = {tuple(sorted([*one, f"a.one={n}", f"a.two={n}"])) for one in rest for n in range(pairs)}
    assert {tuple(sorted(job)) for job in jobs} == wanted
    assert len(jobs) == len(wanted)


@pytest.mark.parametrize(
    ("choices", "zips", "said"),
    [
        ({"a": ["a=1"], "b": ["b=1", "b=2"]}, [("a", "b")], "a has 1, b has 2"),
        ({"a": ["a=1"]}, [("a", "c")], "zip names 'c'"),
        ({"x.a": ["1"], "y.a": ["2"], "b": ["3"]}, [("a", "b")], "x.a or y.a"),
        ({"a": ["1"], "b": ["2"], "c": ["3"]}, [("a", "b"), ("b", "c")], "twice"),
    ],
)
def test_a_pairing_that_cannot_be_is_told(choices, zips, said):
    with pytest.raises(InputError, match=said):
        expanded(choices, zips)


@pytest.mark.parametrize("word", ["zip=a,b", "zip=[a]", "zip=[a,]", "zip="])
def test_a_pairing_names_two_or_more(word):
    with pytest.raises(InputError):
        zipped(word)


def test_words_are_parted_into_overrides_pairings_and_flags():
    words = parted(["experiment=a", "--cfg", "job", "b[0].c=1,2", "zip=[c,d]", "--config-dir=there", "-m"])
    assert words.overrides == ("experiment=a", "b.0.c=1,2")
    assert words.zips == (("c", "d"),)
    assert words.flags == ("--cfg=job", "--config-dir=there", "-m")
    assert words.showing
    assert not parted(["-m", "a=1"]).showing


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
    refuse_unknown(key, Outer, "top")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("top.inner.sise", "did you mean 'size'"),
        ("top.many.0.sise", "'sise'"),
        ("top.nothing", "inner, many, some"),
        ("other.key", "all begin with 'top.'"),
        ("top.some.x", "no settings of its own"),
    ],
)
def test_a_key_that_is_not_there_is_told_with_those_that_are(key, said):
    with pytest.raises(InputError, match=said):
        refuse_unknown(key, Outer, "top")
