"""The filter language: a slow, obvious reference evaluator decides what a condition means.

`conditions` draws a tree and writes it as text in one of its spellings. The reference evaluates the tree, never the
text, so it shares nothing with the parser.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, PointedError
from ridgeline.store import compile_test, parse_where
from ridgeline.store.where import DEEPEST

TEXTS = ["", "a", "ab", "b", "it's", 'say "x"', "back\\slash", "ü", "new\nline", "in", "null", "`x`"]
TYPES = {"text": TEXTS, "number": [-2, 0, 1, 3], "real": [-1.5, 0.0, 2e3], "flag": [True, False]}
NAMES = list(TYPES)
ROWS = st.fixed_dictionaries({}, optional={name: st.sampled_from([None, *TYPES[name]]) for name in NAMES})


@dataclass(frozen=True)
class Condition:
    """A condition as text, and the tree that it means."""

    text: str
    tree: tuple[Any, ...]


def reference(tree: tuple[Any, ...], row: dict[str, Any], unknown: bool | None) -> bool | None:
    """What a condition means for a row; `unknown` is the result of `!=` and of a text test with null.

    Events have two values: null differs from every value, so `!=` holds. Columns follow Arrow and have three: the
    result is unknown (None), and stays unknown under `not`.
    """
    kind, *rest = tree
    if kind == "not":
        part = reference(rest[0], row, unknown)
        return None if part is None else not part
    if kind in ("and", "or"):
        parts = [reference(part, row, unknown) for part in rest]
        decided = kind == "or"
        if decided in parts:
            return decided
        return None if None in parts else not decided
    value = row.get(rest[0])
    if kind == "is null":
        return value is None
    if kind in ("in", "not in"):
        return value is not None and (value in rest[1]) == (kind == "in")
    if value is None:
        return None if unknown is None else kind == "!="
    if kind == "true":
        return value is True
    if kind in ("startswith", "endswith"):
        return getattr(value, kind)(rest[1])
    if kind == "contains":
        return rest[1] in value
    return {
        "==": value == rest[1],
        "!=": value != rest[1],
        "<": value < rest[1],
        "<=": value <= rest[1],
        ">": value > rest[1],
        ">=": value >= rest[1],
    }[kind]


def spell_value(value: Any, draw: Any) -> str:
    if isinstance(value, bool):
        return draw(st.sampled_from([str(value), str(value).lower(), str(value).upper()]))
    if isinstance(value, str):
        quote = draw(st.sampled_from("'\""))
        body = value.replace("\\", "\\\\").replace(quote, "\\" + quote)
        return quote + draw(st.sampled_from([body, body.replace("\n", "\\n")])) + quote
    return draw(st.sampled_from([repr(value), f"+{value}"])) if value >= 0 else repr(value)


@st.composite
def leaves(draw: Any) -> Condition:
    name = draw(st.sampled_from(NAMES))
    written = draw(st.sampled_from([name, f"`{name}`"]))
    value = draw(st.sampled_from(TYPES[name]))
    literal = spell_value(value, draw)
    kinds = ["null", "in"] + (["compare", "flip", "chain"] if name != "flag" else ["compare", "bare"])
    kind = draw(st.sampled_from(kinds + (["method"] if name == "text" else [])))
    word = draw(st.sampled_from([str.lower, str.upper, str.title]))
    if kind == "null":
        negated = draw(st.booleans())
        text = f"{written} {word('is')} {word('not') + ' ' if negated else ''}{word('null')}"
        tree: tuple[Any, ...] = ("is null", name)
        return Condition(text, ("not", tree) if negated else tree)
    if kind == "in":
        values = draw(st.lists(st.sampled_from(TYPES[name]), min_size=1, max_size=3))
        negated = draw(st.booleans())
        items = ", ".join(spell_value(item, draw) for item in values)
        opening, closing = draw(st.sampled_from(["()", "[]"]))
        comma = draw(st.sampled_from(["", ","]))
        text = f"{written} {word('not') + ' ' if negated else ''}{word('in')} {opening}{items}{comma}{closing}"
        return Condition(text, ("not in" if negated else "in", name, values))
    if kind == "method":
        test = draw(st.sampled_from(["startswith", "endswith", "contains"]))
        return Condition(f"{written}.{test}({literal})", (test, name, value))
    if kind == "bare":
        return Condition(written, ("true", name))
    signs = ["==", "!="] if name == "flag" else ["==", "!=", "<", "<=", ">", ">="]
    sign = draw(st.sampled_from(signs))
    written_sign = draw(st.sampled_from(["==", "="])) if sign == "==" else sign
    space = draw(st.sampled_from(["", " ", "  "]))
    if kind == "compare":
        return Condition(f"{written}{space}{written_sign}{space}{literal}", (sign, name, value))
    flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(sign, sign)
    if kind == "flip":
        return Condition(f"{literal}{space}{written_sign}{space}{written}", (flipped, name, value))
    other = draw(st.sampled_from(TYPES[name]))
    text = f"{literal} {written_sign} {written} < {spell_value(other, draw)}"
    return Condition(text, ("and", (flipped, name, value), ("<", name, other)))


@st.composite
def join_conditions(draw: Any, parts: st.SearchStrategy[Condition]) -> Condition:
    kind = draw(st.sampled_from(["not", "and", "or"]))
    word = draw(st.sampled_from([kind, kind.upper()]))
    if kind == "not":
        part = draw(parts)
        return Condition(f"{word} ({part.text})", ("not", part.tree))
    several = draw(st.lists(parts, min_size=2, max_size=3))
    return Condition(f" {word} ".join(f"({part.text})" for part in several), (kind, *(part.tree for part in several)))


conditions = st.recursive(leaves(), join_conditions, max_leaves=6)


@settings(max_examples=400, deadline=None)
@given(conditions, st.lists(ROWS, min_size=1, max_size=5))
def test_a_condition_holds_for_the_rows_of_the_reference(condition: Condition, rows: list[dict[str, Any]]):
    test = compile_test(parse_where(condition.text, NAMES))
    assert [test(row) for row in rows] == [reference(condition.tree, row, False) for row in rows]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("not a == 1 and b == 2 or c == 3", "((not (a == 1)) and (b == 2)) or (c == 3)"),
        ("a == 1 or b == 2 and not c == 3", "(a == 1) or ((b == 2) and (not (c == 3)))"),
        ("not not a == 1", "a == 1"),
        ("a is None", "a is null"),
        ("a == None", "a is null"),
        ("attributes.x.y == 1", "attributes['x'][\"y\"] == 1"),
        ("attributes . x == 1", "attributes.x == 1"),
        ("attributes.`odd name` == 1", "attributes['odd name'] == 1"),
        ("a == 'x' 'y'", "a == 'xy'"),
        (r"a == '\x41\u00fc\101'", "a == 'AüA'"),
        (r"a == r'\n'", r"a == '\\n'"),
        ("a == 0x1f", "a == 31"),
        ("a == 1_000", "a == 1e3"),
        ("a > - 1", "a > -1"),
        ("(a).startswith('x')", "a.startswith('x')"),
        ("attributes['x'].startswith('y')", "attributes.x.startswith('y')"),
        ("a in ('x')", "a in ['x']"),
        ("a in (attributes.x)", "a in attributes.x"),
        ("'x' in attributes.x", "('x') in (attributes.x)"),
    ],
)
@pytest.mark.parametrize("value", [None, 1, 2, 3, 31, 1000.0, -1, "x", "xy", "AüA", "\\n", ["x"], {"y": 1}])
def test_two_spellings_mean_the_same(text: str, same: str, value: Any):
    rows = [{name: value, "attributes": {"x": value, "odd name": value}} for name in "abc"]
    rows += [{"attributes": {"x": {"y": value}}}, {"a": "x", "attributes": {"x": value}}, {}]
    one, other = compile_test(parse_where(text)), compile_test(parse_where(same))
    assert [one(row) for row in rows] == [other(row) for row in rows]


def test_none_is_null_unless_a_column_has_that_name():
    assert compile_test(parse_where("None == 5", ["None"]))({"None": 5})
    assert not compile_test(parse_where("None == 5", ["a"]))({})


@pytest.mark.parametrize(
    ("text", "words", "at"),
    [
        ("  ", "a condition was expected", 0),
        ("a >> 1", "a value was expected", 3),
        ("a == 1 b == 2", "'and' or 'or'", 7),
        ("a.b('x')", "'and' or 'or'", 3),
        ("'x'.upper()", "one of startswith", 4),
        ("a[0]", "a name in quotes", 2),
        ("a['x'", r"'\]' was expected", 5),
        ("a in (1 2)", r"'\)' was expected", 8),
        ("a in (1, 2", r"',' or '\)'", 10),
        ("a is 5", "'null' or 'not null'", 5),
        ("a not 5", "'in' was expected", 6),
        ("a == 'x", "no end", 5),
        ("a == 1__0", "no number", 5),
        ("a == 12abc", "not understood", 5),
        ("not " * (DEEPEST + 1) + "a", "nesting", 4 * DEEPEST),
        ("(" * (DEEPEST + 1) + "a", "nesting", DEEPEST),
    ],
)
def test_an_error_points_at_the_place(text: str, words: str, at: int):
    with pytest.raises(PointedError, match=words) as error:
        parse_where(text)
    caret = str(error.value).split("\n")[2]
    assert caret.index("^") - 2 == at


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="sourceabtni.()[]'\"`= <>!andotr15,-+_x\\", max_size=40))
def test_any_text_is_a_condition_or_an_error_of_ours(text: str):
    try:
        test = compile_test(parse_where(text))
    except InputError:
        return
    assert test({"a": {"b": [1]}, "source": "x"}) in (True, False)


def test_a_condition_must_be_a_text():
    with pytest.raises(InputError, match="where is int"):
        parse_where(5)  # type: ignore[arg-type]


def test_the_language_needs_no_pyarrow():
    import subprocess

    code = "import sys; from ridgeline.store import parse_where; parse_where('a > 1'); print('pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"
