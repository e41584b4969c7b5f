"""From a record to what people read: rate, share of the ceiling, what limits it, ratio and verdict per peer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.judge import verdict
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.verdict import Comparison, Judged, Validity
from ridgeline.lab.record.record import Lane, Record
from ridgeline.lab.workload import OURS, Work
from ridgeline.machine import Ceiling, Ceilings
from ridgeline.web import binary


@dataclass(frozen=True)
class Limit:
    """A resource the work needs and the rate this machine can give it at (B/s or FLOP/s)."""

    resource: str  # memory | compute | pcie (to the device) | pcie_back | launch
    amount: float
    rate: float
    what: str  # the ceiling in words

    @property
    def floor_s(self) -> float:
        return self.amount / self.rate


@dataclass(frozen=True)
class Row:
    """One contender of one record, derived."""

    record: Record
    lane: Lane
    judged: Judged
    ratio: Estimate | None  # their time / our time; None for ours
    comparison: Comparison | None
    limit: Limit | None  # the resource whose floor is highest

    @property
    def ours(self) -> bool:
        return self.lane.contender == OURS

    @property
    def peer(self) -> bool:
        """Whether a comparison with it says how we do: not with another way or version of ours, not with a control."""
        name = self.lane.contender
        return not self.ours and not name.startswith((f"{OURS}@", f"{OURS} ")) and name not in self.record.controls

    @property
    def seconds(self) -> float | None:
        return self.judged.time.value / 1e9 if self.judged.time else None

    @property
    def items_per_s(self) -> float | None:
        return self.record.work["items"] / self.seconds if self.seconds else None

    @property
    def flops_per_s(self) -> float | None:
        return self.record.work["flops"] / self.seconds if self.seconds and self.record.work["flops"] else None

    @property
    def share(self) -> float | None:
        """Floor over time: 1 is the ceiling itself. None where the ceiling is that of another arithmetic."""
        if self.limit is None or not self.seconds or not _held(self.record, self.lane, self.limit):
            return None
        return self.limit.floor_s / self.seconds

    @property
    def stages(self) -> dict[str, float]:
        """Median seconds of each stage of a step, where the contender took them apart."""
        told: Mapping[str, list[float]] = self.lane.extras.get("stages_ns") or {}
        return {stage: statistics.median(ns) / 1e9 for stage, ns in told.items() if ns}

    @property
    def quality(self) -> Mapping[str, float]:
        """How good the answer was, by name, where the workload measures that: recall, lowest cosine, F1."""
        return (self.lane.check or {}).get("quality") or {}

    def to_json(self) -> dict[str, Any]:
        time, ratio, check = self.judged.time, self.ratio, self.lane.check or {}
        return {
            "contender": self.lane.contender,
            "validity": self.judged.validity,
            "advice": self.judged.advice,
            "median_ns": time.value if time else None,
            "interval_ns": [time.low, time.high] if time else None,
            "samples": len(self.lane.samples_ns),
            "items_per_s": self.items_per_s,
            "unit": self.record.work["unit"],
            "share_of_ceiling": self.share,
            "limited_by": self.limit.resource if self.limit else None,
            "verdict": self.comparison,
            "ratio": ratio.value if ratio else None,
            "ratio_interval": [ratio.low, ratio.high] if ratio else None,
            "error": check.get("error"),
            "quality": self.quality,
            "settings": self.lane.settings,
            "extras": self.lane.extras,
        }


def rows(record: Record) -> list[Row]:
    """All contenders of a record, ours first as the workload named them."""
    judged = {lane.contender: verdict.judge(record, lane) for lane in record.contenders}
    ours = next((lane for lane in record.contenders if lane.contender == OURS), None)
    limit = _binding(limits(record))
    out = []
    for lane in record.contenders:
        ratio = comparison = None
        if ours is not None and lane is not ours and judged[lane.contender].time and judged[OURS].time:
            heats, versions = record.race.get("heats", ()), bool(record.plan.get("versions"))
            ratio, comparison = verdict.in_race(lane, ours, heats=heats, versions=versions)
        out.append(Row(record, lane, judged[lane.contender], ratio, comparison, limit))
    return out


def rate_unit(record: Record) -> str:
    unit = record.work["unit"]
    return "B/s" if unit == "bytes" else f"{unit}/s"


def to_json(record: Record) -> dict[str, Any]:
    return {
        "workload": record.workload,
        "case": dict(record.case),
        "record": record.id,
        "missing": dict(record.missing),
        "contenders": [row.to_json() for row in rows(record)],
    }


def failed(records: list[Record]) -> list[str]:
    """What of ours is wrong or incomplete, in words; a version raced by --against is ours too."""
    bad = (Validity.WRONG, Validity.INCOMPLETE)
    return [
        f"{record.workload} {record.label}: {row.judged.validity}, {row.judged.advice}"
        for record in records
        for row in rows(record)
        if row.lane.contender.partition("@")[0] == OURS and row.judged.validity in bad
    ]


def limits(record: Record) -> list[Limit]:
    """Every resource the work names and a ceiling was measured for."""
    work, told = record.work, record.ceilings
    amounts = {"compute": work["flops"], "launch": work["launches"], **work["bytes"]}
    return [
        Limit(name, amount, told[name]["rate"], told[name]["what"])
        for name, amount in amounts.items()
        if amount and name in told
    ]


def ceilings_of(found: Ceilings, work: Work) -> dict[str, Ceiling]:
    """The measured limits one case is held against, by resource."""
    moved = int(work.working_set or work.bytes.get("memory", 0))
    told = {
        "memory": found.bandwidth(work.mix, moved, work.threads) if work.bytes.get("memory") else None,
        "compute": found.compute(work.dtype) if work.flops else None,
        "pcie": found.transfer("h2d", int(work.bytes["pcie"])) if work.bytes.get("pcie") else None,
        "pcie_back": found.transfer("d2h", int(work.bytes["pcie_back"])) if work.bytes.get("pcie_back") else None,
        "launch": found.launch(),
        "direct": found.launch("direct"),  # no floor, for graphs do better: it tells what limits who does without
    }
    return {resource: ceiling for resource, ceiling in told.items() if ceiling is not None}


def held_against(found: Ceilings, work: Work) -> dict[str, Any]:
    """The same, as the record keeps them (rates in B/s and FLOP/s)."""
    return {
        resource: {
            "rate": _rate(ceiling),
            "name": _name(ceiling),
            "what": f"{ceiling.value:,.1f} {ceiling.unit} {_name(ceiling)}",
        }
        for resource, ceiling in ceilings_of(found, work).items()
    }


def raised(ceilings: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """The same limits after the race: whoever was faster than a ceiling has shown that it lies higher.

    Ceilings are found in a moment, races in minutes; a result over 100 % would only say that the moment was bad.
    """
    binding = _binding(limits(record))
    if binding is None:
        return dict(ceilings)
    held = (lane for lane in record.contenders if _held(record, lane, binding))
    times = [judged.time.value / 1e9 for lane in held if (judged := verdict.judge(record, lane)).time]
    if not times or binding.amount / min(times) <= binding.rate:
        return dict(ceilings)
    rate = binding.amount / min(times)
    old = ceilings[binding.resource]
    what = f"{old['what']}, raised to {rate:.4g}/s by this race"
    return {**ceilings, binding.resource: {**old, "rate": rate, "what": what}}


def _held(record: Record, lane: Lane, limit: Limit) -> bool:
    """Whether this limit is one for this contender: who says it multiplies int8 can pass the ceiling of float32."""
    own = record.work.get("dtype")
    return limit.resource != "compute" or lane.settings.get("arithmetic", own) == own


def _rate(ceiling: Ceiling) -> float:
    """B/s, FLOP/s, launches/s."""
    return 1 / ceiling.base if ceiling.kind == "launch" else ceiling.base


def _name(ceiling: Ceiling) -> str:
    """ "float32 matmul (torch)", "copy of 64 MiB by 2 threads" """
    if ceiling.kind == "matmul":
        return f"{ceiling.dtype} matmul ({ceiling.how})"
    if ceiling.kind == "launch":
        return "per launch by graph" if ceiling.how == "graph" else "per direct launch"
    threads = f" by {ceiling.threads} threads" if (ceiling.threads or 1) > 1 else ""
    how = f"{ceiling.how} " if ceiling.how else ""
    return f"{how}{ceiling.kind} of {binary(ceiling.bytes or 0)}{threads}"


def _binding(found: list[Limit]) -> Limit | None:
    return max(found, key=lambda limit: limit.floor_s, default=None)
