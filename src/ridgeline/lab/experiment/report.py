"""The pages of an experiment, from its records alone: summary.md for a terminal or a merge request, and report.html."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ridgeline.lab.experiment.folder import ExperimentFolder
from ridgeline.lab.record import Record
from ridgeline.lab.report import STAGE_NAMES, draw_timeline
from ridgeline.lab.study import Study, study
from ridgeline.lab.study.rows import STAGES, build_row, label_runs, select_latest
from ridgeline.web import Axis, Bar, build_page, draw_bars, format_si, render_template

PACKAGE = "ridgeline.lab"
MAX_TIMELINES = 12  # on the page; the others are in runs/
MAX_BARS = 90  # a chart with more cannot be read; the table has all runs
LINEAR_RANGE = 20  # slowest over fastest, beyond which the axis is logarithmic
Row = Mapping[str, Any]
Names = Mapping[str, str]  # run_id -> name for people


def write_report(folder: ExperimentFolder, state: Mapping[str, Any]) -> None:
    """Write report.html, summary.md and study.json."""
    records = select_latest(folder.records())
    rows = [build_row(record) for record in records]
    names = label_runs(records)
    result = study(rows)
    findings = {"recommendation": result.recommendation, **result.findings}
    folder.write("summary.md", f"{_write_summary(rows, names, state)}\n{result.markdown}")
    folder.write("study.json", json.dumps(findings, indent=1) + "\n")
    folder.write("report.html", _write_page(records, rows, names, state, result))


def describe_place(row: Row) -> str:
    """Return the placement of a run in words: "GPU 0, memory of node 1 (distance 21)"."""
    processor = f"CPUs of node {row['device_node']}" if row["gpu_id"] is None else f"GPU {row['gpu_id']}"
    if row["gpu_ids"]:
        processor = f"GPUs {'+'.join(map(str, row['gpu_ids']))}"
    distance = "" if row["distance"] is None else f" (distance {row['distance']})"
    return f"{processor}, memory of node {row['numa_node']}{distance}"


def list_notes(rows: Sequence[Row]) -> list[str]:
    """Return what a reader must know before the numbers."""
    notes = []
    if any(row["distance"] is None for row in rows):
        notes.append("The firmware does not say to which node a GPU is attached, so its local node is unknown.")
    if any(row["gpu_id"] is None for row in rows):
        notes.append("Without a GPU the CPUs of a node compute, and 'to the device' is a copy into their local memory.")
    return notes


def list_warnings(rows: Sequence[Row], names: Names) -> list[str]:
    """Return a sentence for each run whose times should not be quoted."""
    return [f"{names[row['run_id']]} is {row['validity']}: {row['advice']}." for row in rows if row["advice"]]


def _write_summary(rows: Sequence[Row], names: Names, state: Mapping[str, Any]) -> str:
    lines = [f"# {state['name']}", ""]
    lines += [_escape(state["description"]), ""] if state.get("description") else []
    good = [row for row in rows if row["success"]]
    command = " ".join(str(state.get("command", "")).split()).replace("`", "'")
    lines += [f"{len(good)} of {len(rows)} points measured. `{command}`", ""]
    lines += [*(f"{note}\n" for note in list_notes(rows))]
    if good:
        lines += [
            "| point | place | images/s | batch | to the device | compute | back | overlap | validity |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for row in good:
            stages = " | ".join(_format_time(row[f"{stage}_seconds"]) for stage in STAGES)
            rate = f"{row['throughput']:,.1f}" if row["throughput"] else "–"
            overlap = f"{row['overlap']:.2f}" if row["overlap"] is not None else "–"
            batch = _format_time(row["batch_seconds"])
            cells = [_escape(names[row["run_id"]]), describe_place(row), rate, batch, stages, overlap, row["validity"]]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", "Times are medians of one batch; each stage is timed by itself.", ""]
        lines += [*(f"- {_escape(sentence)}" for sentence in list_warnings(good, names)), ""]
    failures = [row for row in rows if not row["success"]]
    if failures:
        lines += ["## Failed", "", *(f"- {_escape(r['run_id'])}: {_escape(str(r['error']))}" for r in failures), ""]
    return "\n".join(lines)


def _write_page(
    records: Sequence[Record], rows: Sequence[Row], names: Names, state: Mapping[str, Any], result: Study
) -> str:
    good = [(record, row) for record, row in zip(records, rows, strict=True) if row["success"]]
    body = render_template(
        "experiment.html",
        templates=PACKAGE,
        state=state,
        rows=rows,
        failures=[row for row in rows if not row["success"]],
        notes=list_notes(rows),
        warnings=list_warnings([row for _, row in good], names),
        machines=list({record.machine["fingerprint"]: record.machine for record in records}.values()),
        charts=[chart for chart in (_draw_rates(rows, names), _draw_stages(rows, names)) if chart],
        timelines=[
            _draw_timeline(record, row, names[row["run_id"]])
            for record, row in good[:MAX_TIMELINES]
            if record.contenders[0].extras.get("timeline")
        ],
        sections=result.sections,
        names=names,
        place=describe_place,
        time=_format_time,
        si=format_si,
    )
    return build_page(f"{state['name']}: Ridgeline experiment", body)


def _draw_rates(rows: Sequence[Row], names: Names) -> Markup | None:
    rate_bars = [
        Bar(
            row["placement"],
            row["throughput"],
            group=names[row["run_id"]],
            series=row["placement"],
            title=f"{row['run_id']}\n{describe_place(row)}\n{row['throughput']:,.1f} images/s",
        )
        for row in rows
        if row["throughput"]
    ]
    if not 0 < len(rate_bars) <= MAX_BARS:
        return None
    wide = max(bar.value for bar in rate_bars) > LINEAR_RANGE * min(bar.value for bar in rate_bars)
    axis = Axis(unit="images/s", scale="log" if wide else "linear")
    return draw_bars(rate_bars, title="Images per second", axis=axis, caption="More is better.")


def _draw_stages(rows: Sequence[Row], names: Names) -> Markup | None:
    stage_bars = [
        Bar(
            STAGE_NAMES[stage],
            row[f"{stage}_seconds"],
            group=f"{names[row['run_id']]} · {row['placement']}",
            series=STAGE_NAMES[stage],
        )
        for row in rows
        if row["success"]
        for stage in STAGES
        if row[f"{stage}_seconds"]
    ]
    if not 0 < len(stage_bars) <= MAX_BARS:
        return None
    caption = "Median seconds of one batch. The longest stage is the least a batch can take, however well they overlap."
    return draw_bars(stage_bars, title="Each stage by itself", axis=Axis(unit="s", scale="log"), caption=caption)


def _draw_timeline(record: Record, row: Row, name: str) -> Markup:
    overlap = f", overlap {row['overlap']:.2f}" if row["overlap"] is not None else ""
    return draw_timeline(
        f"{name} · {describe_place(row)}{overlap}",
        record.contenders[0].extras["timeline"],
        f"; all of them: runs/{row['run_id']}.trace.json (Perfetto)",
    )


def _format_time(seconds: float | None) -> str:
    return "–" if seconds is None else format_si(seconds, "s")


def _escape(text: str) -> str:
    """Return text on one line in which Markdown sees no table cell and no tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
