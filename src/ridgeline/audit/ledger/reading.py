"""Entries that are what was signed: a bundle is given out only once its hashes lead to the root of a checkpoint.

One inclusion path is enough for 256 entries. Its lower half is made of the tile's own hashes, all of them, so if it
leads to the signed root, the whole tile is the signed one.
"""

from __future__ import annotations

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint
from ridgeline.audit.ledger.compare import check_entries
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, entries_of, tile_path
from ridgeline.errors import Unverified


def read_bundle(tiles: Tiles, checkpoint: Checkpoint, number: int) -> list[bytes]:
    """The entries of bundle `number` of the log at `checkpoint`, proved."""
    first = number * WIDTH
    width = min(WIDTH, checkpoint.size - first)
    name = tile_path("entries", number, width)
    try:
        data = tiles.bundle(number, width)
    except Unverified as error:
        if error.kind != "missing":
            raise
        raise Unverified("missing", f"{name} is not here: pruned, or lost; ridgeline audit verify tells.") from None
    hashes = tiles.hashes(0, number, width)
    check_entries(name, first, hashes, data)
    path = merkle.inclusion_path(first, checkpoint.size, tiles.node(checkpoint.size))
    if merkle.root_from_inclusion(first, checkpoint.size, hashes[: merkle.HASH], path) != checkpoint.root:
        raise Unverified(
            "altered", f"{tile_path(0, number, width)} does not lead to the signed root; audit verify tells."
        )
    return entries_of(data, name)
