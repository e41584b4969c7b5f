"""Tiles (c2sp.org/tlog-tiles): a log's hashes and entries as plain files of 256 each.

    tile/<level>/<N>[.p/<width>]     hashes, 32 bytes each: level 0 of leaves, the others of full tiles
    tile/entries/<N>[.p/<width>]     entries, each behind its length as a big-endian uint16

A full tile never changes. The last tile of a level is partial; one file remains for every signed size until the full
tile exists. So a reader with a checkpoint finds its tiles, whatever the writer does meanwhile.

`Tiles` reads the files, `read_bundle` proves them against a checkpoint, and `Edge` is what a writer needs to extend
them: the hashes of the partial tile of each level and the entries of the partial bundle. `extend_edge` returns the next
edge and the new tiles and changes nothing, so a failed publication can be repeated.

>>> tile_path(0, 1234067), tile_path("entries", 2, 188)
('tile/0/x001/x234/067', 'tile/entries/002.p/188')
"""

from __future__ import annotations

import os
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint
from ridgeline.audit.ledger.layout import read_regular
from ridgeline.audit.ledger.merkle import EMPTY, HASH, Node
from ridgeline.errors import Unverified
from ridgeline.native import bundle_hashes, entry_ends, merkle_root
from ridgeline.store import explain_error

WIDTH = 256
LARGEST_ENTRY = 65_535
_HEIGHT = 8
_CACHED = 256  # tiles in memory, 2 MiB
_PATH = re.compile(r"(entries|0|[1-9]\d?)/((?:x\d{3}/)*\d{3})(?:\.p/([1-9]\d{0,2}))?")

Level = int | str
_NAMED = 5


def tile_path(level: Level, number: int, width: int = WIDTH) -> str:
    """Return the path of tile `number` of a level, relative to the log."""
    digits = f"{number:03}"
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    parts = [digits[k : k + 3] for k in range(0, len(digits), 3)]
    name = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
    return f"tile/{level}/{name}" + (f".p/{width}" if width < WIDTH else "")


def parse_tile_path(path: str) -> tuple[Level, int, int] | None:
    """Parse a path that `tile_path` writes: (level, number, width), or None."""
    match = _PATH.fullmatch(path.removeprefix("tile/"))
    if match is None:
        return None
    level: Level = match[1] if match[1] == "entries" else int(match[1])
    number = int(re.sub(r"[x/]", "", match[2]))
    width = int(match[3]) if match[3] else WIDTH
    return (level, number, width) if path == tile_path(level, number, width) else None


def list_levels(size: int) -> Iterator[tuple[int, int, int]]:
    """Yield (level, number of full tiles, width of the partial tile) for each level of a log of `size` entries."""
    level = 0
    while size >> (_HEIGHT * level):
        count = size >> (_HEIGHT * level)
        yield level, count // WIDTH, count % WIDTH
        level += 1


class Tiles:
    """Reads the tiles of one log; needs no lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._cache: OrderedDict[tuple[int, int, int], bytes] = OrderedDict()

    def hashes(self, level: int, number: int, width: int = WIDTH) -> bytes:
        """Read the first `width` hashes of a tile, 32 bytes each."""
        key = (level, number, width)
        hashes = self._cache.get(key)
        if hashes is None:
            name, data = self._read(level, number, width)
            parsed = parse_tile_path(name)
            expected_bytes = HASH * (parsed[2] if parsed else width)
            if len(data) != expected_bytes:
                raise Unverified(
                    "altered", f"{name} has {len(data)} bytes instead of {expected_bytes}: it was cut or grown."
                )
            hashes = data[: width * HASH]
            self._cache[key] = hashes
            if len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        else:
            self._cache.move_to_end(key)
        return hashes

    def bundle(self, number: int, width: int = WIDTH) -> bytes:
        """Read the first `width` entries of a bundle, each after its length."""
        name, data = self._read("entries", number, width)
        if name == tile_path("entries", number, width):
            return data
        try:
            ends = entry_ends(data)
        except ValueError:
            return data  # the caller checks the entries and reports the fault
        return data[: int(ends[width - 1])] if len(ends) >= width else data

    def node(self, size: int) -> Node:
        """Return the `node` function of `merkle` for a log of `size` entries."""

        def node(level: int, index: int) -> bytes:
            tile, inside = divmod(level, _HEIGHT)
            start = index << inside
            number, offset = divmod(start, WIDTH)
            width = min(WIDTH, (size >> (_HEIGHT * tile)) - number * WIDTH)
            hashes = self.hashes(tile, number, width)[offset * HASH : (offset + (1 << inside)) * HASH]
            return hashes if inside == 0 else merkle_root(hashes)

        return node

    def _read(self, level: Level, number: int, width: int) -> tuple[str, bytes]:
        wider = self._wider(level, number, width) if width < WIDTH else ()
        for name in (tile_path(level, number, width), *wider):
            try:
                return name, read_regular(self.root / name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise explain_error(error, self.root / name) from error
        raise Unverified("missing", f"{tile_path(level, number, width)} is missing.")

    def _wider(self, level: Level, number: int, width: int) -> Iterator[str]:
        """Yield tiles that begin with a missing partial tile: the full tile, or the tile of a later size."""
        yield tile_path(level, number)
        try:
            names = os.listdir((self.root / tile_path(level, number, width)).parent)
        except OSError:
            return
        for wider in sorted(int(name) for name in names if name.isdecimal()):
            if wider > width:
                yield tile_path(level, number, wider)


def split_bundle(bundle: bytes, name: str) -> list[bytes]:
    """Split a bundle into its entries; `name` names it in errors."""
    try:
        ends = entry_ends(bundle).tolist()
    except ValueError as error:
        raise Unverified("altered", f"{name} is damaged: {error}.") from None
    return [bundle[start + 2 : end] for start, end in zip([0, *ends], ends, strict=False)]


@dataclass(frozen=True)
class Edge:
    """The part of a log of `size` entries that is not in full tiles."""

    size: int = 0
    levels: tuple[bytes, ...] = ()  # hashes of the partial tile of each level
    entries: bytes = b""  # of the partial bundle

    def root(self) -> bytes:
        """Return the root of the log."""
        root = b""
        for hashes in self.levels:
            root = hashes + root
            if root:
                root = merkle_root(root)
        return root or EMPTY

    def partials(self) -> dict[str, bytes]:
        """Return the partial tiles of this size, by path."""
        partials = {
            tile_path(level, full, width): self.levels[level]
            for level, full, width in list_levels(self.size)
            if width > 0
        }
        if self.size % WIDTH:
            partials[tile_path("entries", self.size // WIDTH, self.size % WIDTH)] = self.entries
        return partials


@dataclass(frozen=True)
class Growth:
    """The result of `extend_edge`: the new edge, and the new full tiles by path."""

    edge: Edge
    full: dict[str, bytes]


def load_edge(tiles: Tiles, size: int) -> Edge:
    """Read the edge of a log from its tiles. Its entries must fit its hashes, or the next ones would be misplaced."""
    levels = [tiles.hashes(level, full, width) if width else b"" for level, full, width in list_levels(size)]
    number, width = divmod(size, WIDTH)
    entries = tiles.bundle(number, width) if width else b""
    if width:
        check_entries(tile_path("entries", number, width), number * WIDTH, levels[0], entries)
    return Edge(size, tuple(levels), entries)


def extend_edge(edge: Edge, entries: bytes, hashes: bytes) -> Growth:
    """Extend the edge by `entries`, whose leaf hashes are `hashes`."""
    size = edge.size + len(hashes) // HASH
    full, rest = _cut_bundles(edge, entries)
    levels: list[bytes] = []
    level, more = 0, hashes
    while level < len(edge.levels) or more:
        before = edge.levels[level] if level < len(edge.levels) else b""
        number = edge.size >> (8 * (level + 1))
        joined, above = before + more, []
        tile = WIDTH * HASH
        full_tiles = len(joined) // tile
        for k in range(full_tiles):
            data = joined[k * tile : (k + 1) * tile]
            full[tile_path(level, number + k)] = data
            above.append(merkle_root(data))
        levels.append(joined[full_tiles * tile :])
        more = b"".join(above)
        level += 1
    return Growth(Edge(size, tuple(levels), rest), full)


def _cut_bundles(edge: Edge, entries: bytes) -> tuple[dict[str, bytes], bytes]:
    """Split old and new entries into full bundles and a rest."""
    full: dict[str, bytes] = {}
    joined = edge.entries + entries
    ends = entry_ends(joined)
    start, number = 0, edge.size // WIDTH
    for last in range(WIDTH - 1, len(ends), WIDTH):
        end = int(ends[last])
        full[tile_path("entries", number)] = joined[start:end]
        start, number = end, number + 1
    return full, joined[start:]


def check_entries(name: str, first: int, expected: bytes, bundle: bytes) -> None:
    """Raise `Unverified` unless the entries of the bundle `name` have the leaf hashes `expected`."""
    try:
        hashes = bundle_hashes(bundle)
    except ValueError as error:
        raise Unverified("altered", f"{name} is damaged: {error}.") from None
    if hashes != expected:
        raise Unverified(*describe_difference(name, first, expected, hashes)[0])


def describe_difference(name: str, first: int, expected: bytes, actual: bytes) -> list[tuple[str, str]]:
    """Return (kind, sentence) for each fault of the bundle `name`, whose first entry is `first`."""
    right, present = _split(expected), _split(actual)
    if not right:
        return []
    lost, added = Counter(right) - Counter(present), Counter(present) - Counter(right)
    if not lost and not added:
        moved = [first + k for k, (a, b) in enumerate(zip(right, present, strict=True)) if a != b]
        return [("reordered", f"{name}: entries {_join_some(moved)} are in another order than was signed.")]
    changed = [first + k for k, (a, b) in enumerate(zip(right, present, strict=False)) if a != b]
    if len(right) == len(present) and len(changed) == lost.total():
        return [("altered", f"{name}: {_name_entries(changed)} altered after it was signed.")]
    problems = []
    if lost:
        where = [first + k for k, hash_ in enumerate(right) if hash_ in lost]
        problems.append(("dropped", f"{name}: {_name_entries(where)} dropped."))
    if added:
        where = [first + k for k, hash_ in enumerate(present) if hash_ in added]
        problems.append(
            ("inserted", f"{name}: {added.total()} foreign entries were inserted, the first at {where[0]}.")
        )
    return problems


def _split(hashes: bytes) -> list[bytes]:
    return [hashes[k : k + HASH] for k in range(0, len(hashes), HASH)]


def _name_entries(where: list[int]) -> str:
    return f"entry {where[0]} was" if len(where) == 1 else f"entries {_join_some(where)} were"


def _join_some(where: list[int]) -> str:
    more = f" and {len(where) - _NAMED} more" if len(where) > _NAMED else ""
    return ", ".join(map(str, where[:_NAMED])) + more


def read_bundle(tiles: Tiles, checkpoint: Checkpoint, number: int) -> list[bytes]:
    """Read the entries of bundle `number` and prove that they lead to the root of `checkpoint`.

    One inclusion path proves all 256 entries: its lower half consists of the hashes of the tile, all of them.
    """
    first = number * WIDTH
    width = min(WIDTH, checkpoint.size - first)
    name = tile_path("entries", number, width)
    try:
        data = tiles.bundle(number, width)
    except Unverified as error:
        if error.kind != "missing":
            raise
        raise Unverified("missing", f"{name} is missing: pruned, or lost; see: ridgeline audit verify.") from None
    hashes = tiles.hashes(0, number, width)
    check_entries(name, first, hashes, data)
    path = merkle.inclusion_path(first, checkpoint.size, tiles.node(checkpoint.size))
    if merkle.root_from_inclusion(first, checkpoint.size, hashes[: merkle.HASH], path) != checkpoint.root:
        raise Unverified(
            "altered", f"{tile_path(0, number, width)} does not lead to the signed root; see: ridgeline audit verify."
        )
    return split_bundle(data, name)


def check_continues(then: Checkpoint, now: Checkpoint, tiles: Tiles, what: str) -> None:
    """Raise `Unverified` unless the log at checkpoint `now` begins with the log at checkpoint `then`.

    A consistency proof leads to both roots; the tiles alone prove nothing, because they may be altered.
    """
    if then.size > now.size:
        raise Unverified(
            "truncated", f"the log has {now.size} entries, but {what} has {then.size}: its tail was cut off."
        )
    path = merkle.consistency_path(then.size, now.size, tiles.node(now.size))
    try:
        merkle.check_consistency(then.size, now.size, then.root, now.root, path)
    except Unverified:
        raise Unverified(
            "fork", f"the first {then.size} entries are not those of {what}: the log was forked or rewritten."
        ) from None
