"""From records to the rows of results.json: flat, one per point, with nothing that the record does not have.

    jq '.[] | {run_id, duration, success, gpu_id, numa_node}' outputs/*/results.json

`ridgeline.lab.load_experiments("outputs/")` reads all experiments as one table.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, MissingExtra
from ridgeline.lab.experiment.folder import RESULTS, SUMMARY, ExperimentFolder, read_state, write_state
from ridgeline.lab.record import ContenderResult, Record

STAGES = ("h2d", "compute", "d2h")
WRITE_EVERY_S = 2.0  # least time between two updates of results.json
WRITE_SHARE = 20  # an update that takes long is followed by a pause of this many times its duration


class ResultsWriter:
    """Updates results.json and the summary while points are measured."""

    def __init__(self, folder: ExperimentFolder, state: Mapping[str, Any]) -> None:
        self._folder, self._state = folder, dict(state)
        self._due = 0.0

    def update(self) -> None:
        """Write the results if the last update is long enough ago."""
        if time.monotonic() >= self._due:
            self.write(finished=False)

    def write(self, *, finished: bool) -> list[dict[str, Any]]:
        """Write results.json and the summary; return the rows."""
        start = time.monotonic()
        rows = build_rows(self._folder.records())
        self._folder.write(RESULTS, json.dumps(rows, indent=1) + "\n")
        end_time = datetime.now(UTC).isoformat(timespec="seconds") if finished else None
        write_state(self._folder, {**self._state, "finished": end_time, **summarize(rows)})
        now = time.monotonic()
        self._due = now + max(WRITE_EVERY_S, WRITE_SHARE * (now - start))
        return rows


def load_experiments(outputs: Path | str = "outputs") -> Any:
    """Return one pyarrow table with a row per point of every experiment below `outputs` (or of that one folder).

    Columns are those of results.json, and `folder`; a value that a row lacks is null. `.to_pandas()` works where pandas
    is installed. Raises InputError where there is no experiment, and MissingExtra without pyarrow.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtra("load_experiments", "experiments") from None
    rows = load_rows(outputs)
    names = list(dict.fromkeys(name for row in rows for name in row))
    return pa.table({name: [row.get(name) for row in rows] for name in names})


def load_rows(outputs: Path | str = "outputs") -> list[dict[str, Any]]:
    """Return the rows of every experiment below `outputs`, made from the records."""
    base = Path(outputs)
    folders = [base] if (base / SUMMARY).is_file() else sorted(p.parent for p in base.glob(f"*/{SUMMARY}"))
    if not folders:
        raise InputError(f"there is no experiment in '{outputs}'; run one: ridgeline run experiment=quick_test.")
    rows: list[dict[str, Any]] = []
    for folder in folders:
        read_state(folder)
        rows += [{"folder": folder.name, **row} for row in build_rows(ExperimentFolder(folder).records())]
    return rows


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
        "numa_node": place["node"],
        "device_node": plan["device_node"],
        "distance": plan["distance"],
        "placement": plan["placement"],
        "cpus": len(place["cpus"]),
        "throughput": work["items"] / mean if mean else None,
        "batch_seconds": statistics.median(seconds) if seconds else None,
        "samples": seconds,
        **{f"{stage}_seconds": alone.get(stage) for stage in STAGES},
        "overlap": max(alone.values()) / mean if alone and mean else None,
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


def _find_error(result: ContenderResult) -> str | None:
    if result.failure is not None:
        return result.failure
    if result.check is not None and not result.check["ok"]:
        size = f" (error {result.check['error']:.3g})" if result.check.get("error") is not None else ""
        return f"the output failed its check{size}: {result.check.get('note', '')}".rstrip(": ")
    return None if result.samples_ns else "measured nothing"
