"""Webhooks: POST every alert as JSON to a URL, and retry until the receiver accepts it.

Redirects are not followed, so an alert goes nowhere else. If RIDGELINE_WEBHOOK_SECRET is set, every body is signed:
`x-ridgeline-signature: sha256=<HMAC in hexadecimal>`. The log records alerts that could not be delivered.
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

CAPACITY = 1_000  # most alerts that wait for one URL
SECRET = "RIDGELINE_WEBHOOK_SECRET"  # noqa: S105  (the name of the variable)
_TIMEOUT_S = 10.0
_FIRST_S, _LONGEST_S = 0.5, 60.0  # seconds between two tries
_DRAIN_S = 10.0  # seconds for the waiting alerts at the end

Failed = Callable[[dict[str, Any], str], None]


class Webhook:
    """One URL and its thread; calls `failed(alert, reason)` for every alert that it gives up.

    first_s  seconds before the first retry; the pause doubles each time
    drain_s  seconds that `close` waits for the remaining alerts
    """

    def __init__(self, url: str, failed: Failed, *, first_s: float = _FIRST_S, drain_s: float = _DRAIN_S) -> None:
        check_url(url)
        self._url, self._failed = url, failed
        self._first_s, self._drain_s = first_s, drain_s
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(CAPACITY)
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
            self._failed(alert, f"{CAPACITY} alerts were waiting already")

    def close(self) -> None:
        """Deliver the waiting alerts for up to `drain_s` seconds; report the rest as failed."""
        self._until = time.monotonic() + self._drain_s
        self._ending.set()
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            why = self._deliver(alert)
            if why:
                self._failed(alert, why)

    def _deliver(self, alert: dict[str, Any]) -> str:
        """Deliver an alert; return an empty text, or the reason for giving up."""
        pause = self._first_s
        while True:
            why, final = self._post(json.dumps(alert).encode())
            if not why or final or time.monotonic() + pause > self._until:
                return why
            self._ending.wait(pause) if not self._ending.is_set() else time.sleep(pause)
            pause = min(pause * 2, _LONGEST_S)

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Send one request; return the reason of a failure (empty: accepted), and whether a retry is useless."""
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


def check_url(url: str) -> str:
    """Return `url` if it is a valid webhook URL; else raise `InputError`."""
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
