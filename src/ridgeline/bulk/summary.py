"""Write what a finished job was like: a page with its stages and what limited it, and a record for the lab.

TARGET/_ridgeline/summary.html    rows, rates, devices, cost, stages, the first rejects
TARGET/_ridgeline/records.jsonl   one record; `ridgeline compare A/_ridgeline B/_ridgeline` compares two jobs
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ridgeline.bulk.progress import Meter, find_limit
from ridgeline.bulk.rows import Reject
from ridgeline.bulk.sources import HIDDEN
from ridgeline.bulk.storage import Storage
from ridgeline.lab import OURS
from ridgeline.lab.record import RECORDS_FILE, SCHEMA, ContenderResult, Record, describe_code, record_to_json
from ridgeline.machine import describe_machine
from ridgeline.web import Axis, Bar, build_page, draw_bars, format_si, make_element

SUMMARY = "summary.html"
STAGE_NAMES = {"read": "read the source", "compute": "compute", "write": "write the target", "wait": "wait"}


def write_summary(
    storage: Storage, job: Mapping[str, Any], answer: Mapping[str, Any], meter: Meter, rejects: Sequence[Reject]
) -> None:
    """Write the page and the record of a job that has finished."""
    storage.write(f"{HIDDEN}/{SUMMARY}", render_summary(job, answer, meter, rejects).encode())
    if meter.rows:
        line = json.dumps(record_to_json(make_record(job, answer, meter)), sort_keys=True)
        storage.write(f"{HIDDEN}/{RECORDS_FILE}", f"{line}\n".encode())


def render_summary(
    job: Mapping[str, Any], answer: Mapping[str, Any], meter: Meter, rejects: Sequence[Reject] = ()
) -> str:
    """Return the page of a job."""
    runs = [*meter.earlier, meter.describe()]
    last = runs[-1]
    usd = meter.add_usd()
    facts = {
        "rows in the target": f"{answer['rows']:,}",
        "computed in the last run": f"{answer['computed']:,}",
        "rejects": f"{answer['rejects']:,}",
        "chunks": f"{answer['chunks']:,}",
        "runs": str(len(runs)),
        "time of all runs": format_si(sum(run["seconds"] for run in runs), "s"),
        "rate of the last run": _format_rate(last),
        "start of its workers": format_si(last["start_seconds"], "s"),
        "workers": str(last["workers"]),
        **({"cost": f"${usd:,.2f} by the price {last['price'] or 'of an earlier run'}"} if usd is not None else {}),
    }
    parts = [
        make_element("h1", f"{job['kind']}: {answer['target']}"),
        make_element("p", find_limit(last)),
        _make_table(("", "this job"), facts.items()),
        draw_bars(
            [Bar(STAGE_NAMES[stage], seconds) for stage, seconds in last["stages"].items()],
            title="Seconds of all workers by stage, last run",
            axis=Axis(unit="s"),
        ),
    ]
    if last["devices"]:
        shares = [Bar(device, 100 * share) for device, share in last["devices"].items()]
        title = "Share of the time in which a device computes, since the workers were ready"
        parts.append(draw_bars(shares, title=title, axis=Axis(unit="%", low=0, high=100)))
    if len(runs) > 1:
        rows = [
            (str(number), f"{run['rows']:,}", format_si(run["seconds"], "s"), _format_rate(run))
            for number, run in enumerate(runs, 1)
        ]
        parts.append(_make_table(("run", "rows", "time", "rate"), rows))
    if rejects:
        parts.append(make_element("h2", "The first rejects"))
        parts.append(_make_table(("source", "row", "reason"), [(r.source, str(r.row), r.reason) for r in rejects]))
    settings = [(name, json.dumps(value, default=str)) for name, value in sorted(job["settings"].items())]
    parts += [make_element("h2", "Settings"), _make_table(("setting", "value"), settings)]
    return build_page(f"{job['id']}: {answer['target']}", make_element("main", *parts))


def make_record(job: Mapping[str, Any], answer: Mapping[str, Any], meter: Meter) -> Record:
    """Return the record of the last run: a sample is the time of as many chunks as the workers have at once."""
    chunks, steps = meter.list_steps()
    rows = max(1, round(meter.rows * chunks / len(meter.commits)))
    device = next((name.rpartition(" ")[2].partition(":")[0] for name in meter.devices), "cpu")
    settings = job["settings"]
    plain_settings = {name: value for name, value in settings.items() if isinstance(value, int | float | str | bool)}
    state = {"load_average": os.getloadavg()[0]}
    return Record(
        schema=SCHEMA,
        id=uuid.uuid4().hex,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        workload=f"bulk {job['kind']}",
        case={**plain_settings, "device": device, "ranks": 1, "workers": meter.workers, "rows": meter.rows},
        work={"items": rows, "unit": "rows", "flops": 0, "bytes": {}, "launches": 0},
        placement=({"node": None, "cpus": None, "gpu": None},),
        machine=describe_machine(),
        code=describe_code(),
        plan={},
        race={"rounds": len(steps), "ended": "job done"},
        conditions={"before": state, "after": state},
        ceilings={},
        contenders=(
            ContenderResult(
                OURS,
                tuple(seconds * 1e9 for seconds in steps),
                settings={"chunks of a step": chunks},
                extras={"columns": {f"{stage} s": seconds for stage, seconds in meter.sum_stages().items()}},
                check={"ok": True, "error": None, "quality": {}, "note": f"{answer['rejects']} rejects"},
            ),
        ),
        command=f"ridgeline jobs show {job['id']}",
        note="A job, not a race: nothing took turns with it.",
    )


def _format_rate(run: Mapping[str, Any]) -> str:
    return format_si(run["rows"] / run["seconds"], "rows/s") if run["seconds"] else "–"


def _make_table(header: Sequence[str], rows: Any) -> str:
    head = make_element("tr", *(make_element("th", cell or "\u00a0", scope="col") for cell in header))
    lines = [make_element("tr", *(make_element("td", cell or "\u00a0") for cell in row)) for row in rows]
    return make_element("table", make_element("thead", head), make_element("tbody", *lines))
