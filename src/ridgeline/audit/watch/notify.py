"""Notices about alerts: by webhook, Slack-style webhook, e-mail or syslog, one per incident, with quiet hours.

    notifier = Notifier(["slack:https://hooks.example/T0/B0", "smtp://mail.example/?to=ops@example.com"], failed)
    notifier(alert)
    notifier.close()

| target                                             | what it gets                                                |
|----------------------------------------------------|-------------------------------------------------------------|
| https://HOST/PATH                                  | JSON: {"incidents": [...]}                                  |
| slack:https://HOST/PATH                            | {"text": ...}, as Slack, Mattermost and others take it      |
| smtp://[USER@]HOST[:PORT]/?to=A,B[&from=C]         | an e-mail, with STARTTLS if offered; smtps:// is TLS at once |
| syslog:udp://HOST:PORT, tcp://, unix:PATH          | a line of RFC 5424                                          |
| @FILE                                              | the targets in a file, one per line                         |

The first alert of an incident is sent at once, further ones as a count when the incident has lasted for `repeat_s`, and
at once if they are worse. In the quiet hours only critical ones are sent; the others wait on the disk and are sent
together afterwards. The password of an e-mail account is in RIDGELINE_SMTP_PASSWORD.
"""

from __future__ import annotations

import json
import os
import re
import smtplib
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.personal import shorten_tokens
from ridgeline.audit.watch.delivery import DRAIN_S, FIRST_S, Delivery, Failed, Send, describe_error
from ridgeline.audit.watch.incidents import Incident, name_incident, start_incident
from ridgeline.audit.watch.webhook import HttpPost
from ridgeline.errors import InputError, StoreError
from ridgeline.store import explain_errors, publish

PASSWORD = "RIDGELINE_SMTP_PASSWORD"  # noqa: S105  (the name of the variable)
REPEAT_S = 3_600.0
_TICK_S = 1.0
_TIMEOUT_S = 10.0
_MOST = 10_000  # incidents remembered
_LISTED = 20  # incidents that one message lists
_HOURS = re.compile(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)")
_SYSLOG = {"critical": 2, "high": 3, "medium": 4, "low": 5}
_AUTHPRIV = 10
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


@dataclass(frozen=True)
class QuietHours:
    """Hours of the day, in local time; they may span midnight.

    >>> QuietHours.parse("22:00-07:00")
    QuietHours(start=1320, end=420)
    """

    start: int  # minutes after midnight
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        match = _HOURS.fullmatch(text.strip())
        numbers = list(map(int, match.groups())) if match else []
        if not numbers or max(numbers[::2]) > 24 or max(numbers[1::2]) > 59:
            raise InputError(f"'{text[:40]}' are no hours; write them like 22:00-07:00.")
        start, end = numbers[0] * 60 + numbers[1], numbers[2] * 60 + numbers[3]
        if max(start, end) > 24 * 60 or start == end:
            raise InputError(f"'{text[:40]}' are no hours; write them like 22:00-07:00.")
        return cls(start, end)

    def contains(self, at_s: float) -> bool:
        now = time.localtime(at_s)
        minute = now.tm_hour * 60 + now.tm_min
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


@dataclass
class _Open:
    """An incident, and what its receivers know of it."""

    incident: Incident
    latest_s: float  # of its last alert
    sent_s: float | None = None  # of its last notice
    sent_count: int = 0


class Notifier:
    """Sends notices about incidents to targets; any thread may call it.

    failed    called with (alert, reason) for a notice that no retry could deliver
    repeat_s  seconds between two notices of one incident; after as long a pause it is another incident
    quiet     hours in which only critical incidents are sent
    waiting   file for incidents that wait for the end of the quiet hours
    clock     seconds since 1970
    report    called with a sentence when a target begins to fail
    """

    def __init__(
        self,
        targets: Sequence[str],
        failed: Failed,
        *,
        repeat_s: float = REPEAT_S,
        quiet: QuietHours | None = None,
        waiting: Path | None = None,
        clock: Callable[[], float] = time.time,
        report: Callable[[str], object] = lambda sentence: None,
        first_s: float = FIRST_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        self._repeat_s, self._quiet, self._file, self._clock = repeat_s, quiet, waiting, clock
        self._mutex = threading.Lock()
        self._open = dict[str, _Open]()
        senders = [(name_receiver(target), make_sender(target)) for target in read_targets(targets)]
        words: dict[str, Any] = {"report": report, "first_s": first_s, "drain_s": drain_s}
        self.deliveries = [Delivery(name, send, failed, **words) for name, send in senders]
        self._waiting = self._read_waiting()
        self._closing = threading.Event()
        if waiting is not None and self._waiting:
            now = clock()
            self._open = {key: _Open(waits, now, now, waits.count) for key, waits in self._waiting.items()}
        self._thread = threading.Thread(target=self._run, name="audit-notices", daemon=True)
        self._thread.start()

    def __call__(self, alert: dict[str, Any]) -> None:
        key, now = name_incident(alert), self._clock()
        with self._mutex:
            state = self._open.get(key)
            if state is None or now - state.latest_s > self._repeat_s:
                state = self._open[key] = _Open(start_incident(key, alert), now)
                self._forget_old(now)
                due = True
            else:
                due = state.incident.add(alert) or state.sent_s is None
            state.latest_s = now
            if due:
                self._send_or_wait(state, now)

    def tick(self) -> None:
        """Send the counts that are due, and what waited for the end of the quiet hours."""
        now = self._clock()
        with self._mutex:
            if self._waiting and not self._is_quiet(now):
                waited, self._waiting = list(self._waiting.values()), {}
                self._write_waiting()
                self._deliver(waited)
            for state in self._open.values():
                more = state.incident.count > state.sent_count
                if state.sent_s is not None and more and now - state.sent_s >= self._repeat_s:
                    self._send_or_wait(state, now)

    def close(self) -> None:
        """Send the counts that no notice had, wait for the deliveries; quiet incidents stay on the disk."""
        self._closing.set()
        self._thread.join()
        with self._mutex:
            for state in self._open.values():
                if state.sent_s is not None and state.incident.count > state.sent_count:
                    self._send_or_wait(state, self._clock())
        for delivery in self.deliveries:
            delivery.close()

    def _run(self) -> None:
        while not self._closing.wait(_TICK_S):
            self.tick()

    def _is_quiet(self, now: float) -> bool:
        return self._quiet is not None and self._quiet.contains(now)

    def _send_or_wait(self, state: _Open, now: float) -> None:
        state.sent_s, state.sent_count = now, state.incident.count
        if self._is_quiet(now) and state.incident.severity != "critical":
            self._waiting[state.incident.key] = state.incident
            self._write_waiting()
        else:
            self._waiting.pop(state.incident.key, None)
            self._deliver([state.incident])

    def _deliver(self, incidents: list[Incident]) -> None:
        item = {
            "incidents": [incident.to_json() for incident in incidents],
            "entry": incidents[0].entries[0] if incidents[0].entries else None,
        }
        for delivery in self.deliveries:
            delivery.put(item)

    def _forget_old(self, now: float) -> None:
        if len(self._open) > _MOST:
            self._open = {key: state for key, state in self._open.items() if now - state.latest_s <= self._repeat_s}
            while len(self._open) > _MOST:
                del self._open[next(iter(self._open))]

    def _read_waiting(self) -> dict[str, Incident]:
        if self._file is None or not self._file.exists():
            return {}
        try:
            rows = [Incident.from_json(row) for row in json.loads(self._file.read_text(encoding="utf-8"))]
        except (ValueError, KeyError, TypeError):
            return {}  # the log has the alerts
        return {incident.key: incident for incident in rows}

    def _write_waiting(self) -> None:
        if self._file is not None:
            with suppress(StoreError, OSError), publish(self._file, mode=0o600) as tmp:  # a full disk: memory has them
                tmp.write_text(json.dumps([i.to_json() for i in self._waiting.values()]), encoding="utf-8")


def read_targets(targets: Sequence[str]) -> list[str]:
    """Return the targets, with those of files in place of @FILE."""
    result = list[str]()
    for target in targets:
        if target.startswith("@"):
            with explain_errors(target[1:]):
                lines = Path(target[1:]).read_text(encoding="utf-8").splitlines()
            result += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        else:
            result.append(target)
    return result


def check_targets(targets: Sequence[str]) -> None:
    """Raise `InputError` for a target that cannot be used."""
    for target in read_targets(targets):
        make_sender(target)


def make_sender(target: str) -> Send:
    """Return the function that sends a notice to a target; raise `InputError` if there is no such kind of target."""
    kind = target.partition(":")[0]
    if kind in ("http", "https"):
        post = HttpPost(target)
        return lambda item: post(json.dumps(item).encode())
    if kind == "slack":
        chat = HttpPost(target.removeprefix("slack:"))
        return lambda item: chat(json.dumps({"text": _escape(format_notice(item))}).encode())
    if kind in ("smtp", "smtps"):
        return Mail(target).send
    if kind == "syslog":
        return SyslogLine(target.removeprefix("syslog:")).send
    raise InputError(
        f"'{target[:60]}' is no target of notices; give https://…, slack:https://…, smtp://HOST/?to=…, "
        "syslog:udp://HOST:PORT or @FILE."
    )


def name_receiver(target: str) -> str:
    """Return the kind and host of a target, without what may be secret in it.

    >>> name_receiver("slack:https://hooks.example/T0/B0"), name_receiver("syslog:udp://10.0.0.1:514")
    ('slack hooks.example', 'syslog 10.0.0.1')
    """
    kind, _, rest = target.partition(":")
    address = rest if kind in ("slack", "syslog") else target
    return f"{kind} {urlsplit(address).hostname or address.partition(':')[2]}"


def format_notice(item: dict[str, Any]) -> str:
    """Format a notice as text: a line per incident."""
    incidents = [Incident.from_json(words) for words in item["incidents"]]
    lines = [_format_incident(incident) for incident in incidents[:_LISTED]]
    if len(incidents) > _LISTED:
        lines.append(f"and {len(incidents) - _LISTED} more incidents; see: ridgeline audit alerts LOG --incidents")
    return "\n".join(lines)


def _format_incident(incident: Incident) -> str:
    event = incident.event or {}
    what = " ".join(str(event[name]) for name in ("action", "subject") if event.get(name))
    actor = f" by {event['actor']}" if event.get("actor") else ""
    origin = f"{incident.origin}: " if incident.origin else ""
    times = f"{incident.count} times from {show_moment(incident.first)[:19]}Z to {show_moment(incident.last)[:19]}Z"
    when = times if incident.count > 1 else f"{show_moment(incident.first)[:19]}Z"
    where = f", entry {incident.entries[0]}" if incident.entries else ""
    text = f"[{incident.severity}] {origin}{what}{actor}: {incident.reason} ({when}{where})"
    return _CONTROL.sub(" ", shorten_tokens(text))[:1_000]


def _escape(text: str) -> str:
    """Escape what Slack would take for a link or a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Mail:
    """An e-mail account that sends notices."""

    def __init__(self, target: str) -> None:
        try:
            parts = urlsplit(target)
            port = parts.port
        except ValueError:
            parts, port = urlsplit("smtp:"), None
        query = parse_qs(parts.query)
        self._to = [address for words in query.get("to", []) for address in words.split(",") if address]
        if not parts.hostname or not self._to or not all(_is_address(address) for address in self._to):
            raise InputError(f"'{target[:60]}' is no e-mail; write it like smtp://mail.example/?to=ops@example.com.")
        if parts.password:
            raise InputError(f"the password of an e-mail account is not in its address; set {PASSWORD}.")
        self._tls = parts.scheme == "smtps"
        self._host, self._port = parts.hostname, port or (465 if self._tls else 587 if parts.username else 25)
        self._user = unquote(parts.username) if parts.username else None
        self._from = query.get("from", [f"ridgeline@{socket.gethostname()}"])[0]
        if not _is_address(self._from):
            raise InputError(f"'{self._from[:60]}' is no e-mail address; correct from= in the target.")

    def send(self, item: dict[str, Any]) -> tuple[str, bool]:
        text = format_notice(item)
        message = EmailMessage()
        first, count = text.split("\n")[0], len(item["incidents"])
        message["Subject"] = (first if count == 1 else f"{count} incidents")[:150]
        message["From"], message["To"] = self._from, ", ".join(self._to)
        message["Date"], message["Message-ID"] = formatdate(), make_msgid(domain="ridgeline.invalid")
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(text + "\n")
        try:
            make = smtplib.SMTP_SSL if self._tls else smtplib.SMTP
            server = make(self._host, self._port, socket.gethostname(), timeout=_TIMEOUT_S)
            try:
                server.ehlo_or_helo_if_needed()
                if not self._tls and server.has_extn("starttls"):
                    server.starttls()
                if self._user is not None:
                    server.login(self._user, os.environ.get(PASSWORD, ""))
                refused = server.send_message(message)
            finally:
                with suppress(OSError, smtplib.SMTPException):  # how it ends does not matter
                    server.quit()
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            return f"the mail server refused {', '.join(error.recipients)}", all(code >= 500 for code in codes)
        except smtplib.SMTPResponseException as error:
            return f"the mail server answered {error.smtp_code}", error.smtp_code >= 500
        except (OSError, smtplib.SMTPException) as error:
            return f"the mail server could not be used ({describe_error(error)})", False
        return (f"the mail server refused {', '.join(refused)}", True) if refused else ("", True)


class SyslogLine:
    """A syslog server that gets a line of RFC 5424 per incident."""

    def __init__(self, address: str) -> None:
        kind, _, rest = address.partition(":")
        host, _, port = rest.removeprefix("//").rpartition(":")
        if kind == "unix" and rest:
            self._kind, self._place = kind, (rest, 0)
        elif kind in ("udp", "tcp") and host and port.isdigit() and 0 < int(port) < 65536:
            self._kind, self._place = kind, (host.strip("[]"), int(port))
        else:
            raise InputError(f"'syslog:{address[:60]}' is no address; write it like syslog:udp://host:514.")

    def send(self, item: dict[str, Any]) -> tuple[str, bool]:
        try:
            lines = [_format_syslog(Incident.from_json(words)) for words in item["incidents"]]
            if self._kind == "tcp":
                with socket.create_connection(self._place, _TIMEOUT_S) as connection:
                    connection.sendall(b"".join(b"%d %s" % (len(line), line) for line in lines))
                return "", True
            where: Any
            if self._kind == "unix":
                family, where = socket.AF_UNIX, self._place[0]
            else:
                family, _, _, _, where = socket.getaddrinfo(*self._place, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as datagrams:
                for line in lines:
                    datagrams.sendto(line, where)
        except OSError as error:
            return f"syslog could not be reached ({describe_error(error)})", False
        return "", True


def _format_syslog(incident: Incident) -> bytes:
    priority = _AUTHPRIV * 8 + _SYSLOG.get(incident.severity, 4)
    moment = show_moment(incident.last)[:26] + "Z"
    host = re.sub(r"[^!-~]", "", socket.gethostname())[:255] or "-"
    return f"<{priority}>1 {moment} {host} ridgeline {os.getpid()} alert - {_format_incident(incident)}".encode()[:8000]


def _is_address(text: str) -> bool:
    return re.fullmatch(r"[^\s@,<>]{1,64}@[^\s@,<>]{1,255}", text) is not None
