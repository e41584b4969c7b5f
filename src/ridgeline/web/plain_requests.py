"""Plain requests: short POSTs to a known path, answered without ASGI.

Under load, an HTTP library, ASGI messages and five tasks cost more CPU time than the answer. A POST with a body of
known length, whose head has nothing unusual in it and passes every check of middleware.py, needs none of them: it is
read here, answered by one task, and written by one call. Everything else, every refusal too, goes to the HTTP library
as it came: this file never decides on an error.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.web.middleware import Scope

BODY_LIMIT = 1 << 20  # bytes; a longer body is read by the HTTP library
_HEAD_LIMIT = 16 << 10
# The whole head: visible ASCII, one header per line, no empty value. What it does not match is not plain.
_HEAD = re.compile(
    rb"POST (/[A-Za-z0-9_./-]{0,100}) HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9_-]+:[ \t]*[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?[ \t]*\r\n)+)\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,7}")
_UNUSUAL = frozenset({b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"})


@dataclass(frozen=True)
class Reply:
    """An answer as JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


# Answers a request: (body, headers) → reply. It raises nothing but CancelledError: the client has left, or the server
# stops.
PlainHandler = Callable[[bytes, Mapping[str, str]], Awaitable[Reply]]


@dataclass(eq=False)
class PlainRequest:
    """A request whose head was read.

    data     all bytes so far, head included
    begin    of the body
    end      of the body; what lies behind it is the next request
    """

    scope: Scope
    data: bytearray
    begin: int
    end: int

    @property
    def is_complete(self) -> bool:
        return len(self.data) >= self.end

    @property
    def body(self) -> bytes:
        return bytes(self.data[self.begin : self.end])

    @property
    def headers(self) -> Mapping[str, str]:
        """The first value of each header."""
        return {key.decode("latin-1"): value.decode("latin-1") for key, value in reversed(self.scope["headers"])}


def read_head(data: bytes, paths: Mapping[str, PlainHandler]) -> PlainRequest | None:
    """Return a plain request that begins with these bytes, or None: then the HTTP library reads them."""
    if not data.startswith(b"POST "):
        return None
    match = _HEAD.match(data, 0, _HEAD_LIMIT)
    if match is None or (path := match[1].decode()) not in paths:
        return None
    headers = []
    lengths = hosts = 0
    length = 0
    for line in match[2].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        name, value = name.lower(), value.strip(b" \t")
        headers.append((name, value))
        if name == b"content-length":
            if not _LENGTH.fullmatch(value):
                return None
            lengths, length = lengths + 1, int(value)
        elif name == b"host":
            hosts += 1
        elif name in _UNUSUAL or (name == b"connection" and value.lower() != b"keep-alive"):
            return None
    if lengths != 1 or hosts != 1 or length > BODY_LIMIT:
        return None
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    return PlainRequest(scope, bytearray(data), match.end(), match.end() + length)


def format_reply(reply: Reply, headers: list[tuple[bytes, bytes]], *, close: bool = False) -> list[bytes]:
    """Return the bytes of an answer, in parts; `headers` are those of every answer."""
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = ""
    lines = [f"HTTP/1.1 {reply.status} {phrase}\r\ncontent-type: application/json\r\n".encode()]
    lines += [b"content-length: %d\r\n" % len(reply.body)]
    lines += [f"{key}: {value}\r\n".encode("latin-1") for key, value in reply.headers.items()]
    lines += [b"%s: %s\r\n" % header for header in headers]
    lines.append(b"connection: close\r\n\r\n" if close else b"\r\n")
    return [b"".join(lines), reply.body]
