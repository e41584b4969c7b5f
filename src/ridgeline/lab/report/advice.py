"""Advice from records: the knee of a sweep, the better type or memory, the better node, a peer that is faster.

    ridgeline report runs/

Without evidence in the records there is no advice. The levels of one choice were raced at different times, under
different load. So a difference counts only if both sides are VALID, the ratio is beyond the margin, and the intervals
of the two medians are disjoint at 99.9 %.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ridgeline.lab.judge import (
    CONFIDENCE,
    HIGH_CONFIDENCE,
    Comparison,
    Estimate,
    Row,
    Validity,
    analyse_record,
    classify_ratio,
    describe_kind,
    find_best_peer,
    find_sweeps,
    format_ratio,
    median,
    percent,
    rate_unit,
    select_latest,
    turn_medians,
)
from ridgeline.lab.record import Record
from ridgeline.lab.study import build_row, study
from ridgeline.lab.workload import OURS, format_case
from ridgeline.web import format_si

KNEE = 0.95  # of the best rate of a sweep
MIN_GAIN = 1.1  # of the knee over the smallest value
SIZES = ("batch", "batch_size", "chunk", "queries", "ring", "workers", "writers", "threads")  # free to choose
CHOICES = ("dtype", "memory", "pinned", "compile", "compile_mode")  # ways to do the same work
# Keys that only the plan of an experiment's point has.
EXPERIMENT_KEYS = ("run_id", "facts", "duration_s", "device_node", "distance", "placement")


@dataclass(frozen=True)
class Advice:
    """What to set, why, and the records that show it."""

    workload: str
    device: str
    what: str  # empty if `why` says it
    why: str
    case: str = ""  # the case that shows it
    records: tuple[Record, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the advice as a dict for JSON."""
        return {
            "workload": self.workload,
            "device": self.device,
            "what": self.what,
            "why": self.why,
            "case": self.case,
            "records": [r.id for r in self.records],
            "commands": [r.command for r in self.records],
        }


def find_advice(records: Iterable[Record]) -> list[Advice]:
    """Return the advice that the records of one machine support, path by path."""
    paths: dict[tuple[str, str], list[Record]] = {}
    for record in select_latest(records):
        paths.setdefault((record.workload, str(record.case["device"])), []).append(record)
    advice: list[Advice] = []
    for (workload, device), path in paths.items():
        if is_experiment(path[0]):
            advice += _advise_from_study(workload, device, path)
            continue
        ours = {r.id: row for r in path if (row := _find_ours(r)) is not None}
        advice += [
            *_advise_sizes(path, ours),
            *_advise_choices(path, ours),
            *_advise_nodes(path, ours),
            *_advise_peers(path),
        ]
    return advice


def is_experiment(record: Record) -> bool:
    """Whether the record is a point of `ridgeline run`; a study analyses such points together."""
    return all(name in record.plan for name in EXPERIMENT_KEYS) and bool(record.placement and record.contenders)


def _find_ours(record: Record) -> Row | None:
    return next((row for row in analyse_record(record) if row.ours and row.items_per_s), None)


def _advise_sizes(records: Sequence[Record], ours: dict[str, Row]) -> Iterable[Advice]:
    kinds: dict[Any, list[Record]] = {}
    for record in records:
        kinds.setdefault(describe_kind(record), []).append(record)
    for sweep in (sweep for kind_records in kinds.values() for sweep in find_sweeps(kind_records)):
        if sweep.name not in SIZES:
            continue
        families = [[r for r in family if r.id in ours] for family in sweep.families]
        largest = max(families, key=lambda f: sum(r.work["items"] for r in f))
        if len(largest) >= 3 and (advice := _advise_knee(sweep.name, largest, ours)):
            yield advice


def _advise_knee(name: str, family: Sequence[Record], ours: dict[str, Row]) -> Advice | None:
    """Return the smallest value with nearly the best rate; at the end of the sweep a larger one may be better."""
    rates = [ours[r.id].items_per_s or 0.0 for r in family]
    best = max(rates)
    i = next(i for i, rate in enumerate(rates) if rate >= KNEE * best)
    first, knee, last = family[0], family[i], family[-1]
    rest = format_case({k: v for k, v in knee.case.items() if k != name})
    unit = rate_unit(knee)
    if i == len(family) - 1 and rates[-1] * KNEE > rates[-2] and _is_faster(ours[last.id], ours[family[-2].id]):
        rise = f"{format_si(rates[-2], unit)} at {family[-2].case[name]}, {format_si(rates[-1], unit)}"
        what = f"{name} = {last.case[name]} or more"
        why = f"the rate still rises there ({rise}); larger was not measured"
        return Advice(last.workload, str(last.case["device"]), what, why, rest, (last,))
    if i == 0 or rates[i] < MIN_GAIN * rates[0] or not _is_faster(ours[knee.id], ours[first.id]):
        return None
    gain = f"{percent(rates[i] / best)} of the best of the sweep and {format_ratio(rates[i] / rates[0])} × that of"
    why = f"{format_si(rates[i], unit)}, {gain} {name} = {first.case[name]}; more only adds waiting"
    return Advice(knee.workload, str(knee.case["device"]), f"{name} = {knee.case[name]}", why, rest, (first, knee))


def _is_faster(fast: Row, slow: Row) -> bool:
    """Whether `fast` takes less time per item, beyond both intervals, and at least one of the two is VALID."""
    times = slow.assessment.time, fast.assessment.time
    if Validity.VALID not in (slow.assessment.validity, fast.assessment.validity) or None in times:
        return False
    slow_items, fast_items = slow.record.work["items"], fast.record.work["items"]
    assert times[0] is not None and times[1] is not None  # noqa: S101, PT018  checked above
    return bool(times[1].high / fast_items < times[0].low / slow_items)


def _advise_choices(records: Sequence[Record], ours: dict[str, Row]) -> Iterable[Advice]:
    for name in CHOICES:
        families = _group_families(records, ours, partial(_get_parameter, name), partial(_clear_parameter, name))
        differences = [d for family in families if (d := _find_difference(family)) is not None]
        if not differences:
            continue
        better, worse, ratio = max(differences, key=lambda d: d[0].record.work["items"] * d[2].value)
        good, bad = better.record, worse.record
        rest = format_case({k: v for k, v in good.case.items() if k != name})
        more = f"; {len(differences)} cases show it" if len(differences) > 1 else ""
        size = f"{format_ratio(ratio.value)} × as fast as {bad.case[name]} [{ratio.low:.2f} to {ratio.high:.2f}]"
        why = f"{size}{_format_error_cost(better, worse)}{more}"
        yield Advice(good.workload, str(good.case["device"]), f"{name} = {good.case[name]}", why, rest, (good, bad))


def _get_parameter(name: str, record: Record) -> Any:
    return record.case.get(name)


def _clear_parameter(name: str, record: Record) -> dict[str, Any]:
    return {**record.case, name: None}


def _advise_nodes(records: Sequence[Record], ours: dict[str, Row]) -> Iterable[Advice]:
    families = _group_families(records, ours, lambda r: r.node, lambda r: dict(r.case), same_placement=False)
    differences = [d for family in families if (d := _find_difference(family)) is not None]
    for better, worse, ratio in differences[:1]:
        size = f"[{ratio.low:.2f} to {ratio.high:.2f}]"
        why = f"{format_ratio(ratio.value)} × as fast as from node {worse.record.node} {size}"
        good = better.record
        node = f"node {good.node}"
        yield Advice(good.workload, str(good.case["device"]), node, why, good.label, (good, worse.record))


def _group_families(
    records: Sequence[Record],
    ours: dict[str, Row],
    get_level: Callable[[Record], Any],
    get_rest: Callable[[Record], Any],
    same_placement: bool = True,
) -> list[dict[Any, Row]]:
    """Group cases that are equal except for one choice: a dict of level -> our row for each group."""
    families: dict[str, dict[Any, Row]] = {}
    for record in records:
        if record.id in ours and get_level(record) is not None:
            placement = record.placement if same_placement else None
            key = json.dumps([get_rest(record), record.cold, placement], default=str)
            families.setdefault(key, {})[get_level(record)] = ours[record.id]
    return [family for family in families.values() if len(family) > 1]


def _find_difference(family: dict[Any, Row]) -> tuple[Row, Row, Estimate] | None:
    """Return the fastest level, the slowest, and their ratio; None if the difference is not certain."""
    rows = sorted(family.values(), key=lambda row: row.items_per_s or 0.0)
    slow, fast = rows[0], rows[-1]
    if any(row.assessment.validity is not Validity.VALID for row in (slow, fast)):
        return None
    ratio, confident = (_compute_ratio(slow, fast, confidence) for confidence in (CONFIDENCE, HIGH_CONFIDENCE))
    return (fast, slow, ratio) if classify_ratio(ratio, confident) is Comparison.SLOWER else None


def _compute_ratio(slow: Row, fast: Row, confidence: float) -> Estimate:
    """Return the ratio of the times per item; its interval combines the ends of both, so it is conservative."""
    results = (slow.result, fast.result)
    slow_time, fast_time = (median(turn_medians(x.samples_ns, x.samples_per_turn), confidence) for x in results)
    scale = fast.record.work["items"] / slow.record.work["items"]
    low, high = scale * slow_time.low / fast_time.high, scale * slow_time.high / fast_time.low
    return Estimate(scale * slow_time.value / fast_time.value, low, high, min(slow_time.n, fast_time.n))


def _format_error_cost(better: Row, worse: Row) -> str:
    """Say how much larger the error of the faster way is, if it is."""
    better_error, worse_error = ((row.result.check or {}).get("error") for row in (better, worse))
    return (
        f"; its largest error is {better_error:.2g} against {worse_error:.2g}"
        if better_error and worse_error and better_error > worse_error
        else ""
    )


def _advise_peers(records: Sequence[Record]) -> Iterable[Advice]:
    """Advise a peer that is faster than ours, with the quality of its output."""
    faster: dict[str, list[tuple[Record, Row, Row]]] = {}
    for record in records:
        rows = analyse_record(record)
        ours, best = next((r for r in rows if r.ours), None), find_best_peer(rows)
        if ours and best and best.comparison is Comparison.FASTER:
            faster.setdefault(best.result.contender, []).append((record, ours, best))
    for peer, cases in faster.items():
        record, ours, best = min(cases, key=lambda c: c[2].ratio.value if c[2].ratio else 1.0)
        lead = 1 / best.ratio.value if best.ratio else 1.0
        differences = [
            f"{name} {best.quality[name]:.4g} against {ours.quality[name]:.4g}"
            for name in best.quality
            if name in ours.quality and best.quality[name] != ours.quality[name]
        ]
        note = f"; {', '.join(differences)}" if differences else ""
        why = f"ahead of {OURS} in {len(cases)} of {len(records)} cases, at most {format_ratio(lead)} ×{note}"
        yield Advice(record.workload, str(record.case["device"]), f"consider {peer}", why, record.label, (record,))


def _advise_from_study(workload: str, device: str, records: Sequence[Record]) -> Iterable[Advice]:
    """Study an experiment; its first section says what to choose, if there was a choice."""
    result = study([build_row(r) for r in records])
    if all(advice["options"] < 2 for goal in ("throughput", "latency") for advice in result.recommendation[goal]):
        return []
    return [Advice(workload, device, "", sentence) for section in result.sections[:1] for sentence in section.sentences]
