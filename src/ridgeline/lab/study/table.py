"""Rows of results as a table of trials: what succeeded, what failed, what no row tells.

The analyses know columns, not models. Which column plays which part is said by `Columns`; the defaults are the
columns of `results.json`.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NONE = ""  # the level of a row that does not tell
LARGEST, SMALLEST = 1e40, 1e-40  # squares and ratios of what lies between are still floats; nothing measured is not


@dataclass(frozen=True)
class Columns:
    """Which column is what. Times are seconds per batch, amounts are per batch."""

    run: str = "run_id"
    success: str = "success"
    error: str = "error"
    device: str = "device"
    gpu: str = "gpu_id"
    home: str = "device_node"  # where the CPUs are that take a GPU's part
    node: str = "numa_node"
    distance: str = "distance"
    model: str = "model"
    batch: str = "batch_size"
    dtype: str = "dtype"
    compile: str = "compile_mode"
    compile_seconds: str = "compile_seconds"
    pool: str = "memory_size_mb"
    peak: str = "peak_memory"
    rate: str = "throughput"
    seconds: str = "batch_seconds"
    samples: str = "samples"
    flops: str = "flops"
    up_bytes: str = "h2d_bytes"
    down_bytes: str = "d2h_bytes"
    up: str = "h2d_seconds"
    compute: str = "compute_seconds"
    down: str = "d2h_seconds"
    parameters: str = "parameters"
    width: str = "dim"
    sizes: tuple[str, ...] = ("depth", "dim", "image_size")  # a model grows along these
    along: Mapping[str, tuple[str, ...]] = field(  # what may rise with a size
        default_factory=lambda: {"dim": ("heads", "mlp_dim"), "image_size": ("image_width",)}
    )
    # Measured rates of this machine (B/s, FLOP/s) where rows carry them: arithmetic, memory, to the device, back.
    ceilings: tuple[str, str, str, str] = ("ceiling_compute", "ceiling_memory", "ceiling_pcie", "ceiling_pcie_back")
    # Where these differ, the machine does: each setting has laws of its own.
    setting: tuple[str, ...] = (
        "machine", "device", "gpu_id", "device_node", "numa_node", "distance", "dtype", "compile_mode", "pinned",
        "ring", "graph",
    )  # fmt: skip
    factors: tuple[str, ...] = (
        "compile_mode",
        "dtype",
        "pinned",
        "ring",
        "graph",
        "batch_size",
        "memory_size_mb",
    )  # to be chosen
    # Trials that agree in all of these did the same thing in the same place.
    identity: tuple[str, ...] = (
        "machine", "experiment", "model", "module", "depth", "dim", "heads", "mlp_dim", "patch_size", "channels",
        "image_size", "image_width", "batch_size", "dtype", "output", "compile_mode", "pinned", "ring", "graph",
        "memory_size_mb", "device", "gpu_id", "device_node", "numa_node", "distance",
    )  # fmt: skip

    @property
    def place(self) -> tuple[str, ...]:
        """Where a run stood."""
        return (self.gpu, self.home, self.node, self.distance)

    @property
    def subject(self) -> tuple[str, ...]:
        """What was run, apart from where and how: these are not for the user of the model to choose."""
        chosen = (*self.place, *self.factors, self.device)
        return tuple(n for n in self.identity if n not in chosen)

    @property
    def expected(self) -> tuple[str, ...]:
        """Every column some analysis asks for."""
        rightly_absent = ("run", "success", "error", "gpu", "home", "compile_seconds")
        own = [v for k, v in vars(self).items() if isinstance(v, str) and k not in rightly_absent]
        return tuple(dict.fromkeys((*own, *self.sizes)))


@dataclass(frozen=True)
class Trial:
    """One run that succeeded and has a time."""

    row: Mapping[str, Any]
    seconds: float  # per batch, as achieved
    items: float  # per batch; 1 where the row does not say
    samples: tuple[float, ...]  # seconds per batch, in the order taken
    rate: float  # items per second by the row's own word, which minds the slow batches too; else by `seconds`

    @property
    def per_item(self) -> float:
        return self.seconds / self.items

    def number(self, column: str) -> float | None:
        """The value if it is a finite number."""
        return number(self.row.get(column))

    def positive(self, column: str) -> float | None:
        value = self.number(column)
        return value if value is not None and value > 0 else None

    def level(self, column: str) -> Any:
        return level(self.row.get(column))


@dataclass(frozen=True)
class Table:
    trials: tuple[Trial, ...]
    failed: tuple[Mapping[str, Any], ...]  # by their own word
    timeless: tuple[Mapping[str, Any], ...]  # said to have succeeded, without a time
    missing: tuple[str, ...]  # columns no row has a value in
    columns: Columns

    def levels(self, column: str) -> list[Any]:
        return levels(self.trials, column)


def tabulate(rows: Iterable[Mapping[str, Any]], columns: Columns) -> Table:
    """Sort the rows; nothing is refused, what cannot be used is counted."""
    trials, failed, timeless = [], [], []
    kept = [row for row in rows if isinstance(row, Mapping)]
    for row in kept:
        if not row.get(columns.success, True):
            failed.append(row)
        elif (trial := _trial(row, columns)) is None:
            timeless.append(row)
        else:
            trials.append(trial)
    told = {name for row in kept for name, value in row.items() if value is not None}
    missing = tuple(name for name in columns.expected if name not in told)
    return Table(tuple(trials), tuple(failed), tuple(timeless), missing, columns)


def number(value: Any) -> float | None:
    """A number that can be reckoned with, or nothing; truth values are no numbers.

    >>> number(3), number("3"), number(True), number(float("nan")), number(10**400)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) < LARGEST and (abs(found) > SMALLEST or not found) else None


def level(value: Any) -> Any:
    """A value as the level of a factor: hashable, lists and mappings as their JSON, nothing as ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):  # NaN would differ from itself
        return NONE
    if isinstance(value, str | int | float):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def levels(trials: Iterable[Trial], column: str) -> list[Any]:
    """The levels of a column: numbers rising, then words."""
    return sorted({t.level(column) for t in trials}, key=order)


def order(value: Any) -> tuple[bool, float, str]:
    held = number(value)
    return (held is None, held or 0.0, str(value))


def key(trial: Trial, names: Sequence[str], without: Sequence[str] = ()) -> tuple[Any, ...]:
    """What a trial did, apart from the columns that are being compared."""
    return tuple(trial.level(name) for name in names if name not in without)


def seat(trial: Trial, columns: Columns) -> str:
    """Who is fed: "GPU 0", or the CPUs that take its part."""
    gpu, home = trial.level(columns.gpu), trial.level(columns.home)
    if gpu != NONE:
        return f"GPU {gpu}"
    return "CPU" if home == NONE else f"CPUs of node {home}"


def groups(trials: Iterable[Trial], names: Sequence[str]) -> dict[tuple[Any, ...], list[Trial]]:
    """Trials that agree in all these columns, in the order they came."""
    found: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        found.setdefault(key(trial, names), []).append(trial)
    return found


def _trial(row: Mapping[str, Any], columns: Columns) -> Trial | None:
    told = row.get(columns.samples)
    samples = tuple(v for v in map(number, told if isinstance(told, list | tuple) else ()) if v is not None and v > 0)
    items = number(row.get(columns.batch))
    items = items if items and items > 0 else 1.0
    seconds, rate = number(row.get(columns.seconds)), number(row.get(columns.rate))
    if not seconds or seconds < 0:
        seconds = statistics.median(samples) if samples else items / rate if rate and rate > 0 else None
    if not seconds or not SMALLEST < seconds < LARGEST:
        return None
    return Trial(row, seconds, items, samples, rate if rate and rate > 0 else items / seconds)
