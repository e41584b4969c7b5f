"""Notices: one per incident, retried, with counts afterwards, and none in the quiet hours but critical ones."""

from __future__ import annotations

import json
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from pathlib import Path

import pytest
from tests.audit.conftest import events
from tests.audit.watch.test_webhook import receiver
from tests.audit.watch.watching import BASE, ODD, ODD_RULE, entries, jsonl, make, run_command, watch, write_events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.backup import back_up, restore
from ridgeline.audit.watch import Notifier, QuietHours, group_alerts, internal_events
from ridgeline.audit.watch.doctor import examine_log
from ridgeline.audit.watch.notify import make_sender
from ridgeline.errors import InputError

NOON = time.mktime((2026, 11, 19, 12, 0, 0, 0, 0, -1))


def alert(entry: int, severity: str = "high", actor: str = "guest", at: int = BASE) -> dict:
    event = {"time": at, "source": "t", "actor": actor, "action": "disk.wipe", "subject": f"d{entry}", "attributes": {}}
    words = {"fired": ["odd"], "reason": "the rule odd", "score": None}
    return {"entry": entry, "severity": severity, **words, "event": event}


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


@contextmanager
def notifying(target: str, **words) -> Iterator[tuple[Notifier, list]]:
    failed: list = []
    notifier = Notifier([target], lambda item, why: failed.append((item["entry"], why)), first_s=0.01, **words)
    notifier._closing.set()  # the test calls `tick`
    try:
        yield notifier, failed
    finally:
        notifier.close()


def incidents(got: list) -> list[tuple[int, str]]:
    """Count and severity of the incidents of all notices."""
    return [(i["count"], i["severity"]) for _, _, body in got for i in json.loads(body)["incidents"]]


def test_alerts_of_one_kind_are_one_incident_with_first_last_and_count() -> None:
    many = [alert(i, at=BASE + i) for i in range(30)] + [alert(50, actor="eve"), alert(51, "critical", at=BASE + 99)]
    groups = group_alerts(many)
    assert [(g.severity, g.count, g.first, g.last) for g in groups] == [
        ("critical", 31, BASE, BASE + 99),
        ("high", 1, BASE, BASE),
    ]
    assert len(group_alerts(many, gap_ns=50)) == 3


def test_an_incident_is_sent_once_then_counted_and_at_once_if_it_gets_worse() -> None:
    clock = Clock()
    with receiver(200) as (url, got):
        with notifying(url, clock=clock, repeat_s=600) as (notifier, failed):
            for i in range(5):
                notifier(alert(i))
            clock.now += 300
            notifier.tick()
            notifier(alert(5, "critical"))
            notifier(alert(6))
            clock.now += 599
            notifier.tick()
            notifier(alert(7))
            clock.now += 1
            notifier.tick()
        assert incidents(got) == [(1, "high"), (6, "critical"), (8, "critical")]
        assert not failed


def test_a_pause_makes_another_incident_and_the_end_sends_the_last_count() -> None:
    clock = Clock()
    with receiver(200) as (url, got):
        with notifying(url, clock=clock, repeat_s=600) as (notifier, _):
            notifier(alert(1))
            clock.now += 601
            notifier(alert(2))
            notifier(alert(3))
        assert incidents(got) == [(1, "high"), (1, "high"), (2, "high")]


def test_quiet_hours_hold_back_all_but_critical_ones_also_over_a_restart(tmp_path: Path) -> None:
    clock, waiting = Clock(), tmp_path / "notices.json"
    words = {"clock": clock, "quiet": QuietHours.parse("11:00-13:00"), "waiting": waiting}
    with receiver(200) as (url, got):
        with notifying(url, **words) as (notifier, _):
            notifier(alert(1))
            notifier(alert(2))
            notifier(alert(3, "low", actor="eve"))
            notifier(alert(4, "critical", actor="mallory"))
        assert incidents(got) == [(1, "critical")]
        clock.now += 3_600
        with notifying(url, **words) as (notifier, _):
            notifier.tick()
            notifier.tick()
        assert incidents(got)[1:] == [(2, "high"), (1, "low")]
        assert len(got) == 2, "what waited is one notice"
    assert json.loads(waiting.read_text()) == []


@pytest.mark.parametrize(
    ("hours", "inside", "outside"), [("22:00-07:00", (22, 3, 6), (7, 12, 21)), ("08:00-12:00", (8, 11), (12, 7))]
)
def test_hours_may_span_midnight(hours: str, inside: tuple, outside: tuple) -> None:
    quiet = QuietHours.parse(hours)
    at = {hour: NOON + (hour - 12) * 3600 for hour in (*inside, *outside)}
    assert [hour for hour in at if quiet.contains(at[hour])] == list(inside)


def test_a_refused_notice_is_told_and_an_unreachable_one_is_tried_again() -> None:
    with receiver(500, 429, 200) as (url, got), notifying(url) as (notifier, failed):
        notifier(alert(1))
    assert len(got) == 3
    assert not failed
    with receiver(403) as (url, _), notifying(url) as (notifier, failed):
        notifier(alert(7))
    assert failed == [(7, "it answered 403")]


def test_slack_gets_text_without_mentions_or_control_characters() -> None:
    odd = alert(1)
    odd["event"]["subject"] = "<!channel> \x1b[31m\nnext"
    with receiver(200) as (url, got), notifying(f"slack:{url}") as (notifier, _):
        notifier(odd)
    text = json.loads(got[0][2])["text"]
    assert text.startswith("[high] disk.wipe &lt;!channel&gt;  [31m next by guest: the rule odd")
    assert "\n" not in text


@contextmanager
def mail_server(refuse: bytes = b"") -> Iterator[tuple[int, list[bytes]]]:
    """A mail server that keeps what it gets; `refuse` answers the recipient instead."""
    mails: list[bytes] = []

    class Session(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline():
                word = line[:4].upper()
                if word == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    mails.append(b"".join(lines))
                self.wfile.write(refuse if word == b"RCPT" and refuse else b"250 ok\r\n")
                if word == b"QUIT":
                    return  # without the farewell that the standard asks for: the mail was taken all the same

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Session) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], mails
        server.shutdown()


def test_an_e_mail_has_subject_sender_and_all_recipients() -> None:
    with mail_server() as (port, mails):
        target = f"smtp://127.0.0.1:{port}/?to=ops@example.test,dpo@example.test&from=audit@example.test"
        with notifying(target) as (notifier, failed):
            notifier(alert(1))
    mail = message_from_bytes(mails[0], policy=policy.default)
    assert str(mail["subject"]).strip().startswith("[high] disk.wipe d1 by guest: the rule odd")
    assert (str(mail["to"]), str(mail["from"])) == ("ops@example.test, dpo@example.test", "audit@example.test")
    assert (failed, len(mails)) == ([], 1)
    with mail_server(b"550 no such user\r\n") as (port, _):
        target = f"smtp://127.0.0.1:{port}/?to=ops@example.test&from=a@b.c"
        with notifying(target) as (notifier, failed):
            notifier(alert(2))
    assert failed[0][0] == 2
    assert "refused ops@example.test" in failed[0][1]


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_syslog_gets_a_line_of_rfc_5424(kind: str, tmp_path: Path) -> None:
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "s") if kind == "unix" else ("127.0.0.1", 0))
        server.settimeout(10)
        if kind == "tcp":
            server.listen()
        place = str(tmp_path / "s") if kind == "unix" else f"//127.0.0.1:{server.getsockname()[1]}"
        with notifying(f"syslog:{kind}:{place}") as (notifier, failed):
            notifier(alert(1, "critical"))
        with server.accept()[0] if kind == "tcp" else server as peer:
            data = peer.recv(8192).decode()
    assert re.search(r"<82>1 2023-11-14T22:13:20\.000000Z \S+ ridgeline \d+ alert - \[critical\] disk\.wipe d1", data)
    assert not failed


@pytest.mark.parametrize(
    "target",
    ["ftp://x.example", "smtp://mail.example", "smtp://u:p@mail.example/?to=a@b.c", "syslog:udp://host", "slack:hello",
     "smtp://mail.example/?to=a@b.c&from=nobody"],
)  # fmt: skip
def test_a_wrong_target_is_refused_at_once(target: str) -> None:
    with pytest.raises(InputError):
        make_sender(target)


def test_a_watcher_sends_notices_and_records_those_that_failed(tmp_path: Path, capsys) -> None:
    log = make(tmp_path / "log")
    write_events(tmp_path / "e.jsonl", ODD - 5, ODD + 5)
    (tmp_path / "targets").write_text("# of the night shift\n")
    with receiver(403) as (url, got):
        (tmp_path / "targets").write_text(f"# of the night shift\n{url}\n")
        words = ("--jsonl", tmp_path / "e.jsonl", "--no-follow", "--no-score", "-q", "--notify", f"@{tmp_path}/targets")
        code, _, _ = run_command(capsys, "audit", "watch", log, *words, "--rule", "action == 'firewall.rule.delete'")
    assert code == 1
    assert len(got) == 1
    undelivered = [e for e in entries(log) if e["action"] == internal_events.UNDELIVERED]
    assert undelivered[0]["attributes"]["why"] == "it answered 403"
    code, out, _ = run_command(capsys, "audit", "alerts", log, "--incidents", "--json")
    assert [i["count"] for i in json.loads(out)] == [1]
    code, _, err = run_command(capsys, "audit", "watch", log, "--jsonl", "-", "--quiet-hours", "22:00-25:00")
    assert (code, "22:00-07:00" in err) == (2, True)


# The doctor


def test_the_doctor_names_what_is_wrong_and_the_cure(tmp_path: Path, capsys) -> None:
    log = make(tmp_path / "log")
    (tmp_path / "none.jsonl").write_text("")
    watch(log, jsonl(tmp_path / "none.jsonl"), rules=[ODD_RULE], score=False)
    code, out, _ = run_command(capsys, "audit", "doctor", log, "--json")
    by_check = {row["check"]: row for row in json.loads(out)}
    assert code == 0, out
    assert by_check["key"]["ok"] is True
    assert by_check["watcher"]["ok"] is None
    (tmp_path / "log.private" / "key").chmod(0o644)
    (tmp_path / "log.private" / "watch" / "status.json").write_text(json.dumps({"at": 5, "down": {}}))
    tile = next(path for path in (log / "tile" / "0").rglob("*") if path.is_file())
    tile.write_bytes(bytes(len(tile.read_bytes())))
    code, out, _ = run_command(capsys, "audit", "doctor", log)
    wrong = [line for line in out.splitlines() if line.startswith("WRONG")]
    assert code == 1
    assert [line.split()[1] for line in wrong] == ["key", "entries", "watcher"]
    assert "chmod 600" in wrong[0]
    with Ledger.open(log) as ledger:
        assert ledger.size > 0


@pytest.mark.parametrize(
    ("name", "data", "check", "sentence"),
    [
        ("log/tile/entries/001", None, "entries", "missing or cut off: tile/entries/001; restore"),
        ("log/tile/0/001", b"\0" * 100, "entries", "missing or cut off: tile/0/001; restore"),
        ("log/checkpoint", None, "checkpoint", "checkpoint: no such file or directory; restore"),
        ("log.private/key", b"\xff", "key", "key is damaged, so nothing can be appended; restore it"),
        ("log.private/personal.json", b"[]", "personal", "so it is unknown which fields are personal"),
        (
            "log.private/watch/status.json",
            b'{"at": 1e12, "down": {}, "dropped": {}, "failing": {"slack h": "it answered 500"}, "undelivered": 0}',
            "watcher",
            "slack h gets no alerts: it answered 500; the log says why",
        ),
    ],
    ids=["payloads", "hashes", "checkpoint", "key", "policy", "receiver"],
)
def test_the_doctor_sees_what_a_quick_verification_does_not_read(
    tmp_path: Path, name: str, data: bytes | None, check: str, sentence: str
) -> None:
    log = make(tmp_path / "log")
    with Ledger.open(log) as ledger:
        ledger.append(events(0, 520))
    (tmp_path / "log.private" / "watch").mkdir(exist_ok=True)
    assert not [finding for finding in examine_log(log) if finding.ok is False]
    if data is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(data)
    assert any(finding.check == check and sentence in finding.sentence for finding in examine_log(log))


def test_the_doctor_misses_no_file_of_a_pruned_log(tmp_path: Path) -> None:
    log = make(tmp_path / "log")
    with Ledger.open(log) as ledger:
        ledger.append(events(0, 520))
        assert ledger.prune(1 << 62, by="ann") == 512
    back_up(log, tmp_path / "b.tar.gz")
    restore(tmp_path / "b.tar.gz", tmp_path / "back")
    assert [finding.check for finding in examine_log(tmp_path / "back") if finding.ok is False] == ["key"]
    assert not [finding for finding in examine_log(log) if finding.ok is False]
