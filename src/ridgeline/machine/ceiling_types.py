"""The data of ceilings: one measured limit, and all limits of a device.

A ceiling belongs to an access mix and a working-set size: a copy inside a cache is faster than a copy through
memory. A result is compared with the ceiling of its own size, so no honest result exceeds 100 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

SCHEMA = 1
SCALE = {"GB/s": 1e9, "GFLOP/s": 1e9, "µs": 1e-6}
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Ceiling:
    """One limit: the best round, and the median of all rounds."""

    kind: str  # read write copy triad matmul h2d d2h launch
    value: float
    median: float
    unit: str  # GB/s (moved: a copy counts read and write), GFLOP/s, µs
    bytes: int | None = None  # working set per thread (memory) or transfer size
    threads: int | None = None
    node: int | None = None  # node of the CPUs
    memory_node: int | None = None  # node of the memory
    dtype: str | None = None
    how: str | None = None  # pinned | pageable | direct | graph | the library that multiplied

    @property
    def base(self) -> float:
        """The value in B/s, FLOP/s or seconds."""
        return self.value * SCALE[self.unit]


@dataclass(frozen=True)
class Ceilings:
    """All measured limits of one device on one kind of machine."""

    device: str
    fingerprint: str
    measured: tuple[Ceiling, ...] = field(default_factory=tuple)

    def bandwidth(self, mix: str, working_set: int, threads: int = 1) -> Ceiling | None:
        """The ceiling of an access mix for a working set in bytes: the higher of the two measured sizes around it.

        The smaller size may fit a faster cache; on a GPU the larger size may fill the device better.
        """
        rows = [c for c in self.measured if c.kind == mix and c.memory_node is None and c.bytes]
        rows = [c for c in rows if c.threads == _choose_threads(threads, {r.threads for r in rows})]
        rows.sort(key=lambda c: c.bytes or 0)
        above = next((i for i, c in enumerate(rows) if (c.bytes or 0) * (c.threads or 1) > working_set), len(rows))
        return max(rows[max(0, above - 1) : above + 1], key=lambda c: c.value, default=None)

    def compute(self, dtype: str) -> Ceiling | None:
        """The fastest matrix product in a data type, over all libraries."""
        return max(
            (c for c in self.measured if c.kind == "matmul" and c.dtype == dtype), key=lambda c: c.value, default=None
        )

    def transfer(self, direction: str, size: int, how: str = "pinned") -> Ceiling | None:
        """h2d or d2h: the best rate at any size up to the next larger measured size."""
        rows = [c for c in self.measured if c.kind == direction and c.how == how]
        above = min((c.bytes or 0 for c in rows if (c.bytes or 0) >= size), default=None)
        candidates = [c for c in rows if above is None or (c.bytes or 0) <= above]
        return max(candidates, key=lambda c: c.value, default=None)

    def launch(self, how: str = "graph") -> Ceiling | None:
        """The least time per kernel: launched by a CUDA graph, or "direct", one by one from the host."""
        return next((c for c in self.measured if c.kind == "launch" and c.how == how), None)

    def to_json(self) -> dict[str, Any]:
        """Return the ceilings as JSON values; `from_json` reads them."""
        rows = [{k: v for k, v in asdict(c).items() if v is not None} for c in self.measured]
        return {"schema": SCHEMA, "device": self.device, "fingerprint": self.fingerprint, "measured": rows}

    @classmethod
    def from_json(cls, document: Any) -> Ceilings | None:
        """Return None when the document is damaged or has another schema."""
        try:
            if document["schema"] != SCHEMA:
                return None
            rows = tuple(Ceiling(**row) for row in document["measured"])
            return cls(document["device"], document["fingerprint"], rows)
        except (KeyError, TypeError):
            return None


def _choose_threads(threads: int, measured: set[int | None]) -> int | None:
    """The smallest measured thread count that is at least `threads`, else the largest."""
    counts = sorted(t for t in measured if t)
    return next((t for t in counts if t >= threads), counts[-1] if counts else None)
