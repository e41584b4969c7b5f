"""A small language for filters: `year >= 90 and source == 'dbus'`.

    condition   column (== | != | < | <= | > | >=) value
                column [not] in (value, value, …)      column is [not] null      column      (a truth value)
    joined by   and, or, not, ( )
    values      90   -1.5   'text' or "text"   true   false
    dates       as text: '2001-09-09', '2001-09-09T01:46+02:00'; without a zone they are UTC
    columns     as they are called; `odd names` between backquotes

It becomes a pyarrow expression, so comparisons follow Arrow: a null is never equal to anything. An error shows the
place:

>>> import pyarrow as pa
>>> rows_where("year >= 90", pa.table({"year": [85, 93, 90]})).tolist()
[1, 2]
>>> parse("year >> 90")
Traceback (most recent call last):
...
ridgeline.errors.PointedError: where: a value was expected here, like 90 or 'text':
  year >> 90
        ^
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from difflib import get_close_matches
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra, PointedError
from ridgeline.search.arrays import Whole

COMPARE = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
KEYWORDS = ("and", "or", "not", "in", "is", "null", "true", "false")
DEEPEST = 50  # parentheses and nots within each other
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    |(?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<quoted>`[^`]+`)
    |(?P<word>[^\W\d]\w*(?:\.\w+)*)
    |(?P<sign><=|>=|==|!=|<|>|=|\(|\)|,))""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    kind: str  # number, string, column, keyword, sign or end
    text: str
    at: int


def parse(text: str, table: Any = None) -> Any:
    """The pyarrow expression that `text` writes; with a table, its columns and their types are checked too."""
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
    except ImportError:
        raise MissingExtra("where", "parquet") from None
    return _Parser(text, table, pa, pc).whole()


def rows_where(text: str, table: Any) -> Whole:
    """The rows of `table` for which it holds, rising."""
    expression = parse(text, table)
    import pyarrow as pa

    numbered = pa.table({**{n: table[n] for n in table.column_names}, _ROW: pa.array(np.arange(table.num_rows))})
    return np.asarray(numbered.filter(expression)[_ROW].to_numpy(), np.int64)


_ROW = " row"  # no column of a user begins with a blank and survives the language


class _Parser:
    def __init__(self, text: str, table: Any, pa: Any, pc: Any) -> None:
        if not isinstance(text, str):
            raise InputError(f'where is {type(text).__name__}; give a condition like "year >= 90".')
        self.text, self.table, self.pa, self.pc = text, table, pa, pc
        self.tokens = self._split()
        self.at = 0
        self.depth = 0

    def whole(self) -> Any:
        if self._peek().kind == "end":
            raise self._error("a condition was expected, like year >= 90", self._peek())
        found = self._either()
        if self._peek().kind != "end":
            raise self._error("'and' or 'or' was expected here, or the end", self._peek())
        return found

    def _either(self) -> Any:
        found = self._both()
        while self._skip("or"):
            found = found | self._both()
        return found

    def _both(self) -> Any:
        found = self._one()
        while self._skip("and"):
            found = found & self._one()
        return found

    def _one(self) -> Any:
        self.depth += 1
        if self.depth > DEEPEST:
            raise self._error(f"this is the {self.depth}th nesting; write it with fewer", self._peek())
        try:
            if self._skip("not"):
                return ~self._one()
            if self._skip("("):
                found = self._either()
                if not self._skip(")"):
                    raise self._error("')' was expected here", self._peek())
                return found
            return self._condition()
        finally:
            self.depth -= 1

    def _condition(self) -> Any:
        column = self._next()
        if column.kind != "column":
            raise self._error("the name of a column was expected here", column)
        field = self._field(column)
        sign = self._peek()
        if sign.text in COMPARE and sign.kind == "sign":
            self._next()
            value = self._value(column)
            return self._tried(COMPARE[sign.text](field, self.pc.scalar(value)), column)
        if self._skip("is"):
            turned = self._skip("not")
            if not self._skip("null"):
                raise self._error("'null' or 'not null' was expected here", self._peek())
            return field.is_valid() if turned else field.is_null()
        turned = self._skip("not")
        if self._skip("in"):
            found = self._tried(self._among(field, column), column)
            return ~found & field.is_valid() if turned else found
        if turned:
            raise self._error("'in' was expected here", self._peek())
        return self._tried(field == self.pc.scalar(True), column)

    def _among(self, field: Any, column: Token) -> Any:
        if not self._skip("("):
            raise self._error("'(' was expected here, as in: in (1, 2)", self._peek())
        start = self._peek()
        values = [self._value(column)]
        while self._skip(","):
            values.append(self._value(column))
        if not self._skip(")"):
            raise self._error("',' or ')' was expected here", self._peek())
        try:
            return field.isin(self.pa.array(values))
        except (self.pa.ArrowInvalid, self.pa.ArrowTypeError):
            raise self._error("these values are of different kinds; give numbers only, or texts only", start) from None

    def _field(self, token: Token) -> Any:
        if self.table is not None and token.text not in self.table.column_names:
            near = get_close_matches(token.text, self.table.column_names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(self.table.column_names) or 'none'}"
            raise self._error(f"there is no column '{token.text}'; {hint}", token)
        return self.pc.field(token.text)

    def _value(self, column: Token) -> Any:
        token = self._next()
        if token.kind == "number":
            plain = token.text.lstrip("+-").isdecimal()
            value = int(token.text) if plain else float(token.text)
            if isinstance(value, int) and not -(2**63) <= value < 2**64:
                raise self._error("this number does not fit 64 bits", token)
            return value
        if token.kind == "string":
            text = re.sub(r"\\(.)", r"\1", token.text[1:-1])
            kind = None if self.table is None else self.table.schema.field(column.text).type
            dated = kind is not None and (self.pa.types.is_timestamp(kind) or self.pa.types.is_date(kind))
            return self._date(text, kind, token) if dated else text
        if token.text.lower() in ("true", "false") and token.kind == "keyword":
            return token.text.lower() == "true"
        raise self._error("a value was expected here, like 90 or 'text'", token)

    def _date(self, text: str, kind: Any, token: Token) -> Any:
        """A moment of the column's own type; one without a zone is UTC."""
        try:
            when = datetime.fromisoformat(text)
            if self.pa.types.is_date(kind):
                return self.pa.scalar(date.fromisoformat(text), kind)
        except ValueError:
            raise self._error(f"this is no moment of {kind}, like '2001-09-09' or '2001-09-09T01:46'", token) from None
        when = when.astimezone(UTC) if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return self.pa.scalar(when if kind.tz is not None else when.replace(tzinfo=None), kind)

    def _tried(self, expression: Any, token: Token) -> Any:
        """Arrow says only when it runs that a text is no number: run it over no rows, while the place is known."""
        if self.table is not None:
            try:
                self.table.schema.empty_table().filter(expression)
            except (self.pa.ArrowInvalid, self.pa.ArrowNotImplementedError, self.pa.ArrowTypeError):
                kind = self.table.schema.field(token.text).type
                raise self._error(f"'{token.text}' is {kind}, and cannot be compared with that", token) from None
        return expression

    def _split(self) -> list[Token]:
        found, at = [], 0
        while at < len(self.text.rstrip()):
            match = _TOKEN.match(self.text, at)
            if match is None:
                at += len(self.text[at:]) - len(self.text[at:].lstrip())
                what = (
                    "this text has no end" if self.text[at] in "'\"`" else f"'{self.text[at]}' is not understood here"
                )
                raise self._error(what, Token("", "", at))
            kind = match.lastgroup or ""
            word = match[kind]
            if kind == "word":
                kind = "keyword" if word.lower() in KEYWORDS else "column"
            elif kind == "quoted":
                kind, word = "column", word[1:-1]
            found.append(Token(kind, word, match.start(match.lastgroup or 0)))
            at = match.end()
        return [*found, Token("end", "", len(self.text.rstrip()))]

    def _peek(self) -> Token:
        return self.tokens[self.at]

    def _next(self) -> Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def _skip(self, text: str) -> bool:
        token = self._peek()
        if token.kind in ("keyword", "sign") and token.text.lower() == text:
            self.at += 1
            return True
        return False

    def _error(self, what: str, token: Token) -> PointedError:
        line = self.text.replace("\n", " ").replace("\t", " ")
        return PointedError(f"where: {what}:\n  {line}\n  {' ' * token.at}^")
