"""The watcher records every event first and scores it once; restarts neither lose nor repeat events."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import httpx
import pytest
from tests.audit.conftest import cli, cli_process
from tests.audit.sources.bus import private_bus, send_signals
from tests.audit.watch import watching
from tests.audit.watch.watching import (
    BASE,
    ODD_RULE,
    encode,
    entries,
    event,
    in_order,
    jsonl,
    make,
    outside_events,
    run_command,
    watch,
    write_events,
)

from ridgeline.audit import Ledger
from ridgeline.audit.compliance.report import collect, derive_tables
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.verify import examine
from ridgeline.audit.ledger.writer_socket import WriterClient
from ridgeline.audit.serve.live import Live
from ridgeline.audit.sources import Batch
from ridgeline.audit.sources.dbus import DBus
from ridgeline.audit.sources.files import LineFile
from ridgeline.audit.sources.lines import make_log_reader
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.internal_events import make_label_event, read_alerts
from ridgeline.audit.watch.meaning import Meaning
from ridgeline.audit.watch.scorer import Settings
from ridgeline.audit.watch.watcher import Watcher
from ridgeline.errors import InputError, RidgelineError


@pytest.fixture
def log(tmp_path):
    return make(tmp_path / "log")


class Given:
    """A source that gives what it was given."""

    name = "given"

    def __init__(self, *batches, forever=False, error=None):
        self._batches, self._forever, self._error, self._stopped = batches, forever, error, asyncio.Event()

    def stop(self):
        self._stopped.set()

    async def batches(self, position):
        for batch in self._batches:
            yield batch
        if self._error:
            raise self._error
        if self._forever:
            await self._stopped.wait()


def test_every_event_is_recorded_and_scored_once_and_the_log_verifies(log, tmp_path):
    write_events(tmp_path / "in", 0, 400)
    done = watch(log, jsonl(tmp_path / "in"))
    assert (sum(done.taken.values()), done.scored, done.left) == (400, 400, 0)
    assert [e["subject"] for e in outside_events(log)] == [event(i)["subject"] for i in range(400)]
    assert len(in_order(log)) == 400
    actions = [e["action"] for e in entries(log) if internal_events.is_internal(e)]
    assert (actions.count(internal_events.START), actions.count(internal_events.STOP)) == (1, 1)
    assert examine(log, Ledger.open(log).verifier).ok


def test_a_watcher_started_again_scores_as_if_it_had_never_stopped(tmp_path):
    uninterrupted, parts, learnt_anew = (make(tmp_path / name) for name in ("whole", "parts", "anew"))
    write_events(tmp_path / "a", 0, 450)
    watch(uninterrupted, jsonl(tmp_path / "a"))
    for upto in (150, 300, 450):
        for log in (parts, learnt_anew):
            write_events(tmp_path / f"{log.name}.in", upto - 150, upto)
            watch(log, jsonl(tmp_path / f"{log.name}.in"))
        shutil.rmtree(LedgerPaths(learnt_anew).private / "watch")  # what was learnt is derived …
        shutil.rmtree(LedgerPaths(learnt_anew).private / "meaning")
    for log in (parts, learnt_anew):
        assert [e["time"] for e in outside_events(log)] == [event(i)["time"] for i in range(450)]
        assert in_order(log) == in_order(uninterrupted)


@pytest.mark.parametrize("pruned", [False, True])
def test_the_index_is_complete_after_updates_by_watcher_and_search(log, tmp_path, pruned):
    def index(folder):
        with Ledger.open(log) as ledger:
            meaning = Meaning(folder, str(ledger.verifier), Settings().model, encode)
            meaning.catch_up(ledger)
            hits = meaning.search("disk wipe", 2_000, ledger)
            return meaning, [(hit.entry, round(hit.relevance, 6)) for hit in hits]

    index_folder = LedgerPaths(log).private / "meaning"
    for turn, upto in enumerate((600, 700, 800)):
        write_events(tmp_path / "in", upto - 100 if upto > 600 else 0, upto)
        watch(log, jsonl(tmp_path / "in"))
        with Ledger.open(log) as ledger:  # past the watcher, then searched: the index is ahead of the detector
            ledger.append([event(10_000 + 100 * turn + k) for k in range(100)])
            if pruned and turn == 1:
                ledger.prune(event(550)["time"], by="ann")
                shutil.rmtree(index_folder)
        meaning, hits = index(index_folder)
        meaning.save()
        assert sorted(hits) == sorted(index(tmp_path / f"anew{turn}")[1])
        assert (
            meaning.complete == len(hits) + sum(map(internal_events.is_internal, entries(log))) if not pruned else hits
        )


def test_alerts_are_bound_to_entries_sent_to_outlets_and_read_back_by_score(log, tmp_path):
    write_events(tmp_path / "in", 0, 1_200)
    on_recorded = []
    watch(log, jsonl(tmp_path / "in"), outlets=[on_recorded.append], rules=[ODD_RULE])
    with Ledger.open(log) as ledger:
        alerts = read_alerts(ledger)
        assert {a["entry"] for a in on_recorded} == {a["entry"] for a in alerts}
        by_score = [a["score"] for a in alerts if a["severity"] == "medium"]
        assert by_score == sorted(by_score, reverse=True)
        odd = alerts[0]
        assert "odd" in odd["fired"]
        assert odd["event"]["action"] == "firewall.rule.delete"
        assert odd["reason"]
        assert ledger.leaf(odd["entry"]).hex() == odd["leaf"]
        assert read_alerts(ledger, where=lambda e: e["actor"] == "nobody") == []
        assert read_alerts(ledger, since=BASE + 10**16) == []


def test_a_heartbeat_that_stops_is_an_alert_about_its_last_event(log, tmp_path):
    path = tmp_path / "beats.jsonl"
    rows = [{**event(k), "time": BASE + k * 20 * 10**9, "action": "host.beat", "subject": "web0"} for k in range(600)]
    for k, row in enumerate(rows):
        row["attributes"] = {"beat": "ok"} if k < 500 and k % 3 == 0 else {"query": "done"}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    watch(log, jsonl(path))
    with Ledger.open(log) as ledger:
        (alert,) = [a for a in internal_events.read_alerts(ledger) if a["kind"] == "absence"]
    assert alert["event"]["attributes"] == {"beat": "ok"}
    assert alert["event"]["time"] == rows[498]["time"]
    assert "came every 60 s and has not come for" in alert["reason"]


def test_what_others_append_meanwhile_is_scored_and_their_labels_count(log):
    with Ledger.open(log) as ledger:
        watcher = Watcher(ledger, [Given(forever=True)], Settings(batch=64, wait_ms=5), encode=encode)
        thread = threading.Thread(target=watcher.run)
        thread.start()
        assert watcher.scorer.ready.wait(60)
        guest = WriterClient(LedgerPaths(log))
        first, _, _ = guest.append([event(i) for i in range(200)])
        guest.checkpoint()  # signed, so that a reader sees it
        guest.append([make_label_event(log, first + 96, "bad", "ann")])
        guest.append([event(200)])
        until = time.monotonic() + 60
        while watcher.scorer.scored < 201 and time.monotonic() < until:
            time.sleep(0.02)
        guest.close()
        watcher.stop()
        thread.join(60)
        assert not thread.is_alive()
    assert len(in_order(log)) == 201
    with Ledger.open(log) as ledger:
        (label,) = [e for _, e in internal_events.read_internal_events(ledger, internal_events.LABEL)]
    assert (label["actor"], label["attributes"]["verdict"]) == ("ann", "bad")


def test_nothing_vanishes_silently(log):
    bad = {"source": "t", "action": "not words"}
    batches = [
        Batch([event(1), bad, event(2)], dropped=7, gaps=("a gap",)),
        Batch([], refused=(("line 3", "no JSON"),)),
    ]
    done = watch(log, Given(*batches), score=False)
    assert (done.dropped, done.refused, sum(done.taken.values())) == ({"given": 7}, {"given": 2}, 2)
    by_action = {e["action"]: e["attributes"] for e in entries(log) if internal_events.is_internal(e)}
    assert by_action[internal_events.DROPS] == {"dropped": 7}
    assert by_action[internal_events.GAP] == {"what": "a gap"}
    assert sum(e["attributes"]["count"] for e in entries(log) if e["action"] == internal_events.REFUSED) == 2
    assert "not words" in json.dumps([e for e in entries(log) if e["action"] == internal_events.REFUSED])


def test_a_line_is_recorded_whatever_time_it_says(log, tmp_path):
    lines = [f"{year}-12-31T23:59:59Z host sshd[1]: root logged in" for year in ("9999", "2025", "0001")]
    (tmp_path / "a.log").write_text("".join(line + "\n" for line in lines))
    before = time.time_ns()
    done = watch(log, LineFile(tmp_path / "a.log", "lines", make_log_reader("a.log"), follow=False), score=False)
    assert done.refused == {}
    assert [e["attributes"]["_prefix"] + e["attributes"]["message"] for e in outside_events(log)] == lines
    assert [before <= e["time"] for e in outside_events(log)] == [True, False, True]


def test_an_event_that_the_log_cannot_hold_is_refused_by_its_line(log, tmp_path):
    good = {"source": "t", "action": "a.b"}
    lines = [good, {"source": "t", "action": "bad one"}, good, {**good, "foo": 1}, {**good, "time": 1 << 63}]
    (tmp_path / "in").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert watch(log, jsonl(tmp_path / "in"), score=False).refused == {f"jsonl:{tmp_path / 'in'}": 3}
    (refused,) = [e["attributes"] for e in entries(log) if e["action"] == internal_events.REFUSED]
    assert [why.partition(f" of {tmp_path / 'in'} ")[::2] for why in refused["why"]] == [
        ("line 2", "action 'bad one' is not words joined by dots, like network.ovs.bridge.create."),
        ("line 4", "has an unknown name 'foo'; there are: time, source, actor, action, subject, attributes."),
        ("line 5", "time is outside 0 to 2^63 − 1 nanoseconds since 1970."),
    ]


def test_secrets_and_forged_internal_events_do_not_reach_the_log(log):
    secret = "hunter2-very-secret"
    sly = {
        "source": "t",
        "action": internal_events.ALERT,
        "attributes": {"entry": 0, "score": 0.0, "db_password": secret},
    }
    line = {"source": "t", "action": "a.b", "subject": f"token={secret}", "actor": f"x secret: {secret}"}
    watch(log, Given(Batch([sly, line])), score=False)
    assert b"hunter2" not in b"".join(p.read_bytes() for p in log.parent.rglob("*") if p.is_file())
    first = outside_events(log)[0]
    assert first["action"] == f"foreign.{internal_events.ALERT}"
    with Ledger.open(log) as ledger:
        assert read_alerts(ledger) == []


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (internal_events.SCORES, {"first": 0}),
        (internal_events.SCORES, {"first": 0, "count": 2, "scores": [1]}),
        (internal_events.SCORES, {"first": "x", "count": 1, "scores": [1]}),
        (internal_events.ALERT, {"entry": 0, "leaf": "00", "score": 1.0, "reason": "made up"}),
        (internal_events.ALERT, {"entry": 10**9, "leaf": "00", "score": 1.0, "reason": "made up"}),
        (internal_events.ALERT, {"entry": -1}),
        (internal_events.LABEL, {"entry": True, "verdict": "bad"}),
        (internal_events.LABEL, {"entry": 0, "verdict": "<b>"}),
        (internal_events.DROPS, {}),
    ],
)
def test_malformed_internal_events_are_skipped(log, tmp_path, action, words):
    with Ledger.open(log) as ledger:
        ledger.append([event(0), internal_events.make_event(action, None, words)])
    write_events(tmp_path / "in", 1, 20)
    watch(log, jsonl(tmp_path / "in"))
    with Ledger.open(log) as ledger:
        assert read_alerts(ledger) == []
        assert derive_tables(collect(ledger, None, None, None))["alerts"] == 0
        live = Live(ledger, "words")
        assert live.alerts(10) == []
        assert live.status()["size"] == ledger.size
        assert len(live.events(0, 100)) == ledger.size


def test_a_user_cannot_append_internal_events(log):
    done = cli("audit", "append", log, stdin=json.dumps({"source": "t", "action": internal_events.LABEL}))
    assert (done.returncode, "reserved for internal events" in done.stderr) == (2, True)
    assert entries(log) == []


def test_a_failing_source_is_recorded_and_the_others_continue(log, tmp_path):
    write_events(tmp_path / "in", 0, 5)
    broken = Given(Batch([event(9)]), error=RidgelineError("the bus went away."))
    done = watch(log, jsonl(tmp_path / "in"), broken, score=False)
    assert done.troubles == ["the bus went away."]
    assert sum(done.taken.values()) == 6
    assert any(e["action"] == internal_events.DOWN for e in entries(log))
    size = len(entries(log))
    with pytest.raises(RidgelineError, match="went away"):
        watch(log, Given(error=RidgelineError("the bus went away.")), score=False)
    assert len(entries(log)) == size  # nothing was begun


def test_mistakes_are_errors_before_the_start(log, tmp_path, capsys):
    with pytest.raises(InputError, match="given twice"):
        watch(log, Given(), Given())
    for words in ({"batch": 0}, {"wait_ms": -1.0}, {"alert_rate": 1.0}):
        with pytest.raises(InputError):
            Settings(**words)
    os.mkfifo(tmp_path / "pipe")
    code, _, sentence = run_command(capsys, "audit", "watch", log, "--lines", tmp_path / "pipe", "--no-score")
    assert (code, sentence) == (2, f"ridgeline: '{tmp_path}/pipe' is not a regular file; use - for a pipe.\n")
    for words in ((), ("--lines", tmp_path / "none", "--no-follow"), ("--jsonl", "-", "--dbus-match", "x")):
        code, _, sentence = run_command(capsys, "audit", "watch", log, *words)
        assert (code, sentence.startswith("ridgeline: ")) == (2, True)


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_signals_of_a_real_bus_are_recorded_in_order(log, tmp_path, count):
    with private_bus(tmp_path / "bus") as address, Ledger.open(log) as ledger:
        watcher = Watcher(ledger, [DBus(address)], Settings(score=False))
        thread = threading.Thread(target=watcher.run)
        thread.start()
        assert watcher.scorer.ready.wait(60)
        until = time.monotonic() + 120
        _listening(watcher, address)
        send_signals(address, count)
        while sum(watcher.intake.taken.values()) < count and time.monotonic() < until:
            time.sleep(0.05)
        watcher.stop()
        thread.join(60)
    args = [e["attributes"]["args"][0] for e in outside_events(log) if e["action"] == "net.ovs.Bridge.Created"]
    assert [a for a in args if a != "br-1"] == [f"br{i}" for i in range(count)]


def _listening(watcher, address):
    """Knock until the watcher hears it."""
    until = time.monotonic() + 60
    while not sum(watcher.intake.taken.values()) and time.monotonic() < until:
        send_signals(address, 1, start=-1)
        time.sleep(0.05)


def test_a_second_ctrl_c_leaves_the_scoring_to_the_next_start(log):
    with Ledger.open(log) as ledger:
        source = Given(Batch([event(i) for i in range(300)]), forever=True)
        watcher = Watcher(ledger, [source], Settings(batch=16, wait_ms=1), encode=encode)
        begun, go_on = threading.Event(), threading.Event()
        watcher.scorer.on_recorded = lambda piece: (begun.set(), go_on.wait(60))
        done = []
        thread = threading.Thread(target=lambda: done.append(watcher.run()))
        thread.start()
        assert begun.wait(60)
        watcher.stop()
        watcher.stop()
        until = time.monotonic() + 60
        while not watcher.scorer._cut and time.monotonic() < until:
            time.sleep(0.01)
        go_on.set()
        thread.join(60)
    assert done[0].interrupted
    assert 0 < done[0].scored < 300
    assert done[0].left > 0
    watch(log, Given())
    assert len(in_order(log)) == 300


def test_ctrl_c_takes_what_is_here_and_ends_well(log, tmp_path):
    (tmp_path / "a.log").write_text("one\ntwo\n")
    command = [sys.executable, "-m", "ridgeline", "audit", "watch", log, "--lines", tmp_path / "a.log", "--no-score"]
    process = subprocess.Popen([*map(str, command), "--http", ":0"], stderr=subprocess.PIPE, text=True)
    first = process.stderr.readline()
    url, place = re.fullmatch(r"taking events at (\S+)/events; the token is in (\S+)\n", first).groups()
    token = (LedgerPaths(log).private / "http-token").read_text().strip()
    assert place == str(LedgerPaths(log).private / "http-token")
    headers = {"authorization": f"Bearer {token}"}
    answer = httpx.post(f"{url}/events", content=json.dumps(event(5)), headers=headers, timeout=60)
    assert answer.json()["count"] == 1
    assert "ridgeline_audit_taken_total" in httpx.get(f"{url}/metrics", headers=headers, timeout=60).text
    until = time.monotonic() + 60
    while len(outside_events(log)) < 3 and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    rest = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 0, rest
    assert {e["source"] for e in outside_events(log)} == {"lines", "t"}
    assert entries(log)[-1]["attributes"]["why"] == "interrupted"
    assert token not in first + rest


def test_the_command_line_records_scores_and_ends_with_its_input(log, tmp_path):
    lines = "".join(json.dumps(event(i)) + "\n" for i in range(30)) + "oops\n"
    done = cli_process("audit", "watch", log, "--jsonl", "-", "--no-score", "--json", stdin=lines)
    assert done.returncode == 1  # one line was no event
    assert json.loads(done.stdout.splitlines()[-1])["summary"]["refused"] == {"stdin": 1}
    assert "line 31 of stdin" in json.dumps(entries(log))
    assert watching.outside_events(log)[29]["subject"] == event(29)["subject"]


def test_files_that_do_not_exist_yet_are_named_at_once(log, tmp_path):
    options = [("--jsonl", "a.jsonl"), ("--lines", "b.log"), ("--auditd", "audit.log")]
    command = [sys.executable, "-m", "ridgeline", "audit", "watch", log, "--no-score"]
    command += [word for option, name in options for word in (option, tmp_path / name)]
    process = subprocess.Popen([*map(str, command)], stderr=subprocess.PIPE, text=True)
    for _, name in options:
        assert process.stderr.readline() == f"note: '{tmp_path / name}' does not exist yet; the watcher waits for it.\n"
    (tmp_path / "audit.log").write_text("type=BOOT msg=audit(1.000:1): op=x\ntype=EOE msg=audit(1.000:1):\n")
    until = time.monotonic() + 60
    while not outside_events(log) and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert [e["action"] for e in outside_events(log)] == ["auditd.boot"]
