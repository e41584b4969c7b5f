"""OTLP's protobuf read field by field in plain Python: slow and obvious, for comparison with the native parser."""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

DEEPEST = 20
EXACT = 1 << 53
# number → (name, type, wire type)
RECORD = {
    1: ("time", "number", 1),
    11: ("observed", "number", 1),
    2: ("severity_number", "number", 0),
    3: ("severity_text", "text", 2),
    5: ("body", "value", 2),
    6: ("attributes", "pairs", 2),
    7: ("dropped", "number", 0),
    9: ("trace_id", "hex", 2),
    10: ("span_id", "hex", 2),
    12: ("event_name", "text", 2),
}


class Malformed(Exception):
    pass


def parse(body: bytes) -> list[tuple[dict[str, Any], str, list[tuple[Any, ...]]]]:
    """Return (attributes of the resource, name of the scope, records) of each ScopeLogs with records."""
    groups = []
    for resource_logs in find(body, 1):
        resource: dict[str, Any] = {}
        for data in find(resource_logs, 1):
            resource = dict(pair for item in find(data, 1) for pair in parse_pair(item, 0))
        for scope_logs in find(resource_logs, 2):
            scope = ""
            for data in find(scope_logs, 1):
                scope = "".join([decode(name) for name in find(data, 1)][-1:])
            records = [parse_record(record) for record in find(scope_logs, 2)]
            if records:
                groups.append((resource, scope, records))
    return groups


def parse_record(data: bytes) -> tuple[Any, ...]:
    record: dict[str, Any] = {}
    for name, kind, _ in RECORD.values():
        record[name] = {} if kind == "pairs" else None if kind == "value" else 0 if kind == "number" else ""
    for number, wire, value in fields(data):
        name, kind, expected = RECORD.get(number, ("", "", -1))
        if wire != expected:
            continue
        if kind == "pairs":
            record[name].update(parse_pair(value, 0))
        elif kind == "value":
            record[name] = parse_value(value, 0)
        elif kind == "text":
            record[name] = decode(value)
        else:
            record[name] = value.hex() if kind == "hex" else value
    return tuple(record.values())


def parse_pair(data: bytes, depth: int) -> list[tuple[str, Any]]:
    key, item = b"", None
    for number, wire, value in fields(data):
        if (number, wire) == (1, 2):
            key = value
        elif (number, wire) == (2, 2):
            item = parse_value(value, depth)
    return [(decode(key), item)] if key else []


def parse_value(data: bytes, depth: int) -> Any:
    if depth > DEEPEST:
        raise Malformed
    result: Any = None
    for number, wire, value in fields(data):
        if (number, wire) == (1, 2):
            result = decode(value)
        elif (number, wire) == (2, 0):
            result = value != 0
        elif (number, wire) == (3, 0):
            signed = value - (1 << 64) if value >= 1 << 63 else value
            result = signed if abs(signed) < EXACT else str(signed)
        elif (number, wire) == (4, 1):
            double = struct.unpack("<d", value.to_bytes(8, "little"))[0]
            result = double if math.isfinite(double) else str(double)
        elif (number, wire) == (5, 2):
            result = [parse_value(item, depth + 1) for item in find(value, 1)]
        elif (number, wire) == (6, 2):
            result = dict(pair for item in find(value, 1) for pair in parse_pair(item, depth + 1))
        elif (number, wire) == (7, 2):
            result = base64.b64encode(value).decode()
    return result


def decode(data: bytes) -> str:
    return data.decode("utf-8", errors="backslashreplace")


def find(data: bytes, number: int) -> list[bytes]:
    return [value for n, wire, value in list(fields(data)) if (n, wire) == (number, 2)]


def fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = read_varint(data, at)
            yield number, wire, value
            continue
        if wire not in (1, 2, 5):
            raise Malformed
        size = {1: 8, 5: 4}.get(wire, 0)
        if wire == 2:
            size, at = read_varint(data, at)
        if not number or size > len(data) - at:
            raise Malformed
        piece, at = data[at : at + size], at + size
        yield number, wire, piece if wire == 2 else int.from_bytes(piece, "little")


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for k, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * k
        if byte < 0x80:
            return value & ((1 << 64) - 1), at + k + 1
    raise Malformed
