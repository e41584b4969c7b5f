"""The pages of an experiment, from its records alone: summary.md for the terminal and a merge request, report.html."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from ridgeline.lab.experiment.folder import Folder
from ridgeline.lab.experiment.rows import STAGES, labels, latest, row
from ridgeline.lab.record.record import Record
from ridgeline.lab.report.figures import WAYS, timeline
from ridgeline.lab.study import Study, study
from ridgeline.web import Axis, Bar, bars, page, render, si

PACKAGE = "ridgeline.lab"
PICTURES = 12  # timelines in the page; the rest are in runs/
MOST_BARS = 90  # more are no picture; the table has them all
WIDEST = 20  # between the fastest and the slowest, before the axis is logarithmic
Row = Mapping[str, Any]
Names = Mapping[str, str]  # run_id -> what people read


def write(folder: Folder, state: Mapping[str, Any]) -> None:
    """Publish report.html and summary.md."""
    records = latest(folder.records())
    told = [(one, row(one)) for one in records]
    names = labels(records)
    found = study([r for _, r in told])
    folder.write("summary.md", f"{_summary([r for _, r in told], names, state)}\n{found.markdown}")
    folder.write("study.json", json.dumps({"recommendation": found.recommendation, **found.findings}, indent=1) + "\n")
    folder.write("report.html", _page(told, names, state, found))


def place(one: Row) -> str:
    """Where it stood, in words: "GPU 0 from node 1 (distance 21)"."""
    who = f"CPUs of node {one['device_node']}" if one["gpu_id"] is None else f"GPU {one['gpu_id']}"
    far = "" if one["distance"] is None else f" (distance {one['distance']})"
    return f"{who}, memory of node {one['numa_node']}{far}"


def _summary(found: Sequence[Row], names: Names, state: Mapping[str, Any]) -> str:
    lines = [f"# {state['name']}", ""]
    lines += [_cell(state["description"]), ""] if state.get("description") else []
    good = [r for r in found if r["success"]]
    command = " ".join(str(state.get("command", "")).split()).replace("`", "'")
    lines += [f"{len(good)} of {len(found)} points measured. `{command}`", ""]
    lines += [*(f"{note}\n" for note in notes(found))]
    if good:
        lines += [
            "| point | place | images/s | batch | to the device | compute | back | overlap |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for one in good:
            stages = " | ".join(_time(one[f"{s}_seconds"]) for s in STAGES)
            rate = f"{one['throughput']:,.1f}" if one["throughput"] else "–"
            share = f"{one['overlap']:.2f}" if one["overlap"] is not None else "–"
            cells = [_cell(names[one["run_id"]]), place(one), rate, _time(one["batch_seconds"]), stages, share]
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", "Times are medians of one batch; the stages with nothing beside them.", ""]
    failures = [r for r in found if not r["success"]]
    if failures:
        lines += ["## Failed", "", *(f"- {_cell(r['run_id'])}: {_cell(str(r['error']))}" for r in failures), ""]
    return "\n".join(lines)


def notes(found: Sequence[Row]) -> list[str]:
    """What a reader must know before the numbers."""
    told = []
    if any(r["distance"] is None for r in found):
        told.append("The firmware does not say which node a GPU hangs from: which of its places is local is not known.")
    if any(r["gpu_id"] is None for r in found):
        told.append("Without a GPU: the CPUs of a node take its part, and 'to the device' is a copy beside them.")
    return told


def _page(told: Sequence[tuple[Record, Row]], names: Names, state: Mapping[str, Any], studied: Study) -> str:
    found = [r for _, r in told]
    good = [(one, r) for one, r in told if r["success"]]
    body = render(
        "experiment.html",
        templates=PACKAGE,
        state=state,
        rows=found,
        failures=[r for r in found if not r["success"]],
        notes=notes(found),
        machines=list({one.machine["fingerprint"]: one.machine for one, _ in told}.values()),
        charts=[c for c in (_rates(found, names), _stages(found, names)) if c],
        timelines=[
            _timeline(one, r, names[r["run_id"]])
            for one, r in good[:PICTURES]
            if one.contenders[0].extras.get("timeline")
        ],
        sections=studied.sections,
        names=names,
        place=place,
        time=_time,
        si=si,
    )
    return page(f"{state['name']}: Ridgeline experiment", body)


def _rates(found: Sequence[Row], names: Names) -> Markup | None:
    rows = [
        Bar(
            r["placement"],
            r["throughput"],
            group=names[r["run_id"]],
            series=r["placement"],
            title=f"{r['run_id']}\n{place(r)}\n{r['throughput']:,.1f} images/s",
        )
        for r in found
        if r["throughput"]
    ]
    if not 0 < len(rows) <= MOST_BARS:
        return None
    wide = max(r.value for r in rows) > WIDEST * min(r.value for r in rows)
    axis = Axis(unit="images/s", scale="log" if wide else "linear")
    return bars(rows, title="Images per second", axis=axis, caption="More is better.")


def _stages(found: Sequence[Row], names: Names) -> Markup | None:
    rows = [
        Bar(WAYS[stage], r[f"{stage}_seconds"], group=f"{names[r['run_id']]} · {r['placement']}", series=WAYS[stage])
        for r in found
        if r["success"]
        for stage in STAGES
        if r[f"{stage}_seconds"]
    ]
    if not 0 < len(rows) <= MOST_BARS:
        return None
    caption = "Median seconds of one batch. The longest stage is the least a batch can take, however well they overlap."
    return bars(rows, title="Each stage by itself", axis=Axis(unit="s", scale="log"), caption=caption)


def _timeline(one: Record, told: Row, name: str) -> Markup:
    share = f", overlap {told['overlap']:.2f}" if told["overlap"] is not None else ""
    return timeline(
        f"{name} · {place(told)}{share}",
        one.contenders[0].extras["timeline"],
        f"; all of them: runs/{told['run_id']}.trace.json (Perfetto)",
    )


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else si(seconds, "s")


def _cell(text: str) -> str:
    """Text that Markdown takes as text."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
