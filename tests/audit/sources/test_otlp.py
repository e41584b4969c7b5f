"""OTLP over loopback: protobuf and JSON, plain and gzip, written by hand and by OpenTelemetry's own exporter."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import struct
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.sources import otlp_reference
from tests.audit.threads import run_in_thread

from ridgeline.audit.ledger.event import encode
from ridgeline.audit.ledger.ledger import Receipts
from ridgeline.audit.sources.otlp import JSON, PROTOBUF, Otlp, _answer, parse_logs
from ridgeline.errors import InputError, RidgelineError, StoreError
from ridgeline.native import parse_otlp_logs

TOKEN = "t" * 20
MOMENT = 1_700_000_000_000_000_005


def varint(value):
    out = b""
    while value >= 0x80:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def field(number, value):
    """A field of a protobuf message: bytes and texts have a length, integers are varints, floats are doubles."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value % (1 << 64))
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fixed64(number, value):
    return varint(number << 3 | 1) + struct.pack("<Q", value)


def pair(key, value):
    return field(1, key) + field(2, value)


def request(*records, resource=b""):
    """An ExportLogsServiceRequest with these log records (logs.proto, logs_service.proto of opentelemetry-proto)."""
    scope = field(1, field(1, "my.logger"))
    return field(1, field(1, resource) + field(2, scope + b"".join(field(2, record) for record in records)))


RESOURCE = b"".join(
    field(1, pair(key, field(1, value))) for key, value in (("service.name", "billing"), ("host.name", "h1"))
)
RECORD = (
    fixed64(1, MOMENT)
    + field(2, 13)  # SEVERITY_NUMBER_WARN
    + field(5, field(1, "invoice 7 refused"))
    + field(6, pair("enduser.id", field(1, "ann")))
    + field(6, pair("number", field(3, 7)))
    + field(6, pair("minus", field(3, -7)))
    + field(6, pair("share", field(4, 0.5)))
    + field(6, pair("late", field(2, 1)))
    + field(6, pair("list", field(5, field(1, field(1, "a")) + field(1, field(3, 2)))))
    + field(6, pair("map", field(6, field(1, pair("k", field(1, "v"))))))
    + field(9, bytes(range(16)))
    + field(99, "of a later version")
)
WORDS = {
    "resourceLogs": [
        {
            "resource": {
                "attributes": [
                    {"key": "service.name", "value": {"stringValue": "billing"}},
                    {"key": "host.name", "value": {"stringValue": "h1"}},
                ]
            },
            "scopeLogs": [
                {
                    "scope": {"name": "my.logger"},
                    "logRecords": [
                        {
                            "timeUnixNano": str(MOMENT),
                            "severityNumber": 13,
                            "body": {"stringValue": "invoice 7 refused"},
                            "attributes": [
                                {"key": "enduser.id", "value": {"stringValue": "ann"}},
                                {"key": "number", "value": {"intValue": "7"}},
                                {"key": "minus", "value": {"intValue": -7}},
                                {"key": "share", "value": {"doubleValue": 0.5}},
                                {"key": "late", "value": {"boolValue": True}},
                                {
                                    "key": "list",
                                    "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"intValue": "2"}]}},
                                },
                                {
                                    "key": "map",
                                    "value": {"kvlistValue": {"values": [{"key": "k", "value": {"stringValue": "v"}}]}},
                                },
                            ],
                            "traceId": bytes(range(16)).hex(),
                            "ofALaterVersion": 1,
                        }
                    ],
                }
            ],
        }
    ]
}


def test_protobuf_and_json_give_the_same_event():
    (event,) = parse_logs(request(RECORD, resource=RESOURCE), PROTOBUF)
    assert [event] == list(parse_logs(json.dumps(WORDS).encode(), JSON))
    assert (event["time"], event["source"], event["action"]) == (MOMENT, "otlp", "otlp.log")
    assert (event["actor"], event["subject"]) == ("ann", "billing")
    words = event["attributes"]
    assert (words["message"], words["severity"], words["host"]) == ("invoice 7 refused", "WARN", "h1")
    assert (words["number"], words["minus"], words["share"], words["late"]) == (7, -7, 0.5, True)
    assert (words["list"], words["map"], words["trace_id"]) == (["a", 2], {"k": "v"}, bytes(range(16)).hex())
    assert (words["service.name"], words["_scope"]) == ("billing", "my.logger")
    encode([event])


def test_an_attribute_with_the_name_of_a_field_replaces_no_field():
    taken = {"message": "m", "body": "b", "severity": "s", "trace_id": "t"}
    attributes = b"".join(field(6, pair(name, field(1, value))) for name, value in taken.items())
    (event,) = parse_logs(
        request(field(3, "ERROR") + field(5, field(1, "text")) + attributes + field(9, bytes(range(16)))), PROTOBUF
    )
    fields = {"log.body": "text", "log.severity": "ERROR", "log.trace_id": bytes(range(16)).hex()}
    words = event["attributes"]
    assert {name: words[name] for name in (*taken, *fields)} == taken | fields


def test_numbers_that_json_cannot_hold_are_texts():
    record = field(6, pair("a", field(4, float("nan")))) + field(6, pair("b", field(3, 1 << 60)))
    (event,) = parse_logs(request(record), PROTOBUF)
    assert (event["attributes"]["a"], event["attributes"]["b"]) == ("nan", str(1 << 60))


def test_the_name_of_an_event_is_its_action():
    (event,) = parse_logs(request(field(12, "app.order placed!")), PROTOBUF)
    assert event["action"] == "app.order_placed"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"\xff\xff\xff", PROTOBUF),
        (request(RECORD)[:-3], PROTOBUF),
        (b"\x0b", PROTOBUF),  # a group, which OTLP does not have
        (b"{", JSON),
        (b"[" * 100_000, JSON),
        (b'{"resourceLogs": 3}', JSON),
        (b'{"resourceLogs": [{"scopeLogs": [{"logRecords": [{"body": {"intValue": "x"}}]}]}]}', JSON),
    ],
)
def test_a_body_that_is_no_request_is_refused(body, kind):
    with pytest.raises(InputError):
        list(parse_logs(body, kind))


def test_values_nested_too_deep_are_refused():
    value = field(1, "x")
    for _ in range(10_000):
        value = field(5, field(1, value))
    with pytest.raises(InputError, match="nested too deep"):
        list(parse_logs(request(field(5, value)), PROTOBUF))


@given(st.binary(max_size=60), st.integers(0, 200))
def test_every_body_gives_events_or_one_error(noise, at):
    whole = request(RECORD, resource=RESOURCE)
    for body in (noise, whole[:at] + noise + whole[at:]):
        try:
            encode(list(parse_logs(body, PROTOBUF)))
        except InputError:
            continue


TEXTS = st.binary(max_size=12) | st.text(max_size=12).map(str.encode)
SCALARS = st.one_of(
    TEXTS.map(lambda text: field(1, text)),
    st.integers(0, 2).map(lambda value: field(2, value)),
    st.integers(-(1 << 63), (1 << 63) - 1).map(lambda value: field(3, value)),
    st.floats().map(lambda value: field(4, value)),
    st.binary(max_size=9).map(lambda value: field(7, value)),
    st.just(b""),
)


def make_pairs(values):
    return st.tuples(st.sampled_from(["a", "enduser.id", "message", ""]) | TEXTS, values).map(lambda p: pair(*p))


VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: field(5, b"".join(field(1, item) for item in items)))
        | st.lists(make_pairs(inner), max_size=3).map(lambda items: field(6, b"".join(field(1, i) for i in items)))
    ),
    max_leaves=6,
)
RECORD_FIELDS = st.one_of(
    st.integers(0, (1 << 64) - 1).map(lambda value: fixed64(1, value)),
    st.integers(0, (1 << 64) - 1).map(lambda value: fixed64(11, value)),
    st.integers(0, 1 << 40).map(lambda value: field(2, value)),
    st.integers(0, 1 << 40).map(lambda value: field(7, value)),
    st.tuples(st.sampled_from([3, 9, 10, 12, 13]), TEXTS).map(lambda p: field(*p)),
    VALUES.map(lambda value: field(5, value)),
    make_pairs(VALUES).map(lambda value: field(6, value)),
    st.sampled_from([field(1, 5), fixed64(5, 1), varint(4 << 3 | 5) + bytes(4)]),  # other types than OTLP's: skipped
)
RECORDS = st.lists(RECORD_FIELDS, max_size=6).map(b"".join)
SCOPES = st.lists(RECORDS.map(lambda r: field(2, r)) | TEXTS.map(lambda n: field(1, field(1, n))), max_size=4)
RESOURCES = st.lists(make_pairs(VALUES).map(lambda p: field(1, p)), max_size=2).map(b"".join)
BODIES = st.lists(
    st.lists(
        SCOPES.map(lambda scope: field(2, b"".join(scope))) | RESOURCES.map(lambda resource: field(1, resource)),
        max_size=4,
    ).map(lambda parts: field(1, b"".join(parts))),
    max_size=3,
).map(b"".join)


def parse_both(body):
    try:
        expected = otlp_reference.parse(body)
    except otlp_reference.Malformed:
        expected = None
    try:
        return parse_otlp_logs(body, 1 << 40), expected
    except ValueError:
        return None, expected


@settings(max_examples=200, deadline=None)
@given(BODIES, st.integers(0, 400), st.binary(max_size=3))
def test_the_native_parser_reads_what_the_reference_reads(body, at, noise):
    ours, expected = parse_both(body)
    assert expected is not None
    assert repr(ours) == repr(expected)  # as texts: true is not 1, 1.0 is not 1
    ours, expected = parse_both(body[:at] + noise + body[at + 1 :])
    assert repr(ours) == repr(expected)


def test_the_native_parser_ends_soon_after_the_allowed_number_of_records():
    body = request(*[RECORD] * 10) * 3
    assert sum(len(records) for _, _, records in parse_otlp_logs(body, 12)) == 13


def test_groups_without_records_take_no_memory():
    empty = field(1, field(2, b"") * 1_000)
    assert parse_otlp_logs(empty * 10, 100) == []
    assert [len(records) for _, _, records in parse_otlp_logs(empty + request(RECORD) + empty, 100)] == [1]


@settings(max_examples=50, deadline=None)
@given(BODIES)
def test_the_log_can_hold_every_event_of_protobuf_but_those_with_names_of_its_own(body):
    encode([event for event in parse_logs(body, PROTOBUF) if not event["action"].startswith("ridgeline.")])


def test_a_record_with_a_name_of_the_ledger_is_told():
    served = Served()
    answer = run_in_thread(served.run(lambda url: post(url, request(RECORD, field(12, "ridgeline.ledger.prune")))))
    assert b"record 1" in answer.content
    assert len(served.taken) == 1


class Served:
    """A source with a log of its own behind it; `act` runs in a thread with the URL of /v1/logs."""

    def __init__(self, failure=None, **settings):
        self.announced, self.taken, self.failure = [], [], failure
        self.source = Otlp(":0", TOKEN, announce=self.announced.append, **settings)

    async def run(self, act):
        async def pull():
            async for batch in self.source.batches(None):
                if self.failure is not None:
                    batch.failed(self.failure)
                    continue
                first = len(self.taken)
                self.taken += batch.events
                batch.taken(Receipts(first, b"", len(self.taken)))

        task = asyncio.create_task(pull())
        while not self.announced:
            await asyncio.sleep(0.01)
        result = await asyncio.to_thread(act, self.announced[0].split()[-1])
        self.source.stop()
        await asyncio.wait_for(task, 30)
        return result


def post(url, body, kind=PROTOBUF, token=TOKEN, **headers):
    return httpx.post(
        url, content=body, headers={"authorization": f"Bearer {token}", "content-type": kind, **headers}, timeout=60
    )


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_ids_have_small_letters_and_zeros_are_no_id(kind):
    for trace, expected in ((bytes(16), None), (b"\xab" * 16, "ab" * 16)):
        given = {"traceId": trace.hex().upper(), "spanId": trace[:8].hex().upper()}
        body = {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [given]}]}]}
        data = json.dumps(body).encode() if kind == JSON else request(field(9, trace) + field(10, trace[:8]))
        [event] = parse_logs(data, kind)
        words = event["attributes"]
        assert (words.get("trace_id"), words.get("_span_id")) == (expected, expected and expected[:16])


def test_requests_are_answered_when_their_records_are_recorded():
    served, body = Served(), request(RECORD, RECORD, resource=RESOURCE)

    def act(url):
        return [
            post(url, body),
            post(url, gzip.compress(body), **{"content-encoding": "GZip"}),
            post(url, json.dumps(WORDS), "application/json; charset=utf-8"),
            post(url, b""),
        ]

    plain, packed, words, empty = run_in_thread(served.run(act))
    assert [a.status_code for a in (plain, packed, words, empty)] == [200] * 4
    assert (plain.content, plain.headers["content-type"]) == (b"", PROTOBUF)
    assert words.json() == {}
    assert [event["attributes"]["number"] for event in served.taken] == [7] * 5


def test_a_record_that_the_log_cannot_hold_is_told_and_the_others_are_recorded():
    words = json.loads(json.dumps(WORDS))
    records = words["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    records.append({"body": {"stringValue": "\ud800"}})  # half of a surrogate pair is no text
    served = Served()
    answer = run_in_thread(served.run(lambda url: post(url, json.dumps(words), JSON))).json()
    assert answer["partialSuccess"]["rejectedLogRecords"] == "1"
    assert "record 1" in answer["partialSuccess"]["errorMessage"]
    assert len(served.taken) == 1


def test_a_partial_success_in_protobuf_has_its_count_and_reason():
    assert _answer(PROTOBUF, (300, "why")).body == field(1, field(1, 300) + field(2, "why"))


def test_what_is_wrong_or_not_allowed_is_refused_whole():
    served = Served()

    def act(url):
        return [
            post(url, request(RECORD), token="wrong" * 5),
            post(url, b"\xff\xff\xff"),
            post(url, b"{", JSON),
            post(url, request(RECORD), "text/plain"),
            post(url, request(RECORD), **{"content-encoding": "zstd"}),
            post(url, b"x" * ((8 << 20) + 1)),
        ]

    answers = run_in_thread(served.run(act))
    assert [a.status_code for a in answers] == [401, 400, 400, 415, 415, 413]
    assert b"no protobuf of OTLP" in answers[1].content
    assert answers[2].json() == {"message": "the body is not JSON."}
    assert served.taken == []


def test_more_records_than_the_log_would_ever_take_are_refused_at_once():
    served = Served(rate=10)
    answers = run_in_thread(served.run(lambda url: [post(url, request(*[b""] * count)) for count in (11, 10)]))
    assert [a.status_code for a in answers] == [413, 200]
    assert b"send fewer at once" in answers[0].content
    assert len(served.taken) == 10


@pytest.mark.parametrize("failure", [StoreError("the disk is full."), RidgelineError("the watcher is stopping.")])
def test_an_exporter_is_asked_to_send_again_what_could_not_be_recorded(failure):
    answer = run_in_thread(Served(failure).run(lambda url: post(url, request(RECORD))))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert str(failure).encode() in answer.content


def test_a_record_without_any_field_is_an_event():
    (event,) = parse_logs(request(b""), PROTOBUF)
    assert (event["action"], event["subject"], event["actor"]) == ("otlp.log", None, None)
    encode([event])


@pytest.mark.parametrize("moment", [0, (1 << 64) - 1])
def test_a_time_that_the_log_cannot_hold_is_the_time_of_arrival(moment):
    before = time.time_ns()
    (event,) = parse_logs(request(fixed64(1, moment)), PROTOBUF)
    assert before <= event["time"] <= time.time_ns()
    (observed,) = parse_logs(request(fixed64(11, MOMENT)), PROTOBUF)
    assert observed["time"] == MOMENT


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_the_exporter_of_opentelemetry_is_understood_unmodified():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs opentelemetry's OTLP exporter")
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.resources import Resource

    def act(url):
        for kind in (Compression.NoCompression, Compression.Gzip):
            provider = LoggerProvider(resource=Resource.create({"service.name": kind.value, "host.name": "h1"}))
            exporter = OTLPLogExporter(url, headers={"authorization": f"Bearer {TOKEN}"}, compression=kind, timeout=60)
            provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
            logger = logging.Logger(f"otel-{kind.value}")
            logger.addHandler(LoggingHandler(logger_provider=provider))
            for number in range(600):
                logger.warning("invoice %d refused", number, extra={"enduser.id": "ann", "number": number})
            provider.force_flush(60_000)
            provider.shutdown()

    served = Served()
    run_in_thread(served.run(act))
    seen = {(event["subject"], event["attributes"]["number"]) for event in served.taken}
    assert len(served.taken) == len(seen) == 1200
    event = served.taken[0]
    assert (event["actor"], event["attributes"]["severity"]) == ("ann", "WARN")
    assert event["attributes"]["message"] == "invoice 0 refused"
