"""Tiles (c2sp.org/tlog-tiles): a log's hashes and entries as plain files of 256 each.

    tile/<level>/<N>[.p/<width>]     hashes, 32 bytes each: level 0 of leaves, the others of full tiles
    tile/entries/<N>[.p/<width>]     entries, each behind its length as a big-endian uint16

A full tile never changes. The last one of a level is partial and is kept for every size that was signed, until the full
one is there: so a reader that holds a checkpoint finds what it needs, whatever the writer does meanwhile.

>>> tile_path(0, 1234067), tile_path("entries", 2, 188)
('tile/0/x001/x234/067', 'tile/entries/002.p/188')
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from ridgeline.audit.ledger.files import read_regular
from ridgeline.audit.ledger.merkle import HASH, Node
from ridgeline.errors import Unverified
from ridgeline.native import entry_ends, merkle_root
from ridgeline.store import explain

WIDTH = 256
LARGEST_ENTRY = 65_535
_HEIGHT = 8
_KEPT = 256  # tiles in memory: 2 MiB, however large the log
_PATH = re.compile(r"(entries|0|[1-9]\d?)/((?:x\d{3}/)*\d{3})(?:\.p/([1-9]\d{0,2}))?")

Level = int | str


def tile_path(level: Level, number: int, width: int = WIDTH) -> str:
    """Where tile `number` of a level lies below the log."""
    digits = f"{number:03}"
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    parts = [digits[k : k + 3] for k in range(0, len(digits), 3)]
    name = "/".join([*(f"x{part}" for part in parts[:-1]), parts[-1]])
    return f"tile/{level}/{name}" + (f".p/{width}" if width < WIDTH else "")


def parse_tile_path(path: str) -> tuple[Level, int, int] | None:
    """Level, number and width of a path as `tile_path` writes it, else None."""
    match = _PATH.fullmatch(path.removeprefix("tile/"))
    if match is None:
        return None
    level: Level = match[1] if match[1] == "entries" else int(match[1])
    number = int(re.sub(r"[x/]", "", match[2]))
    width = int(match[3]) if match[3] else WIDTH
    return (level, number, width) if path == tile_path(level, number, width) else None


def widths(size: int) -> Iterator[tuple[int, int, int]]:
    """For each level of a log of `size` entries: its full tiles, and the width of the partial one after them."""
    level = 0
    while size >> (_HEIGHT * level):
        count = size >> (_HEIGHT * level)
        yield level, count // WIDTH, count % WIDTH
        level += 1


class Tiles:
    """The files of one log, read; needs no lock."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._kept: OrderedDict[tuple[int, int, int], bytes] = OrderedDict()

    def hashes(self, level: int, number: int, width: int = WIDTH) -> bytes:
        """The first `width` hashes of a tile."""
        key = (level, number, width)
        found = self._kept.get(key)
        if found is None:
            name, data = self._read(level, number, width)
            parsed = parse_tile_path(name)
            whole = HASH * (parsed[2] if parsed else width)
            if len(data) != whole:
                raise Unverified("altered", f"{name} has {len(data)} bytes instead of {whole}: it was cut or grown.")
            found = data[: width * HASH]
            self._kept[key] = found
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found

    def bundle(self, number: int, width: int = WIDTH) -> bytes:
        """The first `width` entries of a bundle as they lie in it, each behind its length."""
        name, data = self._read("entries", number, width)
        if name == tile_path("entries", number, width):
            return data
        try:
            ends = entry_ends(data)
        except ValueError:
            return data  # the caller, who checks entries, will say what is wrong
        return data[: int(ends[width - 1])] if len(ends) >= width else data

    def node(self, size: int) -> Node:
        """The complete subtrees of a log of `size` entries, for `merkle`."""

        def node(level: int, index: int) -> bytes:
            tile, inside = divmod(level, _HEIGHT)
            start = index << inside
            number, offset = divmod(start, WIDTH)
            width = min(WIDTH, (size >> (_HEIGHT * tile)) - number * WIDTH)
            found = self.hashes(tile, number, width)[offset * HASH : (offset + (1 << inside)) * HASH]
            return found if inside == 0 else merkle_root(found)

        return node

    def _read(self, level: Level, number: int, width: int) -> tuple[str, bytes]:
        wider = self._wider(level, number, width) if width < WIDTH else ()
        for name in (tile_path(level, number, width), *wider):
            try:
                return name, read_regular(self.root / name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise explain(error, self.root / name) from error
        raise Unverified("missing", f"{tile_path(level, number, width)} is missing.")

    def _wider(self, level: Level, number: int, width: int) -> Iterator[str]:
        """Tiles that begin with what a missing partial one held: the full one, or one of a later size."""
        yield tile_path(level, number)
        try:
            names = os.listdir((self.root / tile_path(level, number, width)).parent)
        except OSError:
            return
        for found in sorted(int(name) for name in names if name.isdecimal()):
            if found > width:
                yield tile_path(level, number, found)


def entries_of(bundle: bytes, name: str) -> list[bytes]:
    """The entries of a bundle; `name` stands in the error for a damaged one."""
    try:
        ends = entry_ends(bundle).tolist()
    except ValueError as error:
        raise Unverified("altered", f"{name} is damaged: {error}.") from None
    return [bundle[start + 2 : end] for start, end in zip([0, *ends], ends, strict=False)]
