"""A queue and a thread that deliver items to one receiver, and retry until it accepts them.

delivery = Delivery("webhook hooks.example", send, failed)
# send(item) returns ("", True), or a reason and whether a retry is useless
delivery.put(item)
delivery.close()
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

CAPACITY = 1_000  # most items that wait for one receiver
FIRST_S, LONGEST_S = 0.5, 60.0  # seconds between two tries
DRAIN_S = 10.0  # seconds for the waiting items at the end

Failed = Callable[[dict[str, Any], str], None]
Send = Callable[[dict[str, Any]], tuple[str, bool]]


class Delivery:
    """Delivers items in order; calls `failed(item, reason)` for every item that it gives up, with `receiver` in it.

    name     of the receiver, without the secrets of its address
    report   called with a sentence when the receiver begins to fail
    first_s  seconds before the first retry; the pause doubles each time
    drain_s  seconds that `close` waits for the remaining items
    """

    def __init__(
        self,
        name: str,
        send: Send,
        failed: Failed,
        *,
        report: Callable[[str], object] = lambda sentence: None,
        first_s: float = FIRST_S,
        drain_s: float = DRAIN_S,
    ) -> None:
        self.name, self._send, self._report = name, send, report
        self._failed: Failed = lambda item, why: failed({**item, "receiver": name}, why)
        self.problem = ""  # why the newest try failed; empty if it did not
        self._first_s, self._drain_s = first_s, drain_s
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(CAPACITY)
        self._ending = threading.Event()
        self._until = float("inf")
        self._thread = threading.Thread(target=self._run, name="audit-delivery", daemon=True)
        self._thread.start()

    def put(self, item: dict[str, Any]) -> None:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            self._failed(item, f"{CAPACITY} alerts were waiting already")

    def close(self) -> None:
        """Deliver the waiting items for up to `drain_s` seconds; report the rest as failed."""
        self._until = time.monotonic() + self._drain_s
        self._ending.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            why = self._deliver(item)
            if why:
                self._failed(item, why)

    def _deliver(self, item: dict[str, Any]) -> str:
        """Deliver an item; return an empty text, or the reason for giving up."""
        pause = self._first_s
        while True:
            try:
                why, final = self._send(item)
            except Exception as error:  # the thread must live on, and the log must tell
                why, final = f"sending failed ({type(error).__name__}: {error})", True
            if why and not self.problem:
                self._report(f"{self.name} gets no alerts: {why}{'.' if final else '; it is retried.'}")
            self.problem = why
            if not why or final or time.monotonic() + pause > self._until:
                return why
            self._ending.wait(pause) if not self._ending.is_set() else time.sleep(pause)
            pause = min(pause * 2, LONGEST_S)


def describe_error(error: object) -> str:
    """Return the text of an error without its number: "connection refused"."""
    text = str(getattr(error, "strerror", None) or error)
    return text[:1].lower() + text[1:]
