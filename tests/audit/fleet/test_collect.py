"""Collectors and forwarders: copies byte for byte, and every lie of a host is refused or told."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from tests.audit.conftest import events
from tests.audit.fleet.collecting import (
    TIMEOUT_S,
    BareClient,
    collecting,
    forward,
    list_alerts,
    make_log,
    read_entries,
)
from tests.audit.threads import run_in_thread
from typer.testing import CliRunner

from ridgeline.audit import Ledger, new_signer
from ridgeline.audit.fleet import (
    Collector,
    Forwarder,
    channel,
    examine_fleet,
    is_fleet,
    prune_copies,
    read_alerts_of_fleet,
)
from ridgeline.audit.fleet.copies import check_origin
from ridgeline.audit.ledger import move_payloads
from ridgeline.audit.ledger.layout import write_key
from ridgeline.audit.ledger.verify import examine
from ridgeline.cli.audit import audit
from ridgeline.errors import InputError, Locked, Unverified

ORIGIN = "host1.test/audit"


@pytest.fixture
def host(tmp_path):
    return make_log(tmp_path / "h", ORIGIN, 700)


@pytest.fixture
def fleet(tmp_path):
    return tmp_path / "fleet"


def wait_for(condition):
    until = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_good(fleet) -> bool:
    return all(report.ok for _, report in examine_fleet(fleet))


def test_a_log_arrives_byte_for_byte_and_is_co_signed(tmp_path, fleet, host):
    with collecting(fleet, host) as collector:
        assert forward(tmp_path / "h", collector) == 700
        copy = fleet / "host1.test+audit"
        assert read_entries(copy, host) == read_entries(tmp_path / "h", host)
        assert forward(tmp_path / "h", collector) == 0, "nothing is sent twice"
        with Ledger.open(tmp_path / "h") as ledger:
            ledger.append(events(700, 900))
        assert forward(tmp_path / "h", collector) == 200
        report = examine(tmp_path / "h", host, witnesses=[collector.key], require=1)
        assert report.ok
        assert report.witnesses[0].size == 900
        assert examine(copy, host, witnesses=[collector.key], require=1).ok
    assert is_good(fleet)
    assert list_alerts(fleet) == []
    with collecting(fleet, host) as collector:
        assert forward(tmp_path / "h", collector) == 0, "a restart remembers"


def test_a_forwarder_waits_for_more_entries_and_for_its_collector(tmp_path, fleet, host, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.fleet.forwarder.POLL_S", 0.05)
    with collecting(fleet, host) as collector:
        port = collector.port
        said = []
        forwarder = Forwarder(tmp_path / "h", "127.0.0.1", port, collector.key, notify=said.append)
        thread = threading.Thread(target=forwarder.run)
        thread.start()
        try:
            wait_for(lambda: forwarder.size == 700)
            with Ledger.open(tmp_path / "h") as ledger:
                ledger.append(events(700, 710))
                wait_for(lambda: forwarder.size == 710)
        finally:
            forwarder.stop()
            thread.join(TIMEOUT_S)
            forwarder.close()
    assert read_entries(fleet / "host1.test+audit", host) == read_entries(tmp_path / "h", host)


def test_large_events_and_pruned_payloads_are_collected_as_they_are(tmp_path, fleet):
    key = make_log(tmp_path / "h", ORIGIN, 0)
    with Ledger.open(tmp_path / "h") as ledger:
        ledger.append(events(0, 300))
        ledger.append([{"source": "test", "action": "big", "attributes": {"x": str(k) * 100_000}} for k in range(3)])
        ledger.append(events(303, 600))
        ledger.prune(time.time_ns(), by="test")
    with collecting(fleet, key) as collector:
        forward(tmp_path / "h", collector)
    assert is_good(fleet)
    with Ledger.open(fleet / "host1.test+audit", verifier=key) as copy, Ledger.open(tmp_path / "h") as ledger:
        size = ledger.size
        assert list(copy.entries(512, size)) == list(ledger.entries(512, size))
        with pytest.raises(Unverified, match="pruned"):
            copy.entry(0)
    assert ("gap", ORIGIN) in list_alerts(fleet)


def test_large_events_travel_with_their_files(tmp_path, fleet):
    key = make_log(tmp_path / "h", ORIGIN, 10)
    with Ledger.open(tmp_path / "h") as ledger:
        ledger.append([{"source": "test", "action": "big", "attributes": {"x": str(k) * 100_000}} for k in range(3)])
    with collecting(fleet, key) as collector:
        assert forward(tmp_path / "h", collector) == 13
    with Ledger.open(fleet / "host1.test+audit", verifier=key) as copy:
        assert copy.entry(12)["attributes"]["x"] == "2" * 100_000
    assert is_good(fleet)


def rewrite(tmp_path, count: int, start: int):
    """The same name and key, another past."""
    key = tmp_path / "kept"
    shutil.copy(tmp_path / "h.private/key", key)
    shutil.rmtree(tmp_path / "h")
    shutil.rmtree(tmp_path / "h.private")
    make_log(tmp_path / "h", ORIGIN, count, start, key)


@pytest.mark.parametrize(("count", "kind"), [(900, "rewritten"), (700, "rewritten"), (300, "rewritten")])
def test_a_host_that_rewrites_its_past_is_refused_and_named(tmp_path, fleet, host, count, kind, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.fleet.forwarder._SHORT_LOG_TIMEOUT_S", 0)
    with collecting(fleet, host) as collector:
        forward(tmp_path / "h", collector)
        before = read_entries(fleet / "host1.test+audit", host)
        rewrite(tmp_path, count, 5000)
        with pytest.raises(Unverified, match="past was") as caught:
            forward(tmp_path / "h", collector)
        assert caught.value.kind == kind
        (alert,) = read_alerts_of_fleet(fleet)
        assert (alert["origin"], alert["severity"], alert["fired"]) == (ORIGIN, "critical", [kind])
        assert alert["event"]["attributes"]["offered"].startswith(ORIGIN), "the signed checkpoint is the evidence"
    assert read_entries(fleet / "host1.test+audit", host) == before
    assert is_good(fleet)


def test_a_log_that_was_put_back_is_told(tmp_path, fleet, host, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.fleet.forwarder._SHORT_LOG_TIMEOUT_S", 0)
    with collecting(fleet, host) as collector:
        forward(tmp_path / "h", collector)
        rewrite(tmp_path, 300, 0)
        with pytest.raises(Unverified, match="put back"):
            forward(tmp_path / "h", collector)
    assert list_alerts(fleet) == [("replayed", ORIGIN)]


def test_entries_that_are_sent_again_skipped_or_altered_are_refused(tmp_path, fleet, host):
    with Ledger.open(tmp_path / "h") as ledger:
        note, entries = str(ledger.checkpoint()), [entry for _, entry in ledger.raw_entries()]
    bundle = b"".join(len(e).to_bytes(2, "big") + e for e in entries)
    good = {"checkpoint": note, "proof": [], "first": 0, "count": 700, "path": []}
    with collecting(fleet, host) as collector:
        for change, payload, kind in (
            ({"first": 5}, bundle, "gap"),
            ({}, bundle[:5] + b"x" + bundle[6:], "altered"),
            ({"count": 699}, bundle, "altered"),
            ({"blobs": [["0" * 64, 2]]}, bundle + b"{}", "altered"),
            ({"checkpoint": note.replace("700", "701")}, bundle, "altered"),
            ({"proof": [base64.b64encode(bytes(32)).decode()]}, bundle, "rewritten"),
        ):
            client = BareClient(collector, tmp_path / "h")
            assert client.say(payload, **good | change)["refused"] == kind
            client.close()
        client = BareClient(collector, tmp_path / "h")
        assert client.say(bundle, **good)["size"] == 700
        assert client.say(bundle, **good)["refused"] == "replayed"
        client.close()
        client = BareClient(collector, tmp_path / "h")
        with pytest.raises(ConnectionError):
            client.say(checkpoint=note, proof="no list")
        client.close()
    assert {kind for kind, _ in list_alerts(fleet)} == {"gap", "altered", "rewritten", "replayed"}
    assert is_good(fleet)


def test_strangers_other_keys_and_other_collectors_are_refused(tmp_path, fleet, host):
    make_log(tmp_path / "x", "stranger.test/x", 1)
    make_log(tmp_path / "twin", ORIGIN, 1)
    with collecting(fleet, host) as collector:
        with pytest.raises(Unverified, match="does not trust"):
            forward(tmp_path / "x", collector)
        with pytest.raises(Unverified, match="by another key"):
            forward(tmp_path / "twin", collector)
        with pytest.raises(Unverified, match="does not have the key"):
            forward(tmp_path / "h", collector, new_signer("collector.test/fleet").verifier)
        shutil.copy(tmp_path / "h.private/ledger.json", tmp_path / "twin.private/ledger.json")
        write_key(tmp_path / "twin.private/key", new_signer(ORIGIN))
        with pytest.raises(Unverified):  # the right public key, without its private one
            forward(tmp_path / "twin", collector)
        assert sorted(path.name for path in fleet.iterdir() if "+" in path.name) == []
    assert sorted(list_alerts(fleet)) == [("stranger", "stranger.test/x"), ("two_keys", ORIGIN)]


def test_strangers_who_only_connect_replace_each_other_and_keep_no_host_out(tmp_path, fleet, host, monkeypatch, caplog):
    monkeypatch.setattr("ridgeline.web.get_connection_limit", lambda most=None: 4)
    with ExitStack() as stack, collecting(fleet, host) as collector:
        address = ("127.0.0.1", collector.port)
        strangers = [stack.enter_context(socket.create_connection(address, 30)) for _ in range(20)]
        assert all(stranger.recv(1) == b"" for stranger in strangers[:16])  # they never began a handshake
        assert forward(tmp_path / "h", collector) == 700
    assert caplog.text == ""
    assert list_alerts(fleet) == []


def test_a_silent_host_is_an_alert_until_it_is_back(tmp_path, fleet, host):
    with collecting(fleet, host, silent_after=0.2) as collector:
        wait_for(lambda: list_alerts(fleet) == [("silent", ORIGIN)])
        forward(tmp_path / "h", collector)
        with Ledger.open(fleet) as own:
            wait_for(lambda: "ridgeline.fleet.back" in {event["action"] for event in own.entries()})


def test_a_clock_that_jumps_and_events_of_the_future_are_told_once(tmp_path, fleet, host):
    with Ledger.open(tmp_path / "h") as ledger:
        ledger.append([{**events(0, 1)[0], "time": time.time_ns() + 10**9 * 86_400}])
    with collecting(fleet, host) as collector:
        client = BareClient(collector, tmp_path / "h")
        for offset in (0, 5, 3600, 3601):
            assert "refused" not in client.say(time=time.time_ns() + offset * 10**9)
        client.close()
        reasons = [alert["reason"] for alert in read_alerts_of_fleet(fleet)]
        assert len(reasons) == 1
        assert "+3,600 s" in reasons[0]
    with collecting(fleet, host) as collector:
        forward(tmp_path / "h", collector)
    assert any("in the future" in alert["reason"] for alert in read_alerts_of_fleet(fleet))
    assert is_good(fleet), "it is told, and stored"


def test_the_newest_connection_of_a_host_wins(tmp_path, fleet, host):
    with collecting(fleet, host) as collector:
        old = BareClient(collector, tmp_path / "h")
        assert forward(tmp_path / "h", collector) == 700
        with pytest.raises(OSError):  # the first may still find the socket open
            [old.say(time=1) for _ in range(2)]
        old.close()
    assert list_alerts(fleet) == []


def test_a_copy_that_was_changed_or_cut_is_found(tmp_path, fleet, host):
    with collecting(fleet, host) as collector:
        forward(tmp_path / "h", collector)
    copy = fleet / "host1.test+audit"
    path = copy / "tile/entries/000"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"root", b"toor", 1))
    assert not is_good(fleet)
    path.write_bytes(data)
    assert is_good(fleet)
    shutil.rmtree(copy)
    assert [r.findings[0].kind for _, r in examine_fleet(fleet) if not r.ok] == ["missing"]
    with pytest.raises(Exception, match="is not what the collector stored"), collecting(fleet, host):
        pass


def test_the_doctor_looks_at_every_copy_and_a_backup_says_that_it_has_none(tmp_path, fleet, host):
    with collecting(fleet, host) as collector:
        forward(tmp_path / "h", collector)
    run = CliRunner().invoke(audit, ["doctor", str(fleet), "--json"])
    (copy,) = [row for row in json.loads(run.stdout) if row["check"] == "copy"]
    assert (run.exit_code, copy["ok"]) == (0, True)
    assert ORIGIN in copy["sentence"]
    done = CliRunner().invoke(audit, ["backup", str(fleet), "-o", str(tmp_path / "b"), "--json"])
    assert json.loads(done.stdout)["copies_left_out"] == 1
    assert (
        "without the copies of hosts (1)"
        in CliRunner().invoke(audit, ["backup", str(fleet), "-o", str(tmp_path / "b")]).stderr
    )
    (fleet / "host1.test+audit" / "checkpoint").write_bytes(b"\xff")
    run = CliRunner().invoke(audit, ["doctor", str(fleet), "--json"])
    assert [row["check"] for row in json.loads(run.stdout) if row["ok"] is False] == ["copy"]
    assert run.exit_code == 1


def test_one_collector_writes_a_fleet_and_keeps_one_key_per_log(tmp_path, fleet, host):
    with collecting(fleet, host):
        assert is_fleet(fleet)
        with pytest.raises(Locked), collecting(fleet, host):
            pass
    with pytest.raises(InputError, match="has two keys"), collecting(fleet, new_signer(ORIGIN).verifier):
        pass
    twice = collecting(tmp_path / "other", host, new_signer(ORIGIN).verifier)
    with pytest.raises(InputError, match="has two keys"), twice:
        pass
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("origin", ["checkpoint", "tile", "..", ".", "/x", "a.private", "x" * 300])
def test_a_log_that_cannot_be_a_folder_is_refused(origin):
    with pytest.raises(InputError, match="cannot be collected under that name"):
        check_origin(origin)


def test_the_commands_ask_for_what_is_missing(tmp_path, fleet, host):
    def fail(*words: object) -> str:
        return str(CliRunner().invoke(audit, list(map(str, words))).exception)

    assert "--trust is missing" in fail("collect", fleet, "--listen", ":0")
    assert "is no address" in fail("collect", fleet, "--listen", "x", "--trust", host)
    assert "--silent-after" in fail("collect", fleet, "--listen", ":0", "--trust", host, "--silent-after", "-1")
    assert "has no port" in fail("forward", tmp_path / "h", "--to", "x:0", "--collector", host)
    (tmp_path / "h.private/key").unlink()
    assert "proves with it" in fail("forward", tmp_path / "h", "--to", "x:1", "--collector", host)
    assert not fleet.exists()


def test_a_collector_ends_though_a_journal_is_full_in_that_moment(fleet, host):
    async def run():
        collector, stop, listening = Collector(fleet, [host], "collector.test/fleet"), asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(collector.run("127.0.0.1", 0, lambda _: listening.set(), stop))
        await listening.wait()
        await asyncio.sleep(0.05)
        stop.set()
        collector._turn.set()
        await asyncio.wait_for(running, 20)

    run_in_thread(run())


def test_all_hosts_of_a_network_that_is_down_are_silent_in_one_commit(fleet):
    keys = [new_signer(f"host{k}.test/audit").verifier for k in range(300)]
    with collecting(fleet, *keys, silent_after=0.2):
        wait_for(lambda: len(list_alerts(fleet)) == 300)
    assert {origin for _, origin in list_alerts(fleet)} == {key.name for key in keys}


def test_hosts_wait_longer_between_frames_if_there_are_many(tmp_path, fleet, host, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.fleet.collector.FRAMES_PER_S", 0.5)
    with collecting(fleet, host) as collector:
        client = BareClient(collector, tmp_path / "h")
        assert client.greeting["pause"] == 2.0
        client.close()
        forwarder = Forwarder(tmp_path / "h", "127.0.0.1", collector.port, collector.key)
        forwarder.run(once=True)
        forwarder.close()
        assert forwarder._pause_s == 2.0


def test_a_log_that_has_ended_gets_the_co_signature_that_its_last_frame_had_not(tmp_path, fleet, host, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.fleet.collector.COSIGN_S", 0.3)
    monkeypatch.setattr("ridgeline.audit.fleet.forwarder.STORE_S", 0.1)
    monkeypatch.setattr("ridgeline.audit.fleet.forwarder.POLL_S", 0.02)
    log = tmp_path / "h"
    with collecting(fleet, host) as collector:
        forwarder = Forwarder(log, "127.0.0.1", collector.port, collector.key)
        thread = threading.Thread(target=forwarder.run)
        thread.start()
        with Ledger.open(log, checkpoint_s=0.01) as ledger:
            for k in range(5):
                ledger.append(events(1000 + k, 1001 + k))
                time.sleep(0.03)
            size = ledger.size
        try:
            wait_for(lambda: examine(log, host, witnesses=[collector.key], require=1, full=False).ok)
            wait_for(lambda: any(w.size == size for w in examine(log, host, witnesses=[collector.key]).witnesses))
        finally:
            forwarder.stop()
            thread.join(TIMEOUT_S)
            forwarder.close()


@pytest.mark.parametrize("tiered", [False, True])
def test_copies_are_pruned_by_origin_and_still_verify(tmp_path, fleet, host, tiered):
    other = make_log(tmp_path / "o", "other.test/audit", 700)
    with collecting(fleet, host, other) as collector:
        forward(tmp_path / "h", collector)
        forward(tmp_path / "o", collector)
        copy, rest = fleet / "host1.test+audit", fleet / "other.test+audit"
        if tiered:
            move_payloads(copy, tmp_path / "tier", 1 << 62, verifier=host)
        answer = CliRunner().invoke(
            audit, ["prune", str(fleet), "--older-than", "1h", "--origin", ORIGIN, "--by", "ann", "--reason", "old"]
        )
        assert (answer.exit_code, "512 payloads pruned" in answer.stdout) == (0, True)
        assert prune_copies(fleet, 1 << 62, by="ann", origins=[ORIGIN]) == {ORIGIN: 0}
        with Ledger.open(tmp_path / "h") as ledger:  # a collector that runs goes on
            ledger.append(events(700, 1000))
        forward(tmp_path / "h", collector)
    assert not any((tmp_path / "tier").rglob("00?"))
    assert is_good(fleet)
    assert len(read_entries(rest, other)) == 700
    with Ledger.open(copy, verifier=host) as ledger:
        assert len(list(ledger.raw_entries(512))) == 488
    with Ledger.open(fleet) as own:
        (event,) = [e for e in own.entries() if e["action"] == "ridgeline.fleet.prune"]
    assert (event["actor"], event["subject"], event["attributes"]["to"]) == ("ann", ORIGIN, 512)
    (copy / "tile/entries/002").unlink()  # not recorded: a finding
    assert not is_good(fleet)


def test_what_cannot_be_pruned_is_said(tmp_path, fleet, host):
    with collecting(fleet, host) as collector:
        forward(tmp_path / "h", collector)
    with pytest.raises(InputError, match="has no log of 'x'"):
        prune_copies(fleet, 1 << 62, by="ann", origins=["x"])
    with pytest.raises(InputError, match="name of the person"):
        prune_copies(fleet, 1 << 62, by="")
    assert prune_copies(fleet, 0, by="ann") == {ORIGIN: 0}
    assert CliRunner().invoke(audit, ["prune", str(tmp_path / "h"), "--older-than", "1h", "--origin", "x"]).exit_code


def test_a_forwarder_that_is_newer_than_its_collector_waits_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.fleet.forwarder._LONGEST_PAUSE_S", 0.2)
    log, key = tmp_path / "h", make_log(tmp_path / "h", "host1.test/audit", 30)
    notes, refused = list[str](), threading.Event()

    def note(sentence):
        notes.append(sentence)
        refused.set()

    version = channel.VERSION
    with collecting(tmp_path / "fleet", key) as collector:
        parse = channel.read_frame

        async def read_newer(*words, **more):  # what a newer forwarder says
            header, payload = await parse(*words, **more)
            if more.get("greeting") and not refused.is_set():
                header["ridgeline"] = version + 1
            return header, payload

        monkeypatch.setattr("ridgeline.audit.fleet.collector.channel.read_frame", read_newer)
        forwarder = Forwarder(log, "127.0.0.1", collector.port, collector.key, notify=note)
        thread = threading.Thread(target=forwarder.run)
        thread.start()
        until = time.monotonic() + TIMEOUT_S
        while forwarder.size < 30 and time.monotonic() < until:
            time.sleep(0.05)
        forwarder.stop()
        thread.join(TIMEOUT_S)
        forwarder.close()
        assert "update the older end; trying again." in notes[0]
        assert forwarder.size == 30
        refused.clear()
        with pytest.raises(Unverified, match="update the older end"):
            forward(log, collector)  # once
