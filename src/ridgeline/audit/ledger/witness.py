"""A witness: somebody else who remembers. It co-signs a checkpoint only if the log continues the last one it saw.

A chain alone cannot see its own tail cut off, nor that two readers are shown two logs. A witness can: it has its own
key and its own memory, and its co-signature (c2sp.org/tlog-cosignature) says up to where it saw one log, and when.

    ridgeline audit witness LOG --state DIR --name witness.example/w1
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ridgeline.audit.ledger import layout as homes
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, parse_checkpoint, read_checkpoint
from ridgeline.audit.ledger.files import read_note
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.note import COSIGNATURE, Signer, Verifier, merged, new_signer, parse_verifier, time_of
from ridgeline.audit.ledger.report import Witnessed, continues
from ridgeline.audit.ledger.tiles import Tiles
from ridgeline.errors import InputError, StoreError, Unverified
from ridgeline.store import StrPath, explained, grip, lock, publish, release


@dataclass
class Testimony:
    """What the asked witnesses say about a log."""

    good: list[Witnessed] = field(default_factory=list)
    findings: list[tuple[str, str]] = field(default_factory=list)


class Witness:
    """A witness with its memory in a folder of its own; one process at a time."""

    def __init__(self, state: StrPath, name: str | None = None) -> None:
        self._state = Path(state)
        key = self._state / "key"
        if not key.exists():
            if name is None:
                raise InputError(f"{state} holds no witness yet; give it a --name, like witness.example/w1.")
            fresh = new_signer(name, COSIGNATURE)
            with explained(self._state):
                self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            homes.write_key(key, fresh)
        self._signer: Signer = homes.read_key(key)
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
        """The newest checkpoint of `log`, co-signed; remembered before it is given out.

        `verifier`: the log's key; later runs remember it. Raises `Unverified` if the log does not continue what was
        seen.
        """
        home = homes.find(log)
        tiles = Tiles(home.log)
        with lock(self._state / "lock", timeout=30):
            known = self._known(home, verifier)
            with explained(home.checkpoint):
                now = read_checkpoint(home.checkpoint.read_bytes(), known, str(home.checkpoint))
            memory = self._memory(now.origin)
            then = read_checkpoint(memory.read_bytes(), known, str(memory)) if memory.exists() else None
            self._judge(then, now, tiles)
            if now.note is None:
                raise Unverified("unsigned", f"{home.checkpoint} is not signed.")
            note = merged(now.note, [self._signer.cosign(now.text(), int(time.time()))])
            with publish(memory.with_suffix(".key")) as tmp:
                tmp.write_text(str(known) + "\n", encoding="utf-8")
            with publish(memory) as tmp:
                tmp.write_text(str(note), encoding="utf-8")
        return Checkpoint(now.origin, now.size, now.root, now.extensions, note)

    def deliver(self, log: StrPath, checkpoint: Checkpoint) -> None:
        """Put the co-signature where readers of the log find it."""
        home = homes.find(log)
        target = home.witnesses / self.verifier.key_id.hex()
        with explained(target):
            home.witnesses.mkdir(exist_ok=True)
        with publish(target) as tmp:
            tmp.write_text(str(checkpoint), encoding="utf-8")
        _onto_checkpoint(home, checkpoint)

    def _known(self, home: Home, given: Verifier | None) -> Verifier:
        """The log's key: remembered, else given, else the one its own machine has."""
        with explained(home.checkpoint):
            origin = parse_checkpoint(home.checkpoint.read_bytes(), str(home.checkpoint)).origin
        remembered = self._memory(origin).with_suffix(".key")
        if remembered.exists():
            known = parse_verifier(remembered.read_text(encoding="utf-8"))
            if given is not None and given != known:
                raise Unverified("wrong key", f"this witness knows {origin} by the key {known}, not {given}.")
            return known
        return given if given is not None else homes.read_settings(home)[0]

    def _memory(self, origin: str) -> Path:
        return self._state / f"{hashlib.sha256(origin.encode()).hexdigest()[:32]}.checkpoint"

    def _judge(self, then: Checkpoint | None, now: Checkpoint, tiles: Tiles) -> None:
        if merkle.root(now.size, tiles.node(now.size)) != now.root:
            raise Unverified(
                "rewritten", f"the tiles do not give the root that the checkpoint signs for {now.size} entries."
            )
        if then is None:
            return
        try:
            continues(then, now, tiles, "the log this witness saw")
        except Unverified as error:
            raise Unverified(error.kind, f"{str(error).rstrip('.')}; not co-signed.") from None


def witnessed(
    beside: Sequence[tuple[str, bytes]], log: Verifier, now: Checkpoint, witnesses: Sequence[Verifier], tiles: Tiles
) -> Testimony:
    """What each of the asked witnesses says about the log at `now`: its newest co-signed checkpoint must be in it.

    `beside`: what `cosigned_files` found before `now` was read, so that none of it is newer.
    """
    said = Testimony()
    counted: set[bytes] = set()  # a key that is given twice, or under two names, is one witness
    for witness in witnesses:
        if witness.kind != COSIGNATURE:
            raise InputError(f"{witness} is the key of a log, not of a witness; give the one `audit witness` printed.")
        if witness.public in counted:
            continue
        best: tuple[Checkpoint, int] | None = None
        for what, data in (("checkpoint", str(now).encode()), *beside):
            try:
                found = parse_checkpoint(data, what)
                signatures = witness.signed(found.note) if found.note else []
                if not signatures:
                    continue
                read_checkpoint(data, log, what)
                moment = max(time_of(s.body) for s in signatures)
                if best is None or (found.size, moment) > (best[0].size, best[1]):
                    best = found, moment
            except Unverified as error:
                said.findings.append((error.kind, f"{what}: {error}"))
        if best is not None:
            try:
                continues(best[0], now, tiles, f"what {witness.name} co-signed")
                said.good.append(Witnessed(witness.name, best[0].size, best[1]))
                counted.add(witness.public)
            except Unverified as error:
                said.findings.append((error.kind, str(error)))
    return said


def cosigned_files(home: Home) -> list[tuple[str, bytes]]:
    """The co-signed checkpoints that lie beside the log, by name; nobody has looked into them yet."""
    names = sorted(os.listdir(home.witnesses)) if home.witnesses.is_dir() else []
    found = ((f"witness/{name}", read_note(home.witnesses / name)) for name in names)
    return [(name, data) for name, data in found if data is not None]


def _onto_checkpoint(home: Home, cosigned: Checkpoint) -> None:
    """Onto the log's own checkpoint too, if it is still that one and no writer is about to replace it."""
    try:
        held = grip(home.lock)
    except OSError:
        return  # a copy of the log without its private part: the witness folder is enough
    if held is None:
        return
    try:
        now = parse_checkpoint(home.checkpoint.read_bytes(), str(home.checkpoint))
        if now.text() == cosigned.text() and now.note is not None and cosigned.note is not None:
            with publish(home.checkpoint) as tmp:
                tmp.write_text(str(merged(now.note, cosigned.note.signatures)), encoding="utf-8")
    except StoreError:
        return
    finally:
        release(held)
