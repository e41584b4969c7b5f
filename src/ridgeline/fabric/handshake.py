"""The handshake of a connection between two ranks: both prove that they have the secret, then exchange one document.

    server → client   8 bytes "RLFABRIC", version (u16), byte order ("l" or "b"), nonce of 32 bytes
    client → server   the same with its own nonce, length (u32), a JSON document of that length, proof of 32 bytes
    server → client   status (u8), length (u32), a JSON document, proof of 32 bytes

Numbers are little-endian. A proof is HMAC-SHA256 by the secret over the direction, both nonces and the document. A
server that refuses (status 1 to 3) sends a text and no proof. Nothing after the handshake is signed or encrypted: over
a network that others can write to, use WireGuard.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import stat
import struct
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import FabricError, InputError

MAGIC, VERSION, NONCE_BYTES, PROOF_BYTES = b"RLFABRIC", 1, 32, 32
MOST_BYTES = 1 << 18  # of a document
OK, OTHER_SECRET, OTHER_VERSION, REFUSED = range(4)
GREETING = struct.Struct("<8sHc32s")
LENGTH = struct.Struct("<I")
ANSWER = struct.Struct("<BI")
_ORDER = sys.byteorder[0].encode()


class HandshakeError(FabricError):
    """The other side of a connection is not a rank of this job, or has other settings."""


@dataclass(frozen=True)
class Stranger:
    """Why a connection was dropped."""

    reason: str
    status: int = REFUSED


def read_secret(environment: Mapping[str, str] = os.environ) -> bytes:
    """Return the secret from RIDGELINE_FABRIC_SECRET, or from the file that RIDGELINE_FABRIC_SECRET_FILE names."""
    text, path = (environment.get(f"RIDGELINE_FABRIC_{name}", "") for name in ("SECRET", "SECRET_FILE"))
    if text:
        return text.encode()
    if not path:
        raise InputError(
            "ranks of several hosts need a common secret: set RIDGELINE_FABRIC_SECRET, or RIDGELINE_FABRIC_SECRET_FILE."
        )
    try:
        if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InputError(f"the secret in {path} can be read by others; run chmod 600 {path}.")
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise InputError(f"the secret file {path} cannot be read ({error.strerror}).") from None
    if not secret:
        raise InputError(f"the secret file {path} is empty; write a long random text into it.")
    return secret


def make_greeting(nonce: bytes, version: int = VERSION) -> bytes:
    return GREETING.pack(MAGIC, version, _ORDER, nonce)


def prove(secret: bytes, direction: bytes, server_nonce: bytes, client_nonce: bytes, document: bytes) -> bytes:
    return hmac.new(secret, b"\0".join((direction, server_nonce, client_nonce, document)), hashlib.sha256).digest()


def derive_keys(secret: bytes, server_nonce: bytes, client_nonce: bytes) -> tuple[int, int]:
    """The keys of the packets from the client and from the server of a connection."""
    proofs = (prove(secret, name, server_nonce, client_nonce, b"packets") for name in (b"client", b"server"))
    client, server = (int.from_bytes(proof[:8], "little") for proof in proofs)
    return client, server


def make_request(secret: bytes, server_nonce: bytes, nonce: bytes, document: Mapping[str, Any]) -> bytes:
    data = json.dumps(document).encode()
    return make_greeting(nonce) + LENGTH.pack(len(data)) + data + prove(secret, b"client", server_nonce, nonce, data)


def make_answer(secret: bytes, server_nonce: bytes, nonce: bytes, document: Mapping[str, Any]) -> bytes:
    data = json.dumps(document).encode()
    return ANSWER.pack(OK, len(data)) + data + prove(secret, b"server", server_nonce, nonce, data)


def make_refusal(status: int, text: str) -> bytes:
    data = json.dumps({"error": text}).encode()
    return ANSWER.pack(status, len(data)) + data + bytes(PROOF_BYTES)


def parse_request(
    data: bytes, secret: bytes, server_nonce: bytes
) -> tuple[dict[str, Any], bytes, int] | Stranger | None:
    """The document of a client, its nonce and the bytes it takes; None: more bytes are needed."""
    start = data[: len(MAGIC)]
    if start != MAGIC[: len(start)]:
        return Stranger("no rank: it speaks another protocol")
    if len(data) < GREETING.size + LENGTH.size:
        return None
    _, version, order, nonce = GREETING.unpack_from(data)
    if version != VERSION:
        return Stranger(f"protocol version {version} instead of {VERSION}", OTHER_VERSION)
    if order != _ORDER:
        return Stranger("a host with another byte order", OTHER_VERSION)
    (length,) = LENGTH.unpack_from(data, GREETING.size)
    if length > MOST_BYTES:
        return Stranger(f"a document of {length} bytes")
    start_at = GREETING.size + LENGTH.size
    end = start_at + length + PROOF_BYTES
    if len(data) < end:
        return None
    document, proof = bytes(data[start_at : start_at + length]), bytes(data[start_at + length : end])
    if not hmac.compare_digest(proof, prove(secret, b"client", server_nonce, nonce, document)):
        return Stranger("another secret", OTHER_SECRET)
    try:
        values = json.loads(document)
    except (ValueError, RecursionError):
        return Stranger("a document that is no JSON")
    if not isinstance(values, dict):
        return Stranger("a document that is no object")
    return values, nonce, end


@dataclass
class Connection:
    """A connection that has sent its request, and waits for the answer."""

    socket: socket.socket
    peer: str  # the address of the other side
    secret: bytes
    server_nonce: bytes
    nonce: bytes

    def read_answer(self, deadline: float) -> dict[str, Any]:
        """Wait for the answer; raises HandshakeError if the other side refuses, OSError if it goes away."""
        status, length = ANSWER.unpack(read_exactly(self.socket, ANSWER.size, deadline))
        if length > MOST_BYTES or status > REFUSED:
            raise HandshakeError(f"{self.peer} does not speak the protocol of fabric.")
        data = read_exactly(self.socket, length, deadline)
        proof = read_exactly(self.socket, PROOF_BYTES, deadline)
        try:
            document = json.loads(data)
        except ValueError:
            raise HandshakeError(f"{self.peer} does not speak the protocol of fabric.") from None
        if status != OK:
            raise HandshakeError(str(document.get("error", "it gave no reason")))
        if not hmac.compare_digest(proof, prove(self.secret, b"server", self.server_nonce, self.nonce, data)):
            raise HandshakeError(f"{self.peer} has another secret; give all ranks the same.")
        result: dict[str, Any] = document
        return result


def send_request(
    link: socket.socket, peer: str, secret: bytes, document: Mapping[str, Any], deadline: float
) -> Connection:
    """Read the greeting of a server and send a request; raises HandshakeError or OSError."""
    magic, version, order, server_nonce = GREETING.unpack(read_exactly(link, GREETING.size, deadline))
    if magic != MAGIC:
        raise HandshakeError(f"{peer} does not speak the protocol of fabric; is another program there?")
    if version != VERSION:
        raise HandshakeError(
            f"{peer} has protocol version {version}, this rank {VERSION}; install one release everywhere."
        )
    if order != _ORDER:
        raise HandshakeError(f"{peer} has another byte order; fabric needs hosts of one kind.")
    nonce = secrets.token_bytes(NONCE_BYTES)
    link.settimeout(max(0.01, deadline - time.monotonic()))
    link.sendall(make_request(secret, server_nonce, nonce, document))
    return Connection(link, peer, secret, server_nonce, nonce)


def read_exactly(link: socket.socket, count: int, deadline: float) -> bytes:
    data = b""
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        link.settimeout(left)
        some = link.recv(count - len(data))
        if not some:
            raise ConnectionResetError("it closed the connection")
        data += some
    return data
