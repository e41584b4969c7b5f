"""What list_limits a path or a run: the one place that answers this question, from measurements only.

`find_limit` answers it for a path of a race. It asks in this order; the first that fills half of a step or more is the
answer:

    a stage that the contender timed           extras["stages_ns"]
    a ceiling                                  the work's flops and bytes over the machine's measured rates
    a control, or the part that it leaves out  its settings "does" and "lacks", in words, and its time beside ours
    kernels launched one by one                the machine's measured time of a launch, on a GPU
    two stages together
    a fixed cost                               a smaller case of the same sweep takes nearly as long
    one core, all cores, the kernel, waiting   CPU time of the timed steps, on a CPU

Where nothing answers, the limit is unknown, and `LimitAnswer.measure` says what to measure.

`find_stage_limit` answers it for one run of an overlapped pipeline. By stages: the slowest stage sets the time of a
batch. By the roofline: a floor is the least time that a resource needs for the work at its measured rate; the highest
floor is the limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.lab.judge.analyse import Row, list_limits
from ridgeline.lab.judge.verdict import NOISY
from ridgeline.machine import Ceilings

DECISIVE = 0.5  # share of a ceiling, or of a step, from which on that resource or stage is the limit
ONE_CORE = 1.25  # cores' worth of CPU time up to which one core does the work
CROWDED = 0.25  # share of the steps' time in the queue for a CPU from which on CPU time says nothing
BUSY = 0.75  # share of the cores' time from which on all cores count as busy
LAUNCHES = 0.1  # share of the highest floor below which the device mostly waits for launches
RESOURCES = {
    "memory": "memory bandwidth",
    "compute": "arithmetic",
    "pcie": "the way to the device",
    "pcie_back": "the way back from the device",
    "launch": "launching kernels",
    "wire": "the network",
}
STAGES = {"h2d": "copies to the device", "d2h": "copies back from the device"}  # other stages keep their names
TRANSFER = "transfer"
MEMORY = "memory"
COMPUTE = "compute"
OVERHEAD = "overhead"
UP = "up"  # the transfer to the device
DOWN = "down"  # the transfer back


@dataclass(frozen=True)
class LimitAnswer:
    """What limits a path, in words; where that is unknown (None), `measure` says what to measure."""

    words: str | None
    measure: str = ""


@dataclass(frozen=True)
class StageLimit:
    """What limits one run of a pipeline.

    kind     transfer | memory | compute | overhead; "" where no stage has a time
    stage    the slowest stage: up | compute | down
    filled   slowest stage ÷ achieved time: 1 is the most that overlapping can give; None where it is no result
    reached  highest floor ÷ achieved time; None without floors, or where it is no result
    """

    kind: str
    stage: str
    filled: float | None
    reached: float | None


def find_limit(row: Row, rows: Sequence[Row], others: Iterable[Row]) -> LimitAnswer:
    """Return what limits `row`, which is ours, in its race.

    rows    all contenders of the race
    others  our rows of other cases of the same path
    """
    if not row.seconds:
        return LimitAnswer(None)
    stages = {stage: s / row.seconds for stage, s in row.stages.items()}
    longest = sorted(stages, key=lambda stage: -stages[stage]) if len(stages) > 1 else []
    words = (
        _check_stages(stages, longest[:1])
        or _check_ceiling(row)
        or _check_control(row, rows)
        or _check_launches(row)
        or _check_stages(stages, longest[:2])
        or _check_fixed_cost(row, others)
        or _check_cpu(row)
    )
    return LimitAnswer(words) if words else LimitAnswer(None, _suggest_measurement(row, stages))


def find_stage_limit(seconds: float, stages: Mapping[str, float], floors: Mapping[str, float]) -> StageLimit:
    """Return what limits a run that takes `seconds` per batch.

    stages  seconds of each stage by itself: up, compute, down
    floors  the least seconds of each resource: up, down, memory, compute (see `compute_floors`)
    """
    reached = max(floors.values()) / seconds if floors else None
    if not stages:
        return StageLimit("", "", None, clip_share(reached))
    slowest = max(stages, key=lambda stage: stages[stage])
    filled = stages[slowest] / seconds
    kind = TRANSFER if slowest != COMPUTE else _find_compute_limit(stages[COMPUTE], floors)
    return StageLimit(kind if filled >= DECISIVE else OVERHEAD, slowest, clip_share(filled), clip_share(reached))


def clip_share(share: float | None) -> float | None:
    """Return a share of something that cannot exceed 1, such as a part of a time: at most 1.

    A share above 1 by more than the error of a measurement says that its two times were not measured under the same
    load. It is no result: None.

    >>> clip_share(0.8), clip_share(1.02), clip_share(1.55)
    (0.8, 1.0, None)
    """
    if share is None or share > 1 + NOISY:
        return None
    return min(share, 1.0)


def compute_floors(amounts: Mapping[str, float], rates: Mapping[str, float]) -> dict[str, float]:
    """Return the least seconds of each resource: its amount (bytes, FLOPs) over its rate (per second)."""
    return {name: amounts[name] / rate for name, rate in rates.items() if amounts.get(name) and rate > 0}


def read_rates(ceilings: Ceilings, dtype: str, amounts: Mapping[str, float]) -> dict[str, float]:
    """Return the measured rates (FLOP/s, B/s) of the resources up, down, memory and compute for these amounts."""
    moved = int(amounts.get(MEMORY, 0))
    measured = {
        COMPUTE: ceilings.compute(dtype),
        MEMORY: ceilings.bandwidth("read", moved) or ceilings.bandwidth("copy", moved),
        UP: ceilings.transfer("h2d", int(amounts.get(UP, 0))),
        DOWN: ceilings.transfer("d2h", int(amounts.get(DOWN, 0))),
    }
    return {name: ceiling.base for name, ceiling in measured.items() if ceiling is not None}


def select_ceilings(candidates: Sequence[Ceilings], device: str) -> Ceilings | None:
    """Return the ceilings of `device` ("cpu", "cuda:1"), else those of a device of its kind, else None."""
    exact = next((c for c in candidates if c.device == device), None)
    return exact or next((c for c in candidates if c.device.partition(":")[0] == device.partition(":")[0]), None)


def percent(part: float | None) -> str:
    """Format a share.

    >>> percent(0.314), percent(0.0314), percent(None)
    ('31 %', '3.1 %', '')
    """
    if part is None:
        return ""
    return f"{100 * part:.0f} %" if part >= 0.0995 else f"{100 * part:.2g} %"


def crowded(row: Row) -> bool:
    """Whether other processes had the CPU while the steps were ready to run: CPU time then says little."""
    queued, wall = (float(row.result.extras.get(f"steps_{name}_ns", 0)) for name in ("queued", "wall"))
    return queued > CROWDED * wall


def _find_compute_limit(seconds: float, floors: Mapping[str, float]) -> str:
    """Return what limits the compute stage; without floors it counts as arithmetic."""
    known = {name: floors[name] for name in (COMPUTE, MEMORY) if name in floors}
    if not known:
        return COMPUTE
    highest = max(known, key=lambda name: known[name])
    return highest if known[highest] / seconds >= LAUNCHES else OVERHEAD


def _check_stages(stages: Mapping[str, float], longest: Sequence[str]) -> str | None:
    total = sum(stages[stage] for stage in longest)
    if not longest or total < DECISIVE:
        return None
    return f"{' and '.join(STAGES.get(s, s) for s in longest)} ({percent(min(total, 1.0))} of a step)"


def _check_ceiling(row: Row) -> str | None:
    if row.share is None or row.limit is None or row.share < DECISIVE:
        return None
    return RESOURCES.get(row.limit.resource, row.limit.resource)


def _check_control(row: Row, rows: Sequence[Row]) -> str | None:
    """Most of our time goes into what a control does, or else into what it leaves out."""
    for other in rows:
        does, lacks = (other.result.settings.get(name) for name in ("does", "lacks"))
        if other.result.contender not in row.record.controls or not other.ratio or not (does and lacks):
            continue
        part = min(other.ratio.value, 1.0)
        return f"{does} ({percent(part)} of a step)" if part >= DECISIVE else f"{lacks} ({percent(1 - part)} of a step)"
    return None


def _check_launches(row: Row) -> str | None:
    direct = row.record.ceilings.get("direct")
    part = row.record.work["launches"] / direct["rate"] / row.seconds if direct and row.seconds else 0.0
    return f"launching kernels one by one ({percent(min(part, 1.0))} of a step)" if part >= DECISIVE else None


def _check_fixed_cost(row: Row, others: Iterable[Row]) -> str | None:
    """Extend the line through this case and the largest smaller one of its sweep to zero work: its time is fixed."""
    parts = []
    for other in others:
        ratio = _compare_work(row, other)
        if ratio is not None and other.seconds and row.seconds:
            parts.append((ratio, (other.seconds / row.seconds - ratio) / (1 - ratio)))
    if not parts:
        return None
    part = max(parts)[1]
    return f"a fixed cost of every step ({percent(min(part, 1.0))} of it)" if part >= DECISIVE else None


def _compare_work(row: Row, other: Row) -> float | None:
    """Return the work of the other case over that of this one; None unless it is a smaller case of the same sweep."""
    case, smaller = row.record.case, other.record.case
    differing = [name for name in case if case[name] != smaller.get(name)]
    if len(differing) != 1 or set(case) != set(smaller) or row.record.cold != other.record.cold:
        return None
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in (case[differing[0]], smaller[differing[0]])):
        return None
    if not row.record.work["items"]:
        return None
    floors = [max((limit.floor_s for limit in list_limits(r)), default=0.0) for r in (other.record, row.record)]
    items = float(other.record.work["items"]) / float(row.record.work["items"])
    ratio = max(items, floors[0] / floors[1]) if floors[1] else items
    return ratio if ratio < DECISIVE and differing[0] != "ranks" else None


def _check_cpu(row: Row) -> str | None:
    """Read the CPU time of the timed steps. Ranks wait for each other in busy loops, so theirs says nothing."""
    extras, case = row.result.extras, row.record.case
    wall, user, system = (extras.get(f"steps_{name}_ns") for name in ("wall", "user", "system"))
    if not wall or user is None or system is None or case["device"] != "cpu" or case.get("ranks", 1) != 1:
        return None
    if crowded(row):
        return None
    cores, busy = _count_cores(row), (user + system) / max(wall - extras.get("steps_queued_ns", 0), 1)
    if busy < DECISIVE:
        return f"waiting ({percent(1 - busy)} of a step off the CPU)"
    if system >= DECISIVE * (user + system):
        return f"the kernel ({percent(system / (user + system))} of its CPU time)"
    if busy <= ONE_CORE:
        return "one core" + (f" of {cores}" if cores > 1 else "")
    return f"instructions (all {cores} cores busy)" if busy >= BUSY * cores else None


def _count_cores(row: Row) -> int:
    cpus = [place.get("cpus") for place in row.record.placement]
    return len(cpus[0]) if cpus and cpus[0] else int(row.record.machine["usable_cpus"])


def _suggest_measurement(row: Row, stages: Mapping[str, float]) -> str:
    if stages:
        shares = ", ".join(f"{STAGES.get(s, s)} {percent(part)}" for s, part in stages.items())
        return f"the measured stages ({shares}) do not explain the rest of a step"
    if row.record.case["device"] == "cpu" and "steps_wall_ns" not in row.result.extras:
        return "its record does not have the CPU time of its steps; record it again"
    if row.record.case["device"] == "cpu" and crowded(row):
        return "other processes used its CPUs; record it again on a quiet machine"
    return "the stages of its step were not timed; add stages_ns to its workload, or a smaller case"
