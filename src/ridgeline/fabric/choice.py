"""Which algorithm a call takes: what the caller says, else the settings, else this machine's measured table."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import unknown
from ridgeline.fabric.config import NAMES, FabricConfig
from ridgeline.fabric.schedules import ALGORITHMS, schedule
from ridgeline.fabric.steps import KINDS

NATIVE = "direct"  # the engine's own: everyone looks at everyone's data


@dataclass(frozen=True, eq=False)
class Steps:
    """One rank's program, as the engine reads it."""

    name: str
    code: int
    rows: NDArray[np.int32]
    chunks: int
    widest: int


@lru_cache(maxsize=256)
def steps_of(op: str, algorithm: str, ranks: int, rank: int, root: int) -> Steps:
    made = schedule(op, algorithm, ranks=ranks, root=root)
    rows = np.array([[KINDS.index(s.kind), s.peer, s.chunk, s.width] for s in made.programs[rank]], np.int32).reshape(
        -1, 4
    )
    widest = max((s.width for program in made.programs for s in program), default=1)
    return Steps(algorithm, NAMES.index(algorithm) + 1, rows, made.chunks, widest)


class Choice:
    """The algorithm of each call of one communicator."""

    def __init__(self, config: FabricConfig, ranks: int) -> None:
        self._named, self._ranks = config.collective_algorithm, ranks
        self._table = read_kept().get("choice", {}) if self._named == "auto" and ranks > 1 else {}
        self.plain_up_to = self._plain_up_to()
        own = self._named in ("auto", NATIVE)
        # Operations whose calls all go the engine's own way: whatever their size, all-reduces up to `plain_up_to`.
        plain = (op for op in ("all_gather", "broadcast") if own and not self._rows(op))
        self.plain = {"send", "recv", *plain, *(["all_reduce"] if self.plain_up_to >= 0 else [])}

    def _plain_up_to(self) -> int:
        """All-reduces of so many bytes go the engine's own way without asking; −1: none."""
        rows = self._rows("all_reduce")
        if self._named not in ("auto", NATIVE):
            return -1
        if not rows:
            return 1 << 62
        return int(rows[0]["up_to"]) if rows[0]["algorithm"] == NATIVE else -1

    def steps(self, op: str, asked: str | None, rank: int, root: int, nbytes: int) -> Steps | None:
        """Steps to follow; None: the engine's own way."""
        name = self.name(op, asked, nbytes)
        return None if name == NATIVE else steps_of(op, name, self._ranks, rank, root)

    def name(self, op: str, asked: str | None, nbytes: int) -> str:
        """The algorithm such a call takes; `direct` is the engine's own way."""
        if asked is not None and asked not in ("auto", *ALGORITHMS.get(op, {})):
            raise unknown(f"algorithm for {op}", asked, ["auto", *ALGORITHMS.get(op, {})])
        name = asked or self._named
        if name == "auto":
            name = next((r["algorithm"] for r in self._rows(op) if nbytes <= r["up_to"]), NATIVE)
        return NATIVE if name not in ALGORITHMS.get(op, {}) or self._ranks == 1 else name

    def _rows(self, op: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._table.get(op, {}).get(str(self._ranks), [])
        return found


def table_path() -> Path:
    """Where `ridgeline fabric tune` keeps what it measured on this kind of machine."""
    from ridgeline.machine import fingerprint

    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ridgeline" / "fabric" / f"{fingerprint()}.json"


def read_kept() -> dict[str, Any]:
    """What `tune` kept. choice: op → ranks → rows of (up_to bytes, algorithm); ways: ranks → `Ways`; networks."""
    try:
        found: dict[str, Any] = json.loads(table_path().read_text())
    except (OSError, ValueError):
        return {}
    return found
