"""The OTLP source: logs of OpenTelemetry by HTTP, POST /v1/logs with a bearer token, as protobuf or JSON, gzip and
deflate too.

    OTEL_EXPORTER_OTLP_LOGS_ENDPOINT=http://127.0.0.1:4318/v1/logs
    OTEL_EXPORTER_OTLP_LOGS_HEADERS="authorization=Bearer%20…"

The answer comes when the events are on the disk. A record that the log cannot hold is refused in the answer (a partial
success); the others are recorded. An exporter that gets no answer sends again, and OTLP has no key for a request: a
record arrives at least once, and after a lost answer perhaps twice.

The messages are those of opentelemetry-proto (logs.proto, common.proto, resource.proto). Protobuf is parsed by
`native/audit/otlp.cpp`; JSON here, field by field.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from ridgeline import web
from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources.http import BODY, MOST_WAITING, Http, PendingRequest, Refusal, read_body
from ridgeline.audit.sources.source import LATEST, Event, shorten
from ridgeline.errors import InputError, RidgelineError
from ridgeline.native import parse_otlp_logs

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
_NAMES = {
    "service.name": "service.name",
    "host.name": "host",
    "process.pid": "pid",
    "process.executable.path": "exe",
}
_RESERVED = "ridgeline."
_LONGEST_NAME = 1_000  # letters of the name of an event; an action has 200 at most

Message = dict[str, Any]
Record = tuple[Any, ...]  # the fields of LogRecord, in the order of _MESSAGES
Group = tuple[dict[str, Any], str, Iterable[Record]]  # attributes of the resource, name of the scope, records


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
        body = await read_body(request)
        events, reasons = await asyncio.to_thread(self._make_events, body, kind)
        try:
            if events:
                await self.record(PendingRequest(events, Future()))
        except InputError:
            raise
        except RidgelineError as error:  # an exporter sends again after 503, but not after 500
            raise Refusal(503, str(error), retry_s=5) from None
        return len(reasons), reasons[0] if reasons else ""

    def _make_events(self, body: bytes, kind: str) -> tuple[list[Event], list[str]]:
        events = list(islice(parse_logs(body, kind, self.most_events), self.most_events + 1))
        if len(events) > self.most_events:
            raise Refusal(413, f"the request has more than {self.most_events:,} records; send fewer at once.")
        return _select_valid(events, kind)


def _select_valid(events: list[Event], kind: str) -> tuple[list[Event], list[str]]:
    """Return the events that the log accepts, and the reasons against the others."""
    if kind == PROTOBUF and not any(event["action"].startswith(_RESERVED) for event in events):
        return events, []  # what is made of protobuf has nothing else that the log refuses, so do not encode it twice
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


def parse_logs(body: bytes, kind: str, most: int = MOST_WAITING) -> Iterator[Event]:
    """Yield the events of an ExportLogsServiceRequest; raise `InputError` if the body is none.

    A body of protobuf is read until it has more than `most` records.
    """
    for resource, scope, records in _parse_groups(body, most) if kind == PROTOBUF else _read_groups(body):
        shared = _collect_shared(resource, scope)
        service = resource.get("service.name")
        subject = shorten(service) if isinstance(service, str) and service else None
        for record in records:
            yield make_event(record, shared, subject)


def _parse_groups(body: bytes, most: int) -> Sequence[Group]:
    try:
        return parse_otlp_logs(body, most)
    except ValueError as error:
        raise InputError(str(error)) from None


def _read_groups(body: bytes) -> Iterator[Group]:
    """Yield the groups of a request in JSON; its messages are read one by one, so that a large body stays small."""
    try:
        words = json.loads(body)
    except RecursionError:
        raise InputError("the body is nested too deep.") from None
    except ValueError:
        raise InputError("the body is not JSON.") from None
    for resource_logs in _read_message(words, "ExportLogsServiceRequest")["resource_logs"]:
        group = _read_message(resource_logs, "ResourceLogs")
        resource = group["resource"]["attributes"] if group["resource"] else {}
        for scope_logs in group["scope_logs"]:
            scoped = _read_message(scope_logs, "ScopeLogs")
            scope = scoped["scope"]["name"] if scoped["scope"] else ""
            yield resource, scope, (tuple(_read_message(r, "LogRecord").values()) for r in scoped["log_records"])


def _collect_shared(resource: dict[str, Any], scope: str) -> dict[str, Any]:
    """Return the attributes that every record of a group has, unless it has its own."""
    shared = {ours: resource.get(name) for name, ours in _NAMES.items()}
    shared |= {"_scope": scope, "_resource": resource}
    return {name: value for name, value in shared.items() if value not in (None, "", {})}


def make_event(record: Record, shared: Mapping[str, Any], subject: str | None) -> Event:
    """Make an event of a log record: action its event name or `otlp.log`. `record` has the fields of `LogRecord`."""
    moment, observed, number, severity, body, attributes, dropped, trace, span, name = record
    if body not in (None, ""):
        name_of_body = "body" if "message" in attributes or not isinstance(body, str) else "message"
        attributes[name_of_body if name_of_body not in attributes else "log.body"] = body
    if not severity and 0 < number <= 24:
        severity = _SEVERITIES[(number - 1) // 4]
    # An id of zeros is none: without a span some exporters send it, and it would join all events to one session.
    trace, span = (id.lower() if id.strip("0") else "" for id in (trace, span))
    for known, value in (("severity", severity), ("trace_id", trace), ("_span_id", span)):
        if value and attributes.setdefault(known, value) != value:  # the program has an attribute of this name
            attributes[f"log.{known.removeprefix('_')}"] = value
    for known, value in shared.items():
        attributes.setdefault(known, value)
    if dropped:
        attributes["_dropped_attributes"] = dropped
    actor = next((attributes[name] for name in _ACTORS if isinstance(attributes.get(name), str | int)), None)
    moment = moment or observed
    return {
        "time": moment if 0 < moment <= LATEST else time.time_ns(),
        "source": "otlp",
        "actor": shorten(str(actor)) if actor is not None else None,
        "action": _make_action(str(name or attributes.get("event.name") or "")[:_LONGEST_NAME]),
        "subject": subject,
        "attributes": attributes,
    }


@lru_cache(1024)
def _make_action(name: str) -> str:
    parts = (_WORD.sub("_", part).strip("_-") for part in name.split("."))
    return ".".join(part for part in parts if part)[:200].strip(".") or "otlp.log"


# The messages: name → type of each field. "list" has messages; a capital letter is a message of this table. The native
# parser knows the numbers of the fields.
_MESSAGES: dict[str, dict[str, str]] = {
    "ExportLogsServiceRequest": {"resource_logs": "list"},
    "ResourceLogs": {"resource": "Resource", "scope_logs": "list"},
    "Resource": {"attributes": "pairs"},
    "ScopeLogs": {"scope": "Scope", "log_records": "list"},
    "Scope": {"name": "string"},
    "KeyValue": {"key": "string", "value": "AnyValue"},
    "LogRecord": {
        "time_unix_nano": "integer",
        "observed_time_unix_nano": "integer",
        "severity_number": "integer",
        "severity_text": "string",
        "body": "AnyValue",
        "attributes": "pairs",
        "dropped_attributes_count": "integer",
        "trace_id": "string",
        "span_id": "string",
        "event_name": "string",
    },
}
_VALUES = {
    "string_value": "string",
    "bool_value": "bool",
    "int_value": "int",
    "double_value": "double",
    "array_value": "array",
    "kvlist_value": "kvlist",
    "bytes_value": "string",
}
_EMPTY = {"integer": 0, "string": ""}


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
    given, message = _check(words, dict, kind), Message()
    for name, type in _MESSAGES[kind].items():
        value = _get(given, name)
        if value is None:
            message[name] = [] if type == "list" else {} if type == "pairs" else _EMPTY.get(type)
        elif type == "list":
            message[name] = _check(value, list, name)
        elif type == "pairs":
            message[name] = _read_pairs(value, name, depth)
        elif type == "AnyValue":
            message[name] = _read_value(value, depth)
        elif type[0].isupper():
            message[name] = _read_message(value, type, depth)
        elif type == "string":
            message[name] = _check(value, str, name)
        else:
            message[name] = _read_integer(value, name)
    return message


def _read_pairs(words: Any, name: str, depth: int) -> dict[str, Any]:
    pairs = (_read_message(item, "KeyValue", depth) for item in _check(words, list, name))
    return {pair["key"]: pair["value"] for pair in pairs if pair["key"]}


def _read_value(words: Any, depth: int) -> Any:
    if depth > _DEEPEST:
        raise InputError("a value of the body is nested too deep.")
    given = _check(words, dict, "a value")
    for name, type in _VALUES.items():
        value = _get(given, name)
        if value is None:
            continue
        if type == "array":
            items = _check(_get(_check(value, dict, name), "values") or [], list, name)
            return [_read_value(item, depth + 1) for item in items]
        if type == "kvlist":
            return _read_pairs(_get(_check(value, dict, name), "values") or [], name, depth + 1)
        if type == "int":
            return _plain_number(_read_integer(value, name))
        if type == "double":
            return _plain_number(_read_double(value))
        return _check(value, bool if type == "bool" else str, name)
    return None


def _plain_number(value: float) -> Any:
    """Return a number that JSON can hold, else its text."""
    if isinstance(value, int):
        return value if abs(value) < _EXACT else str(value)
    return value if math.isfinite(value) else str(value)


def _check(value: Any, type: type, name: str) -> Any:
    if not isinstance(value, type):
        raise InputError(f"{name} of the body is {str(value)[:40]!r}, which OTLP does not have there.")
    return value


def _read_integer(value: Any, name: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,20}", value):
        return int(value)
    if isinstance(value, float) and value.is_integer():  # 5.0, as JavaScript's libraries may write it
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
