"""Verify a log against its signature, from the top down, as any tlog client would.

The signature proves the root, the root proves the right edge of the tree, each tile proves the tiles below it, and the
leaf hashes prove the entries. So a fault is found in the file that has it: everything above that file is proved.

A log may be verified while it is written: the files of a signed size never change. Only pruning removes entries, and a
later event records it; if the checkpoint changes while a fault appears, the verification starts again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint, Verifier, read_checkpoint
from ridgeline.audit.ledger.event import PRUNE_MARK, decode
from ridgeline.audit.ledger.journal import has_records
from ridgeline.audit.ledger.layout import LedgerPaths, check_private, find_ledger, read_note, read_regular
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.retention import PrunedRange, read_pruned_ranges
from ridgeline.audit.ledger.tiles import (
    WIDTH,
    Edge,
    Tiles,
    check_continues,
    describe_difference,
    list_levels,
    parse_tile_path,
    split_bundle,
    tile_path,
)
from ridgeline.audit.ledger.witness import CLOCK_S, WitnessStatement, check_witnesses, read_cosigned_files
from ridgeline.errors import StoreError, Unverified
from ridgeline.native import bundle_hashes, merkle_root
from ridgeline.store import StrPath, explain_errors, get_owner

_TRIES = 3
_GIVE_UP = 256
_STORED_MARK = b',"stored":{"bytes":'
_LISTED = 10


def verify(path: StrPath, verifier: Verifier, *, full: bool = True) -> Report:
    """Verify a log; return the report, or raise `Findings` if there is a fault."""
    report = examine(path, verifier, full=full)
    if not report.ok:
        raise Findings(report)
    return report


def examine(
    path: StrPath,
    verifier: Verifier,
    *,
    full: bool = True,
    checkpoints: Sequence[Path] = (),
    witnesses: Sequence[Verifier] = (),
    require: int = 0,
    since: int | None = None,
    pruned: Sequence[PrunedRange] = (),
) -> Report:
    """Verify the log at `path` and return a report with every finding.

    path         the folder of the log
    verifier     the public key of the log
    full         read every entry; else only the newest edge of the tree
    checkpoints  checkpoint files saved elsewhere, which the log must continue
    witnesses    public keys of witnesses; `require` of them must have co-signed a checkpoint that the log continues
    since        ignore co-signatures before this time (ns since 1970)
    pruned       what a collector has pruned of this copy; the log itself does not record it
    """
    paths = find_ledger(path)
    report = Report(verifier.name)
    for _ in range(_TRIES):
        seen = read_note(paths.checkpoint)
        examination = _Examination(paths, verifier, full, pruned)
        report = examination.run(checkpoints, witnesses, require, since)
        if report.ok or seen == read_note(paths.checkpoint):
            break
    return report


class _Examination:
    def __init__(self, paths: LedgerPaths, verifier: Verifier, full: bool, pruned: Sequence[PrunedRange] = ()) -> None:
        self._paths, self._verifier = paths, verifier
        self._report, self._pruned_copy = Report(verifier.name, full=full), pruned
        self._tiles = Tiles(paths.log)
        self._last: dict[int, tuple[int, bytes, bool]] = {}  # per level: the last tile read, and whether it is proved
        self._damaged: set[tuple[int, int]] = set()
        self._missing: list[int] = []  # bundles
        self._missing_in_row = 0  # consecutive bundles without entries and without hashes

    def run(
        self, checkpoints: Sequence[Path], witnesses: Sequence[Verifier], require: int, since: int | None = None
    ) -> Report:
        report = self._report
        # Read these before the checkpoint, so that the checkpoint is never older than they are.
        published, cosigned = read_note(self._paths.published), read_cosigned_files(self._paths)
        try:
            report.checkpoint = self._checkpoint()
        except Unverified as error:
            report.add_finding(error.kind, str(error))
            return report
        size = report.checkpoint.size
        self._check_edge(report.checkpoint)
        for number in range(-(-size // WIDTH)) if report.full else ([size // WIDTH] if size % WIDTH else []):
            if self._missing_in_row == _GIVE_UP:  # pruning keeps hashes: no log of this size exists
                rest = size - number * WIDTH
                report.add_finding(
                    "missing",
                    f"from entry {number * WIDTH} on nothing is there; the last {rest} entries were not read.",
                )
                break
            self._check_bundle(number, min(WIDTH, size - number * WIDTH))
        self._explain_missing()
        if report.full:
            check_orphans(self._paths, size, self._tiles, self._prove_tile, report.add_finding, report.notes.append)
        intact = report.ok  # a damaged tree says nothing about forks and witnesses
        if intact:
            if published is not None:
                self._check_continues("the checkpoint that this machine noted", published)
            for path in checkpoints:
                with explain_errors(path):
                    self._check_continues(str(path), path.read_bytes())
            statements = check_witnesses(cosigned, self._verifier, report.checkpoint, witnesses, self._tiles)
            report.witnesses = self._select_recent(statements.good, since)
            for kind, sentence in statements.findings:
                report.add_finding(kind, sentence)
        if self._paths.settings.exists():
            try:
                check_private(self._paths)
            except StoreError as error:  # others may have replaced the key and the checkpoint that this machine noted
                report.add_finding("exposed", str(error))
        if published is None and self._paths.settings.exists():
            report.add_finding(
                "missing",
                f"{self._paths.private.name}/{self._paths.published.name} is missing: without it this machine cannot "
                "tell whether the log was put back to an earlier size.",
            )
        if witnesses and not intact:
            report.notes.append("the co-signatures were not checked, because the log itself is damaged.")
        elif len(report.witnesses) < require and not any(f.kind in ("fork", "truncated") for f in report.findings):
            report.add_finding(
                "unwitnessed", f"{len(report.witnesses)} witnesses co-signed this log, but {require} are required."
            )
        return report

    def _select_recent(self, statements: list[WitnessStatement], since: int | None) -> list[WitnessStatement]:
        """Return the statements since `since`, and note the others; a time in the future shows no age."""
        if since is None:
            return statements
        recent, latest = [], time.time() + CLOCK_S
        for statement in statements:
            if since <= statement.seconds * 10**9 and statement.seconds <= latest:
                recent.append(statement)
                continue
            when = f"{show_moment(statement.seconds * 10**9)[:19]}Z"
            why = (
                "that is in the future, so it does not count" if statement.seconds > latest else "too long ago to count"
            )
            self._report.notes.append(f"{statement.name} last co-signed {when}, at {statement.size} entries: {why}.")
        return recent

    def _checkpoint(self) -> Checkpoint:
        data = read_note(self._paths.checkpoint)
        if data is None:
            raise Unverified("missing", "checkpoint is missing.")
        return read_checkpoint(data, self._verifier, "checkpoint")

    def _check_edge(self, checkpoint: Checkpoint) -> None:
        """The partial tiles together give the root. If not, find the tile that would give it after a rebuild."""
        levels: list[bytes] = []
        shape = [(level, full, width) for level, full, width in list_levels(checkpoint.size)]
        for level, full, width in shape:
            try:
                levels.append(self._tiles.hashes(level, full, width) if width else b"")
            except Unverified as error:
                self._report.add_finding(error.kind, str(error))
                self._damaged.add((level, full))
                levels.append(self._rebuild_tile(level, full, width))
        if not self._damaged and Edge(checkpoint.size, tuple(levels)).root() == checkpoint.root:
            return
        for level, full, width in shape:
            other = list(levels)
            other[level] = self._rebuild_tile(level, full, width) if width else b""
            if other[level] != levels[level] and Edge(checkpoint.size, tuple(other)).root() == checkpoint.root:
                self._report.add_finding(
                    "altered", f"{tile_path(level, full, width)} was altered: the tiles below it are intact."
                )
                self._damaged.add((level, full))
                return
        if not self._damaged:
            self._damaged.update((level, full) for level, full, width in shape if width)
            self._report.add_finding(
                "rewritten", f"the tiles do not give the root that the checkpoint signs for {checkpoint.size} entries."
            )

    def _rebuild_tile(self, level: int, number: int, width: int) -> bytes:
        """Rebuild a partial tile from the tiles below it; empty if they cannot be read."""
        try:
            if level == 0:
                return bundle_hashes(self._tiles.bundle(number, width))
            below = (self._tiles.hashes(level - 1, number * WIDTH + k) for k in range(width))
            return b"".join(merkle_root(hashes) for hashes in below)
        except (Unverified, ValueError):
            return b""

    def _prove_tile(self, level: int, number: int) -> tuple[bytes, bool]:
        """Return the hashes of a tile (empty if it cannot be read), and whether the signature proves them."""
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
                self._report.add_finding(error.kind, str(error))
            good = False
        if good and width == WIDTH:
            above, sure = self._prove_tile(level + 1, number // WIDTH)
            at = number % WIDTH * merkle.HASH
            if not sure:
                good = False
            elif merkle_root(hashes) != above[at : at + merkle.HASH]:
                self._report.add_finding(
                    "altered", f"{tile_path(level, number)} was altered: it does not give its hash in the tile above."
                )
                good = False
        self._last[level] = (number, hashes, good)
        return hashes, good

    def _check_bundle(self, number: int, width: int) -> None:
        hashes, good = self._prove_tile(0, number)
        name = tile_path("entries", number, width)
        try:
            data = self._tiles.bundle(number, width)
        except Unverified:
            self._missing.append(number)
            self._missing_in_row = self._missing_in_row + 1 if not hashes else 0
            return
        self._missing_in_row = 0
        try:
            actual = bundle_hashes(data)
        except ValueError as error:
            self._report.add_finding("altered", f"{name} is damaged: {error}.")
            return
        if actual != hashes and (good or len(actual) != width * merkle.HASH or not hashes):
            for kind, sentence in describe_difference(name, number * WIDTH, hashes, actual):
                self._report.add_finding(kind, sentence)
            return
        self._report.entries += width
        if PRUNE_MARK in data or _STORED_MARK in data:
            self._check_internal_events(number * WIDTH, data, name)

    def _check_internal_events(self, first: int, data: bytes, name: str) -> None:
        """Check the events that record prunings, and those that refer to a file beside the log."""
        for index, entry in enumerate(split_bundle(data, name), start=first):
            if not entry.startswith(PRUNE_MARK) and _STORED_MARK not in entry:
                continue
            try:
                event = decode(entry, f"entry {index}")
            except Unverified:
                continue  # not an event of ours: its hash is enough
            if entry.startswith(PRUNE_MARK):
                self._record_pruning(index, event)
            elif "stored" in event:
                self._check_blob(index, str(event["stored"]["sha256"]))

    def _record_pruning(self, index: int, event: dict[str, Any]) -> None:
        known = {p.index for p in self._report.pruned}
        try:
            self._report.pruned += [p for p in read_pruned_ranges(index, event) if p.index not in known]
        except Unverified as error:
            self._report.add_finding(error.kind, str(error))

    def _check_blob(self, index: int, digest: str) -> None:
        from ridgeline.store import hash_file

        path = self._paths.blob(digest)
        if not path.exists():
            self._report.add_finding("missing", f"blob/{digest}, the event of entry {index}, is missing.")
        elif hash_file(path) != digest:
            self._report.add_finding("altered", f"blob/{digest}, the event of entry {index}, was altered.")

    def _explain_missing(self) -> None:
        """A full bundle may be missing only if an event records its pruning; the partial bundle never."""
        size = self._report.checkpoint.size if self._report.checkpoint else 0
        until = max((p.end for p in (*self._report.pruned, *self._pruned_copy)), default=0)
        lost = [n for n in self._missing if (n + 1) * WIDTH > until]
        for number in lost[:20]:
            name = tile_path("entries", number, min(WIDTH, size - number * WIDTH))
            self._report.add_finding("missing", f"{name} is missing, and no event records that it was pruned.")
        if len(lost) > 20:
            self._report.add_finding("missing", f"{len(lost) - 20} more bundles of entries are missing.")

    def _check_continues(self, what: str, data: bytes) -> None:
        """The log must continue a checkpoint that was saved elsewhere."""
        now = self._report.checkpoint
        try:
            then = read_checkpoint(data, self._verifier, what)
            if now is not None:
                check_continues(then, now, self._tiles, what)
        except Unverified as error:
            self._report.add_finding(error.kind, str(error))


@dataclass(frozen=True)
class Finding:
    """One fault: its kind in one or two words, and a sentence about it."""

    kind: str
    sentence: str


@dataclass
class Report:
    """The result of a verification: what was read, and every fault."""

    origin: str
    checkpoint: Checkpoint | None = None
    full: bool = True
    entries: int = 0  # entries with a verified payload
    pruned: list[PrunedRange] = field(default_factory=list)
    witnesses: list[WitnessStatement] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    def add_finding(self, kind: str, sentence: str) -> None:
        if Finding(kind, sentence) not in self.findings[-_GIVE_UP:]:  # two checks may read the same file
            self.findings.append(Finding(kind, sentence))


class Findings(Unverified):
    """The log does not verify; `report` has every finding."""

    def __init__(self, report: Report) -> None:
        first, more = report.findings[0], len(report.findings) - 1
        rest = f" And {more} more; ridgeline audit verify lists them." if more else ""
        super().__init__(first.kind, first.sentence + rest)
        self.report = report


def check_orphans(
    paths: LedgerPaths,
    size: int,
    tiles: Tiles,
    prove: Callable[[int, int], tuple[bytes, bool]],
    find: Callable[[str, str], None],
    note: Callable[[str], None],
) -> None:
    """Check the files below tile/ that the newest size does not need: `size` is that of the newest checkpoint.

    A partial tile of an earlier size must begin like the current tile as it was signed: `prove` returns the hashes of a
    tile and whether the signature proves them. Tiles beyond the checkpoint belong to a
    writer that is about to sign them; without a writer the checkpoint is an old one. Other files are only noted.
    """
    strange, beyond = [], 0
    for folder, _, names in os.walk(paths.log / "tile"):
        for name in names:
            path = Path(folder, name).relative_to(paths.log).as_posix()
            parsed = parse_tile_path(path)
            if parsed is None:
                strange.append(path)
                continue
            level, number, width = parsed
            count = size >> (8 * level) if isinstance(level, int) else size
            now = min(WIDTH, count - number * WIDTH)
            if width > now:
                beyond += 1
            elif width < now:
                _check_partial(paths, prove, parsed, now, find)
    for path in strange[:_LISTED]:
        note(f"{path} is no file of a log.")
    if beyond and not paths.private.is_dir():  # a copy: its writer may run on another machine
        note(f"{beyond} tiles lie beyond the {size} entries of the checkpoint: it is an old one, or they are unsigned.")
    elif beyond and get_owner(paths.lock) is None and not any(has_records(paths.journal(k)) for k in range(2)):
        find("truncated", f"{beyond} tiles lie beyond the {size} entries of the checkpoint: it is an old one put back.")


def _check_partial(
    paths: LedgerPaths,
    prove: Callable[[int, int], tuple[bytes, bool]],
    tile: tuple[int | str, int, int],
    now: int,
    find: Callable[[str, str], None],
) -> None:
    """Compare a partial tile with the proved hashes, not with the current file: that one may be the altered one."""
    level, number, width = tile
    name = tile_path(level, number, width)
    hashes, good = prove(level if isinstance(level, int) else 0, number)
    if not good:
        return  # the current tile was reported
    try:
        data = read_regular(paths.log / name)
        actual = data if isinstance(level, int) else bundle_hashes(data)
    except FileNotFoundError:
        return  # the writer has just removed it
    except ValueError as error:
        find("altered", f"{name} was altered: {error}.")
        return
    expected = hashes[: width * HASH]
    if actual == expected:
        return
    if isinstance(level, int) or len(actual) != len(expected):
        find("altered", f"{name} was altered: it is not the beginning of {tile_path(level, number, now)}.")
        return
    for kind, sentence in describe_difference(name, number * WIDTH, expected, actual):
        find(kind, sentence)
