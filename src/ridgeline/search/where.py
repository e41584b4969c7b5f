"""Conditions over the columns of a table: which rows pass `--where`.

The language is `ridgeline.store.parse_where`. A condition becomes a pyarrow expression, so comparisons follow Arrow: a
null is neither equal nor unequal to anything, and `not` of an unknown result is unknown. Columns have types, so a
comparison that can never hold is an error. Texts that are compared with a date or a timestamp are dates:
'2001-09-09', '2001-09-09T01:46+02:00'; without a zone they are UTC.

>>> import pyarrow as pa
>>> rows_where("year >= 90", pa.table({"year": [85, 93, 90]})).tolist()
[1, 2]
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from ridgeline.errors import MissingExtra
from ridgeline.search.arrays import Integers
from ridgeline.store import (
    COMPARE,
    And,
    Compare,
    Field,
    IsNull,
    Items,
    Literal,
    Node,
    Not,
    Or,
    TextTest,
    Where,
    compile_test,
    parse_where,
)

_ROW = " row"  # a condition cannot name a column that begins with a blank
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "==": "==", "!=": "!="}
_TEXT_TESTS = {"startswith": "starts_with", "endswith": "ends_with", "contains": "match_substring"}


def rows_where(text: str, table: Any) -> Integers:
    """Return the numbers of the rows of `table` (a pyarrow.Table) for which the condition holds, ascending.

    Raises:
        PointedError: the condition cannot be read, names no column, or does not fit the type of a column.
        MissingExtra: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("where", "parquet") from None
    where = parse_where(text, table.column_names)
    builder = _Builder(where, table)
    expression = builder.build(where.condition)
    columns = {name: table[name] for name in table.column_names} | builder.filters
    numbered = pa.table({**columns, _ROW: pa.array(np.arange(table.num_rows))})
    return np.asarray(numbered.filter(expression)[_ROW].to_numpy(), np.int64)


class _Builder:
    """Turns a condition into a pyarrow expression over one table."""

    def __init__(self, where: Where, table: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._where, self._table, self._pa, self._pc = where, table, pa, pc
        self.filters: dict[str, Any] = {}  # conditions that Arrow cannot express, as columns of truth values

    def build(self, node: Node) -> Any:
        match node:
            case Or(parts=parts):
                result = self.build(parts[0])
                for part in parts[1:]:
                    result = result | self.build(part)
                return result
            case And(parts=parts):
                result = self.build(parts[0])
                for part in parts[1:]:
                    result = result & self.build(part)
                return result
            case Not(part=part):
                return ~self.build(part)
            case Field():
                return self._check(self._field(node) == self._pc.scalar(True), node)
            case Literal(value=bool() as value):
                return self._pc.scalar(value)
            case IsNull(value=Field() as field):
                return self._field(field).is_null()
            case TextTest(value=Field() as field, name=name, argument=Literal(value=str() as text)):
                return self._check(getattr(self._pc, _TEXT_TESTS[name])(self._field(field), text), field)
            case Compare(left=Field(), sign="in" | "not in", right=right):
                return self._build_choice(node, right)
            case Compare(left=Literal() as value, sign=sign, right=Field() as field) if sign in _FLIPPED:
                return self._build_comparison(field, _FLIPPED[sign], value)
            case Compare(left=Field() as field, sign=sign, right=Literal() as value) if sign in _FLIPPED:
                return self._build_comparison(field, sign, value)
            case Compare(left=Field() as field, sign=sign, right=Field() as other) if sign in _FLIPPED:
                return self._check(COMPARE[sign](self._field(field), self._field(other)), field)
            case Literal() | Items():
                raise self._where.error("the name of a column was expected here", node.at)
        return self._build_by_row(node)

    def _build_comparison(self, field: Field, sign: str, literal: Literal) -> Any:
        column = self._field(field)
        if literal.value is None and sign in ("==", "!="):
            return column.is_null() if sign == "==" else column.is_valid()
        value = self._pc.scalar(self._value(literal, field))
        return self._check(COMPARE[sign](column, value), field)

    def _build_choice(self, node: Compare, right: Node) -> Any:
        """`column in (…)`, and its opposite, which leaves out nulls too."""
        if isinstance(right, Literal):
            raise self._where.error("'(' was expected here, as in: in (1, 2)", right.at)
        if not isinstance(right, Items) or not isinstance(node.left, Field):
            return self._build_by_row(node)
        if not right.values:
            raise self._where.error("a value was expected here, like 90 or 'text'", right.end)
        literals = [value for value in right.values if isinstance(value, Literal)]
        if len(literals) < len(right.values):
            return self._build_by_row(node)
        values = [self._value(literal, node.left) for literal in literals if literal.value is not None]
        column = self._field(node.left)
        try:
            result = self._check(column.isin(self._pa.array(values)), node.left)
        except (self._pa.ArrowInvalid, self._pa.ArrowTypeError):
            raise self._where.error(
                "these values are of different kinds; give numbers only, or texts only", literals[0].at
            ) from None
        return result if node.sign == "in" else ~result & column.is_valid()

    def _build_by_row(self, node: Node) -> Any:
        """A condition that Arrow cannot express, evaluated row by row."""
        names: dict[str, None] = {}
        test = compile_test(Where(self._where.text, _flatten(node, names)))
        columns = [self._table[name].to_pylist() for name in names]
        rows = zip(*columns, strict=True) if columns else [()] * self._table.num_rows
        mask = [test(dict(zip(names, row, strict=True))) for row in rows]
        name = f" condition {len(self.filters)}"
        self.filters[name] = self._pa.array(mask, self._pa.bool_())
        return self._pc.field(name)

    def _field(self, field: Field) -> Any:
        return self._pc.field(field.name)

    def _value(self, literal: Literal, field: Field) -> Any:
        """The value as the column's type needs it."""
        value = literal.value
        if isinstance(value, int) and not -(2**63) <= value < 2**64:
            raise self._where.error("this number does not fit 64 bits", literal.at)
        if isinstance(value, str):
            kind = self._table.schema.field(field.name).type
            if self._pa.types.is_timestamp(kind) or self._pa.types.is_date(kind):
                return self._moment(value, kind, literal.at)
        return value

    def _moment(self, text: str, kind: Any, at: int) -> Any:
        """A date or a time of the column's type; one without a zone is UTC."""
        try:
            when = datetime.fromisoformat(text)
            if self._pa.types.is_date(kind):
                return self._pa.scalar(date.fromisoformat(text), kind)
        except ValueError:
            problem = f"this is no moment of {kind}, like '2001-09-09' or '2001-09-09T01:46'"
            raise self._where.error(problem, at) from None
        when = when.astimezone(UTC) if when.tzinfo is not None else when.replace(tzinfo=UTC)
        return self._pa.scalar(when if kind.tz is not None else when.replace(tzinfo=None), kind)

    def _check(self, expression: Any, field: Field) -> Any:
        """Arrow checks types only when it runs: run it over no rows, while the place in the text is known."""
        try:
            self._table.schema.empty_table().filter(expression)
        except (self._pa.ArrowInvalid, self._pa.ArrowNotImplementedError, self._pa.ArrowTypeError):
            kind = self._table.schema.field(field.name).type
            raise self._where.error(f"'{field.name}' is {kind}, and cannot be compared with that", field.at) from None
        return expression


def _flatten(node: Any, names: dict[str, None]) -> Any:
    """The condition with every `a.b` as the column of that name; `names` collects the columns."""
    if isinstance(node, Field):
        names[node.name] = None
        return Field((node.name,), node.at)
    if isinstance(node, tuple):
        return tuple(_flatten(part, names) for part in node)
    if not is_dataclass(node) or isinstance(node, type):
        return node
    return replace(node, **{part.name: _flatten(getattr(node, part.name), names) for part in fields(node)})
