"""Lines of Docker, containerd and an API server's audit log become events with who, what and where."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.threads import run_in_thread
from tests.audit.watch.watching import run_command

from ridgeline.audit.anomaly.sentences import describe_event
from ridgeline.audit.ledger import parse_moment
from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources import make_container_reader, parse_kubernetes_line
from ridgeline.audit.sources.files import LineFile
from ridgeline.audit.sources.lines import parse_lines
from ridgeline.errors import InputError

ID = "0123456789abcdef" * 4
POD = Path("/var/log/pods/shop_web-1_0f1e/nginx/0.log")
REQUEST = {
    "kind": "Event",
    "apiVersion": "audit.k8s.io/v1",
    "level": "RequestResponse",
    "auditID": "8f2c",
    "stage": "ResponseComplete",
    "requestURI": "/api/v1/namespaces/shop/pods/web-1",
    "verb": "delete",
    "user": {"username": "ann@example.test", "groups": ["admins", "system:authenticated"]},
    "sourceIPs": ["10.0.0.7"],
    "userAgent": "kubectl/v1.36",
    "objectRef": {"resource": "pods", "namespace": "shop", "name": "web-1", "apiVersion": "v1"},
    "responseStatus": {"code": 403, "reason": "Forbidden"},
    "requestObject": {"kind": "DeleteOptions"},
    "requestReceivedTimestamp": "2026-11-18T10:00:00.000001Z",
    "stageTimestamp": "2026-11-18T10:00:00.000009Z",
    "annotations": {"authorization.k8s.io/decision": "forbid"},
}


def parse_request(**changes):
    return parse_kubernetes_line(json.dumps(REQUEST | changes).encode(), "line 1", 0)


def test_managed_fields_are_kept_and_not_scored():
    managed = [{"manager": "kubectl", "fieldsV1": {"f:data": {"f:x": {}}}}]
    plain = {"kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"x": "1"}}
    event = parse_request(requestObject={**plain, "metadata": {"name": "c", "managedFields": managed}})
    assert event["attributes"]["request"] == plain
    assert event["attributes"]["_managed_fields"] == managed
    assert describe_event(event) == describe_event(parse_request(requestObject=plain))
    secret = parse_request(objectRef={"resource": "secrets"}, requestObject={"metadata": {"managedFields": managed}})
    assert "_managed_fields" not in secret["attributes"]


@pytest.mark.parametrize(
    ("path", "place", "subject"),
    [
        (POD, {"namespace": "shop", "pod": "web-1", "container": "nginx"}, "shop/web-1/nginx"),
        (
            Path(f"/var/log/containers/web-1_shop_nginx-{ID}.log"),
            {"namespace": "shop", "pod": "web-1", "container": "nginx"},
            "shop/web-1/nginx",
        ),
        (Path(f"/var/lib/docker/containers/{ID}/{ID}-json.log.1"), {"container": ID[:12]}, ID[:12]),
        (Path("/tmp/x/y/other.log"), {}, "other.log"),
    ],
)
def test_the_path_of_a_file_says_which_container_it_is(path, place, subject):
    event = make_container_reader(path)(b"2026-11-18T10:00:00.123456789Z stderr F no route", "line 1", 0)
    assert event["time"] == parse_moment("2026-11-18T10:00:00.123456789Z")
    assert (event["subject"], event["action"]) == (subject, "container.line")
    assert event["attributes"] == {"message": "no route", "stream": "stderr", "_file": str(path), **place}


def test_a_line_of_docker_is_an_event():
    record = {"log": "GET /\n", "stream": "stdout", "time": "2026-11-18T10:00:00.5Z"}
    event = make_container_reader(POD)(json.dumps(record).encode(), "line 1", 0)
    assert (event["time"], event["attributes"]["message"]) == (parse_moment("2026-11-18T10:00:00.5Z"), "GET /")
    assert "_partial" not in event["attributes"]


def test_a_part_of_a_long_line_is_marked():
    read = make_container_reader(POD)
    assert read(b"2026-11-18T10:00:00Z stdout P half", "", 0)["attributes"]["_partial"] is True
    half = json.dumps({"log": "half", "stream": "stdout", "time": "2026-11-18T10:00:00Z"}).encode()
    assert read(half, "", 0)["attributes"]["_partial"] is True


def write_docker(text, stream="stdout", second=0):
    return json.dumps({"log": text, "stream": stream, "time": f"2026-11-18T10:00:{second:02}Z"}).encode() + b"\n"


def write_containerd(text, stream="stdout", second=0):
    kind = "F" if text.endswith("\n") else "P"
    return f"2026-11-18T10:00:{second:02}Z {stream} {kind} {text.removesuffix(chr(10))}\n".encode()


async def read_file(path, position=None, **more):
    source, found = LineFile(path, "containers", make_container_reader(path), **more), []
    async for batch in source.batches(position):
        found += [(e["attributes"]["message"], e["attributes"].get("_partial", False)) for e in batch.events]
        position = batch.position or position
        if found and more.get("follow", True):
            source.stop()
    return found, position


@pytest.mark.parametrize("write", [write_docker, write_containerd])
def test_the_parts_of_a_line_are_one_event_of_each_stream(tmp_path, write):
    lines = [("mail to ann@x", "stdout"), ("oops\n", "stderr"), (".example, ", "stdout"), ("done\n", "stdout")]
    data = b"".join(write(text, stream, second) for second, (text, stream) in enumerate(lines))
    (tmp_path / "0.log").write_bytes(data)
    events, places, refused = parse_lines(data, make_container_reader(POD), "of x", 0, 0)
    assert [event["attributes"]["message"] for event in events] == ["oops", "mail to ann@x.example, done"]
    assert [event["time"] % (60 * 10**9) // 10**9 for event in events] == [1, 0]
    assert (places, refused) == (["line 2 of x", "line 1 of x"], [])
    assert "_partial" not in events[1]["attributes"]


@given(
    st.lists(st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4), max_size=6),
    st.integers(0, 400),
    st.integers(200, 2000),
)
def test_a_restart_or_a_chunk_within_parts_loses_and_doubles_nothing(tmp_path_factory, texts, cut, chunk):
    path = tmp_path_factory.mktemp("parts") / "0.log"
    data = b"".join(write_docker(t) for parts in texts for t in (*parts[:-1], parts[-1] + "\n"))
    path.write_bytes(data[:cut])
    before, position = run_in_thread(read_file(path, follow=False, chunk=chunk))
    begun = data[: position["offset"]] if position else b""
    with path.open("ab") as file:
        file.write(data[cut:])
    if begun.endswith(b"\n") or not begun:  # else a line of JSON was cut, which is refused
        after, _ = run_in_thread(read_file(path, position, follow=False, chunk=chunk))
        whole = "".join(text + ("" if partial else "\n") for text, partial in [*before, *after])
        assert whole == "".join("".join(parts) + "\n" for parts in texts)


def test_a_line_whose_last_part_comes_later_is_one_event(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(write_docker("one\n") + write_docker("two "))
    source, found = LineFile(path, "containers", make_container_reader(path)), []

    async def follow():
        async for batch in source.batches(None):
            found.extend(event["attributes"] for event in batch.events)
            if len(found) == 1:
                await asyncio.sleep(0.3)  # the reader waits for the rest
                with path.open("ab") as file:
                    file.write(write_docker("three\n"))
            elif found:
                source.stop()

    run_in_thread(follow())
    assert [words["message"] for words in found] == ["one", "two three"]


def test_a_line_whose_last_part_does_not_come_is_marked(tmp_path, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.sources.files.PARTS_S", 0.2)
    (tmp_path / "0.log").write_bytes(write_containerd("killed while ") + write_containerd("writing"))
    found, _ = run_in_thread(read_file(tmp_path / "0.log"))
    assert found == [("killed while writing", True)]


@pytest.mark.parametrize("line", [b"plain words", b"[1]", b'{"message": "x"}', b'{"log": 5, "time": "x"}', b"{" * 5000])
def test_a_line_that_is_of_no_container_is_refused(line):
    with pytest.raises(InputError, match=r"line 7 is no"):
        make_container_reader(POD)(line, "line 7", 0)


def test_a_request_says_who_did_what_from_where_and_how_it_ended():
    event = parse_request()
    assert (event["actor"], event["action"]) == ("ann@example.test", "kubernetes.delete")
    assert event["subject"] == "shop/pods/web-1"
    assert event["time"] == parse_moment("2026-11-18T10:00:00.000009Z")
    words = event["attributes"]
    assert (words["code"], words["decision"], words["address"]) == (403, "forbid", "10.0.0.7")
    assert words["request"] == {"kind": "DeleteOptions"}


def test_a_request_keeps_its_proxies_its_pod_and_the_role_that_allowed_it():
    extra = {"authentication.kubernetes.io/pod-name": ["web-1"]}
    event = parse_request(
        sourceIPs=["10.0.0.7", "192.0.2.1"],
        user={"username": "system:serviceaccount:shop:web", "extra": extra},
        annotations={"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: role/x"},
    )
    words = event["attributes"]
    assert (words["address"], words["_addresses"]) == ("10.0.0.7", ["10.0.0.7", "192.0.2.1"])
    assert (words["_user"], words["decision"]) == (extra, "allow")
    assert words["_annotations"] == {"authorization.k8s.io/reason": "RBAC: role/x"}


def test_the_object_of_a_secret_is_left_out():
    body = {"kind": "Secret", "data": {"password": "aHVudGVyMg=="}}
    event = parse_request(objectRef={"resource": "secrets", "name": "db"}, requestObject=body)
    assert "aHVudGVyMg" not in json.dumps(event)
    token = parse_request(objectRef={"resource": "serviceaccounts", "subresource": "token"}, requestObject=body)
    assert "aHVudGVyMg" not in json.dumps(token)


def test_a_request_without_an_object_has_its_path_as_subject():
    assert parse_request(objectRef=None, requestURI="/healthz", verb="get")["subject"] == "/healthz"


@pytest.mark.parametrize("line", [b"no json", b"[]", b'{"kind": "Pod"}', b'{"kind": "Event", "apiVersion": "v1"}'])
def test_a_line_that_is_no_audit_event_is_refused(line):
    with pytest.raises(InputError, match=r"line 3 is no"):
        parse_kubernetes_line(line, "line 3", 0)


def test_numbers_and_depths_beyond_the_log_become_text():
    deep = json.loads("[" * 200 + "]" * 200)
    event = parse_request(
        requestObject={"deep": deep, "big": 1 << 60}, auditID=-(1 << 53), responseStatus={"code": 4.5}
    )
    encode([event])
    assert event["attributes"]["_id"] == str(-(1 << 53))
    assert json.loads(event["attributes"]["request"]) == {"deep": deep, "big": str(1 << 60)}
    assert parse_request(responseStatus={"code": float("inf")})["attributes"]["code"] == "Infinity"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(REQUEST)), JSON))
def test_a_request_with_any_fields_is_refused_or_an_event_that_the_log_accepts(changes):
    try:
        event = parse_request(**changes)
    except InputError:
        return
    encode([event])


def test_watch_reads_both(tmp_path, capsys):
    log = tmp_path / "log"
    assert run_command(capsys, "audit", "init", log)[0] == 0
    pods = tmp_path / "pods" / "shop_web-1_0f1e" / "nginx"
    pods.mkdir(parents=True)
    (pods / "0.log").write_text("2026-11-18T10:00:00Z stdout F hello\n")
    (tmp_path / "k8s.log").write_text(json.dumps(REQUEST) + "\n")
    files = ["--containers", tmp_path / "pods", "--k8s-audit", tmp_path / "k8s.log"]
    assert run_command(capsys, "audit", "watch", log, *files, "--no-follow", "--no-score", "-q")[0] == 0
    events = json.loads(run_command(capsys, "audit", "export", log, "--json")[1])
    subjects = {event["source"]: event["subject"] for event in events}
    assert subjects["containers"] == "shop/web-1/nginx"
    assert subjects["kubernetes"] == "shop/pods/web-1"
