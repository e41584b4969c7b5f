"""What limits a path, from what its record holds; nothing is guessed.

Asked in this order, the first that fills half of a step or more is the answer:

    a stage that the contender took apart      extras["stages_ns"]
    a ceiling                                  the work's flops and bytes over the machine's measured rates
    a control, or the part that it leaves out  its settings "does" and "lacks", in words, and its time beside ours
    kernels launched one by one                the machine's measured time of a launch, on a GPU
    two stages together
    a fixed cost                               a smaller case of the same sweep takes nearly as long
    one core, all cores, the kernel, waiting   CPU time of the timed steps, on a CPU

Where none answers, it is not known, and `Limiting.measure` says what would tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.lab.judge.analyse import Row, limits

NEAR = 0.5  # share of a ceiling, or of a step, from which on that resource or stage is what limits it
ALONE = 1.25  # cores' worth of CPU time up to which one core does the work
CROWDED = 0.25  # part of the steps' time spent in the queue for a CPU from which on its use says nothing
BUSY = 0.75  # part of the cores that are kept busy from which on all of them are
RESOURCES = {
    "memory": "memory bandwidth",
    "compute": "arithmetic",
    "pcie": "the way to the device",
    "pcie_back": "the way back from the device",
    "launch": "launching kernels",
    "wire": "the network",
}
STAGES = {"h2d": "copies to the device", "d2h": "copies back from the device"}  # others go by their own names


@dataclass(frozen=True)
class Limiting:
    """The answer in words, or what to measure for one."""

    words: str | None
    measure: str = ""


def limiting(row: Row, rows: Sequence[Row], others: Iterable[Row]) -> Limiting:
    """What limits `row`, ours, in its race; `others` are ours in other cases of the same path."""
    if not row.seconds:
        return Limiting(None)
    stages = {stage: s / row.seconds for stage, s in row.stages.items()}
    ranked = sorted(stages, key=lambda stage: -stages[stage]) if len(stages) > 1 else []
    words = (
        _stages(stages, ranked[:1])
        or _ceiling(row)
        or _control(row, rows)
        or _launches(row)
        or _stages(stages, ranked[:2])
        or _fixed(row, others)
        or _cpu(row)
    )
    return Limiting(words) if words else Limiting(None, _wanted(row, stages))


def percent(part: float | None) -> str:
    """
    >>> percent(0.314), percent(0.0314), percent(None)
    ('31 %', '3.1 %', '')
    """
    if part is None:
        return ""
    return f"{100 * part:.0f} %" if part >= 0.0995 else f"{100 * part:.2g} %"


def _stages(stages: Mapping[str, float], longest: Sequence[str]) -> str | None:
    whole = sum(stages[stage] for stage in longest)
    if not longest or whole < NEAR:
        return None
    return f"{' and '.join(STAGES.get(s, s) for s in longest)} ({percent(min(whole, 1.0))} of a step)"


def _ceiling(row: Row) -> str | None:
    if row.share is None or row.limit is None or row.share < NEAR:
        return None
    return RESOURCES.get(row.limit.resource, row.limit.resource)


def _control(row: Row, rows: Sequence[Row]) -> str | None:
    """What a control does takes most of our time, or else what it leaves out does."""
    for other in rows:
        does, lacks = (other.lane.settings.get(name) for name in ("does", "lacks"))
        if other.lane.contender not in row.record.controls or not other.ratio or not (does and lacks):
            continue
        part = min(other.ratio.value, 1.0)
        return f"{does} ({percent(part)} of a step)" if part >= NEAR else f"{lacks} ({percent(1 - part)} of a step)"
    return None


def _launches(row: Row) -> str | None:
    direct = row.record.ceilings.get("direct")
    part = row.record.work["launches"] / direct["rate"] / row.seconds if direct and row.seconds else 0.0
    return f"launching kernels one by one ({percent(min(part, 1.0))} of a step)" if part >= NEAR else None


def _fixed(row: Row, others: Iterable[Row]) -> str | None:
    """From the nearest smaller case that differs in one number: the time that a line through both has at no work."""
    parts = []
    for other in others:
        less = _less(row, other)
        if less is not None and other.seconds and row.seconds:
            parts.append((less, (other.seconds / row.seconds - less) / (1 - less)))
    if not parts:
        return None
    part = max(parts)[1]
    return f"a fixed cost of every step ({percent(min(part, 1.0))} of it)" if part >= NEAR else None


def _less(row: Row, other: Row) -> float | None:
    """How much less work the other case is, as a part of this one's; None where it is no smaller one of a sweep."""
    mine, its = row.record.case, other.record.case
    apart = [name for name in mine if mine[name] != its.get(name)]
    if len(apart) != 1 or set(mine) != set(its) or row.record.cold != other.record.cold:
        return None
    if any(isinstance(v, bool) or not isinstance(v, int | float) for v in (mine[apart[0]], its[apart[0]])):
        return None
    if not row.record.work["items"]:
        return None
    floors = [max((limit.floor_s for limit in limits(r)), default=0.0) for r in (other.record, row.record)]
    items = float(other.record.work["items"]) / float(row.record.work["items"])
    less = max(items, floors[0] / floors[1]) if floors[1] else items
    return less if less < NEAR and apart[0] != "ranks" else None


def _cpu(row: Row) -> str | None:
    """Where the timed steps' CPU time went. Ranks wait for each other by looking, so for them it says nothing."""
    extras, case = row.lane.extras, row.record.case
    wall, user, system = (extras.get(f"steps_{name}_ns") for name in ("wall", "user", "system"))
    if not wall or user is None or system is None or case["device"] != "cpu" or case.get("ranks", 1) != 1:
        return None
    if crowded(row):
        return None
    cores, busy = _cores(row), (user + system) / max(wall - extras.get("steps_queued_ns", 0), 1)
    if busy < NEAR:
        return f"waiting ({percent(1 - busy)} of a step off the CPU)"
    if system >= NEAR * (user + system):
        return f"the kernel ({percent(system / (user + system))} of its CPU time)"
    if busy <= ALONE:
        return "one core" + (f" of {cores}" if cores > 1 else "")
    return f"instructions (all {cores} cores busy)" if busy >= BUSY * cores else None


def crowded(row: Row) -> bool:
    """Whether others held the CPU while its steps were ready to run: its CPU time then says little."""
    queued, wall = (float(row.lane.extras.get(f"steps_{name}_ns", 0)) for name in ("queued", "wall"))
    return queued > CROWDED * wall


def _cores(row: Row) -> int:
    cpus = [place.get("cpus") for place in row.record.placement]
    return len(cpus[0]) if cpus and cpus[0] else int(row.record.machine["usable_cpus"])


def _wanted(row: Row, stages: Mapping[str, float]) -> str:
    """What to measure where nothing that was measured answers."""
    if stages:
        told = ", ".join(f"{STAGES.get(s, s)} {percent(part)}" for s, part in stages.items())
        return f"the stages that were measured ({told}) leave the rest of a step open"
    if row.record.case["device"] == "cpu" and "steps_wall_ns" not in row.lane.extras:
        return "its record is older than the count of CPU time in steps; record it again"
    if row.record.case["device"] == "cpu" and crowded(row):
        return "other processes kept the CPU from it; record it again on a quiet machine"
    return "its step was not taken apart; give its workload stages_ns, or a smaller case beside it"
