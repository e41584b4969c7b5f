"""Race HTTP endpoints in an open loop: requests are due at a fixed rate, whether earlier ones were answered or not.

    ridgeline bench --http http://localhost:8000/a http://localhost:8001/a --rate 200

The latency of a request counts from the moment at which it was due, so a server that stalls pays for every request
that had to wait (a closed loop would send none meanwhile and hide the stall: "coordinated omission"). The endpoints
take turns, many short ones, because load of the machine that stays for a few turns looks like a difference. A turn
does not end during a stall: it goes on sending at its rate until the answers come again.
"""

from __future__ import annotations

import http.client
import os
import queue
import socket
import ssl
import statistics
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from ridgeline.errors import InputError
from ridgeline.lab.race.own_race import OwnRace
from ridgeline.lab.race.process import ContenderFailure, Group
from ridgeline.lab.workload import Case

ROUNDS = 300  # turns of each endpoint within the budget; with 40, one of 200 races of equal endpoints had a verdict
HTTP_BUDGET_S = 30.0  # without --budget: 300 turns of one request at the default rate
ROUNDS_ALONE = 20  # of one endpoint that is compared with no other: longer turns show longer queues
MOST_TURN_S = 2.0
OVERLAP = 4.0  # where requests overlap, a turn lasts at least this many latencies
STALL = 4.0  # a request that has waited this many times the median is stalled
LEAST_STALL_S = 0.05
MAX_CONNECTIONS = 512
HTTP_MARGIN = 0.02  # two endpoints whose median latencies differ by less are the same
MAX_ERRORS = 0.01  # share of requests; an endpoint with more is WRONG


@dataclass(frozen=True)
class HttpOptions:
    """How the endpoints are asked. `rate`: requests per second, to one endpoint at a time."""

    rate: float
    turn_s: float
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None  # sent with POST; None: GET
    timeout_s: float = 30.0


def choose_turn_s(budget_s: float, endpoints: int) -> float:
    """Return the length of a turn: ROUNDS turns of each endpoint fit into the budget.

    >>> choose_turn_s(60, 2), choose_turn_s(10, 1), choose_turn_s(3600, 2)
    (0.1, 0.5, 2.0)
    """
    rounds = ROUNDS if endpoints > 1 else ROUNDS_ALONE
    return min(MOST_TURN_S, budget_s / rounds / endpoints)


def make_http_race(
    urls: Sequence[str], names: Sequence[str], options: HttpOptions, repeat: str, margin: float
) -> OwnRace:
    """Return the race of these endpoints; raises InputError for a URL that is not http or https."""
    if not 0 < options.rate <= 100_000:
        raise InputError(f"--rate {options.rate:g} is no rate; give requests per second above 0, up to 100,000.")
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"'{url}' is no http or https address; write http://localhost:8000/path.")

    @contextmanager
    def start(_: Case) -> Iterator[Mapping[str, Group]]:
        endpoints: list[Endpoint] = []
        endpoints += [Endpoint(url, options, endpoints) for url in urls]
        try:
            yield dict(zip(names, endpoints, strict=True))
        finally:
            for endpoint in endpoints:
                endpoint.kill()

    settings = {**asdict(options), "urls": list(urls)}
    return OwnRace("http", tuple(names), start, "requests", repeat, settings, margin)


class Endpoint:
    """One endpoint of a race: threads with open connections that send what is due."""

    ranks = 1
    fresh = False

    def __init__(self, url: str, options: HttpOptions, endpoints: Sequence[Endpoint]) -> None:
        self._url, self._options = url, options
        self._endpoints = endpoints  # all of the race: their turns are equally long
        self.least_turn_s = 0.0
        self._due: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[float, None] = {}  # due times of requests without an answer, oldest first
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._latencies_s: list[float] = []
        self._errors: list[str] = []
        self._turn_s = 0.0

    def do(
        self, what: str, timeout_s: float, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any
    ) -> list[dict[str, Any]]:
        """Carry out one order."""
        return [getattr(self, f"_do_{what}")()]

    def send(self, what: str, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any) -> None:
        """Do nothing: nothing has to be loaded."""

    def receive(self, timeout_s: float, *, allow_failure: bool = False) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def kill(self) -> None:
        """End the threads; a request in progress ends with its timeout. Safe to call twice."""
        for _ in self._threads:
            self._due.put(None)
        self._threads = []

    def _do_prepare(self) -> dict[str, Any]:
        latency = 0.0
        for _ in range(2):
            start = time.perf_counter()
            try:
                status, reason = self._ask_once()
            except (OSError, http.client.HTTPException) as error:
                raise ContenderFailure(f"does not answer: {error}") from None
            if status >= 400:
                raise ContenderFailure(f"answers {status} {reason}")
            latency = time.perf_counter() - start
        if latency * self._options.rate > 1:
            self.least_turn_s = min(MOST_TURN_S, OVERLAP * latency)
        return {
            "sample_ns": 1_000_000_000,
            "calls_per_sample": 1,
            "settings": {"url": self._url, "rate": self._options.rate},
            "placed": {"cpus": sorted(os.sched_getaffinity(0))},
            "check": self._check(),
        }

    def _do_turn(self) -> dict[str, Any]:
        """Send what is due for one turn, and on until no request is stalled; then wait for the last answers."""
        first = len(self._latencies_s)
        start, number = time.perf_counter(), 0
        gap = 1 / self._options.rate
        turn_s = max(self._options.turn_s, *(endpoint.least_turn_s for endpoint in self._endpoints))
        least = max(1, round(turn_s * self._options.rate))
        end = start + turn_s + self._options.timeout_s
        while number < least or (self._waiting and time.perf_counter() < end):
            due = start + number * gap
            if number < least:
                time.sleep(max(0.0, due - time.perf_counter()))
            elif not self._is_stalled(first) or due > time.perf_counter():
                time.sleep(0.0005)  # the turn is over: wait for the last answers
                continue
            self._send_request(due)  # after the turn: one that became due during the stall
            number += 1
        time.sleep(max(0.0, start + number * gap - time.perf_counter()))  # the next turn starts when it is due
        seconds = time.perf_counter() - start
        self._turn_s += seconds
        with self._lock:
            new = self._latencies_s[first:]
        if not new:
            reason = self._errors[-1] if self._errors else "no answer came"
            raise ContenderFailure(f"answered none of {number} requests of a turn: {reason}")
        return {"samples_ns": [statistics.median(new) * 1e9], "turn_ns": round(seconds * 1e9)}

    def _do_check(self) -> dict[str, Any]:
        return {"check": self._check()}

    def _do_extras(self) -> dict[str, Any]:
        count = len(self._latencies_s)
        return {
            "extras": {
                "latencies_ms": [round(s * 1e3, 4) for s in self._latencies_s],
                "errors": len(self._errors),
                "rate_per_s": count / self._turn_s if self._turn_s else 0.0,
            }
        }

    def _do_close(self) -> dict[str, Any]:
        self.kill()
        return {}

    def _check(self) -> dict[str, Any]:
        total = len(self._errors) + len(self._latencies_s)
        ok = len(self._errors) <= MAX_ERRORS * total
        note = "" if ok else f"{len(self._errors)} of {total} requests failed: {self._errors[-1]}"
        return {"ok": ok, "error": None, "quality": {}, "note": note}

    def _is_stalled(self, first: int) -> bool:
        """Whether a request waits much longer than usual."""
        with self._lock:
            oldest = next(iter(self._waiting), None)
            usual = self._latencies_s[first:] or self._latencies_s[-1:]
        if oldest is None:
            return False
        limit = max(LEAST_STALL_S, STALL * statistics.median(usual)) if usual else 0.0
        return time.perf_counter() - oldest > limit

    def _send_request(self, due: float) -> None:
        with self._lock:
            self._waiting[due] = None
            busy = self._idle <= self._due.qsize()
        if busy and len(self._threads) < MAX_CONNECTIONS:
            thread = threading.Thread(target=self._work, daemon=True, name="http-race")
            self._threads.append(thread)
            thread.start()
        self._due.put(due)

    def _work(self) -> None:
        """Send requests over one connection until the race ends."""
        connection: http.client.HTTPConnection | None = None
        while True:
            with self._lock:
                self._idle += 1
            due = self._due.get()
            with self._lock:
                self._idle -= 1
            if due is None:
                break
            error = ""
            try:
                if connection is None:
                    connection = self._connect()
                status, reason = self._ask(connection)
                error = f"status {status} {reason}" if status >= 400 else ""
            except (OSError, http.client.HTTPException) as failure:
                error = f"{type(failure).__name__}: {failure}"
                if connection is not None:
                    connection.close()
                connection = None
            latency = time.perf_counter() - due
            with self._lock:
                self._waiting.pop(due, None)
                if error:
                    self._errors.append(error)
                else:
                    self._latencies_s.append(latency)
        if connection is not None:
            with suppress(OSError):
                connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        parts, timeout_s = urlsplit(self._url), self._options.timeout_s
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, parts.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(host, parts.port, timeout=timeout_s)

    def _ask_once(self) -> tuple[int, str]:
        connection = self._connect()
        try:
            return self._ask(connection)
        finally:
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection) -> tuple[int, str]:
        parts = urlsplit(self._url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        body = self._options.body
        if connection.sock is None:
            connection.connect()
        # A delayed acknowledgement of ours would add 40 ms to an answer that the server writes in two parts.
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        connection.request("GET" if body is None else "POST", path, body, dict(self._options.headers))
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.reason
