"""Rows of results as a table of trials, and the sweeps in it.

The analyses know columns, not models. `Columns` says which column has which meaning; the defaults are the columns of
`results.json`. A sweep is a set of trials that are equal except in one column and in what may grow with it (a width
and its heads).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NONE = ""  # the level of a row without a value
LARGEST, SMALLEST = 1e40, 1e-40  # squares and ratios of numbers in this range are finite; no measurement lies outside
MIN_POINTS = 3  # points that make a sweep


@dataclass(frozen=True)
class Columns:
    """The column names that an analysis reads. Times are seconds per batch, amounts are per batch.

    Every field names one column of the rows. `sizes` are the columns along which a model grows, `along` says which
    columns may grow with a size, `setting` lists the columns that separate machines and ways to run (each setting has
    its own laws), `factors` are choices of the user, and trials that agree in all of `identity` did the same work in
    the same place.
    """

    run: str = "run_id"
    success: str = "success"
    error: str = "error"
    device: str = "device"
    gpu: str = "gpu_id"
    gpus: str = "gpu_ids"  # the GPUs that work together, `gpu` first; no value where one works alone
    home: str = "device_node"  # node of the CPUs that compute where there is no GPU
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
    sizes: tuple[str, ...] = ("depth", "dim", "image_size")
    along: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"dim": ("heads", "mlp_dim"), "image_size": ("image_width",)}
    )
    # Measured rates of the machine (B/s, FLOP/s) where rows have them: arithmetic, memory, to the device, back.
    ceilings: tuple[str, str, str, str] = ("ceiling_compute", "ceiling_memory", "ceiling_pcie", "ceiling_pcie_back")
    setting: tuple[str, ...] = (
        "machine", "device", "gpu_id", "gpu_ids", "device_node", "numa_node", "distance", "dtype", "compile_mode",
        "pinned", "ring", "graph",
    )  # fmt: skip
    factors: tuple[str, ...] = (
        "compile_mode",
        "dtype",
        "pinned",
        "ring",
        "graph",
        "batch_size",
        "memory_size_mb",
    )
    identity: tuple[str, ...] = (
        "machine", "experiment", "model", "module", "depth", "dim", "heads", "mlp_dim", "patch_size", "channels",
        "image_size", "image_width", "batch_size", "dtype", "output", "compile_mode", "pinned", "ring", "graph",
        "memory_size_mb", "device", "gpu_id", "gpu_ids", "device_node", "numa_node",
        "distance",
    )  # fmt: skip

    @property
    def place(self) -> tuple[str, ...]:
        """The columns that say where a run was placed."""
        return (self.gpu, self.home, self.node, self.gpus, self.distance)

    @property
    def subject(self) -> tuple[str, ...]:
        """The columns that say what was run: neither where nor how, so the user of the model cannot choose them."""
        choices = (*self.place, *self.factors, self.device)
        return tuple(n for n in self.identity if n not in choices)

    @property
    def expected(self) -> tuple[str, ...]:
        """Every column that some analysis needs."""
        optional = ("run", "success", "error", "gpu", "gpus", "home", "compile_seconds")
        names = [v for k, v in vars(self).items() if isinstance(v, str) and k not in optional]
        return tuple(dict.fromkeys((*names, *self.sizes)))


@dataclass(frozen=True)
class Trial:
    """One run that succeeded and has a time."""

    row: Mapping[str, Any]
    seconds: float  # per batch, as achieved
    items: float  # per batch; 1 where the row has no batch size
    samples: tuple[float, ...]  # seconds per batch, in the order of measurement
    rate: float  # items per second: the row's value, which counts slow batches too, else by `seconds`

    @property
    def per_item(self) -> float:
        return self.seconds / self.items

    def number(self, column: str) -> float | None:
        """Return the value if it is a finite number."""
        return parse_number(self.row.get(column))

    def positive(self, column: str) -> float | None:
        """Return the value if it is a number above zero."""
        value = self.number(column)
        return value if value is not None and value > 0 else None

    def level(self, column: str) -> Any:
        return to_level(self.row.get(column))


@dataclass(frozen=True)
class Table:
    """The rows of a study, sorted by what an analysis can do with them."""

    trials: tuple[Trial, ...]
    failed: tuple[Mapping[str, Any], ...]  # rows whose `success` is false
    untimed: tuple[Mapping[str, Any], ...]  # rows that succeeded but have no time
    missing: tuple[str, ...]  # columns in which no row has a value
    columns: Columns

    def levels(self, column: str) -> list[Any]:
        """Return the levels of a column: numbers in rising order, then words."""
        return sorted({t.level(column) for t in self.trials}, key=sort_key)


@dataclass(frozen=True)
class Sweep:
    """Trials along one column."""

    column: str
    fixed: Mapping[str, Any]  # the levels that all its trials share
    points: Sequence[tuple[float, Sequence[Trial]]]  # x > 0 in rising order, with the trials at x

    @property
    def trials(self) -> list[Trial]:
        return [trial for _, trials in self.points for trial in trials]

    def median(self, column: str) -> list[float | None]:
        """Return the median of a column at each point; None where no trial has a value above zero."""
        values = [[v for t in trials if (v := t.positive(column)) is not None] for _, trials in self.points]
        return [statistics.median(v) if v else None for v in values]


def tabulate(rows: Iterable[Mapping[str, Any]], columns: Columns) -> Table:
    """Sort rows of results into a `Table`. No row raises an error: rows without a time are listed, not used."""
    trials, failed, untimed = [], [], []
    mappings = [row for row in rows if isinstance(row, Mapping)]
    for row in mappings:
        if not row.get(columns.success, True):
            failed.append(row)
        elif (trial := _parse_trial(row, columns)) is None:
            untimed.append(row)
        else:
            trials.append(trial)
    present = {name for row in mappings for name, value in row.items() if value is not None}
    missing = tuple(name for name in columns.expected if name not in present)
    return Table(tuple(trials), tuple(failed), tuple(untimed), missing, columns)


def parse_number(value: Any) -> float | None:
    """Return a finite number of usable size, or None; truth values are no numbers.

    >>> parse_number(3), parse_number("3"), parse_number(True), parse_number(float("nan")), parse_number(10**400)
    (3.0, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < LARGEST and (abs(number) > SMALLEST or not number) else None


def to_level(value: Any) -> Any:
    """Return a value as the level of a factor: hashable, lists and mappings as JSON, a missing value as ""."""
    if value is None or (isinstance(value, float) and math.isnan(value)):  # NaN would differ from itself
        return NONE
    if isinstance(value, str | int | float):
        return value
    return json.dumps(value, sort_keys=True, default=str)


def sort_key(value: Any) -> tuple[bool, float, str]:
    """Sort levels: numbers in rising order, then words."""
    number = parse_number(value)
    return (number is None, number or 0.0, str(value))


def trial_key(trial: Trial, names: Sequence[str], without: Sequence[str] = ()) -> tuple[Any, ...]:
    """Return the levels of a trial in these columns, except those that are being compared."""
    return tuple(trial.level(name) for name in names if name not in without)


def group_trials(trials: Iterable[Trial], names: Sequence[str]) -> dict[tuple[Any, ...], list[Trial]]:
    """Group trials that agree in all these columns, in their order."""
    groups: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial_key(trial, names), []).append(trial)
    return groups


def group_by_model(table: Table) -> dict[str, list[Trial]]:
    """Group trials by model; where several sizes share a name, the group's name has the sizes."""
    columns = table.columns
    groups = group_trials(table.trials, columns.subject)
    names = name_differences([dict(zip(columns.subject, levels, strict=True)) for levels in groups])
    models: dict[str, list[Trial]] = {}
    for name, trials in zip(names, groups.values(), strict=True):
        model = name or str(trials[0].level(columns.model)) or "the model"
        models.setdefault(model, []).extend(trials)
    return models


def name_processor(trial: Trial, columns: Columns) -> str:
    """Return what computes: "GPU 0", or the CPUs of a node where there is no GPU."""
    gpu, home, gpus = trial.level(columns.gpu), trial.level(columns.home), trial.row.get(columns.gpus)
    if isinstance(gpus, Sequence) and len(gpus) > 1:
        return f"GPUs {'+'.join(map(str, gpus))}"
    if gpu != NONE:
        return f"GPU {gpu}"
    return "CPU" if home == NONE else f"CPUs of node {home}"


def slower_transfer(trial: Trial, columns: Columns) -> float | None:
    """Return the seconds of the slower transfer, to the device or back, by itself."""
    seconds = [v for v in (trial.positive(columns.up), trial.positive(columns.down)) if v is not None]
    return max(seconds) if seconds else None


def transfer_share(trial: Trial, columns: Columns) -> float | None:
    """Return the share of the stages' time that goes into transfers; None where stages have no times."""
    transfers = [v for v in (trial.positive(columns.up), trial.positive(columns.down)) if v is not None]
    compute = trial.positive(columns.compute)
    return sum(transfers) / (sum(transfers) + compute) if transfers and compute is not None else None


def find_all_sweeps(table: Table) -> list[Sweep]:
    """Return every sweep over a size or the batch."""
    return [s for column in (*table.columns.sizes, table.columns.batch) for s in find_sweeps(table, column)]


def find_sweeps(table: Table, column: str) -> list[Sweep]:
    """Return every sweep of at least three points along a column. Models named after their size count as one."""
    columns = table.columns
    dependent = (column, columns.model, *columns.along.get(column, ()))
    families: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in table.trials:
        if trial.positive(column) is not None:
            families.setdefault(trial_key(trial, columns.identity, dependent), []).append(trial)
    sweeps = []
    for family in families.values():
        for trials in _split_family(family, column, dependent[1:]):
            points: dict[float, list[Trial]] = {}
            for trial in trials:
                points.setdefault(trial.positive(column) or 0.0, []).append(trial)
            if len(points) >= MIN_POINTS:
                fixed = {n: trials[0].level(n) for n in columns.identity if len({t.level(n) for t in trials}) == 1}
                sweeps.append(Sweep(column, fixed, sorted(points.items(), key=lambda p: p[0])))
    return sweeps


def name_sweeps(sweeps: Sequence[Sweep]) -> list[str]:
    """Return a name for each sweep: the levels in which it differs from the others."""
    return name_differences([s.fixed for s in sweeps])


def name_differences(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return short names by what differs, without columns that repeat what earlier columns say.

    >>> name_differences([{"dim": 64, "heads": 1, "dtype": "half"}, {"dim": 128, "heads": 2, "dtype": "half"}])
    ['dim 64', 'dim 128']
    """
    names: list[str] = []
    kinds = 1
    for name in dict.fromkeys(n for setting in settings for n in setting):
        distinct = {tuple(str(setting.get(n, NONE)) for n in (*names, name)) for setting in settings}
        if len(distinct) > kinds:
            names.append(name)
            kinds = len(distinct)
    return [
        ", ".join(format_level(n, setting[n]) for n in names if setting.get(n, NONE) != NONE) for setting in settings
    ]


def format_level(name: str, value: Any) -> str:
    """Return a level in words: "float16", "batch_size 8", "compile_mode default"."""
    speaks = parse_number(value) is None and not isinstance(value, bool) and value != "default"
    return str(value) if speaks else f"{name} {value}"


def _split_family(family: Sequence[Trial], column: str, dependent: Sequence[str]) -> list[list[Trial]]:
    """Split by the first dependent column that has several levels at one point of the sweep, then by the others."""
    for name in dependent:
        by_x: dict[float | None, set[Any]] = {}
        for trial in family:
            by_x.setdefault(trial.positive(column), set()).add(trial.level(name))
        if any(len(levels) > 1 for levels in by_x.values()):
            parts: dict[Any, list[Trial]] = {}
            for trial in family:
                parts.setdefault(trial.level(name), []).append(trial)
            rest = [n for n in dependent if n != name]
            return [deeper for part in parts.values() for deeper in _split_family(part, column, rest)]
    return [list(family)]


def _parse_trial(row: Mapping[str, Any], columns: Columns) -> Trial | None:
    values = row.get(columns.samples)
    numbers = map(parse_number, values if isinstance(values, list | tuple) else ())
    samples = tuple(v for v in numbers if v is not None and v > 0)
    items = parse_number(row.get(columns.batch))
    items = items if items and items > 0 else 1.0
    seconds, rate = parse_number(row.get(columns.seconds)), parse_number(row.get(columns.rate))
    if not seconds or seconds < 0:
        seconds = statistics.median(samples) if samples else items / rate if rate and rate > 0 else None
    if not seconds or not SMALLEST < seconds < LARGEST:
        return None
    return Trial(row, seconds, items, samples, rate if rate and rate > 0 else items / seconds)
