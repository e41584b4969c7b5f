"""Records over time: the level of each case on each kind of machine, its steps and drifts, and what changed.

    ridgeline history benchmarks/records

A series holds the records of one workload, case, placement and kind of machine, oldest first. If all of them raced
the same peers with the same settings and libraries, the values are times relative to those peers, as in `compare`,
which cancels the load of the machine; else they are the times as measured, and `Series.basis` says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

from ridgeline.errors import InputError, NotComparable
from ridgeline.lab.judge import stats, verdict
from ridgeline.lab.judge.change_points import ALPHA, MIN_RECORDS, compute_min_records, find_change_points
from ridgeline.lab.judge.compare import Change, compare_records, find_shared_peers, relative_times
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.verdict import MARGIN, Assessment
from ridgeline.lab.record import ContenderResult, Record


@dataclass(frozen=True)
class Moment:
    """One record of a series."""

    record: Record
    assessment: Assessment
    value: Estimate  # seconds, or our time / the peers' time


@dataclass(frozen=True)
class Step:
    """A change of the level between two records."""

    before: Record  # the last record of the old level
    after: Record  # the first record of the new level
    ratio: Estimate  # new level / old level; above 1 is slower
    p: float
    differences: tuple[str, ...]  # what the two records say is different, the commit first

    @property
    def slower(self) -> bool:
        """Whether the new level is slower."""
        return self.ratio.value > 1

    def to_json(self) -> dict[str, Any]:
        """Return the step as a dict for JSON."""
        return {
            "direction": "slower" if self.slower else "faster",
            "ratio": self.ratio.value,
            "ratio_interval": [self.ratio.low, self.ratio.high],
            "p": self.p,
            "before": {"record": self.before.id, "time": self.before.time, "commit": self.before.code["commit"]},
            "after": {"record": self.after.id, "time": self.after.time, "commit": self.after.code["commit"]},
            "changed": list(self.differences),
        }


@dataclass(frozen=True)
class Series:
    """The records of one case on one kind of machine, oldest first."""

    moments: tuple[Moment, ...]
    peers: tuple[str, ...]  # the values are relative to these; empty: seconds as measured
    levels: tuple[tuple[int, Estimate], ...]  # index of its first moment, median
    steps: tuple[Step, ...]
    drift: float  # of the last level, relative change per record; 0 if there is none
    without: tuple[Record, ...] = ()  # records that have no valid time
    needed: int = MIN_RECORDS  # the number of records that can show a step
    recent: Change | None = None  # the last two records, if there are fewer

    @property
    def last(self) -> Record:
        """The newest record."""
        return self.moments[-1].record

    @property
    def basis(self) -> str:
        """What the values are, in words."""
        return f"time relative to {', '.join(self.peers)}" if self.peers else "time as measured, load included"

    @property
    def verdict(self) -> str:
        """STEADY, SLOWER, FASTER (by the last step), DRIFTING, or TOO FEW records."""
        if self.drift:
            return "DRIFTING"
        if self.steps:
            return "SLOWER" if self.steps[-1].slower else "FASTER"
        return "TOO FEW" if len(self.moments) < self.needed else "STEADY"

    def to_json(self) -> dict[str, Any]:
        """Return the series as a dict for JSON."""
        return {
            "workload": self.last.workload,
            "case": dict(self.last.case),
            "cold": self.last.cold,
            "machine": {"fingerprint": self.last.machine["fingerprint"], "cpu": self.last.machine["cpu"]},
            "verdict": self.verdict,
            "basis": self.basis,
            "records": [
                {
                    "record": m.record.id,
                    "time": m.record.time,
                    "commit": m.record.code["commit"],
                    "dirty": m.record.code["dirty"],
                    "validity": m.assessment.validity,
                    "median_ns": m.assessment.time.value if m.assessment.time else None,
                    "value": m.value.value,
                }
                for m in self.moments
            ],
            "levels": [{"from": self.moments[start].record.id, "value": level.value} for start, level in self.levels],
            "steps": [s.to_json() for s in self.steps],
            "last_level_over_first": self.levels[-1][1].value / self.levels[0][1].value,
            "drift_per_record": self.drift,
            "without_time": [r.id for r in self.without],
            "since_the_one_before": self.recent.to_json() if self.recent else None,
        }


def build_history(records: Iterable[Record], alpha: float = ALPHA, margin: float = MARGIN) -> list[Series]:
    """Return every series with a valid time of ours, by machine, workload and case.

    `alpha`: the false-alarm probability per series. `margin`: smaller relative steps do not count.
    """
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=_parse_time):
        groups.setdefault((record.machine["fingerprint"], record.subject), []).append(record)
    series = [s for group in groups.values() if (s := _build_series(group, alpha, margin)) is not None]
    return sorted(series, key=lambda s: (s.last.machine["fingerprint"], s.last.workload))


def _build_series(records: Sequence[Record], alpha: float, margin: float) -> Series | None:
    timed: list[tuple[Record, ContenderResult, Assessment]] = []
    for record in records:
        result = next((each for each in record.contenders if each.contender == record.reference), None)
        assessment = verdict.assess(record, result) if result else None
        if result and assessment and assessment.time:
            timed.append((record, result, assessment))
    without = tuple(r for r in records if all(r is not t for t, _, _ in timed))
    if not timed:
        return None
    peers = _find_common_peers([record for record, _, _ in timed])
    moments = tuple(
        Moment(record, assessment, _compute_value(record, result, peers)) for record, result, assessment in timed
    )
    logs = [math.log(m.value.value) for m in moments]
    points = find_change_points(logs, alpha, math.log(1 + margin))
    bounds = [0, *points.steps, len(moments)]
    parts = [[m.value.value for m in moments[a:b]] for a, b in pairwise(bounds)]
    levels = tuple((start, stats.median(part)) for start, part in zip(bounds, parts, strict=False))
    steps = tuple(
        Step(
            moments[start - 1].record,
            moments[start].record,
            stats.unpaired_ratio(parts[i + 1], parts[i]),
            p,
            list_differences(moments[start - 1].record, moments[start].record),
        )
        for i, (start, p) in enumerate(zip(points.steps, points.p, strict=True))
    )
    needed = compute_min_records(alpha)
    recent = _compare_last(timed[-2][0], timed[-1][0], margin) if 1 < len(timed) < needed else None
    return Series(moments, tuple(peers), levels, steps, math.expm1(points.slope), without, needed, recent)


def list_differences(before: Record, after: Record) -> tuple[str, ...]:
    """Return what two records say is different: commit, libraries, Python, kernel, driver."""
    differences = []
    old, new = (r.code for r in (before, after))
    if old["commit"] != new["commit"]:
        differences.append(f"commit {_format_commit(before)} → {_format_commit(after)}")
    elif old.get("tree") != new.get("tree"):
        differences.append(f"local changes on commit {_format_commit(after)}")
    names = {**old["libraries"], **new["libraries"]}
    for name in names:
        a, b = (code["libraries"].get(name, "none") for code in (old, new))
        if a != b:
            differences.append(f"{name} {a} → {b}")
    if old.get("python") != new.get("python"):
        differences.append(f"python {old.get('python')} → {new.get('python')}")
    for name in ("kernel", "driver"):
        a, b = (r.machine.get(name) for r in (before, after))
        if a != b:
            differences.append(f"{name} {a or 'none'} → {b or 'none'}")
    return tuple(differences)


def _compare_last(before: Record, after: Record, margin: float) -> Change | None:
    try:
        return compare_records([before], [after], margin)[0]
    except NotComparable:
        return None


def _find_common_peers(records: Sequence[Record]) -> list[str]:
    """Return the peers that all records share, with valid times and the same settings and libraries."""
    first, *rest = records
    shared = [result.contender for result in first.contenders if result.contender != first.reference]
    for other in rest or [first]:
        common = {result.contender for result, _ in find_shared_peers(first, other)}
        shared = [name for name in shared if name in common]
    return shared


def _compute_value(record: Record, ours: ContenderResult, peers: Sequence[str]) -> Estimate:
    others = [each for each in record.contenders if each.contender in peers]
    if others:
        return stats.median(relative_times(ours, others))
    time = stats.median(stats.turn_medians(ours.samples_ns, ours.samples_per_turn))
    return Estimate(time.value / 1e9, time.low / 1e9, time.high / 1e9, time.n)


def _format_commit(record: Record) -> str:
    return (record.code["commit"] or "unknown")[:7] + ("+" if record.code["dirty"] else "")


def _parse_time(record: Record) -> float:
    try:
        return datetime.fromisoformat(record.time).timestamp()
    except (TypeError, ValueError):
        raise InputError(f"record {record.id[:12]} has the time {record.time!r}, which is not a time.") from None
