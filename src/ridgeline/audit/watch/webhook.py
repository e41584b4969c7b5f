"""Alerts by webhook: each is POSTed as JSON to the address that was configured, and tried again until it is taken.

No redirect is followed, so an alert goes nowhere else. With RIDGELINE_WEBHOOK_SECRET set, every body is signed:
`x-ridgeline-signature: sha256=<HMAC in hexadecimal>`. What could not be delivered in the end is written to the log.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from ridgeline.errors import InputError

HELD = 1_000  # alerts that wait for one address
SECRET = "RIDGELINE_WEBHOOK_SECRET"  # noqa: S105  (the name of the variable)
_TIMEOUT_S = 10.0
_FIRST_S, _LONGEST_S = 0.5, 60.0  # between two tries
_FAREWELL_S = 10.0  # at the end, for what still waits

Failed = Callable[[dict[str, Any], str], None]


class Webhook:
    """One address and its thread; `failed` is told of every alert that was given up, and why."""

    def __init__(self, url: str, failed: Failed, *, first_s: float = _FIRST_S, farewell_s: float = _FAREWELL_S) -> None:
        checked(url)
        self._url, self._failed = url, failed
        self._first_s, self._farewell_s = first_s, farewell_s
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(HELD)
        self._ending = threading.Event()
        self._until = float("inf")
        self._open = urllib.request.build_opener(_NoRedirect).open
        self._thread = threading.Thread(target=self._run, name="audit-webhook", daemon=True)
        self._thread.start()

    def __call__(self, alert: dict[str, Any]) -> None:
        event = alert["event"]
        try:
            self._queue.put_nowait({**alert, "event": {**event, "time": str(event["time"])}})
        except queue.Full:
            self._failed(alert, f"{HELD} alerts were waiting already")

    def close(self) -> None:
        """Deliver what waits, for a while; give up the rest aloud."""
        self._until = time.monotonic() + self._farewell_s
        self._ending.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            why = self._delivered(alert)
            if why:
                self._failed(alert, why)

    def _delivered(self, alert: dict[str, Any]) -> str:
        """Empty when it was taken, else why not."""
        pause = self._first_s
        while True:
            why, final = self._post(json.dumps(alert).encode())
            if not why or final or time.monotonic() + pause > self._until:
                return why
            self._ending.wait(pause) if not self._ending.is_set() else time.sleep(pause)
            pause = min(pause * 2, _LONGEST_S)

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Why it was not taken (empty: it was), and whether trying again is of no use."""
        headers = {"content-type": "application/json", "user-agent": "ridgeline-audit"}
        secret = os.environ.get(SECRET)
        if secret:
            headers["x-ridgeline-signature"] = f"sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
        request = urllib.request.Request(self._url, body, headers, method="POST")  # noqa: S310  (checked: http, https)
        try:
            with self._open(request, timeout=_TIMEOUT_S):
                return "", True
        except urllib.error.HTTPError as error:
            error.close()
            again = error.code in (408, 425, 429) or error.code >= 500
            return f"it answered {error.code}", not again
        except (OSError, HTTPException) as error:
            return f"it could not be reached ({getattr(error, 'reason', error)})", False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def checked(url: str) -> str:
    """An address that a webhook may have, or a sentence."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InputError(f"--webhook '{url[:80]}' is no address; write it like https://hooks.example/ridgeline.")
    if parts.username or parts.password:
        raise InputError(
            "--webhook holds a user or password, which would be seen in the list of processes; leave it out."
        )
    return url
