"""The right edge of a growing log: all that is needed to add entries, however many there are.

For each level the hashes of its partial tile, and the entries of the partial bundle. `grown` gives the edge after some
more entries and the files that came to be, and changes nothing: a publication that fails can be tried again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.audit.ledger.compare import check_entries
from ridgeline.audit.ledger.merkle import EMPTY, HASH
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, tile_path, widths
from ridgeline.native import entry_ends, merkle_root


@dataclass(frozen=True)
class Edge:
    """A log of `size` entries, as far as it is not in full tiles."""

    size: int = 0
    levels: tuple[bytes, ...] = ()  # hashes of the partial tile of each level
    entries: bytes = b""  # of the partial bundle

    def root(self) -> bytes:
        """The root of the whole log."""
        found = b""
        for hashes in self.levels:
            found = hashes + found
            if found:
                found = merkle_root(found)
        return found or EMPTY

    def partials(self) -> dict[str, bytes]:
        """The partial tiles of this size, by path."""
        found = {
            tile_path(level, full, width): self.levels[level] for level, full, width in widths(self.size) if width > 0
        }
        if self.size % WIDTH:
            found[tile_path("entries", self.size // WIDTH, self.size % WIDTH)] = self.entries
        return found


@dataclass(frozen=True)
class Growth:
    """What some more entries bring: the new edge, and the full tiles by path."""

    edge: Edge
    full: dict[str, bytes]


def load_edge(tiles: Tiles, size: int) -> Edge:
    """The edge of a log as its tiles have it; its entries are those of its hashes, or what comes next would shift."""
    levels = [tiles.hashes(level, full, width) if width else b"" for level, full, width in widths(size)]
    number, width = divmod(size, WIDTH)
    entries = tiles.bundle(number, width) if width else b""
    if width:
        check_entries(tile_path("entries", number, width), number * WIDTH, levels[0], entries)
    return Edge(size, tuple(levels), entries)


def grown(edge: Edge, entries: bytes, hashes: bytes) -> Growth:
    """The edge after `entries`, whose leaf hashes are `hashes`."""
    size = edge.size + len(hashes) // HASH
    full, rest = _cut_bundles(edge, entries)
    levels: list[bytes] = []
    level, more = 0, hashes
    while level < len(edge.levels) or more:
        before = edge.levels[level] if level < len(edge.levels) else b""
        number = edge.size >> (8 * (level + 1))
        joined, above = before + more, []
        tile = WIDTH * HASH
        whole = len(joined) // tile
        for k in range(whole):
            data = joined[k * tile : (k + 1) * tile]
            full[tile_path(level, number + k)] = data
            above.append(merkle_root(data))
        levels.append(joined[whole * tile :])
        more = b"".join(above)
        level += 1
    return Growth(Edge(size, tuple(levels), rest), full)


def _cut_bundles(edge: Edge, entries: bytes) -> tuple[dict[str, bytes], bytes]:
    """Old and new entries in full bundles, and what is left over."""
    full: dict[str, bytes] = {}
    joined = edge.entries + entries
    ends = entry_ends(joined)
    start, number = 0, edge.size // WIDTH
    for last in range(WIDTH - 1, len(ends), WIDTH):
        end = int(ends[last])
        full[tile_path("entries", number)] = joined[start:end]
        start, number = end, number + 1
    return full, joined[start:]
