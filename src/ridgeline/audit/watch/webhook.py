"""Webhooks: POST every alert as JSON to a URL, and retry until the receiver accepts it.

Redirects are not followed, so an alert goes nowhere else. If RIDGELINE_WEBHOOK_SECRET is set, every body is signed:
`x-ridgeline-signature: sha256=<HMAC in hexadecimal>`. The log records alerts that could not be delivered.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from ridgeline.audit.watch.delivery import Delivery, Failed, describe_error
from ridgeline.errors import InputError

SECRET = "RIDGELINE_WEBHOOK_SECRET"  # noqa: S105  (the name of the variable)
_TIMEOUT_S = 10.0


class Webhook:
    """One URL and its thread; calls `failed(alert, reason)` for every alert that it gives up.

    words  those of `Delivery`: report, first_s, drain_s
    """

    def __init__(self, url: str, failed: Failed, **words: Any) -> None:
        self._post = HttpPost(url)
        self.delivery = Delivery(f"webhook {urlsplit(url).hostname}", self._send, failed, **words)

    def __call__(self, alert: dict[str, Any]) -> None:
        event = alert["event"]
        self.delivery.put({**alert, "event": {**event, "time": str(event["time"])}})

    def close(self) -> None:
        self.delivery.close()

    def _send(self, alert: dict[str, Any]) -> tuple[str, bool]:
        return self._post(json.dumps(alert).encode())


class HttpPost:
    """Posts JSON to one URL; returns the reason of a failure (empty: accepted), and whether a retry is useless."""

    def __init__(self, url: str) -> None:
        self._url = check_url(url)
        self._open = urllib.request.build_opener(_NoRedirect).open

    def __call__(self, body: bytes) -> tuple[str, bool]:
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
            return f"it could not be reached ({describe_error(getattr(error, 'reason', error))})", False


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
