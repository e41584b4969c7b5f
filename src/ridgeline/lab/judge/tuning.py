"""What to change, as far as the records say: the knee of a sweep, the better type or memory, the better place, a peer
that is ahead. Where they say nothing, nothing is advised.

    ridgeline report runs/

Levels of one choice were raced at different times, so a difference between them must be shown in spite of the weather:
both sides VALID, the ratio beyond the margin, and the intervals of the two medians apart at 99.9 %.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.experiment.rows import row as study_row
from ridgeline.lab.judge import analyse, stats, verdict
from ridgeline.lab.judge.analyse import Row, rate_unit
from ridgeline.lab.judge.findings import best_peer, kind_of, latest, times
from ridgeline.lab.judge.limiting import percent
from ridgeline.lab.judge.sweeps import sweeps
from ridgeline.lab.judge.verdict import Comparison, Validity
from ridgeline.lab.record.record import Record
from ridgeline.lab.study import study
from ridgeline.lab.workload import OURS, label
from ridgeline.web import si

KNEE = 0.95  # of the best rate of a sweep
WORTH = 1.1  # what the knee must bring over the smallest value
SIZES = ("batch", "batch_size", "chunk", "queries", "ring", "workers", "writers", "threads")  # free to choose
STUDIED = ("run_id", "facts", "duration_s", "device_node", "distance", "stand")  # what the plan of such a point says
CHOICES = ("dtype", "memory", "pinned", "compile", "compile_mode")  # ways of doing the same thing


@dataclass(frozen=True)
class Change:
    """One piece of advice: what to set, why, and the records that say so."""

    workload: str
    device: str
    what: str  # empty where the sentence says it
    why: str
    case: str = ""  # the one that shows it
    records: tuple[Record, ...] = ()

    def to_json(self) -> dict[str, Any]:
        told = {"workload": self.workload, "device": self.device, "what": self.what, "why": self.why}
        return {
            **told,
            "case": self.case,
            "records": [r.id for r in self.records],
            "commands": [r.command for r in self.records],
        }


def changes(records: Iterable[Record]) -> list[Change]:
    """What the records of one machine support, path by path."""
    held = latest(records)
    paths: dict[tuple[str, str], list[Record]] = {}
    for record in held:
        paths.setdefault((record.workload, str(record.case["device"])), []).append(record)
    found: list[Change] = []
    for (workload, device), own in paths.items():
        if is_study(own[0]):
            found += _studied(workload, device, own)
            continue
        ours = {r.id: row for r in own if (row := _ours(r)) is not None}
        found += [*_knees(own, ours), *_choices(own, ours), *_places(own, ours), *_peers(own)]
    return found


def is_study(record: Record) -> bool:
    """Whether it is a point of `ridgeline run`: those are studied together."""
    return all(name in record.plan for name in STUDIED) and bool(record.placement and record.contenders)


def _ours(record: Record) -> Row | None:
    return next((row for row in analyse.rows(record) if row.ours and row.items_per_s), None)


def _knees(records: Sequence[Record], ours: dict[str, Row]) -> Iterable[Change]:
    kinds: dict[Any, list[Record]] = {}
    for record in records:
        kinds.setdefault(kind_of(record), []).append(record)
    for sweep in (found for own in kinds.values() for found in sweeps(own)):
        if sweep.name not in SIZES:
            continue
        families = [[r for r in family if r.id in ours] for family in sweep.families]
        largest = max(families, key=lambda f: sum(r.work["items"] for r in f))
        if len(largest) >= 3 and (made := _knee(sweep.name, largest, ours)):
            yield made


def _knee(name: str, family: Sequence[Record], ours: dict[str, Row]) -> Change | None:
    """The smallest value with nearly the best rate; at the end of the sweep the end is not known yet."""
    rates = [ours[r.id].items_per_s or 0.0 for r in family]
    best = max(rates)
    at = next(i for i, rate in enumerate(rates) if rate >= KNEE * best)
    first, knee, last = family[0], family[at], family[-1]
    rest = label({k: v for k, v in knee.case.items() if k != name})
    unit = rate_unit(knee)
    if at == len(family) - 1 and rates[-1] * KNEE > rates[-2] and _apart(ours[family[-2].id], ours[last.id]):
        said = f"the rate still rises there ({si(rates[-2], unit)} at {family[-2].case[name]}, {si(rates[-1], unit)})"
        what = f"{name} = {last.case[name]} or more"
        why = f"{said}; larger was not measured"
        return Change(last.workload, str(last.case["device"]), what, why, rest, (last,))
    if at == 0 or rates[at] < WORTH * rates[0] or not _apart(ours[first.id], ours[knee.id]):
        return None
    gain = f"{percent(rates[at] / best)} of the best of the sweep and {times(rates[at] / rates[0])} × that of"
    why = f"{si(rates[at], unit)}, {gain} {name} = {first.case[name]}; more only adds waiting"
    return Change(knee.workload, str(knee.case["device"]), f"{name} = {knee.case[name]}", why, rest, (first, knee))


def _apart(a: Row, b: Row) -> bool:
    """Whether the second is faster per item beyond both intervals, and neither is in doubt."""
    if Validity.VALID not in (a.judged.validity, b.judged.validity) or a.judged.time is None or b.judged.time is None:
        return False
    items = a.record.work["items"], b.record.work["items"]
    return bool(b.judged.time.high / items[1] < a.judged.time.low / items[0])


def _choices(records: Sequence[Record], ours: dict[str, Row]) -> Iterable[Change]:
    for name in CHOICES:
        families = _families(records, ours, lambda r, n=name: r.case.get(n), lambda r, n=name: {**r.case, n: None})
        told = [t for family in families.values() if (t := _better(family)) is not None]
        if not told:
            continue
        better, worse, ratio = max(told, key=lambda t: t[0].record.work["items"] * t[2].value)
        good, bad = better.record, worse.record
        rest = label({k: v for k, v in good.case.items() if k != name})
        price = _price(better, worse)
        more = f"; {len(told)} cases show it" if len(told) > 1 else ""
        size = f"{times(ratio.value)} × as fast as {bad.case[name]} [{ratio.low:.2f} to {ratio.high:.2f}]"
        why = f"{size}{price}{more}"
        yield Change(good.workload, str(good.case["device"]), f"{name} = {good.case[name]}", why, rest, (good, bad))


def _places(records: Sequence[Record], ours: dict[str, Row]) -> Iterable[Change]:
    families = _families(records, ours, lambda r: r.node, lambda r: dict(r.case), placed=False)
    told = [t for family in families.values() if (t := _better(family)) is not None]
    for better, worse, ratio in told[:1]:
        why = f"{times(ratio.value)} × as fast as from node {worse.record.node} [{ratio.low:.2f} to {ratio.high:.2f}]"
        where = f"node {better.record.node}"
        good = better.record
        yield Change(good.workload, str(good.case["device"]), where, why, good.label, (good, worse.record))


def _families(records: Sequence[Record], ours: dict[str, Row], level: Any, rest: Any, placed: bool = True) -> Any:
    """Cases that are equal but for one choice: rest -> level -> our row."""
    found: dict[str, dict[Any, Row]] = {}
    for record in records:
        if record.id in ours and level(record) is not None:
            key = json.dumps([rest(record), record.cold, record.placement if placed else None], default=str)
            found.setdefault(key, {})[level(record)] = ours[record.id]
    return {key: family for key, family in found.items() if len(family) > 1}


def _better(family: dict[Any, Row]) -> tuple[Row, Row, stats.Estimate] | None:
    """The fastest level, the slowest, and their ratio; None where a difference is not shown."""
    rows = sorted(family.values(), key=lambda row: row.items_per_s or 0.0)
    slow, fast = rows[0], rows[-1]
    if any(row.judged.validity is not Validity.VALID for row in (slow, fast)):
        return None
    ratio, sure = (_ratio(slow, fast, confidence) for confidence in (stats.CONFIDENCE, stats.SURE))
    return (fast, slow, ratio) if verdict.compare(ratio, sure) is Comparison.SLOWER else None


def _ratio(slow: Row, fast: Row, confidence: float) -> stats.Estimate:
    """Of the times per item; its interval is as wide as both medians' intervals allow, so it covers at the least."""
    lanes = (slow.lane, fast.lane)
    theirs, ours = (stats.median(stats.turns(x.samples_ns, x.samples_per_turn), confidence) for x in lanes)
    by = fast.record.work["items"] / slow.record.work["items"]
    low, high = by * theirs.low / ours.high, by * theirs.high / ours.low
    return stats.Estimate(by * theirs.value / ours.value, low, high, min(theirs.n, ours.n))


def _price(better: Row, worse: Row) -> str:
    """What the faster way gives up in the check's own measure, where it does."""
    ours, theirs = ((row.lane.check or {}).get("error") for row in (better, worse))
    return f"; its largest error is {ours:.2g} against {theirs:.2g}" if ours and theirs and ours > theirs else ""


def _peers(records: Sequence[Record]) -> Iterable[Change]:
    """Where a peer is ahead of ours, it is the better choice, if its answers are good enough."""
    ahead: dict[str, list[tuple[Record, Row, Row]]] = {}
    for record in records:
        rows = analyse.rows(record)
        mine, best = next((r for r in rows if r.ours), None), best_peer(rows)
        if mine and best and best.comparison is Comparison.FASTER:
            ahead.setdefault(best.lane.contender, []).append((record, mine, best))
    for peer, told in ahead.items():
        record, mine, best = min(told, key=lambda t: t[2].ratio.value if t[2].ratio else 1.0)
        lead = 1 / best.ratio.value if best.ratio else 1.0
        lower = [
            f"{name} {best.quality[name]:.4g} against {mine.quality[name]:.4g}"
            for name in best.quality
            if name in mine.quality and best.quality[name] != mine.quality[name]
        ]
        note = f"; {', '.join(lower)}" if lower else ""
        why = f"ahead of {OURS} in {len(told)} of {len(records)} cases, at most {times(lead)} ×{note}"
        yield Change(record.workload, str(record.case["device"]), f"consider {peer}", why, record.label, (record,))


def _studied(workload: str, device: str, records: Sequence[Record]) -> Iterable[Change]:
    """An experiment is studied as a whole; its first section says what to choose, where there was a choice."""
    found = study([study_row(r) for r in records])
    if all(advice["options"] < 2 for goal in ("throughput", "latency") for advice in found.recommendation[goal]):
        return []
    return [Change(workload, device, "", said) for section in found.sections[:1] for said in section.said]
