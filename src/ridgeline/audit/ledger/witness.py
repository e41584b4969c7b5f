"""A witness: another party that remembers a log. It co-signs a checkpoint only if the log continues the last one.

A log alone cannot show that its tail was cut off, or that two readers see two different logs. A witness can: it has its
own key and memory, and its co-signature (c2sp.org/tlog-cosignature) states the size it saw, and when.

    ridgeline audit witness LOG --state DIR --name witness.example/w1

`Witness.cosign` reads the tiles of a log that lies on this machine; `Witness.add` answers a request of
c2sp.org/tlog-witness, which carries a checkpoint and a consistency proof.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import (
    COSIGNATURE,
    Checkpoint,
    Note,
    Signer,
    Verifier,
    decode_hash,
    merge_signatures,
    new_signer,
    parse_checkpoint,
    parse_verifier,
    read_checkpoint,
    read_cosignature_time,
)
from ridgeline.audit.ledger.layout import LedgerPaths, find_ledger, read_key, read_note, read_settings, write_key
from ridgeline.audit.ledger.tiles import Tiles, check_continues
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.store import StrPath, explain_errors, lock, publish, release, try_lock

CLOCK_S = 600  # how far the clock of a witness may be ahead
MOST_HASHES = 63  # lines of a consistency proof
_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})")


@dataclass(frozen=True)
class WitnessStatement:
    """A witness co-signed the log at `size` entries, at a time in seconds since 1970."""

    name: str
    size: int
    seconds: int


@dataclass
class WitnessReport:
    """The statements of the witnesses about a log, and (kind, sentence) of every fault."""

    good: list[WitnessStatement] = field(default_factory=list)
    findings: list[tuple[str, str]] = field(default_factory=list)


class NotCosigned(Unverified):
    """A witness does not co-sign a checkpoint; `status` is the HTTP status of c2sp.org/tlog-witness.

    size  the size that the witness knows, if it is not the old size of the request
    """

    def __init__(self, status: int, kind: str, sentence: str, size: int | None = None) -> None:
        super().__init__(kind, sentence)
        self.status, self.size = status, size


class Witness:
    """A witness whose key and memory lie in the folder `state`; one process may use it at a time.

    name  the name of a new witness, like witness.example/w1; only needed if `state` has no key yet
    """

    def __init__(self, state: StrPath, name: str | None = None) -> None:
        self._state = Path(state)
        key = self._state / "key"
        if not key.exists():
            if name is None:
                raise InputError(f"{state} has no witness yet; give it a --name, like witness.example/w1.")
            fresh = new_signer(name, COSIGNATURE)
            with explain_errors(self._state):
                self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_key(key, fresh)
        self._signer: Signer = read_key(key)
        if self._signer.verifier.kind != COSIGNATURE:
            raise InputError(f"{key} is the key of a log; a witness has its own, made with --name in a new --state.")
        if name is not None and name != self._signer.name:
            raise InputError(
                f"the witness in {state} is named {self._signer.name}; leave --name out, or use another state."
            )

    @property
    def verifier(self) -> Verifier:
        return self._signer.verifier

    def cosign(self, log: StrPath, verifier: Verifier | None = None) -> Checkpoint:
        """Co-sign the newest checkpoint of `log`, remember it, and return it.

        `verifier` is the log's public key; the witness remembers it. Raises `Unverified` if the log does not continue
        the last checkpoint that this witness saw.
        """
        paths = find_ledger(log)
        tiles = Tiles(paths.log)
        with lock(self._state / "lock", timeout=30):
            known = self._find_log_key(paths, verifier)
            with explain_errors(paths.checkpoint):
                now = read_checkpoint(paths.checkpoint.read_bytes(), known, str(paths.checkpoint))
            memory = self._memory(now.origin)
            then = read_checkpoint(memory.read_bytes(), known, str(memory)) if memory.exists() else None
            self._check_continues(then, now, tiles)
            if now.note is None:
                raise Unverified("unsigned", f"{paths.checkpoint} is not signed.")
            note = merge_signatures(now.note, [self._signer.cosign(now.text(), int(time.time()))])
            self._save(now.origin, known, str(note))
        return Checkpoint(now.origin, now.size, now.root, now.extensions, note)

    def add(self, request: bytes, trusted: Mapping[str, Sequence[Verifier]]) -> str:
        """Answer a request to co-sign a checkpoint; return the signature lines, once the memory is on the disk.

        request  the old size, a consistency proof and a checkpoint, as c2sp.org/tlog-witness writes them
        trusted  origin → the keys of that log

        Raises `NotCosigned` with the HTTP status.
        """
        old, path, note = parse_witness_request(request)
        try:
            now = parse_checkpoint(note, "the checkpoint")
        except Unverified as error:
            raise NotCosigned(400, error.kind, str(error)) from None
        if now.origin not in trusted:
            raise NotCosigned(404, "unknown log", f"this witness does not know the log '{now.origin}'.")
        signer = _find_signer(now, trusted[now.origin])
        if signer is None or now.note is None:
            raise NotCosigned(403, "wrong key", f"no trusted key of '{now.origin}' signed this checkpoint.")
        if old > now.size:
            raise NotCosigned(400, "malformed", f"the old size {old} is above the size {now.size} of the checkpoint.")
        with lock(self._state / "lock", timeout=30):
            then = self._remember(now.origin)
            if old != then.size:
                sentence = f"this witness knows '{now.origin}' at {then.size} entries, not {old}."
                raise NotCosigned(409, "conflict", sentence, then.size)
            if old == now.size and then.root != now.root:
                sentence = f"'{now.origin}' has two roots at {old} entries: it was forked or rewritten."
                raise NotCosigned(409, "fork", sentence, then.size)
            try:
                merkle.check_consistency(old, now.size, then.root, now.root, path)
            except Unverified as error:
                raise NotCosigned(422, error.kind, f"the consistency proof does not hold: {error}") from None
            signature = self._signer.cosign(now.text(), int(time.time()))
            signatures = [s for s in now.note.signatures if s.key_id == signer.key_id and s.name == signer.name]
            self._save(now.origin, signer, str(Note(now.note.text, (*signatures, signature))))
        return signature.line()

    def _remember(self, origin: str) -> Checkpoint:
        """Return the checkpoint of `origin` that this witness co-signed last; one of an empty log if there is none."""
        memory = self._memory(origin)
        if not memory.exists():
            return Checkpoint(origin, 0, merkle.EMPTY)
        with explain_errors(memory):
            then = parse_checkpoint(memory.read_bytes(), str(memory))
        if then.note is None or not self.verifier.find_signatures(then.note) or then.origin != origin:
            raise StoreError(f"{memory} does not have the signature of this witness; restore it from a copy.")
        return then

    def _save(self, origin: str, log_key: Verifier, note: str) -> None:
        memory = self._memory(origin)
        key_file, key = memory.with_suffix(".key"), f"{log_key}\n"
        if not key_file.exists() or key_file.read_text(encoding="utf-8") != key:
            with publish(key_file) as tmp:
                tmp.write_text(key, encoding="utf-8")
        with publish(memory) as tmp:
            tmp.write_text(note, encoding="utf-8")

    def deliver(self, log: StrPath, checkpoint: Checkpoint) -> None:
        """Write the co-signed checkpoint into the log, for its readers."""
        store_cosigned(log, checkpoint, self.verifier)

    def _find_log_key(self, paths: LedgerPaths, given: Verifier | None) -> Verifier:
        """Return the log's key: the remembered one, else the given one, else that in the log's private folder."""
        with explain_errors(paths.checkpoint):
            origin = parse_checkpoint(paths.checkpoint.read_bytes(), str(paths.checkpoint)).origin
        remembered = self._memory(origin).with_suffix(".key")
        if remembered.exists():
            known = parse_verifier(remembered.read_text(encoding="utf-8"))
            if given is not None and given != known:
                raise Unverified("wrong key", f"this witness knows {origin} by the key {known}, not {given}.")
            return known
        return given if given is not None else read_settings(paths)[0]

    def _memory(self, origin: str) -> Path:
        return self._state / f"{hashlib.sha256(origin.encode()).hexdigest()[:32]}.checkpoint"

    def _check_continues(self, then: Checkpoint | None, now: Checkpoint, tiles: Tiles) -> None:
        if merkle.root(now.size, tiles.node(now.size)) != now.root:
            raise Unverified(
                "rewritten", f"the tiles do not give the root that the checkpoint signs for {now.size} entries."
            )
        if then is None:
            return
        try:
            check_continues(then, now, tiles, "the log this witness saw")
        except Unverified as error:
            raise Unverified(error.kind, f"{str(error).rstrip('.')}; not co-signed.") from None


def parse_witness_request(request: bytes) -> tuple[int, list[bytes], bytes]:
    """Split a request of c2sp.org/tlog-witness: the old size, the consistency proof, the bytes of the checkpoint."""

    def wrong(why: str) -> NotCosigned:
        return NotCosigned(400, "malformed", f"the request is malformed: {why}.")

    head, blank, note = request.partition(b"\n\n")
    if not blank:
        raise wrong("there is no blank line before its checkpoint")
    try:
        first, *lines = head.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise wrong("the lines before its checkpoint are not ASCII") from None
    old = _OLD.fullmatch(first)
    if old is None or int(old[1]) >= 1 << 63:
        raise wrong("its first line is not 'old SIZE'")
    hashes = [decode_hash(line) for line in lines]
    if len(hashes) > MOST_HASHES or None in hashes:
        raise wrong(f"its proof is not lines of base64, {MOST_HASHES} at most")
    return int(old[1]), [h for h in hashes if h is not None], note


def _find_signer(checkpoint: Checkpoint, keys: Sequence[Verifier]) -> Verifier | None:
    """Return the first of `keys` that signed the checkpoint; signatures of other keys do not matter."""
    for key in keys:
        with suppress(Unverified):
            if checkpoint.note is not None and key.find_signatures(checkpoint.note):
                return key
    return None


def store_cosigned(log: StrPath, checkpoint: Checkpoint, witness: Verifier) -> None:
    """Write a checkpoint that `witness` co-signed into the log, for its readers."""
    paths = find_ledger(log)
    target = paths.witnesses / witness.key_id.hex()
    with explain_errors(target):
        paths.witnesses.mkdir(exist_ok=True)
    with publish(target) as tmp:
        tmp.write_text(str(checkpoint), encoding="utf-8")
    _add_to_checkpoint(paths, checkpoint)


def check_witnesses(
    beside: Sequence[tuple[str, bytes]], log: Verifier, now: Checkpoint, witnesses: Sequence[Verifier], tiles: Tiles
) -> WitnessReport:
    """Check the newest checkpoint that each witness co-signed: the log at `now` must continue it.

    `cosigned` is the result of `read_cosigned_files`, read before `now`, so that no checkpoint in it is newer.
    """
    report = WitnessReport()
    counted: set[bytes] = set()  # the same key under two names is one witness
    for witness in witnesses:
        if witness.kind != COSIGNATURE:
            raise InputError(f"{witness} is the key of a log, not of a witness; give the one `audit witness` printed.")
        if witness.public in counted:
            continue
        best: tuple[Checkpoint, int] | None = None
        for what, data in (("checkpoint", str(now).encode()), *beside):
            try:
                checkpoint = parse_checkpoint(data, what)
                signatures = witness.find_signatures(checkpoint.note) if checkpoint.note else []
                if not signatures:
                    continue
                read_checkpoint(data, log, what)
                moments = [read_cosignature_time(s.body) for s in signatures]
                moment = max((m for m in moments if m <= time.time() + CLOCK_S), default=max(moments))
                if best is None or (checkpoint.size, moment) > (best[0].size, best[1]):
                    best = checkpoint, moment
            except Unverified as error:
                report.findings.append((error.kind, f"{what}: {error}"))
        if best is not None:
            try:
                check_continues(best[0], now, tiles, f"what {witness.name} co-signed")
                report.good.append(WitnessStatement(witness.name, best[0].size, best[1]))
                counted.add(witness.public)
            except Unverified as error:
                report.findings.append((error.kind, str(error)))
    return report


def read_cosigned_files(paths: LedgerPaths) -> list[tuple[str, bytes]]:
    """Read the co-signed checkpoints in the witness folder as (name, bytes), unverified."""
    names = sorted(os.listdir(paths.witnesses)) if paths.witnesses.is_dir() else []
    notes = ((f"witness/{name}", read_note(paths.witnesses / name)) for name in names)
    return [(name, data) for name, data in notes if data is not None]


def _add_to_checkpoint(paths: LedgerPaths, cosigned: Checkpoint) -> None:
    """Add the co-signature to the log's checkpoint too, if it is still the same and no writer runs."""
    try:
        lock_handle = try_lock(paths.lock)
    except OSError:
        return  # a copy of the log without its private folder
    if lock_handle is None:
        return
    try:
        now = parse_checkpoint(paths.checkpoint.read_bytes(), str(paths.checkpoint))
        if now.text() == cosigned.text() and now.note is not None and cosigned.note is not None:
            with publish(paths.checkpoint) as tmp:
                tmp.write_text(str(merge_signatures(now.note, cosigned.note.signatures)), encoding="utf-8")
    except StoreError:
        return
    finally:
        release(lock_handle)
