"""stdin, the journal (through a fake journalctl), HTTP."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
import time
import zlib
from concurrent.futures import Future
from hashlib import sha256
from types import SimpleNamespace

import httpx
import pytest
from tests.audit.threads import run_in_thread

from ridgeline.audit.ledger.event import encode
from ridgeline.audit.ledger.ledger import Receipts
from ridgeline.audit.sources.http import Http, RecordedRequest, RequestMemory
from ridgeline.audit.sources.journal import Journal, make_event
from ridgeline.audit.sources.lines import LONGEST, make_log_reader, parse_json_line
from ridgeline.audit.sources.stdin import PipeSource
from ridgeline.errors import InputError

JOURNALCTL = """#!/usr/bin/env python3
import json, sys, time
cursors = [f"s=1;i={i}" for i in range(1, 9)]
at = [a.split("=", 1)[1] for a in sys.argv if a.startswith("--cursor=")]
if at and at[0] not in cursors:
    sys.exit("Failed to seek to cursor: Invalid argument")
for i in range(cursors.index(at[0]) if at else 0, 8):
    message = [104, 105, 255] if i == 3 else f"message {i}"
    print(json.dumps({"__CURSOR": cursors[i], "__REALTIME_TIMESTAMP": str(10**15 + i), "MESSAGE": message, "_UID": "0",
                      "SYSLOG_IDENTIFIER": "sshd", "_SYSTEMD_UNIT": "ssh.service", "PRIORITY": "6"}), flush=True)
if "-f" in sys.argv:
    time.sleep(60)
"""


@pytest.fixture
def journalctl(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text(JOURNALCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


async def collect_batches(source, position=None, stop_at=None):
    batches = []
    async for batch in source.batches(position):
        batches.append(batch)
        if stop_at is not None and sum(len(b.events) for b in batches) >= stop_at:
            source.stop()
    return batches


def test_the_journal_is_read_and_resumed_after_its_cursor(journalctl):
    batches = run_in_thread(collect_batches(Journal(follow=False)))
    events = [e for b in batches for e in b.events]
    assert [e["attributes"]["message"] for e in events] == ["hi\\xff" if i == 3 else f"message {i}" for i in range(8)]
    assert events[0]["time"] == 10**18
    assert (events[0]["action"], events[0]["subject"], events[0]["actor"]) == ("journal.sshd", "ssh.service", "uid 0")
    assert batches[-1].position == {"cursor": "s=1;i=8"}
    rest = run_in_thread(collect_batches(Journal(follow=False), {"cursor": "s=1;i=6"}))
    assert [e["attributes"]["message"] for b in rest for e in b.events] == ["message 6", "message 7"]


def test_a_followed_journal_ends_on_stop(journalctl):
    batches = run_in_thread(asyncio.wait_for(collect_batches(Journal(), {"cursor": "s=1;i=5"}, stop_at=3), 30))
    assert sum(len(b.events) for b in batches) == 3


def test_a_lost_cursor_gives_a_gap(journalctl):
    with pytest.raises(InputError, match="Failed to seek"):
        run_in_thread(collect_batches(Journal(follow=False), {"cursor": "gone"}))
    with pytest.raises(InputError, match="no match of the journal"):
        Journal(["ssh"])


def test_an_entry_without_the_usual_fields_is_still_an_event():
    event = make_event({"__CURSOR": "x", "MESSAGE": ["a", "b"]})
    assert (event["action"], event["attributes"]["message"]) == ("journal.unknown", "a b")


@pytest.mark.parametrize("stamp", ["-1", "99999999999999999", "soon", "9" * 5_000, ["1", "2"]])
def test_an_entry_of_a_time_that_the_log_cannot_hold_is_of_the_next_best(stamp):
    entry = {"_SOURCE_REALTIME_TIMESTAMP": stamp, "__REALTIME_TIMESTAMP": "5"}
    assert make_event(entry)["time"] == 5_000
    before = time.time_ns()
    assert before <= make_event({"__REALTIME_TIMESTAMP": stamp})["time"] <= time.time_ns()


@pytest.mark.parametrize("field", ["SYSLOG_IDENTIFIER", "_COMM", "UNIT", "_SYSTEMD_UNIT", "_UID"])
def test_an_entry_with_a_name_too_long_for_the_log_is_still_an_event(field):
    event = make_event({"MESSAGE": "root logged in", field: "ä" * 9 + "x" * 9_000})
    assert event["attributes"]["message"] == "root logged in"
    encode([event])


def read_pipe(read, *parts):
    """What comes of these writes into a pipe."""
    out, into = os.pipe()

    def write():
        with os.fdopen(into, "wb", buffering=0) as file:
            for part in parts:
                file.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    batches = run_in_thread(collect_batches(PipeSource(read, out)))
    writer.join()
    os.close(out)
    return batches


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_line_longer_than_any_buffer_is_one_line_of_stdin(end):
    good, long = json.dumps({"source": "s", "action": "a.b"}).encode(), b"x" * 3_000_000
    batches = read_pipe(parse_json_line, good + b"\n" + long + b"\n" + good + b"\noops\n" + long + end)
    assert [where for b in batches for where in b.places] == ["line 1 of stdin", "line 3 of stdin"]
    refused = [(where, why) for b in batches for where, why in b.refused]
    assert [where for where, _ in refused] == ["line 2 of stdin", "line 4 of stdin", "line 5 of stdin"]
    assert refused[0][1] == f"line 2 of stdin has 3000000 bytes, more than {LONGEST}"


@pytest.mark.parametrize("first", [b"x", b" "])
def test_a_line_too_long_is_cut_and_says_by_how_much(first):
    batches = read_pipe(make_log_reader("stdin"), first * 3_000_000 + b"root\nshort\n")
    one, two = [e["attributes"] for b in batches for e in b.events]
    assert (len(one["message"]), one["_cut_bytes"]) == (LONGEST, 3_000_004 - LONGEST)
    assert two["message"] == "short"


def test_stdin_is_taken_in_whole_lines_as_it_comes():
    out, into = os.pipe()
    line = json.dumps({"source": "s", "action": "a.b"}).encode()

    def write():
        for part in (line + b"\n" + line[:5], line[5:] + b"\nno json\n", line):
            os.write(into, part)
            threading.Event().wait(0.05)
        os.close(into)

    writer = threading.Thread(target=write)
    writer.start()
    batches = run_in_thread(collect_batches(PipeSource(parse_json_line, out)))
    writer.join()
    os.close(out)
    assert sum(len(b.events) for b in batches) == 3
    assert [where for b in batches for where, _ in b.refused] == ["line 3 of stdin"]


def test_a_silent_stdin_does_not_keep_a_watcher_from_ending():
    out, into = os.pipe()

    async def run():
        source = PipeSource(parse_json_line, out)
        task = asyncio.create_task(collect_batches(source))
        await asyncio.sleep(0.05)
        source.stop()
        return await asyncio.wait_for(task, 30)

    assert run_in_thread(run()) == []
    os.close(into)
    os.close(out)


class Served:
    """An HTTP source with a log of its own behind it; `ask` posts from a thread."""

    def __init__(self, **more):
        self.announced, self.taken, self.failing = [], [], False
        self.source = Http(":0", "t" * 20, announce=self.announced.append, **more)

    async def run(self, act):
        async def pull():
            async for batch in self.source.batches(None):
                if self.failing:
                    batch.failed(OSError("disk"))
                    continue
                first = len(self.taken)
                self.taken += batch.events
                batch.taken(Receipts(first, b"", len(self.taken)))

        task = asyncio.create_task(pull())
        while not self.announced:
            await asyncio.sleep(0.01)
        url = self.announced[0].split()[-1].removesuffix("/events")
        answer = await asyncio.to_thread(act, url)
        self.source.stop()
        await asyncio.wait_for(task, 30)
        return answer


def post(url, body, token="t" * 20, path="/events", key=None):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    headers |= {"idempotency-key": key} if key is not None else {}
    return httpx.post(url + path, content=body, headers=headers, timeout=30)


LINE = json.dumps({"action": "a.b", "subject": "x"})


def test_events_by_http_are_answered_with_their_place_in_the_log():
    served = Served()

    def act(url):
        return post(url, f"{LINE}\n{LINE}\n"), post(url, f"[{LINE}]"), post(url, "")

    one, two, three = run_in_thread(served.run(act))
    assert one.json() == {"first": 0, "count": 2, "size": 2}
    assert two.json() == {"first": 2, "count": 1, "size": 3}
    assert three.json() == {"first": None, "count": 0}
    assert served.taken[0]["source"] == "http"


def test_what_is_wrong_too_much_or_not_allowed_is_refused_whole():
    served = Served(rate=10)

    def act(url):
        answers = [
            post(url, LINE, token=None),
            post(url, LINE, token="wrong" * 5),
            post(url, f'{LINE}\n{{"action": "no words"}}'),
            post(url, "[1, 2"),
            post(url, "\n".join([LINE] * 11)),
            post(url, b"x" * ((8 << 20) + 1)),
            post(url, LINE, path="/events/../../etc/passwd"),
        ]
        served.failing = True
        return [*answers, post(url, LINE)]

    answers = run_in_thread(served.run(act))
    assert [a.status_code for a in answers] == [401, 401, 400, 400, 413, 413, 404, 500]
    assert "event 1 action 'no words'" in answers[2].json()["error"]
    assert answers[4].json()["error"] == "the request has 11 events; send at most 10 at once."
    assert "retry-after" not in answers[4].headers  # it would never be taken
    assert served.taken == []


def test_requests_above_the_rate_are_told_to_come_again(monkeypatch):
    monkeypatch.setattr(
        "ridgeline.audit.sources.http.time", SimpleNamespace(monotonic=lambda: 5.0)
    )  # time stands still
    served = Served(rate=10)
    one, two = run_in_thread(served.run(lambda url: [post(url, "\n".join([LINE] * 10)), post(url, LINE)]))
    assert (one.status_code, two.status_code, two.headers["retry-after"]) == (200, 429, "1")


def test_a_body_may_be_compressed_and_its_size_is_bounded():
    served = Served()
    plain = f"{LINE}\n{LINE}\n".encode()

    def act(url):
        def send(body, encoding="gzip", key=None):
            headers = {"authorization": "Bearer " + "t" * 20, "content-encoding": encoding}
            headers |= {"idempotency-key": key} if key else {}
            return httpx.post(f"{url}/events", content=body, headers=headers, timeout=30)

        return [
            send(gzip.compress(plain)),
            send(gzip.compress(plain[: len(plain) // 2]) + gzip.compress(plain[len(plain) // 2 :])),  # two members
            send(gzip.compress(plain, 1), key="k"),
            send(plain, "identity", key="k"),  # the same events under the same key
            send(gzip.compress(b" " * (9 << 20))),  # 9 KB that become 9 MB
            send(gzip.compress(plain)[:-9]),
            send(plain),
            send(plain, "br"),
            send(zlib.compress(plain), "deflate"),
            send(zlib.compress(plain)[2:-4], "deflate"),  # without zlib's header
            send(zlib.compress(b" " * (9 << 20)), "deflate"),
            send(zlib.compress(plain)[:-9], "deflate"),
        ]

    answers = run_in_thread(served.run(act))
    assert [a.status_code for a in answers] == [200, 200, 200, 200, 413, 400, 400, 415, 200, 200, 413, 400]
    assert answers[3].json() == {**answers[2].json(), "repeated": True}
    assert len(served.taken) == 10
    assert "no gzip" in answers[6].json()["error"]


def test_many_clients_share_one_append_and_each_gets_its_own_place():
    served = Served()

    def act(url):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(post(url, f"{LINE}\n{LINE}"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    answers = run_in_thread(served.run(act))
    assert sorted(a.json()["first"] for a in answers) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_a_request_with_a_key_is_recorded_once():
    served = Served()

    def act(url):
        sent = [post(url, LINE), post(url, f"{LINE}\n{LINE}", key="k-1"), post(url, f"{LINE}\n{LINE}", key="k-1")]
        sent += [post(url, LINE, key="k-1"), post(url, LINE, key="k-2"), post(url, LINE), post(url, LINE)]
        return sent

    answers = run_in_thread(served.run(act))
    assert [a.status_code for a in answers] == [200, 200, 200, 422, 200, 200, 200]
    assert answers[1].json() == {"first": 1, "count": 2, "size": 3}
    assert answers[2].json() == {"first": 1, "count": 2, "size": 3, "repeated": True}
    assert "'k-1' was used with other events" in answers[3].json()["error"]
    assert len(served.taken) == 6  # without a key every request counts


def test_the_same_key_at_the_same_time_is_one_request():
    served = Served()

    def act(url):
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(post(url, LINE, key="same"))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    answers = run_in_thread(served.run(act))
    assert [a.json()["first"] for a in answers] == [0] * 8
    assert sum("repeated" not in a.json() for a in answers) == 1
    assert len(served.taken) == 1


def test_a_request_that_failed_or_was_turned_away_may_come_again_under_its_key():
    served = Served(rate=10)

    def act(url):
        served.failing = True
        failed = post(url, LINE, key="a")
        served.failing = False
        turned = post(url, "\n".join([LINE] * 11), key="b")
        return failed, post(url, LINE, key="a"), turned, post(url, LINE, key="b")

    assert [a.status_code for a in run_in_thread(served.run(act))] == [500, 200, 413, 200]
    assert len(served.taken) == 2


@pytest.mark.parametrize("key", ["", "x" * 201, "two words"])
def test_a_key_that_is_none_is_refused(key):
    served = Served()
    answer = run_in_thread(served.run(lambda url: post(url, LINE, key=key)))
    assert answer.status_code == 400
    assert "1 to 200 visible ASCII characters" in answer.json()["error"]
    assert served.taken == []


def test_keys_in_the_log_are_loaded_before_the_first_request():
    served = Served()
    served.source.load_requests = lambda: [RecordedRequest("old", sha256(LINE.encode()).hexdigest()[:32], 7, 1)]
    one, other = run_in_thread(served.run(lambda url: (post(url, LINE, key="old"), post(url, f"[{LINE}]", key="old"))))
    assert one.json() == {"first": 7, "count": 1, "size": 8, "repeated": True}
    assert other.status_code == 422
    assert served.taken == []


def test_only_the_newest_keys_are_remembered():
    requests = RequestMemory(most=3)
    requests.load(RecordedRequest(f"k{i}", "d", i, 1) for i in range(5))
    assert [requests.begin(f"k{i}", "d", Future()) for i in (4, 3, 2)] == [
        RecordedRequest(f"k{i}", "d", i, 1) for i in (4, 3, 2)
    ]
    assert requests.begin("k0", "d", Future()) is None


@pytest.mark.parametrize("address", ["8080", "host", ":x", "http://a:1"])
def test_an_address_that_is_none_is_a_sentence(address):
    with pytest.raises(InputError, match="is no address"):
        Http(address)
