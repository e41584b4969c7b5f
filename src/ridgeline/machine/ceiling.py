"""Ceilings: how fast this machine can move bytes and multiply, measured, so that every result has a limit.

    ridgeline machine --ceilings          (cached per kind of machine; --fresh measures again)

A ceiling belongs to an access mix and a working-set size: a copy inside a cache is faster than one through
memory, so a result is held against the ceiling of its own size, and no honest result exceeds 100 %.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ridgeline.errors import StoreError, unknown
from ridgeline.machine.hardware import Topology, topology
from ridgeline.machine.identity import fingerprint
from ridgeline.store import publish

SCHEMA = 1
SCALE = {"GB/s": 1e9, "GFLOP/s": 1e9, "µs": 1e-6}
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Ceiling:
    """One limit: the best round, and the median of the rounds it was the best of."""

    kind: str  # read write copy triad matmul h2d d2h launch
    value: float
    median: float
    unit: str  # GB/s (moved: a copy counts read and write), GFLOP/s, µs
    bytes: int | None = None  # working set per thread (memory) or transfer size
    threads: int | None = None
    node: int | None = None  # where the CPUs were
    memory_node: int | None = None  # where the memory was
    dtype: str | None = None
    how: str | None = None  # pinned | pageable | direct | graph | the library that multiplied

    @property
    def base(self) -> float:
        """The value in B/s, FLOP/s or seconds."""
        return self.value * SCALE[self.unit]


@dataclass(frozen=True)
class Ceilings:
    device: str
    fingerprint: str
    measured: tuple[Ceiling, ...] = field(default_factory=tuple)

    def bandwidth(self, mix: str, working_set: int, threads: int = 1) -> Ceiling | None:
        """The ceiling of an access mix for a working set: the higher of the two rungs around it.

        Below lies a faster cache; above, on GPUs, a size that fills the machine better.
        """
        rungs = [c for c in self.measured if c.kind == mix and c.memory_node is None and c.bytes]
        rungs = [c for c in rungs if c.threads == _nearest(threads, {r.threads for r in rungs})]
        rungs.sort(key=lambda c: c.bytes or 0)
        above = next((i for i, c in enumerate(rungs) if (c.bytes or 0) * (c.threads or 1) > working_set), len(rungs))
        return max(rungs[max(0, above - 1) : above + 1], key=lambda c: c.value, default=None)

    def compute(self, dtype: str) -> Ceiling | None:
        """The best matrix product seen in a data type, by whichever library."""
        return max(
            (c for c in self.measured if c.kind == "matmul" and c.dtype == dtype), key=lambda c: c.value, default=None
        )

    def transfer(self, direction: str, size: int, how: str = "pinned") -> Ceiling | None:
        """h2d or d2h: the best rate at any size up to the next larger one measured."""
        found = [c for c in self.measured if c.kind == direction and c.how == how]
        above = min((c.bytes or 0 for c in found if (c.bytes or 0) >= size), default=None)
        fit = [c for c in found if above is None or (c.bytes or 0) <= above]
        return max(fit, key=lambda c: c.value, default=None)

    def launch(self, how: str = "graph") -> Ceiling | None:
        """The least a GPU needs per kernel: launched by a graph, or "direct", one by one from the host."""
        return next((c for c in self.measured if c.kind == "launch" and c.how == how), None)

    def to_json(self) -> dict[str, Any]:
        rows = [{k: v for k, v in asdict(c).items() if v is not None} for c in self.measured]
        return {"schema": SCHEMA, "device": self.device, "fingerprint": self.fingerprint, "measured": rows}

    @classmethod
    def from_json(cls, kept: Any) -> Ceilings | None:
        """None for what is torn or of another schema."""
        try:
            if kept["schema"] != SCHEMA:
                return None
            return cls(kept["device"], kept["fingerprint"], tuple(Ceiling(**row) for row in kept["measured"]))
        except (KeyError, TypeError):
            return None


def ceilings(
    device: str = "cpu", *, fresh: bool = False, progress: Progress | None = None, on: Topology | None = None
) -> Ceilings:
    """The ceilings of "cpu", "cuda" or "cuda:N" on this machine, from the cache or measured now."""
    here = on or topology()
    if device == "cuda":
        device = "cuda:0"
    if device != "cpu" and not (device.startswith("cuda:") and device[5:].isdecimal()):
        raise unknown("device", device, ["cpu", "cuda", "cuda:N"])
    if device != "cpu":
        here.gpu(int(device[5:]))
    path = cache_path(here, device)
    known = None if fresh else _load(path)
    if known is not None:
        return known
    say = progress or (lambda _: None)
    if device == "cpu":
        from ridgeline.machine.cpu_ceiling import measure_cpu

        rows = measure_cpu(here, say)
    else:
        from ridgeline.machine.gpu_ceiling import measure_gpu

        rows = measure_gpu(here, int(device[5:]), say)
    found = Ceilings(device, fingerprint(here), tuple(rows))
    _keep(found, here)
    return found


def cached(device: str, on: Topology | None = None) -> Ceilings | None:
    """Those of an earlier measurement on this kind of machine; None if there was none. Measures nothing."""
    return _load(cache_path(on or topology(), "cuda:0" if device == "cuda" else device))


def sharpen(found: Ceilings, ceiling: Ceiling, on: Topology) -> Ceilings:
    """Look again at one ceiling and keep the higher value.

    A ceiling found while the machine was busy is too low, and results would exceed it. Racing a case starts with
    this, so that both were measured in the same weather.
    """
    if found.device == "cpu":
        from ridgeline.machine.cpu_ceiling import again

        better = again(ceiling, on)
    else:
        from ridgeline.machine.gpu_ceiling import again as again_on_gpu

        better = again_on_gpu(ceiling, int(found.device[5:]))
    if better is None or better.value <= ceiling.value:
        return found
    rows = tuple(better if c == ceiling else c for c in found.measured)
    sharper = Ceilings(found.device, found.fingerprint, rows)
    _keep(sharper, on)
    return sharper


def _keep(found: Ceilings, on: Topology) -> None:
    path = cache_path(on, found.device)
    # Where nothing can be kept (a read-only home, a full disk), what was measured holds all the same.
    with suppress(OSError, StoreError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with publish(path) as temporary:
            temporary.write_text(json.dumps(found.to_json(), indent=1))


def cache_path(on: Topology, device: str) -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "ridgeline" / "ceilings" / f"{fingerprint(on)}-{device.replace(':', '')}.json"


def _load(path: Path) -> Ceilings | None:
    """A cache that is missing, torn or of another schema is simply measured again."""
    try:
        return Ceilings.from_json(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def _nearest(threads: int, known: set[int | None]) -> int | None:
    """The smallest measured thread count that is at least what was used, else the largest."""
    counts = sorted(t for t in known if t)
    return next((t for t in counts if t >= threads), counts[-1] if counts else None)
