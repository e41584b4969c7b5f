"""From records to the rows of results.json: flat, one per point, and only what the record says."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ridgeline.lab.judge import MIN_OBSERVATIONS, NOISY, Validity, clip_share, list_throttle_reasons, median
from ridgeline.lab.record import ContenderResult, Record
from ridgeline.web import format_si

STAGES = ("h2d", "compute", "d2h")
MIN_SAMPLES, MIN_SECONDS = 30, 1.0  # a run with fewer batches, in less time, says nothing about the speed of a model
MAX_SKEW = 1.25  # mean over median of the batches, or its inverse; beyond it neither stands for the run


def select_latest(records: Iterable[Record]) -> list[Record]:
    """Return the newest record of every point, in the order in which points were first measured."""
    latest: dict[tuple[str, str], Record] = {}
    for record in records:
        latest[record.machine["fingerprint"], record.plan.get("key", record.id)] = record
    return list(latest.values())


def build_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return a row for the newest record of every point."""
    return [build_row(record) for record in select_latest(records)]


def build_row(record: Record) -> dict[str, Any]:
    """Return the row of one record of an experiment. Times are in seconds, amounts are per batch."""
    result, plan, work = record.contenders[0], record.plan, record.work
    error = _find_error(result)
    seconds = [ns / 1e9 for ns in result.samples_ns] if error is None else []
    alone = {stage: ns / 1e9 for stage, ns in (result.extras.get("alone_ns") or {}).items()}
    mean = statistics.fmean(seconds) if seconds else None
    overlap = clip_share(max(alone.values()) / mean) if alone and mean else None
    validity, advice = _assess(record, error, seconds, alone)
    place = record.placement[0]
    moved = work["bytes"]
    return {
        "run_id": plan["run_id"],
        "experiment": record.workload,
        **{k: v for k, v in record.case.items() if k != "ranks"},
        "success": error is None,
        "error": error,
        "duration": plan["duration_s"],
        "gpu_id": place["gpu"],
        "gpu_ids": plan.get("gpu_ids"),  # only of GPUs that work together
        "numa_node": place["node"],
        "device_node": plan["device_node"],
        "distance": plan["distance"],
        "placement": plan["placement"],
        "cpus": len(place["cpus"]),
        "throughput": work["items"] / mean if mean else None,
        "batch_seconds": statistics.median(seconds) if seconds else None,
        "samples": seconds,
        **{f"{stage}_seconds": alone.get(stage) for stage in STAGES},
        "overlap": overlap,
        "validity": validity.value,
        "advice": advice,
        "flops": work["flops"],
        "h2d_bytes": moved.get("pcie", moved.get("staged", 0)),
        "d2h_bytes": moved.get("pcie_back", moved.get("staged_back", 0)),
        "peak_host_memory": result.extras.get("peak_host_bytes"),
        "peak_gpu_memory": result.extras.get("peak_gpu_bytes"),
        "peak_memory": result.extras.get("peak_gpu_bytes", result.extras.get("peak_host_bytes")),
        **plan["facts"],
        **(result.extras.get("columns") or {}),
        **{f"ceiling_{name}": ceiling["rate"] for name, ceiling in record.ceilings.items()},
        "machine": record.machine["fingerprint"],
        "time": record.time,
        "record": record.id,
    }


def label_runs(records: Iterable[Record]) -> dict[str, str]:
    """Return run_id -> name for people: what was measured, and the parameters in which runs of that name differ."""
    families: dict[str, list[Record]] = {}
    for record in select_latest(records):
        families.setdefault(str(record.case.get("model", record.workload)), []).append(record)
    labels = {}
    for name, family in families.items():
        keys = [k for k in family[0].case if len({str(r.case.get(k)) for r in family}) > 1 and k != "device"]
        for record in family:
            labels[record.plan["run_id"]] = " ".join([name, *(f"{k}={record.case.get(k)}" for k in keys)])
    return labels


def summarize(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return counts, the fastest run, and the failures."""
    good = [row for row in rows if row["success"]]
    best = max(good, key=lambda row: row["throughput"] or 0.0, default=None)
    return {
        "points": len(rows),
        "succeeded": len(good),
        "failed": len(rows) - len(good),
        "measured_s": round(sum(row["duration"] for row in rows), 3),
        "fastest": None if best is None else {k: best[k] for k in ("run_id", "throughput")},
        "failures": {row["run_id"]: row["error"] for row in rows if not row["success"]},
    }


def is_done(record: Record) -> bool:
    """Whether a point need not be measured again."""
    return _find_error(record.contenders[0]) is None


def _assess(
    record: Record, error: str | None, seconds: Sequence[float], alone: Mapping[str, float]
) -> tuple[Validity, str]:
    """Return whether the times of a point may be quoted, and why not.

    seconds  of each batch
    alone    of each stage by itself
    """
    if error is not None:
        result = record.contenders[0]
        wrong = result.failure is None and result.check is not None and not result.check["ok"]
        return (Validity.WRONG if wrong else Validity.INCOMPLETE), error
    if reasons := list_throttle_reasons(record):
        advice = f"the machine was throttled ({', '.join(reasons)}); let it cool or raise the limit"
        return Validity.THROTTLED, advice
    count, total, middle = len(seconds), sum(seconds), median(seconds)
    faults = []
    if count < MIN_OBSERVATIONS or (count < MIN_SAMPLES and total < MIN_SECONDS):
        faults.append(f"it is too short ({count} batches in {format_si(total, 's')})")
    elif middle.relative > NOISY:
        faults.append(f"the median is uncertain by ± {format_si(middle.relative * middle.value, 's')}")
    skew = total / count / middle.value
    if not 1 / MAX_SKEW <= skew <= MAX_SKEW:
        faults.append(f"the mean batch takes {skew:.2g} times the median batch")
    if alone and clip_share(max(alone.values()) / (total / count)) is None:
        faults.append("a stage by itself took longer than a batch in the stream")
    if not faults:
        return Validity.VALID, ""
    return Validity.NOISY, f"{'; '.join(faults)}: measure more batches, on a machine that does nothing else"


def _find_error(result: ContenderResult) -> str | None:
    if result.failure is not None:
        return result.failure
    if result.check is not None and not result.check["ok"]:
        size = f" (error {result.check['error']:.3g})" if result.check.get("error") is not None else ""
        return f"the output failed its check{size}: {result.check.get('note', '')}".rstrip(": ")
    return None if result.samples_ns else "measured nothing"
