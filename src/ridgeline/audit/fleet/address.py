"""Addresses of the network, as commands take them: HOST:PORT, [::1]:PORT, or :PORT for loopback."""

from __future__ import annotations

import re

from ridgeline.errors import InputError

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:\s]*):(?P<port>\d{1,5})")


def parse_address(text: str, option: str) -> tuple[str, int]:
    """Return (host, port) of an address; `option` names it in errors.

    >>> parse_address("audit.example:7070", "--to"), parse_address("[::1]:7070", "--to")
    (('audit.example', 7070), ('::1', 7070))
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise InputError(f"{option} '{text[:100]}' is no address; write it like audit.example:7070.")
    return match["host"].strip("[]") or "127.0.0.1", int(match["port"])
