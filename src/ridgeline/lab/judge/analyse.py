"""Analyse a record: rate, share of the ceiling, the binding limit, and the ratio and verdict of each peer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.judge import verdict
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.verdict import Assessment, Comparison, Validity
from ridgeline.lab.record import ContenderResult, Record
from ridgeline.lab.workload import OURS, Work
from ridgeline.machine import Ceiling, Ceilings
from ridgeline.web import format_bytes

RUN_EXTRAS = ("runs", "latencies_ms")  # raw values, one for each run or request
PERCENTILES = (50, 90, 99, 99.9)


@dataclass(frozen=True)
class Limit:
    """A resource that the work uses, and the rate at which this machine supplies it (B/s, FLOP/s or launches/s)."""

    resource: str  # memory | compute | pcie (to the device) | pcie_back | launch
    amount: float
    rate: float
    what: str  # the ceiling in words

    @property
    def floor_s(self) -> float:
        """The shortest possible time of a step by this resource alone, in seconds."""
        return self.amount / self.rate


@dataclass(frozen=True)
class Row:
    """One contender of one record with everything derived from it."""

    record: Record
    result: ContenderResult
    assessment: Assessment
    ratio: Estimate | None  # their time / our time; None for ours
    comparison: Comparison | None
    limit: Limit | None  # the resource with the highest floor

    @property
    def ours(self) -> bool:
        """Whether the others are compared with this contender: ridgeline itself, or the first of a user's."""
        return self.result.contender == self.record.reference

    @property
    def peer(self) -> bool:
        """Whether this contender is a peer: not another version or variant of ours, and not a control."""
        name = self.result.contender
        return (
            not self.ours
            and not (self.record.is_ours and name.startswith((f"{OURS}@", f"{OURS} ")))
            and name not in self.record.controls
        )

    @property
    def seconds(self) -> float | None:
        """The median time of a step; None if it may not be shown."""
        return self.assessment.time.value / 1e9 if self.assessment.time else None

    @property
    def items_per_s(self) -> float | None:
        """The rate of work."""
        return self.record.work["items"] / self.seconds if self.seconds else None

    @property
    def flops_per_s(self) -> float | None:
        """The rate of arithmetic; None if the work counts none."""
        return self.record.work["flops"] / self.seconds if self.seconds and self.record.work["flops"] else None

    @property
    def share(self) -> float | None:
        """Floor / time: 1 is the ceiling itself. None if the ceiling does not apply to this contender."""
        if self.limit is None or not self.seconds or not _applies(self.record, self.result, self.limit):
            return None
        return self.limit.floor_s / self.seconds

    @property
    def stages(self) -> dict[str, float]:
        """Median seconds of each stage of a step, if the contender measured its stages."""
        stages_ns: Mapping[str, list[float]] = self.result.extras.get("stages_ns") or {}
        return {stage: statistics.median(ns) / 1e9 for stage, ns in stages_ns.items() if ns}

    @property
    def measures(self) -> dict[str, Any]:
        """What a race of commands or of HTTP endpoints measured besides time, as one value for each quantity."""
        return summarise_runs(self.result.extras) if self.assessment.time else {}

    @property
    def quality(self) -> Mapping[str, float]:
        """The quality of the output by name, if the workload measures it: recall, lowest cosine, F1."""
        return (self.result.check or {}).get("quality") or {}

    def to_json(self) -> dict[str, Any]:
        """Return the row as a dict for JSON."""
        time, ratio, check = self.assessment.time, self.ratio, self.result.check or {}
        return {
            "contender": self.result.contender,
            "validity": self.assessment.validity,
            "advice": self.assessment.advice,
            "median_ns": time.value if time else None,
            "interval_ns": [time.low, time.high] if time else None,
            "samples": len(self.result.samples_ns),
            "items_per_s": self.items_per_s,
            "unit": self.record.work["unit"],
            "share_of_ceiling": self.share,
            "limited_by": self.limit.resource if self.limit else None,
            "verdict": self.comparison,
            "ratio": ratio.value if ratio else None,
            "ratio_interval": [ratio.low, ratio.high] if ratio else None,
            "error": check.get("error"),
            "quality": self.quality,
            "settings": self.result.settings,
            "extras": {name: value for name, value in self.result.extras.items() if name not in RUN_EXTRAS},
            **self.measures,
        }


def analyse_record(record: Record) -> list[Row]:
    """Return a row for each contender of a record, in the order of the record (ours first)."""
    assessments = {result.contender: verdict.assess(record, result) for result in record.contenders}
    reference = record.reference
    ours = next((result for result in record.contenders if result.contender == reference), None)
    margin = get_margin(record)
    limit = _find_binding_limit(list_limits(record))
    rows = []
    for result in record.contenders:
        ratio = comparison = None
        if (
            ours is not None
            and result is not ours
            and assessments[result.contender].time
            and assessments[reference].time
        ):
            executions, versions = record.race.get("executions", ()), bool(record.plan.get("versions"))
            cases = int(record.plan.get("cases") or 1)
            ratio, comparison = verdict.compare_in_race(result, ours, margin, executions, versions, cases)
        rows.append(Row(record, result, assessments[result.contender], ratio, comparison, limit))
    return rows


def summarise_runs(extras: Mapping[str, Any]) -> dict[str, Any]:
    """Return one value for each quantity that a contender measured run by run, or request by request.

    Commands: the median of CPU time and instructions, the largest peak of memory. HTTP: percentiles of the latency,
    counted from the moment at which a request was due, and the rate of answers.
    """
    out: dict[str, Any] = {}
    if isinstance(runs := extras.get("runs"), Mapping):
        for name, values in runs.items():
            known = [value for value in values if value is not None]
            middle = max if name == "peak_bytes" else statistics.median
            out[name] = middle(known) if known else None
    if isinstance(latencies := extras.get("latencies_ms"), Sequence) and latencies:
        ordered = sorted(latencies)
        for share in PERCENTILES:
            out[f"p{share:g}_ms"] = ordered[min(len(ordered) - 1, max(0, math.ceil(share / 100 * len(ordered)) - 1))]
        out["requests"], out["errors"] = len(ordered), extras.get("errors", 0)
        out["rate_per_s"] = extras.get("rate_per_s")
    return out


def get_margin(record: Record) -> float:
    """Return the relative difference below which two times of a record are the same (default: MARGIN)."""
    margin = record.plan.get("margin")
    return float(margin) if isinstance(margin, int | float) and 0 < margin < 1 else verdict.MARGIN


def rate_unit(record: Record) -> str:
    """Return the unit of the record's rate: "B/s", "texts/s"."""
    unit = record.work["unit"]
    return "B/s" if unit == "bytes" else f"{unit}/s"


def analysis_to_json(record: Record) -> dict[str, Any]:
    """Return the analysis of a record as a dict for JSON."""
    return {
        "workload": record.workload,
        "case": dict(record.case),
        "record": record.id,
        "missing": dict(record.missing),
        "contenders": [row.to_json() for row in analyse_record(record)],
    }


def list_failures(records: list[Record]) -> list[str]:
    """Return a sentence for each result of ours that is WRONG or INCOMPLETE; versions of --against are ours too.

    In a race of a user's own contenders all of them count.
    """
    bad = (Validity.WRONG, Validity.INCOMPLETE)
    return [
        f"{record.workload} {record.label}: {row.assessment.validity}, {row.assessment.advice}"
        for record in records
        for row in analyse_record(record)
        if row.assessment.validity in bad and (not record.is_ours or row.result.contender.partition("@")[0] == OURS)
    ]


def list_limits(record: Record) -> list[Limit]:
    """Return the limits of the resources that the work uses and that have a measured ceiling."""
    work, ceilings = record.work, record.ceilings
    amounts = {"compute": work["flops"], "launch": work["launches"], **work["bytes"]}
    return [
        Limit(name, amount, ceilings[name]["rate"], ceilings[name]["what"])
        for name, amount in amounts.items()
        if amount and name in ceilings
    ]


def match_ceilings(measured: Ceilings, work: Work) -> dict[str, Ceiling]:
    """Return the ceilings that apply to `work`, by resource."""
    size = int(work.working_set or work.bytes.get("memory", 0))
    to_device, from_device = (int(work.bytes.get(way, 0)) for way in ("pcie", "pcie_back"))
    ceilings = {
        "memory": measured.bandwidth(work.mix, size, work.threads) if work.bytes.get("memory") else None,
        "compute": measured.compute(work.dtype) if work.flops else None,
        "pcie": measured.transfer("h2d", to_device) if work.bytes.get("pcie") else None,
        "pcie_back": measured.transfer("d2h", from_device) if work.bytes.get("pcie_back") else None,
        "launch": measured.launch(),
        "direct": measured.launch("direct"),  # not a floor, because graphs are faster: explains paths without graphs
    }
    return {resource: ceiling for resource, ceiling in ceilings.items() if ceiling is not None}


def describe_ceilings(measured: Ceilings, work: Work) -> dict[str, Any]:
    """Return the ceilings that apply to `work` as a record stores them (rates in B/s, FLOP/s, launches/s)."""
    return {
        resource: {
            "rate": _rate(ceiling),
            "name": _format_name(ceiling),
            "what": f"{ceiling.value:,.1f} {ceiling.unit} {_format_name(ceiling)}",
        }
        for resource, ceiling in match_ceilings(measured, work).items()
    }


def raise_ceilings(ceilings: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Return the ceilings of a record after its race: a contender above a ceiling shows that the ceiling is higher.

    A ceiling is measured in a moment, a race in minutes. A share above 100 % would only show that the moment was bad.
    """
    binding = _find_binding_limit(list_limits(record))
    if binding is None:
        return dict(ceilings)
    results = (result for result in record.contenders if _applies(record, result, binding))
    times = [a.time.value / 1e9 for result in results if (a := verdict.assess(record, result)).time]
    if not times or binding.amount / min(times) <= binding.rate:
        return dict(ceilings)
    rate = binding.amount / min(times)
    old = ceilings[binding.resource]
    what = f"{old['what']}, raised to {rate:.4g}/s by this race"
    return {**ceilings, binding.resource: {**old, "rate": rate, "what": what}}


def _applies(record: Record, result: ContenderResult, limit: Limit) -> bool:
    """Whether a limit applies to a contender: one that multiplies int8 can exceed the ceiling of float32."""
    dtype = record.work.get("dtype")
    return limit.resource != "compute" or result.settings.get("arithmetic", dtype) == dtype


def _rate(ceiling: Ceiling) -> float:
    """B/s, FLOP/s, launches/s."""
    return 1 / ceiling.base if ceiling.kind == "launch" else ceiling.base


def _format_name(ceiling: Ceiling) -> str:
    """ "float32 matmul (torch)", "copy of 64 MiB by 2 threads" """
    if ceiling.kind == "matmul":
        return f"{ceiling.dtype} matmul ({ceiling.how})"
    if ceiling.kind == "launch":
        return "per launch by graph" if ceiling.how == "graph" else "per direct launch"
    threads = f" by {ceiling.threads} threads" if (ceiling.threads or 1) > 1 else ""
    how = f"{ceiling.how} " if ceiling.how else ""
    return f"{how}{ceiling.kind} of {format_bytes(ceiling.bytes or 0)}{threads}"


def _find_binding_limit(limits: list[Limit]) -> Limit | None:
    return max(limits, key=lambda limit: limit.floor_s, default=None)
