"""The OTLP source: logs of OpenTelemetry by HTTP, POST /v1/logs with a bearer token, as protobuf or JSON, gzip too.

    OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=http://127.0.0.1:4318/v1/logs
    OTEL_EXPORTER_OTLP_LOGS_HEADERS="authorization=Bearer%20…"

The answer comes when the events are on the disk. A record that the log cannot hold is refused in the answer (a partial
success); the others are recorded. An exporter that gets no answer sends again, and OTLP has no key for a request: a
record arrives at least once, and after a lost answer perhaps twice.

The messages are those of opentelemetry-proto (logs.proto, common.proto, resource.proto), read field by field.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import re
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Any

from ridgeline import web
from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources.http import BODY, Http, PendingRequest, Refusal, read_body
from ridgeline.audit.sources.source import LATEST, Event, shorten
from ridgeline.errors import InputError, RidgelineError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PROTOBUF, JSON = "application/x-protobuf", "application/json"
_DEEPEST = 20  # values nested deeper are refused
_EXACT = 1 << 53  # larger integers are texts, because JSON has only doubles
_WORD = re.compile(r"[^A-Za-z0-9_-]+")
_SEVERITIES = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")  # each has four numbers, from 1 on
_ACTORS = ("enduser.id", "user.name", "user.id")
# what other sources call a resource's attribute
_NAMES = {"host.name": "host", "process.pid": "pid", "process.executable.path": "exe"}

Message = dict[str, Any]


class Otlp(Http):
    """Receives OpenTelemetry's logs; the arguments are those of `Http`."""

    option, path = "--otlp", "/v1/logs"

    def _routes(self, token: str | None) -> web.App:
        from starlette.responses import PlainTextResponse
        from starlette.routing import Route

        async def take(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            try:
                return _answer(kind, await self._take_logs(request, kind))
            except Refusal as refusal:
                return _answer_error(kind, str(refusal), refusal.status, refusal.headers)
            except InputError as error:
                return _answer_error(kind, str(error), 400, {})

        async def metrics(request: Request) -> Response:
            return PlainTextResponse(self.metrics(), media_type="text/plain; version=0.0.4")

        routes = [Route(self.path, take, methods=["POST"]), Route("/metrics", metrics)]
        return web.create_app(routes, token=token, body_limit=BODY, concurrency=256)

    async def _take_logs(self, request: Request, kind: str) -> tuple[int, str]:
        """Record the logs of a request; return the number of refused records, and the reason for the first."""
        if kind not in (PROTOBUF, JSON):
            raise Refusal(415, f"the content-type is {kind[:60]!r}; send {PROTOBUF} or {JSON}.")
        body, most = await read_body(request), self.most_events
        events = await asyncio.to_thread(lambda: list(islice(parse_logs(body, kind), most + 1)))
        if len(events) > most:
            raise Refusal(413, f"the request has more than {most:,} records; send fewer at once.")
        events, reasons = await asyncio.to_thread(_select_valid, events)
        try:
            if events:
                await self.record(PendingRequest(events, Future()))
        except InputError:
            raise
        except RidgelineError as error:  # an exporter sends again after 503, but not after 500
            raise Refusal(503, str(error), retry_s=5) from None
        return len(reasons), reasons[0] if reasons else ""


def _select_valid(events: list[Event]) -> tuple[list[Event], list[str]]:
    """Return the events that the log accepts, and the reasons against the others."""
    try:
        encode(events)
        return events, []
    except InputError:
        pass
    valid, reasons = list[Event](), list[str]()
    for number, event in enumerate(events):
        try:
            encode([event])
            valid.append(event)
        except InputError as error:
            reasons.append(str(error).replace("event 0", f"record {number}", 1))  # `encode` numbers it from 0
    return valid, reasons


def _answer(kind: str, partial: tuple[int, str]) -> Response:
    """Make an ExportLogsServiceResponse; empty if no record was refused."""
    from starlette.responses import JSONResponse, Response

    refused, why = partial
    if kind == JSON:
        words = {"rejectedLogRecords": str(refused), "errorMessage": why}
        return JSONResponse({"partialSuccess": words} if refused else {})
    inner = b"\x08" + _varint(refused) + _text_field(2, why)
    return Response(b"\x0a" + _varint(len(inner)) + inner if refused else b"", media_type=PROTOBUF)


def _answer_error(kind: str, why: str, status: int, headers: dict[str, str]) -> Response:
    """Make a google.rpc.Status, whose second field is the message."""
    from starlette.responses import JSONResponse, Response

    if kind == PROTOBUF:
        return Response(_text_field(2, why), status, headers, media_type=PROTOBUF)
    return JSONResponse({"message": why}, status, headers)


def parse_logs(body: bytes, kind: str) -> Iterator[Event]:
    """Yield the events of an ExportLogsServiceRequest; raise `InputError` if the body is none."""
    if kind == JSON:
        try:
            words = json.loads(body)
        except RecursionError:
            raise InputError("the body is nested too deep.") from None
        except ValueError:
            raise InputError("the body is not JSON.") from None
        yield from _make_events(words, _read_message)
    else:
        yield from _make_events(body, _parse_message)


def _make_events(request: Any, read: Callable[[Any, str], Message]) -> Iterator[Event]:
    """Yield the events of a request; `read` makes a message of its encoded form, and a list stays encoded until here.

    So a body of millions of empty messages takes no more memory than its bytes.
    """
    for resource_logs in read(request, "ExportLogsServiceRequest")["resource_logs"]:
        group = read(resource_logs, "ResourceLogs")
        resource = dict(group["resource"]["attributes"] if group["resource"] else ())
        for scope_logs in group["scope_logs"]:
            scoped = read(scope_logs, "ScopeLogs")
            scope = scoped["scope"]["name"] if scoped["scope"] else ""
            for record in scoped["log_records"]:
                yield make_event(read(record, "LogRecord"), resource, scope)


def make_event(record: Message, resource: dict[str, Any], scope: str) -> Event:
    """Make an event of a log record: action its event name or `otlp.log`, subject the service."""
    attributes = dict(record["attributes"])
    body = record["body"]
    if body not in (None, ""):
        attributes["body" if "message" in attributes or not isinstance(body, str) else "message"] = body
    number = record["severity_number"]
    severity = record["severity_text"] or (_SEVERITIES[(number - 1) // 4] if 0 < number <= 24 else "")
    known = {"severity": severity, "service.name": resource.get("service.name")}
    known |= {ours: resource.get(name) for name, ours in _NAMES.items()}
    known |= {"trace_id": record["trace_id"], "_span_id": record["span_id"], "_scope": scope, "_resource": resource}
    for name, value in known.items():
        if value not in (None, "", {}):
            attributes.setdefault(name, value)
    if record["dropped_attributes_count"]:
        attributes["_dropped_attributes"] = record["dropped_attributes_count"]
    actor = next((attributes[name] for name in _ACTORS if isinstance(attributes.get(name), str | int)), None)
    name = record["event_name"] or attributes.get("event.name") or ""
    action = ".".join(word for part in str(name).split(".") if (word := _WORD.sub("_", part).strip("_-")))[:200]
    moment = record["time_unix_nano"] or record["observed_time_unix_nano"]
    service = resource.get("service.name")
    return {
        "time": moment if 0 < moment <= LATEST else time.time_ns(),
        "source": "otlp",
        "actor": shorten(str(actor)) if actor is not None else None,
        "action": action.strip(".") or "otlp.log",
        "subject": shorten(service) if isinstance(service, str) and service else None,
        "attributes": attributes,
    }


# The messages: field number → (name, type). "list" has encoded messages, "pairs" has (key, value) of each KeyValue; a
# capital letter is a message of this table.
_MESSAGES: dict[str, dict[int, tuple[str, str]]] = {
    "ExportLogsServiceRequest": {1: ("resource_logs", "list")},
    "ResourceLogs": {1: ("resource", "Resource"), 2: ("scope_logs", "list")},
    "Resource": {1: ("attributes", "pairs")},
    "ScopeLogs": {1: ("scope", "Scope"), 2: ("log_records", "list")},
    "Scope": {1: ("name", "string")},
    "KeyValue": {1: ("key", "string"), 2: ("value", "AnyValue")},
    "LogRecord": {
        1: ("time_unix_nano", "fixed64"),
        2: ("severity_number", "varint"),
        3: ("severity_text", "string"),
        5: ("body", "AnyValue"),
        6: ("attributes", "pairs"),
        7: ("dropped_attributes_count", "varint"),
        9: ("trace_id", "hex"),
        10: ("span_id", "hex"),
        11: ("observed_time_unix_nano", "fixed64"),
        12: ("event_name", "string"),
    },
}
_VALUES = {
    1: ("string_value", "string"),
    2: ("bool_value", "bool"),
    3: ("int_value", "int"),
    4: ("double_value", "double"),
    5: ("array_value", "array"),
    6: ("kvlist_value", "kvlist"),
    7: ("bytes_value", "bytes"),
}
_WIRE = {"varint": 0, "int": 0, "bool": 0, "fixed64": 1, "double": 1}  # the others are 2: length and bytes


def _make_empty(kind: str) -> Message:
    """Return a message without fields: lists are empty, numbers 0, texts empty, messages None."""
    message: Message = {}
    for name, type in _MESSAGES[kind].values():
        if type in ("list", "pairs"):
            message[name] = []
        else:
            message[name] = None if type[0].isupper() else "" if type in ("string", "hex") else 0
    return message


def _parse_message(data: bytes, kind: str, depth: int = 0) -> Message:
    """Parse a protobuf message; unknown fields are skipped."""
    message, types = _make_empty(kind), _MESSAGES[kind]
    for number, wire, value in _parse_fields(data):
        name, type = types.get(number, ("", ""))
        if not name or wire != _WIRE.get(type, 2):
            continue
        if type == "list":
            message[name].append(value)
        elif type == "pairs":
            message[name] += _parse_pair(value, depth)
        elif type == "AnyValue":
            message[name] = _parse_value(value, depth)
        elif type[0].isupper():
            message[name] = _parse_message(value, type, depth)
        else:
            message[name] = _scalar(type, value)
    return message


def _parse_pair(data: bytes, depth: int) -> list[tuple[str, Any]]:
    """Parse a KeyValue; one without a key is left out."""
    # Nearly all are a short key and a short text, which needs no general parser: 0a KEY 12 (0a TEXT), one byte per
    # length. This is half of the time of a body.
    size = len(data)
    if size > 5 and data[0] == 0x0A and 0 < data[1] < size - 5:
        at = 2 + data[1]
        text = size - at - 4
        if data[1] < 128 and text < 126 and data[at : at + 4] == bytes((0x12, text + 2, 0x0A, text)):
            return [(_scalar("string", data[2:at]), _scalar("string", data[at + 4 :]))]
    key, item = b"", None
    for number, wire, value in _parse_fields(data):  # most of a body is pairs, so without a message in between
        if (number, wire) == (1, 2):
            key = value
        elif (number, wire) == (2, 2):
            item = _parse_value(value, depth)
    return [(_scalar("string", key), item)] if key else []


def _parse_value(data: bytes, depth: int) -> Any:
    """Parse an AnyValue; the last of its fields counts."""
    if depth > _DEEPEST:
        raise InputError("a value of the body is nested too deep.")
    result: Any = None
    for number, wire, value in _parse_fields(data):
        _, type = _VALUES.get(number, ("", ""))
        if not type or wire != _WIRE.get(type, 2):
            continue
        if type == "array":
            result = [_parse_value(v, depth + 1) for n, w, v in _parse_fields(value) if (n, w) == (1, 2)]
        elif type == "kvlist":
            items = (v for n, w, v in _parse_fields(value) if (n, w) == (1, 2))
            result = dict(pair for item in items for pair in _parse_pair(item, depth + 1))
        else:
            result = _scalar(type, value)
    return result


def _scalar(type: str, value: Any) -> Any:
    if type == "string":
        return value.decode("utf-8", errors="backslashreplace")
    if type == "hex":
        return value.hex()
    if type == "bytes":
        return base64.b64encode(value).decode()
    if type == "bool":
        return value != 0
    if type == "int":
        return _plain_number(value - (1 << 64) if value >= 1 << 63 else value)
    if type == "double":
        return _plain_number(struct.unpack("<d", value.to_bytes(8, "little"))[0])
    return value


def _plain_number(value: float) -> Any:
    """Return a number that JSON can hold, else its text."""
    if isinstance(value, int):
        return value if abs(value) < _EXACT else str(value)
    return value if math.isfinite(value) else str(value)


def _parse_fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    """Yield (number, wire type, value) of a protobuf message: an int, or the bytes of a field with a length."""
    at, end = 0, len(data)
    while at < end:
        tag = data[at]
        if tag < 128:
            at += 1
        else:
            tag, at = _read_varint(data, at)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            yield number, wire, value
            continue
        if wire == 2:
            if at < end and data[at] < 128:
                size, at = data[at], at + 1
            else:
                size, at = _read_varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise InputError("the body is no protobuf of OTLP.")
        if not number or size > end - at:
            raise InputError("the body is no protobuf of OTLP, or is cut off.")
        piece = data[at : at + size]
        at += size
        yield number, wire, piece if wire == 2 else int.from_bytes(piece, "little")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:  # most are short
        return data[at], at + 1
    value = 0
    for shift, byte in zip(range(0, 70, 7), data[at : at + 10], strict=False):
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & ((1 << 64) - 1), at
    raise InputError("the body is no protobuf of OTLP, or is cut off.")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _text_field(number: int, text: str) -> bytes:
    data = text.encode()
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _read_message(words: Any, kind: str, depth: int = 0) -> Message:
    """Read the JSON form of a message: names in camelCase (or as in protobuf), 64-bit numbers as texts or numbers."""
    given, message = _check(words, dict, kind), _make_empty(kind)
    for name, type in _MESSAGES[kind].values():
        value = _get(given, name)
        if value is None:
            continue
        if type == "list":
            message[name] = _check(value, list, name)
        elif type == "pairs":
            message[name] = _read_pairs(value, name, depth)
        elif type == "AnyValue":
            message[name] = _read_value(value, depth)
        elif type[0].isupper():
            message[name] = _read_message(value, type, depth)
        elif type in ("string", "hex"):
            message[name] = _check(value, str, name)
        else:
            message[name] = _read_integer(value, name)
    return message


def _read_pairs(words: Any, name: str, depth: int) -> list[tuple[str, Any]]:
    pairs = (_read_message(item, "KeyValue", depth) for item in _check(words, list, name))
    return [(pair["key"], pair["value"]) for pair in pairs if pair["key"]]


def _read_value(words: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise InputError("a value of the body is nested too deep.")
    given = _check(words, dict, "a value")
    for name, type in _VALUES.values():
        value = _get(given, name)
        if value is None:
            continue
        if type == "array":
            items = _check(_get(_check(value, dict, name), "values") or [], list, name)
            return [_read_value(item, depth + 1) for item in items]
        if type == "kvlist":
            return dict(_read_pairs(_get(_check(value, dict, name), "values") or [], name, depth + 1))
        if type == "int":
            return _plain_number(_read_integer(value, name))
        if type == "double":
            return _plain_number(_read_double(value))
        return _check(value, bool if type == "bool" else str, name)
    return None


def _check(value: Any, type: type, name: str) -> Any:
    if not isinstance(value, type):
        raise InputError(f"{name} of the body is {str(value)[:40]!r}, which OTLP does not have there.")
    return value


def _read_integer(value: Any, name: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value):
        return int(value)
    return int(_check(value, int, name))


def _read_double(value: Any) -> float:
    try:
        return float(value)  # also "NaN" and "Infinity"
    except (TypeError, ValueError):
        raise InputError(f"a number of the body is {str(value)[:40]!r}.") from None


def _get(words: dict[str, Any], name: str) -> Any:
    """Return the field of a message by its name in JSON, which protobuf writes in camelCase."""
    first, *rest = name.split("_")
    camel = first + "".join(word.title() for word in rest)
    return words.get(camel, words.get(name))
