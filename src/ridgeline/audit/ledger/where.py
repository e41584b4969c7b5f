"""Conditions on events, as one writes them: `source == 'dbus' and action.startswith('network.')`.

Python's own grammar is read, and nothing is ever evaluated by Python: only comparisons, and, or, not, in, the names of
an event, `attributes.x` or `attributes['x']`, constants, and three questions about strings.

>>> matches = parse_where("source == 'dbus' and attributes.n > 2")
>>> matches({"source": "dbus", "attributes": {"n": 3}}), matches({"source": "dbus", "attributes": {}})
(True, False)
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from ridgeline.audit.ledger.event import NAMES
from ridgeline.errors import InputError, unknown

Event = Mapping[str, Any]
Value = Callable[[Event], Any]

_FIELDS = ("index", *NAMES)
_STRING = {"startswith": str.startswith, "endswith": str.endswith, "contains": str.__contains__}
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_LONGEST = 1_000


def parse_where(text: str) -> Callable[[Event], bool]:
    """The condition as a function of an event; a name that an event lacks is None and compares with nothing."""
    try:
        tree = ast.parse(text, mode="eval").body if len(text) <= _LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        tree = None
    if tree is None:
        raise InputError(f"--where '{text[:80]}' cannot be read; write it like: source == 'dbus' and attributes.n > 2")
    try:
        value = _value(tree, text)
    except RecursionError:
        raise InputError(f"--where '{text[:80]}…' is nested too deep; write it in fewer steps.") from None
    return lambda event: bool(value(event))


def _value(node: ast.expr, text: str) -> Value:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            return lambda _: constant
        case ast.Name(id=name):
            if name not in _FIELDS:
                raise unknown("name of an event", name, _FIELDS)
            return lambda event: event.get(name)
        case ast.Attribute(value=ast.Name() | ast.Attribute() | ast.Subscript() as inner, attr=name):
            return _member(_value(inner, text), name)
        case ast.Subscript(
            value=ast.Name() | ast.Attribute() | ast.Subscript() as inner, slice=ast.Constant(value=str() as name)
        ):
            return _member(_value(inner, text), name)
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            plain = _value(inner, text)
            return lambda event: not plain(event)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return lambda _: -number
        case ast.BoolOp(op=op, values=parts):
            found = [_value(part, text) for part in parts]
            several = all if isinstance(op, ast.And) else any
            return lambda event: several(part(event) for part in found)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            items = [_value(part, text) for part in parts]
            return lambda event: [item(event) for item in items]
        case ast.Compare(left=left, ops=ops, comparators=rights):
            return _compare(_value(left, text), ops, [_value(right, text) for right in rights])
        case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[argument], keywords=[]) if name in _STRING:
            return _ask(_STRING[name], _value(inner, text), _value(argument, text))
    raise InputError(
        f"--where '{text[:80]}' asks for more than comparisons, and, or, not, in, {', '.join(_STRING)} can say."
    )


def _member(of: Value, name: str) -> Value:
    def member(event: Event) -> Any:
        found = of(event)
        return found.get(name) if isinstance(found, Mapping) else None

    return member


def _ask(question: Callable[[str, str], bool], of: Value, about: Value) -> Value:
    def ask(event: Event) -> bool:
        text, word = of(event), about(event)
        return isinstance(text, str) and isinstance(word, str) and question(text, word)

    return ask


def _compare(left: Value, ops: list[ast.cmpop], rights: list[Value]) -> Value:
    def compare(event: Event) -> bool:
        a = left(event)
        for op, right in zip(ops, rights, strict=True):
            b = right(event)
            try:
                if isinstance(op, _ORDERED) and (a is None or b is None):
                    return False
                if not _COMPARE[type(op)](a, b):
                    return False
            except (TypeError, KeyError):  # a string against a number: not the same, and in no order
                return False
            a = b
        return True

    return compare
