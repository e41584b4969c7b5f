"""Records over time: the level of each case on each kind of machine, its steps and drifts, and what changed there.

    ridgeline history benchmarks/records

A series holds the records of one workload, case, placement and kind of machine, oldest first. Where all of them raced
the same peers with the same settings and libraries, times are taken relative to those, as `compare` does, which takes
the weather out; else they are taken as they are, and that is said.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from ridgeline.errors import InputError, NotComparable
from ridgeline.lab.judge import compare, stats, steps, verdict
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.steps import FEWEST
from ridgeline.lab.judge.verdict import MARGIN, Judged
from ridgeline.lab.record.record import Lane, Record
from ridgeline.lab.workload import OURS


@dataclass(frozen=True)
class Moment:
    """One record of a series."""

    record: Record
    judged: Judged
    value: Estimate  # seconds, or our time over the peers'


@dataclass(frozen=True)
class Step:
    """From this record on the level is another."""

    before: Record  # the last of the old level
    after: Record  # the first of the new one
    ratio: Estimate  # new level / old level; over 1 is slower
    p: float
    changed: tuple[str, ...]  # what is recorded as different between the two, the commit first

    @property
    def slower(self) -> bool:
        return self.ratio.value > 1

    def to_json(self) -> dict[str, Any]:
        return {
            "direction": "slower" if self.slower else "faster",
            "ratio": self.ratio.value,
            "ratio_interval": [self.ratio.low, self.ratio.high],
            "p": self.p,
            "before": {"record": self.before.id, "time": self.before.time, "commit": self.before.code["commit"]},
            "after": {"record": self.after.id, "time": self.after.time, "commit": self.after.code["commit"]},
            "changed": list(self.changed),
        }


@dataclass(frozen=True)
class Series:
    moments: tuple[Moment, ...]
    peers: tuple[str, ...]  # whom the values are relative to; none: seconds as measured
    levels: tuple[tuple[int, Estimate], ...]  # index of its first moment, median
    steps: tuple[Step, ...]
    drift: float  # of the last level, part per record; 0 where none was shown
    without: tuple[Record, ...] = ()  # records that have no valid time
    needed: int = FEWEST  # records in which a step could be shown
    recent: compare.Change | None = None  # the last two, where there are fewer

    @property
    def last(self) -> Record:
        return self.moments[-1].record

    @property
    def basis(self) -> str:
        return f"time relative to {', '.join(self.peers)}" if self.peers else "time as measured, weather included"

    @property
    def word(self) -> str:
        """STEADY, SLOWER, FASTER (by the last step), DRIFTING, or TOO FEW to tell."""
        if self.drift:
            return "DRIFTING"
        if self.steps:
            return "SLOWER" if self.steps[-1].slower else "FASTER"
        return "TOO FEW" if len(self.moments) < self.needed else "STEADY"

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.last.workload,
            "case": dict(self.last.case),
            "cold": self.last.cold,
            "machine": {"fingerprint": self.last.machine["fingerprint"], "cpu": self.last.machine["cpu"]},
            "verdict": self.word,
            "basis": self.basis,
            "records": [
                {
                    "record": m.record.id,
                    "time": m.record.time,
                    "commit": m.record.code["commit"],
                    "dirty": m.record.code["dirty"],
                    "validity": m.judged.validity,
                    "median_ns": m.judged.time.value if m.judged.time else None,
                    "value": m.value.value,
                }
                for m in self.moments
            ],
            "levels": [{"from": self.moments[at].record.id, "value": level.value} for at, level in self.levels],
            "steps": [s.to_json() for s in self.steps],
            "last_level_over_first": self.levels[-1][1].value / self.levels[0][1].value,
            "drift_per_record": self.drift,
            "without_time": [r.id for r in self.without],
            "since_the_one_before": self.recent.to_json() if self.recent else None,
        }


def history(records: Iterable[Record], alpha: float = steps.ALPHA, margin: float = MARGIN) -> list[Series]:
    """Every series with a valid time of ours, by machine, workload and case."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=_moment):
        groups.setdefault((record.machine["fingerprint"], record.subject), []).append(record)
    told = [_series(group, alpha, margin) for group in groups.values()]
    found = [s for s in told if s is not None]
    return sorted(found, key=lambda s: (s.last.machine["fingerprint"], s.last.workload))


def _series(records: Sequence[Record], alpha: float, margin: float) -> Series | None:
    timed: list[tuple[Record, Lane, Judged]] = []
    for record in records:
        lane = next((each for each in record.contenders if each.contender == OURS), None)
        judged = verdict.judge(record, lane) if lane else None
        if lane and judged and judged.time:
            timed.append((record, lane, judged))
    without = tuple(r for r in records if all(r is not t for t, _, _ in timed))
    if not timed:
        return None
    peers = _peers([record for record, _, _ in timed])
    moments = tuple(Moment(record, judged, _value(record, lane, peers)) for record, lane, judged in timed)
    logs = [math.log(m.value.value) for m in moments]
    found = steps.find(logs, alpha, math.log(1 + margin))
    bounds = [0, *found.steps, len(moments)]
    parts = [[m.value.value for m in moments[a:b]] for a, b in pairwise(bounds)]
    levels = tuple((at, stats.median(part)) for at, part in zip(bounds, parts, strict=False))
    changes = tuple(
        Step(
            moments[at - 1].record,
            moments[at].record,
            stats.unpaired_ratio(parts[i + 1], parts[i]),
            p,
            changed(moments[at - 1].record, moments[at].record),
        )
        for i, (at, p) in enumerate(zip(found.steps, found.p, strict=True))
    )
    needed = steps.fewest(alpha)
    recent = _recent(timed[-2][0], timed[-1][0], margin) if 1 < len(timed) < needed else None
    return Series(moments, tuple(peers), levels, changes, math.expm1(found.slope), without, needed, recent)


def changed(before: Record, after: Record) -> tuple[str, ...]:
    """What two records say was different between them."""
    told = []
    old, new = (r.code for r in (before, after))
    if old["commit"] != new["commit"]:
        told.append(f"commit {_commit(before)} → {_commit(after)}")
    elif old.get("tree") != new.get("tree"):
        told.append(f"local changes on commit {_commit(after)}")
    names = {**old["libraries"], **new["libraries"]}
    for name in names:
        a, b = (code["libraries"].get(name, "none") for code in (old, new))
        if a != b:
            told.append(f"{name} {a} → {b}")
    if old.get("python") != new.get("python"):
        told.append(f"python {old.get('python')} → {new.get('python')}")
    for name in ("kernel", "driver"):
        a, b = (r.machine.get(name) for r in (before, after))
        if a != b:
            told.append(f"{name} {a or 'none'} → {b or 'none'}")
    return tuple(told)


def _recent(before: Record, after: Record, margin: float) -> compare.Change | None:
    try:
        return compare.changes([before], [after], margin)[0]
    except NotComparable:
        return None


def _peers(records: Sequence[Record]) -> list[str]:
    """Peers that all records share: valid everywhere, with one and the same settings and libraries."""
    first, *rest = records
    shared = [lane.contender for lane in first.contenders if lane.contender != OURS]
    for other in rest or [first]:
        among = {lane.contender for lane, _ in compare.shared_peers(first, other)}
        shared = [name for name in shared if name in among]
    return shared


def _value(record: Record, lane: Lane, peers: Sequence[str]) -> Estimate:
    others = [each for each in record.contenders if each.contender in peers]
    if others:
        return stats.median(compare.relative(lane, others))
    time = stats.median(stats.turns(lane.samples_ns, lane.samples_per_turn))
    return Estimate(time.value / 1e9, time.low / 1e9, time.high / 1e9, time.n)


def _commit(record: Record) -> str:
    return (record.code["commit"] or "unknown")[:7] + ("+" if record.code["dirty"] else "")


def _moment(record: Record) -> float:
    try:
        return datetime.fromisoformat(record.time).timestamp()
    except (TypeError, ValueError):
        raise InputError(f"record {record.id[:12]} has the time {record.time!r}, which is none.") from None
