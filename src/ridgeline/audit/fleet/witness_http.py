"""Witnesses over HTTP (c2sp.org/tlog-witness): serve one, and ask others to co-sign a log.

    ridgeline audit witness --serve HOST:PORT --state DIR --name NAME --trust VKEY
    ridgeline audit witness LOG --ask URL --trust WKEY

A log sends its newest checkpoint with a consistency proof from the size that the witness saw last:

    POST /add-checkpoint        old SIZE, lines of hashes, a blank line, the checkpoint
    200                         signature lines of the witness
    409  text/x.tlog.size       the size that the witness knows, if SIZE is another one
    400, 403, 404, 422          malformed, no trusted signature, an unknown log, a proof that does not hold

The witness has its new memory on the disk before it answers.
"""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from http.client import HTTPException
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ridgeline import web
from ridgeline.audit.ledger.checkpoint import (
    COSIGNATURE,
    LARGEST_NOTE,
    Checkpoint,
    Note,
    Verifier,
    merge_signatures,
    parse_checkpoint,
    parse_note,
    parse_verifier,
)
from ridgeline.audit.ledger.layout import LedgerPaths, read_note
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.witness import NotCosigned, Witness, store_cosigned
from ridgeline.errors import InputError, StoreError, Unverified

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PATH = "/add-checkpoint"
SIZE_TYPE = "text/x.tlog.size"
_TIMEOUT_S = 30.0
_LARGEST_REQUEST = LARGEST_NOTE + (8 << 10)


def make_witness_app(witness: Witness, trusted: Mapping[str, Sequence[Verifier]]) -> web.App:
    """Make the web application of a witness; `trusted` has the keys of each log by its origin."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def add(request: Request) -> Response:
        body = await request.body()
        try:
            lines = await run_in_threadpool(witness.add, body, trusted)
        except NotCosigned as refusal:
            if refusal.size is not None:
                return PlainTextResponse(f"{refusal.size}\n", refusal.status, media_type=SIZE_TYPE)
            return PlainTextResponse(f"{refusal}\n", refusal.status)
        return PlainTextResponse(lines)

    return web.create_app([Route(PATH, add, methods=["POST"])], body_limit=_LARGEST_REQUEST, public=True)


def read_trusted(words: Iterable[str]) -> dict[str, list[Verifier]]:
    """Read the keys of logs by origin. A key is VKEY, or ORIGIN=VKEY if its name is not the origin of the log."""
    trusted: dict[str, list[Verifier]] = {}
    for word in words:
        origin, equals, rest = word.partition("=")
        named = bool(equals) and "+" not in origin
        key = parse_verifier(rest if named else word)
        if key.kind == COSIGNATURE:
            raise InputError(f"--trust {word[:120]} is the key of a witness; give the key of a log.")
        trusted.setdefault(origin if named else key.name, []).append(key)
    return trusted


def ask_witness(ledger: Ledger, url: str, keys: Sequence[Verifier], *, timeout_s: float = _TIMEOUT_S) -> Checkpoint:
    """Let the witness at `url` co-sign the newest checkpoint of a ledger, and store that in the log.

    url   the submission prefix of the witness, like https://witness.example
    keys  the public keys that count as this witness's

    Raises `Unverified` if the witness refuses or its answer has no co-signature by one of `keys`.
    """
    target = f"{_check_url(url).rstrip('/')}{PATH}"
    if not keys or any(key.kind != COSIGNATURE for key in keys):
        raise InputError("give the public key of the witness with --trust; it is the one that the witness printed.")
    now = ledger.checkpoint()
    note = now.note
    if note is None:
        raise Unverified("unsigned", f"{ledger.path} has no signed checkpoint yet.")
    old = _find_known_size(LedgerPaths(ledger.path), keys, now.size)
    for last_try in (False, True):
        status, kind, body = _post(target, _format_request(ledger, old, now), timeout_s)
        if status == 200:
            break
        known = int(body) if kind == SIZE_TYPE and body.strip().isdigit() and len(body) < 20 else None
        if status != 409 or known is None:
            why = body.decode("utf-8", "replace").strip()[:300]
            raise Unverified("refused", f"{url} does not co-sign {now.origin} ({status}): {why}")
        if known > now.size:
            raise Unverified(
                "truncated", f"{url} knows {known} entries of {now.origin}, which has {now.size}: its tail was cut off."
            )
        if last_try or known == old:
            raise Unverified("fork", f"{url} knows {now.origin} at {known} entries by another root: it was forked.")
        old = known
    return _store_answer(ledger, url, keys, now, note, body)


def _store_answer(
    ledger: Ledger, url: str, keys: Sequence[Verifier], now: Checkpoint, note: Note, body: bytes
) -> Checkpoint:
    try:
        given = parse_note(now.text().encode() + b"\n" + body, f"the answer of {url}")
        mine = [(key, signature) for key in keys for signature in key.find_signatures(given)]
    except Unverified as error:
        raise Unverified(error.kind, f"{url} gave no co-signature: {error}") from None
    if not mine:
        names = ", ".join(f"{s.name} ({s.key_id.hex()})" for s in given.signatures)
        raise Unverified("wrong key", f"{url} answered with signatures of {names}, none of them by a trusted key.")
    cosigned = Checkpoint(now.origin, now.size, now.root, now.extensions)
    for key, signature in mine:
        cosigned = Checkpoint(
            now.origin, now.size, now.root, now.extensions, merge_signatures(cosigned.note or note, [signature])
        )
        store_cosigned(ledger.path, cosigned, key)
    return cosigned


def _format_request(ledger: Ledger, old: int, now: Checkpoint) -> bytes:
    hashes = ledger.prove_consistency(old, now.size)
    lines = [f"old {old}", *(base64.b64encode(h).decode() for h in hashes)]
    return ("\n".join(lines) + "\n\n" + str(now)).encode()


def _find_known_size(paths: LedgerPaths, keys: Sequence[Verifier], most: int) -> int:
    """Return the size that the witness co-signed last, as far as the log knows; the witness corrects it."""
    for key in keys:
        data = read_note(paths.witnesses / key.key_id.hex())
        try:
            size = parse_checkpoint(data, "").size if data is not None else 0
        except Unverified:
            continue
        if 0 < size <= most:
            return size
    return 0


def _post(url: str, body: bytes, timeout_s: float) -> tuple[int, str, bytes]:
    """Return status, content type and body of the answer; raise `StoreError` if there is none."""
    request = urllib.request.Request(url, body, {"content-type": "text/plain"}, method="POST")  # noqa: S310  (checked)
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=timeout_s) as answer:
            return answer.status, answer.headers.get_content_type(), answer.read(LARGEST_NOTE)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers.get_content_type(), error.read(4096)
    except (OSError, HTTPException) as error:
        raise StoreError(f"the witness {url} cannot be reached: {getattr(error, 'reason', error)}.") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def _check_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise InputError(f"'{url[:100]}' is no address of a witness; write it like https://witness.example.")
    return url
