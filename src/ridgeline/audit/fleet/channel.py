"""The connection between a forwarder and its collector: TLS, the keys of both ends, and frames.

The collector's certificate is signed by its own Ed25519 key, and the forwarder accepts exactly the key it was given.
Inside that connection the collector sends a nonce; the forwarder signs it, with the collector's key, by the key of its
log. So each end proves its key, no secret travels, and a recorded connection cannot be replayed.

    frame     4 bytes: size of the header, 4 bytes: size of the payload, the header as JSON, the payload (zlib)
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import ssl
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

from ridgeline.audit.ledger.checkpoint import Note, Signature, Signer, Verifier, decode_base64
from ridgeline.errors import MissingExtra, Unverified

VERSION = 1
LARGEST_HEADER = 4 << 20
LARGEST_GREETING = 16 << 10  # before the other end has proved its key
LARGEST_PAYLOAD = 96 << 20
_SIZES = struct.Struct(">II")
_NONCE = 32

Header = dict[str, Any]


class BadFrame(Exception):
    """The other end sent something that is no frame."""


def make_server_context(signer: Signer) -> ssl.SSLContext:
    """Make the collector's side of TLS 1.3: its certificate is signed by its own key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a forwarder keeps its connection
    fd = os.memfd_create("ridgeline-key", os.MFD_CLOEXEC)  # `load_cert_chain` reads files only
    try:
        os.write(fd, _make_certificate(signer))
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context


def make_client_context() -> ssl.SSLContext:
    """Make the forwarder's side; `check_peer` verifies the certificate, no authority does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def check_peer(connection: ssl.SSLSocket, collector: Verifier, where: str) -> None:
    """Raise `Unverified` unless the collector at the other end has the key `collector`."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    certificate = connection.getpeercert(binary_form=True)
    try:
        public = x509.load_der_x509_certificate(certificate or b"").public_key()
    except ValueError:
        public = None
    if not isinstance(public, Ed25519PublicKey) or public.public_bytes_raw() != collector.public:
        raise Unverified("wrong key", f"the collector at {where} does not have the key {collector}; nothing was sent.")


def make_nonce() -> str:
    return base64.b64encode(secrets.token_bytes(_NONCE)).decode()


def format_proof_of_key(nonce: str, collector: Verifier, log: Verifier) -> str:
    """Return the text that a forwarder signs; it can be neither a checkpoint nor a co-signature."""
    return f"ridgeline audit forward/v1\nnonce {nonce}\ncollector {collector}\nlog {log}\n"


def check_proof_of_key(nonce: str, collector: Verifier, log: Verifier, signature: str) -> None:
    """Raise `Unverified` unless `signature` is that of the log's key."""
    note = Note(
        format_proof_of_key(nonce, collector, log),
        (Signature(log.name, log.key_id, decode_base64(signature) or b""),),
    )
    log.find_signatures(note)


def pack_frame(header: Header, payload: bytes = b"") -> bytes:
    head = json.dumps(header, separators=(",", ":")).encode()
    body = zlib.compress(payload, 1) if payload else b""
    return _SIZES.pack(len(head), len(body)) + head + body


async def read_frame(reader: asyncio.StreamReader, *, greeting: bool = False) -> tuple[Header, bytes]:
    """Read one frame; raise `asyncio.IncompleteReadError` at the end, `BadFrame` for anything that is no frame."""
    head, body = _check_sizes(await reader.readexactly(_SIZES.size), greeting)
    header = await reader.readexactly(head)
    return _parse_header(header), _decompress(await reader.readexactly(body) if body else b"")


def receive_frame(connection: ssl.SSLSocket) -> tuple[Header, bytes]:
    """Read one frame from a socket; raise OSError if the connection ends."""
    head, body = _check_sizes(_receive_exactly(connection, _SIZES.size), False)
    header = _receive_exactly(connection, head)
    return _parse_header(header), _decompress(_receive_exactly(connection, body))


def _receive_exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    parts, left = list[bytes](), size
    while left:
        part = connection.recv(min(left, 1 << 20))
        if not part:
            raise ConnectionError("the collector closed the connection")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _check_sizes(data: bytes, greeting: bool) -> tuple[int, int]:
    head, body = _SIZES.unpack(data)
    if head > (LARGEST_GREETING if greeting else LARGEST_HEADER) or body > (0 if greeting else LARGEST_PAYLOAD):
        raise BadFrame(f"a frame of {head} and {body} bytes is too large")
    return head, body


def _parse_header(data: bytes) -> Header:
    try:
        header = json.loads(data)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise BadFrame("the header of a frame is no JSON object")
    return header


def _decompress(body: bytes) -> bytes:
    if not body:
        return b""
    stream = zlib.decompressobj()
    try:
        payload = stream.decompress(body, LARGEST_PAYLOAD)
    except zlib.error:
        raise BadFrame("the payload of a frame is not compressed as it must be") from None
    if not stream.eof:
        raise BadFrame("the payload of a frame is too large or cut off")
    return payload


def _make_certificate(signer: Signer) -> bytes:
    """Return a certificate and its private key in PEM; the key signs its own certificate."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise MissingExtra("Ed25519", "ledger") from None
    seed = (decode_base64(signer.secret().split("+", 4)[4]) or b"")[1:]
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ridgeline audit collect")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(1970, 1, 1, tzinfo=UTC))  # the forwarder compares the key, not the time
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .sign(key, None)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM) + private
