r"""The filter language of every `--where`: `year >= 90 and source == 'dbus'`.

    compare     a == b   a = b   a != b   a < b   a <= b   a > b   a >= b   1 < a < 5
    choose      a in ('x', 'y')   a not in (1, 2)   a in ['x']
    null        a is null   a is not null
    text        a.startswith('x')   a.endswith('x')   a.contains('x')
    join        and, or, not, parentheses
    values      90   -1.5   1e3   0x1f   'text' or "text" (\n, \t, \\, \', \x41, \u00fc)   true   false   null
    names       a column or a field; `odd names` between backquotes; attributes.x or attributes['x']

Keywords ignore case. `parse_where` only reads the text; `compile_test` evaluates it for one row at a time, and
`ridgeline.search` evaluates it over the columns of a table. Every error points at the mistake:

>>> test = compile_test(parse_where("source == 'dbus' and attributes.n > 2"))
>>> test({"source": "dbus", "attributes": {"n": 3}}), test({"source": "dbus", "attributes": {}})
(True, False)
>>> parse_where("year >> 90")
Traceback (most recent call last):
...
ridgeline.errors.PointedError: where: a value was expected here, like 90 or 'text':
  year >> 90
        ^
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ridgeline.errors import InputError, PointedError

COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "startswith": str.startswith,
    "endswith": str.endswith,
    "contains": str.__contains__,
}
KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
DEEPEST = 100  # levels of parentheses and nots; each level costs the parser five Python frames
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>(?:0[xX][\da-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][-+]?\d+)?)
        (?![\w.]))
    |(?P<string>[rRuU]?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"))
    |(?P<quoted>`[^`]+`)
    |(?P<word>[^\W\d]\w*(?:\.\w+)*)
    |(?P<sign><=|>=|==|!=|<|>|=|\(|\)|\[|\]|,|\.|-|\+))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "\n": ""}


@dataclass(frozen=True)
class Field:
    """A column or a field: `path` is ("attributes", "n") for `attributes.n`. `at` is its place in the text."""

    path: tuple[str, ...]
    at: int

    @property
    def name(self) -> str:
        return ".".join(self.path)


@dataclass(frozen=True)
class Literal:
    """A number, a text, a truth value or null (None)."""

    value: bool | int | float | str | None
    at: int


@dataclass(frozen=True)
class Items:
    """A list of values; `end` is the place of its closing bracket."""

    values: tuple[Node, ...]
    at: int
    end: int


@dataclass(frozen=True)
class Compare:
    """`sign` is a key of COMPARE, "in" or "not in"."""

    left: Node
    sign: str
    right: Node
    at: int


@dataclass(frozen=True)
class IsNull:
    value: Node
    at: int


@dataclass(frozen=True)
class TextTest:
    """`value.name(argument)`; `name` is a key of TEXT_TESTS."""

    value: Node
    name: str
    argument: Node
    at: int


@dataclass(frozen=True)
class Not:
    part: Node
    at: int


@dataclass(frozen=True)
class And:
    parts: tuple[Node, ...]
    at: int


@dataclass(frozen=True)
class Or:
    parts: tuple[Node, ...]
    at: int


Node = Field | Literal | Items | Compare | IsNull | TextTest | Not | And | Or


@dataclass(frozen=True)
class Where:
    """A condition that was read: its text and its tree."""

    text: str
    condition: Node

    def error(self, problem: str, at: int) -> PointedError:
        """Return the error for a mistake at character `at`: the sentence, the text, and a caret under the place."""
        return _error(self.text, problem, at)


def parse_where(
    text: str, names: Collection[str] | None = None, *, kind: str = "column", nested: bool = False
) -> Where:
    """Read a condition.

    Args:
        text: the condition.
        names: the columns or fields that exist; a condition may use any name if it is None.
        kind: what a name stands for in error messages: "column" or "field".
        nested: the fields hold further fields, so that only the first part of `a.b.c` must be in `names`.

    Raises:
        PointedError: `text` is no condition, or uses a name that does not exist; a caret points at the place.
    """
    if not isinstance(text, str):
        raise InputError(f'where is {type(text).__name__}; give a condition like "year >= 90".')
    return Where(text, _Parser(text, names, kind, nested).parse())


def compile_test(where: Where) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tells whether the condition holds for a row: a mapping of names to values.

    A missing field is null (None). Null is in no order and in no list; it equals only null. Values of different types
    are not equal and in no order, so the function never raises.
    """
    value = _compile(where.condition)
    return lambda row: bool(value(row))


def _error(text: str, problem: str, at: int) -> PointedError:
    line = text.replace("\n", " ").replace("\t", " ")
    return PointedError(f"where: {problem}:\n  {line}\n  {' ' * at}^")


@dataclass(frozen=True)
class _Token:
    kind: str  # number, string, name, keyword, sign or end
    text: str
    at: int


class _Parser:
    """A recursive-descent parser: or, and, not, comparison, operand."""

    def __init__(self, text: str, names: Collection[str] | None, kind: str, nested: bool) -> None:
        self._text, self._names, self._kind, self._nested = text, names, kind, nested
        self._tokens = self._split()
        self._next_token = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._peek().kind == "end":
            raise self._error("a condition was expected, like year >= 90", self._peek())
        condition = self._or()
        if self._peek().kind != "end":
            raise self._error("'and' or 'or' was expected here, or the end", self._peek())
        return condition

    def _or(self) -> Node:
        at, parts = self._peek().at, [self._and()]
        while self._skip("or"):
            parts.append(self._and())
        return parts[0] if len(parts) == 1 else Or(tuple(parts), at)

    def _and(self) -> Node:
        at, parts = self._peek().at, [self._not()]
        while self._skip("and"):
            parts.append(self._not())
        return parts[0] if len(parts) == 1 else And(tuple(parts), at)

    def _not(self) -> Node:
        places: list[int] = []
        while self._is("not"):
            places.append(self._peek().at)
            self._check_depth(len(places))
            self._next()
        condition = self._comparison()
        for at in reversed(places):
            condition = Not(condition, at)
        return condition

    def _comparison(self) -> Node:
        at, left = self._peek().at, self._operand(f"the name of a {self._kind} or a value was expected here")
        parts: list[Node] = []
        while True:
            sign = self._peek()
            text = "==" if sign.text == "=" else sign.text
            if sign.kind == "sign" and text in COMPARE:
                self._next()
                right = self._operand("a value was expected here, like 90 or 'text'")
                parts.append(Compare(left, text, right, at))
                left = right
            elif self._skip("is"):
                negated = self._skip("not")
                if not self._skip("null") and not self._skip_none():
                    raise self._error("'null' or 'not null' was expected here", self._peek())
                test: Node = IsNull(left, at)
                parts.append(Not(test, at) if negated else test)
            elif self._is("in") or self._is("not"):
                negated = self._skip("not")
                if not self._skip("in"):
                    raise self._error("'in' was expected here", self._peek())
                items = self._items()
                parts.append(Compare(left, "not in" if negated else "in", items, at))
                left = items
            else:
                break
        if not parts:
            return left
        return parts[0] if len(parts) == 1 else And(tuple(parts), at)

    def _items(self) -> Node:
        """What follows `in`: `('a')` is a list of one value, unlike elsewhere."""
        bracket = self._peek()
        operand = self._operand("'(' was expected here, as in: in (1, 2)")
        if bracket.text == "(" and isinstance(operand, Literal):
            return Items((operand,), bracket.at, self._tokens[self._next_token - 1].at)
        return operand

    def _operand(self, expected: str) -> Node:
        token = self._next()
        operand: Node
        if token.kind == "number":
            operand = Literal(self._number(token), token.at)
        elif token.kind == "string":
            value = _unescape(token.text)
            while self._peek().kind == "string":
                value += _unescape(self._next().text)
            operand = Literal(value, token.at)
        elif token.kind == "name":
            return self._members(self._field(token))
        elif token.text in ("-", "+") and token.kind == "sign" and self._peek().kind == "number":
            number = self._number(self._next())
            operand = Literal(-number if token.text == "-" else number, token.at)
        elif token.kind == "keyword" and token.text.lower() in ("true", "false", "null"):
            operand = Literal({"true": True, "false": False, "null": None}[token.text.lower()], token.at)
        elif token.text in ("(", "[") and token.kind == "sign":
            operand = self._bracket(token)
            if isinstance(operand, Field):
                return self._members(operand)
        else:
            raise self._error(expected, token)
        while self._is("."):
            self._next()
            operand = self._text_test(operand, self._next())
        return operand

    def _bracket(self, opening: _Token) -> Node:
        """A condition in parentheses, or a list; the opening bracket is read."""
        self._depth += 1
        self._check_depth(0, opening)
        closing = ")" if opening.text == "(" else "]"
        values: list[Node] = []
        commas = 0
        while not self._is(closing):
            values.append(self._or())
            if not self._skip(","):
                break
            commas += 1
        end = self._peek()
        if not self._skip(closing):
            raise self._error(
                f"',' or '{closing}' was expected here" if commas else f"'{closing}' was expected here", end
            )
        self._depth -= 1
        if opening.text == "(" and len(values) == 1 and not commas:
            return values[0]
        return Items(tuple(values), opening.at, end.at)

    def _field(self, token: _Token) -> Node:
        """A name; `None` is null unless a column has that name. A text test splits off: action.startswith('x')."""
        path = (token.text,) if self._text[token.at] == "`" else tuple(token.text.split("."))
        if path == ("None",) and "None" not in (self._names or ()):
            return Literal(None, token.at)
        if len(path) > 1 and path[-1] in TEXT_TESTS and self._is("("):
            field = Field(path[:-1], token.at)
            self._check_name(field)
            return self._text_test(field, _Token("name", path[-1], token.at))
        return Field(path, token.at)

    def _members(self, node: Node) -> Node:
        """The parts after a name: `.x`, `['x']`, and text tests."""
        while True:
            if self._is(".") and not isinstance(node, Literal):
                self._next()
                token = self._next()
                parts = (token.text,) if self._text[token.at : token.at + 1] == "`" else tuple(token.text.split("."))
                if token.kind not in ("name", "keyword"):
                    raise self._error("a name was expected here", token)
                if parts[-1] in TEXT_TESTS and self._is("("):
                    if isinstance(node, Field):
                        node = Field((*node.path, *parts[:-1]), node.at)
                        self._check_name(node)
                    node = self._text_test(node, _Token("name", parts[-1], token.at))
                elif isinstance(node, Field):
                    node = Field((*node.path, *parts), node.at)
                else:
                    raise self._error(f"one of {', '.join(TEXT_TESTS)} was expected here", token)
            elif self._is("[") and isinstance(node, Field):
                self._next()
                token = self._next()
                if token.kind != "string":
                    raise self._error("a name in quotes was expected here, like attributes['x']", token)
                if not self._skip("]"):
                    raise self._error("']' was expected here", self._peek())
                node = Field((*node.path, _unescape(token.text)), node.at)
            else:
                break
        if isinstance(node, Field):
            self._check_name(node)
        return node

    def _text_test(self, value: Node, name: _Token) -> Node:
        if name.text not in TEXT_TESTS or not self._skip("("):
            raise self._error(f"one of {', '.join(TEXT_TESTS)} was expected here", name)
        argument = self._or()
        self._skip(",")
        if not self._skip(")"):
            raise self._error("')' was expected here", self._peek())
        return TextTest(value, name.text, argument, value.at)

    def _check_name(self, field: Field) -> None:
        if self._names is None:
            return
        name = field.path[0] if self._nested else field.name
        if name in self._names:
            return
        similar = get_close_matches(name, list(self._names), n=1)
        hint = f"did you mean {similar[0]}?" if similar else f"there are: {', '.join(self._names) or 'none'}"
        raise _error(self._text, f"there is no {self._kind} '{name}'; {hint}", field.at)

    def _number(self, token: _Token) -> int | float:
        text = token.text
        try:
            if text.replace("_", "").isdecimal():
                return int(text)
            return int(text, 0) if text[:2].lower() in ("0x", "0o", "0b") else float(text)
        except ValueError:
            raise self._error("this is no number", token) from None

    def _check_depth(self, more: int, token: _Token | None = None) -> None:
        depth = self._depth + more
        if depth > DEEPEST:
            raise self._error(f"this is the {depth}th nesting; write it with fewer", token or self._peek())

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        text, at = self._text, 0
        length = len(text.rstrip())
        while at < length:
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                no_end = text[at] in "'\"`"
                problem = "this text has no end" if no_end else f"'{text[at]}' is not understood here"
                raise _error(text, problem, at)
            kind = match.lastgroup or ""
            word = match[kind]
            if kind == "word":
                kind = "keyword" if word.lower() in KEYWORDS else "name"
            elif kind == "quoted":
                kind, word = "name", word[1:-1]
            tokens.append(_Token(kind, word, match.start(match.lastgroup or 0)))
            at = match.end()
        return [*tokens, _Token("end", "", length)]

    def _peek(self) -> _Token:
        return self._tokens[self._next_token]

    def _next(self) -> _Token:
        token = self._peek()
        self._next_token = min(self._next_token + 1, len(self._tokens) - 1)
        return token

    def _is(self, text: str) -> bool:
        token = self._peek()
        return token.kind in ("keyword", "sign") and token.text.lower() == text

    def _skip(self, text: str) -> bool:
        if self._is(text):
            self._next_token += 1
            return True
        return False

    def _skip_none(self) -> bool:
        if self._peek().kind == "name" and self._peek().text == "None":
            self._next_token += 1
            return True
        return False

    def _error(self, problem: str, token: _Token) -> PointedError:
        return _error(self._text, problem, token.at)


def _unescape(token: str) -> str:
    """The text that a string token stands for; an unknown escape stays as it is, as in Python."""
    raw = token[0] in "rR"
    body = token[1:-1] if token[0] in "'\"" else token[2:-1]
    if raw or "\\" not in body:
        return body

    def replace(match: re.Match[str]) -> str:
        octal, *codes, other = match.groups()
        if other is not None:
            return other if other in "\\'\"`" else _LETTERS.get(other, match[0])
        code = int(octal, 8) if octal else int(next(code for code in codes if code), 16)
        return chr(code) if code < 0x110000 else match[0]

    return _ESCAPE.sub(replace, body)


_Row = Mapping[str, Any]
_Value = Callable[[_Row], Any]


def _compile(node: Node) -> _Value:
    match node:
        case Field(path=path):
            return _compile_field(path)
        case Literal(value=constant):
            return lambda _: constant
        case Items(values=values):
            items = [_compile(value) for value in values]
            return lambda row: [item(row) for item in items]
        case Not(part=part):
            negated = _compile(part)
            return lambda row: not negated(row)
        case And(parts=parts):
            every = [_compile(part) for part in parts]
            return lambda row: all(part(row) for part in every)
        case Or(parts=parts):
            several = [_compile(part) for part in parts]
            return lambda row: any(part(row) for part in several)
        case IsNull(value=value):
            operand = _compile(value)
            return lambda row: operand(row) is None
        case TextTest(value=value, name=name, argument=argument):
            return _compile_text_test(TEXT_TESTS[name], _compile(value), _compile(argument))
        case Compare(left=left, sign=sign, right=right):
            return _compile_comparison(_compile(left), sign, _compile(right))
    raise AssertionError(node)


def _compile_field(path: tuple[str, ...]) -> _Value:
    first, *rest = path
    if not rest:
        return lambda row: row.get(first)

    def read(row: _Row) -> Any:
        value: Any = row.get(first)
        for name in rest:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    return read


def _compile_text_test(test: Callable[[str, str], bool], value: _Value, argument: _Value) -> _Value:
    def run(row: _Row) -> bool:
        text, part = value(row), argument(row)
        return isinstance(text, str) and isinstance(part, str) and test(text, part)

    return run


def _compile_comparison(left: _Value, sign: str, right: _Value) -> _Value:
    test = COMPARE.get(sign)
    equality = sign in ("==", "!=")

    def compare(row: _Row) -> bool:
        a, b = left(row), right(row)
        if not equality and (a is None or b is None):
            return False
        try:
            if test is not None:
                return bool(test(a, b))
            return (a in b) is (sign == "in")
        except TypeError:  # a text and a number have no order
            return False

    return compare
