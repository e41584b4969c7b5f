"""Files below tile/ that the newest size does not need: partial tiles of earlier sizes, and what does not belong there.

A partial tile of an earlier size is the beginning of what is there now, so its bits are checked too. Files beyond the
checkpoint are a writer's that is about to sign them; if there is no writer, that is worth a word.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ridgeline.audit.ledger.files import read_regular
from ridgeline.audit.ledger.journal import holds_something
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.merkle import HASH
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, parse_tile_path, tile_path
from ridgeline.errors import Unverified
from ridgeline.native import entry_ends
from ridgeline.store import owner

_NAMED = 10


def check_strays(
    home: Home, size: int, tiles: Tiles, find: Callable[[str, str], None], note: Callable[[str], None]
) -> None:
    """Walk the tiles of a log whose newest checkpoint has `size` entries."""
    strange, beyond = [], 0
    for here, _, names in os.walk(home.log / "tile"):
        for name in names:
            path = Path(here, name).relative_to(home.log).as_posix()
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
                _check_partial(home, tiles, parsed, now, find)
    for path in strange[:_NAMED]:
        note(f"{path} is no file of a log.")
    if beyond and not home.private.is_dir():  # a copy: whoever writes the log may not be on this machine
        note(f"{beyond} tiles lie beyond the {size} entries of the checkpoint: not signed yet, or it is an old one.")
    elif beyond and owner(home.lock) is None and not any(holds_something(home.journal(k)) for k in range(2)):
        find("truncated", f"{beyond} tiles lie beyond the {size} entries of the checkpoint: it is an old one put back.")


def _check_partial(
    home: Home, tiles: Tiles, tile: tuple[int | str, int, int], now: int, find: Callable[[str, str], None]
) -> None:
    level, number, width = tile
    name = tile_path(level, number, width)
    try:
        whole = tiles.hashes(level, number, now) if isinstance(level, int) else tiles.bundle(number, now)
        end = width * HASH if isinstance(level, int) else int(entry_ends(whole)[width - 1])
        data = read_regular(home.log / name)
    except (Unverified, ValueError, IndexError, FileNotFoundError):
        return  # the one it is a beginning of was reported; or the writer has just removed this one
    if data != whole[:end]:
        find("altered", f"{name} was altered: it is not the beginning of {tile_path(level, number, now)}.")
