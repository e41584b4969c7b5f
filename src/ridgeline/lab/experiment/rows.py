"""From records to the rows of results.json: flat, one per point, and nothing in them that the record does not say.

jq '.[] | {run_id, duration, success, gpu_id, numa_node}' outputs/*/results.json
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from ridgeline.lab.record.record import Lane, Record

STAGES = ("h2d", "compute", "d2h")


def latest(records: Iterable[Record]) -> list[Record]:
    """The newest record of every point, in the order points were first measured."""
    found: dict[tuple[str, str], Record] = {}
    for one in records:
        found[one.machine["fingerprint"], one.plan.get("key", one.id)] = one
    return list(found.values())


def rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    return [row(one) for one in latest(records)]


def row(one: Record) -> dict[str, Any]:
    lane, plan, work = one.contenders[0], one.plan, one.work
    error = _error(lane)
    seconds = [ns / 1e9 for ns in lane.samples_ns] if error is None else []
    alone = {stage: ns / 1e9 for stage, ns in (lane.extras.get("alone_ns") or {}).items()}
    mean = statistics.fmean(seconds) if seconds else None
    place = one.placement[0]
    moved = work["bytes"]
    return {
        "run_id": plan["run_id"],
        "experiment": one.workload,
        **{k: v for k, v in one.case.items() if k != "ranks"},
        "success": error is None,
        "error": error,
        "duration": plan["duration_s"],
        "gpu_id": place["gpu"],
        "numa_node": place["node"],
        "device_node": plan["device_node"],
        "distance": plan["distance"],
        "placement": plan["stand"],
        "cpus": len(place["cpus"]),
        "throughput": work["items"] / mean if mean else None,
        "batch_seconds": statistics.median(seconds) if seconds else None,
        "samples": seconds,
        **{f"{stage}_seconds": alone.get(stage) for stage in STAGES},
        "overlap": max(alone.values()) / mean if alone and mean else None,
        "flops": work["flops"],
        "h2d_bytes": moved.get("pcie", moved.get("staged", 0)),
        "d2h_bytes": moved.get("pcie_back", moved.get("staged_back", 0)),
        "peak_host_memory": lane.extras.get("peak_host_bytes"),
        "peak_gpu_memory": lane.extras.get("peak_gpu_bytes"),
        "peak_memory": lane.extras.get("peak_gpu_bytes", lane.extras.get("peak_host_bytes")),
        **plan["facts"],
        **(lane.extras.get("columns") or {}),
        **{f"ceiling_{name}": told["rate"] for name, told in one.ceilings.items()},
        "machine": one.machine["fingerprint"],
        "time": one.time,
        "record": one.id,
    }


def labels(records: Iterable[Record]) -> dict[str, str]:
    """Each run's name for people: what was measured, and every parameter in which it differs from its namesakes."""
    found = latest(records)
    families: dict[str, list[Record]] = {}
    for one in found:
        families.setdefault(_name(one), []).append(one)
    told = {}
    for name, family in families.items():
        keys = [k for k in family[0].case if len({str(one.case.get(k)) for one in family}) > 1 and k != "device"]
        for one in family:
            told[one.plan["run_id"]] = " ".join([name, *(f"{k}={one.case.get(k)}" for k in keys)])
    return told


def _name(one: Record) -> str:
    return str(one.case.get("model", one.workload))


def summary(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a person asks first."""
    good = [r for r in found if r["success"]]
    best = max(good, key=lambda r: r["throughput"] or 0.0, default=None)
    return {
        "points": len(found),
        "succeeded": len(good),
        "failed": len(found) - len(good),
        "measured_s": round(sum(r["duration"] for r in found), 3),
        "fastest": None if best is None else {k: best[k] for k in ("run_id", "throughput")},
        "failures": {r["run_id"]: r["error"] for r in found if not r["success"]},
    }


def done(one: Record) -> bool:
    """Whether a point need not be measured again."""
    return _error(one.contenders[0]) is None


def _error(lane: Lane) -> str | None:
    if lane.failure is not None:
        return lane.failure
    if lane.check is not None and not lane.check["ok"]:
        size = f" (error {lane.check['error']:.3g})" if lane.check.get("error") is not None else ""
        return f"the output failed its check{size}: {lane.check.get('note', '')}".rstrip(": ")
    return None if lane.samples_ns else "measured nothing"
