"""Is the log what its signature says? Top down, as any client of a tlog would: nothing is believed before it is hashed.

The signature vouches for the root, the root for the right edge of the tree, each tile for those below it, and the leaf
hashes for the entries. So a difference is found in the file that has it: whoever stands above has been proved.

A log that is being written gives no false alarm: all that belongs to a signed size stays where it is. Only retention
takes entries away, and says so in a later event; if the checkpoint has moved on while something seemed to be wrong, the
whole is looked at again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ridgeline.audit.ledger import layout as homes
from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, read_checkpoint
from ridgeline.audit.ledger.compare import difference
from ridgeline.audit.ledger.event import PRUNE_MARK, decode
from ridgeline.audit.ledger.files import read_note
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.note import Verifier
from ridgeline.audit.ledger.orphans import check_strays
from ridgeline.audit.ledger.report import Findings, Report, Witnessed, continues, pruned_by
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, entries_of, tile_path, widths
from ridgeline.audit.ledger.tree import Edge
from ridgeline.audit.ledger.witness import cosigned_files, witnessed
from ridgeline.errors import Unverified
from ridgeline.native import bundle_hashes, merkle_root
from ridgeline.store import StrPath, explained

_TRIES = 3
_GIVE_UP = 256
_STORED_MARK = b',"stored":{"bytes":'


Verified = Report  # one that was returned, not raised


def verify(path: StrPath, verifier: Verifier, *, full: bool = True) -> Verified:
    """The report of a log that is whole; raises `Findings` for one that is not."""
    report = examine(path, verifier, full=full)
    if not report.ok:
        raise Findings(report)
    return report


def examine(
    path: StrPath,
    verifier: Verifier,
    *,
    full: bool = True,
    kept: Sequence[Path] = (),
    witnesses: Sequence[Verifier] = (),
    require: int = 0,
    since: int | None = None,
) -> Report:
    """Look at the log at `path`.

    `kept`: checkpoints kept elsewhere, which the log must continue. `witnesses`: keys, of which `require` must have
    co-signed a checkpoint that this log continues, not before `since` (ns since 1970).
    """
    home = homes.find(path)
    report = Report(verifier.name)
    for _ in range(_TRIES):
        seen = read_note(home.checkpoint)
        report = _Examination(home, verifier, full).run(kept, witnesses, require, since)
        if report.ok or seen == read_note(home.checkpoint):
            break
    return report


class _Examination:
    def __init__(self, home: Home, verifier: Verifier, full: bool) -> None:
        self._home, self._verifier = home, verifier
        self._report = Report(verifier.name, full=full)
        self._tiles = Tiles(home.log)
        self._last: dict[int, tuple[int, bytes, bool]] = {}  # per level: the tile looked at last, and if it is proved
        self._damaged: set[tuple[int, int]] = set()
        self._missing: list[int] = []  # bundles
        self._void = 0  # bundles in a row of which neither entries nor hashes are there

    def run(
        self, kept: Sequence[Path], witnesses: Sequence[Verifier], require: int, since: int | None = None
    ) -> Report:
        report = self._report
        # Before the checkpoint, which is then never older than what it must continue.
        own, beside = read_note(self._home.published), cosigned_files(self._home)
        try:
            report.checkpoint = self._checkpoint()
        except Unverified as error:
            report.find(error.kind, str(error))
            return report
        size = report.checkpoint.size
        self._check_edge(report.checkpoint)
        for number in range(-(-size // WIDTH)) if report.full else ([size // WIDTH] if size % WIDTH else []):
            if self._void == _GIVE_UP:  # retention keeps hashes: this is a size that was signed for no log
                rest = size - number * WIDTH
                report.find(
                    "missing", f"from entry {number * WIDTH} on nothing is there; the last {rest} not looked at."
                )
                break
            self._check_bundle(number, min(WIDTH, size - number * WIDTH))
        self._explain_missing()
        if report.full:
            check_strays(self._home, size, self._tiles, report.find, report.notes.append)
        if report.ok:  # a damaged tree continues nothing, and says nothing about forks
            if own is not None:
                self._continues("this machine's own note of the log", own)
            for path in kept:
                with explained(path):
                    self._continues(str(path), path.read_bytes())
            found = witnessed(beside, self._verifier, report.checkpoint, witnesses, self._tiles)
            report.witnesses = self._young(found.good, since)
            for kind, sentence in found.findings:
                report.find(kind, sentence)
        if len(report.witnesses) < require and not any(f.kind in ("fork", "truncated") for f in report.findings):
            report.find(
                "unwitnessed", f"{len(report.witnesses)} witnesses co-signed this log, but {require} are required."
            )
        return report

    def _young(self, found: list[Witnessed], since: int | None) -> list[Witnessed]:
        """Those who co-signed lately enough; of the others it is noted when they did."""
        for old in (w for w in found if since is not None and w.seconds * 10**9 < since):
            when = f"{show_moment(old.seconds * 10**9)[:19]}Z"
            self._report.notes.append(
                f"{old.name} last co-signed {when}, at {old.size} entries: too long ago to count."
            )
        return [w for w in found if since is None or w.seconds * 10**9 >= since]

    def _checkpoint(self) -> Checkpoint:
        data = read_note(self._home.checkpoint)
        if data is None:
            raise Unverified("missing", "checkpoint is missing.")
        return read_checkpoint(data, self._verifier, "checkpoint")

    def _check_edge(self, checkpoint: Checkpoint) -> None:
        """The partial tiles together give the root; if not, the one that would if it were right is the culprit."""
        levels: list[bytes] = []
        shape = [(level, full, width) for level, full, width in widths(checkpoint.size)]
        for level, full, width in shape:
            try:
                levels.append(self._tiles.hashes(level, full, width) if width else b"")
            except Unverified as error:
                self._report.find(error.kind, str(error))
                self._damaged.add((level, full))
                levels.append(self._rebuilt(level, full, width))
        if not self._damaged and Edge(checkpoint.size, tuple(levels)).root() == checkpoint.root:
            return
        for level, full, width in shape:
            other = list(levels)
            other[level] = self._rebuilt(level, full, width) if width else b""
            if other[level] != levels[level] and Edge(checkpoint.size, tuple(other)).root() == checkpoint.root:
                self._report.find(
                    "altered", f"{tile_path(level, full, width)} was altered: what lies below it is whole."
                )
                self._damaged.add((level, full))
                return
        if not self._damaged:
            self._damaged.update((level, full) for level, full, width in shape if width)
            self._report.find(
                "rewritten", f"the tiles do not give the root that the checkpoint signs for {checkpoint.size} entries."
            )

    def _rebuilt(self, level: int, number: int, width: int) -> bytes:
        """A partial tile as what lies below has it; empty where that cannot be read."""
        try:
            if level == 0:
                return bundle_hashes(self._tiles.bundle(number, width))
            below = (self._tiles.hashes(level - 1, number * WIDTH + k) for k in range(width))
            return b"".join(merkle_root(hashes) for hashes in below)
        except (Unverified, ValueError):
            return b""

    def _proved(self, level: int, number: int) -> tuple[bytes, bool]:
        """A tile's hashes (none if it cannot be read), and whether the signature vouches for them."""
        last = self._last.get(level)
        if last is not None and last[0] == number:
            return last[1], last[2]
        size = self._report.checkpoint.size if self._report.checkpoint else 0
        width = min(WIDTH, (size >> (8 * level)) - number * WIDTH)
        good = (level, number) not in self._damaged
        hashes = b""
        try:
            hashes = self._tiles.hashes(level, number, width)
        except Unverified as error:
            if good:
                self._report.find(error.kind, str(error))
            good = False
        if good and width == WIDTH:
            above, sure = self._proved(level + 1, number // WIDTH)
            at = number % WIDTH * merkle.HASH
            if not sure:
                good = False
            elif merkle_root(hashes) != above[at : at + merkle.HASH]:
                self._report.find(
                    "altered", f"{tile_path(level, number)} was altered: it does not give its hash above."
                )
                good = False
        self._last[level] = (number, hashes, good)
        return hashes, good

    def _check_bundle(self, number: int, width: int) -> None:
        hashes, good = self._proved(0, number)
        name = tile_path("entries", number, width)
        try:
            data = self._tiles.bundle(number, width)
        except Unverified:
            self._missing.append(number)
            self._void = self._void + 1 if not hashes else 0
            return
        self._void = 0
        try:
            found = bundle_hashes(data)
        except ValueError as error:
            self._report.find("altered", f"{name} is damaged: {error}.")
            return
        if found != hashes and (good or len(found) != width * merkle.HASH or not hashes):
            for kind, sentence in difference(name, number * WIDTH, hashes, found):
                self._report.find(kind, sentence)
            return
        self._report.entries += width
        if PRUNE_MARK in data or _STORED_MARK in data:
            self._look_inside(number * WIDTH, data, name)

    def _look_inside(self, first: int, data: bytes, name: str) -> None:
        """Events that say what was pruned, and those that lie beside the log."""
        for index, entry in enumerate(entries_of(data, name), start=first):
            if not entry.startswith(PRUNE_MARK) and _STORED_MARK not in entry:
                continue
            try:
                event = decode(entry, f"entry {index}")
            except Unverified:
                continue  # somebody else's bytes: hashed, and not ours to read
            if entry.startswith(PRUNE_MARK):
                self._note_pruned(index, event)
            elif "stored" in event:
                self._check_blob(index, str(event["stored"]["sha256"]))

    def _note_pruned(self, index: int, event: dict[str, Any]) -> None:
        known = {p.index for p in self._report.pruned}
        try:
            self._report.pruned += [p for p in pruned_by(index, event) if p.index not in known]
        except Unverified as error:
            self._report.find(error.kind, str(error))

    def _check_blob(self, index: int, digest: str) -> None:
        from ridgeline.store import sha256_of

        path = self._home.blob(digest)
        if not path.exists():
            self._report.find("missing", f"blob/{digest}, the event of entry {index}, is missing.")
        elif sha256_of(path) != digest:
            self._report.find("altered", f"blob/{digest}, the event of entry {index}, was altered.")

    def _explain_missing(self) -> None:
        """A bundle may be gone only if an event says so; the partial one, which alone a quick look reads, never."""
        size = self._report.checkpoint.size if self._report.checkpoint else 0
        until = max((p.end for p in self._report.pruned), default=0)
        lost = [n for n in self._missing if (n + 1) * WIDTH > until]
        for number in lost[:20]:
            name = tile_path("entries", number, min(WIDTH, size - number * WIDTH))
            self._report.find("missing", f"{name} is missing, and no event says that it was pruned.")
        if len(lost) > 20:
            self._report.find("missing", f"{len(lost) - 20} more bundles of entries are missing.")

    def _continues(self, what: str, data: bytes) -> None:
        """The log must continue a checkpoint that was kept somewhere else."""
        now = self._report.checkpoint
        try:
            then = read_checkpoint(data, self._verifier, what)
            if now is not None:
                continues(then, now, self._tiles, what)
        except Unverified as error:
            self._report.find(error.kind, str(error))
