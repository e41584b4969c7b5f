"""history.html: a chart for every series with its levels, and sentences about what changed at each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from ridgeline.lab.judge import Series
from ridgeline.store import publish
from ridgeline.web import (
    Axis,
    Point,
    build_page,
    draw_lines,
    format_si,
    make_element,
    read_asset,
    render_template,
)
from ridgeline.web import Series as Line

if TYPE_CHECKING:
    from ridgeline.lab.race import CaseHistory, CommitHistory

PACKAGE = "ridgeline.lab"
BADGES = {"STEADY": "good", "FASTER": "good", "SLOWER": "bad", "DRIFTING": "warn", "TOO FEW": ""}


def write_history(series: Sequence[Series], out: Path, refused: Sequence[str] = ()) -> Path:
    """Write the page to the file `out`; `refused`: sentences about files that could not be read."""
    with publish(out) as temporary:
        temporary.write_text(build_history_page(series, refused), encoding="utf-8")
    return out


def build_history_page(series: Sequence[Series], refused: Sequence[str] = ()) -> str:
    """Return the HTML page."""
    chapters = []
    for fingerprint in dict.fromkeys(s.last.machine["fingerprint"] for s in series):
        machine_series = [s for s in series if s.last.machine["fingerprint"] == fingerprint]
        items = [{"series": s, "sentences": describe_series(s), "chart": _draw_series(s)} for s in machine_series]
        chapters.append({"machine": machine_series[-1].last.machine, "series": items})
    body = render_template(
        "history.html", templates=PACKAGE, chapters=chapters, refused=refused, badges=BADGES, format_si=format_si
    )
    return build_page("Ridgeline history", body, styles=[read_asset("report.css", PACKAGE)])


def describe_series(series: Series) -> list[str]:
    """Return sentences about the steps, the drift and the basis of a series."""
    sentences = []
    for step in series.steps:
        word = "slower" if step.slower else "faster"
        size = f"{abs(step.ratio.value - 1):.1%} {word} [{step.ratio.low:.3f} to {step.ratio.high:.3f} ×]"
        what = ", ".join(step.differences) or "nothing that is recorded changed: look at the machine and its neighbours"
        sentences.append(f"{size} since {step.after.time[:16]} (p {step.p:.2g}): {what}")
        old, new = (r.code["commit"] for r in (step.before, step.after))
        if old and new and old != new:
            sentences.append(
                f"what lies between: git log {old[:12]}..{new[:12]}; to be sure: "
                f"ridgeline bench {step.after.workload} --against {old[:12]}"
            )
    if series.drift:
        sentences.append(f"the last level drifts by {series.drift:+.2%} from record to record")
    if len(series.moments) < series.needed:
        recent = series.recent.comparison if series.recent else None
        since = f"; the last is {recent} relative to the one before ({series.recent.basis})" if series.recent else ""
        sentences.append(f"{len(series.moments)} of the {series.needed} records that a step needs to be shown{since}")
    if series.without:
        sentences.append(f"{len(series.without)} more without a valid time")
    return [*sentences, series.basis]


def write_commit_history(history: CommitHistory, out: Path) -> Path:
    """Write a page with a chart and the steps of every case to the file `out`."""
    parts: list[Markup] = [make_element("h1", f"{history.repository}: {history.commits} commits")]
    for one in history.cases:
        parts.append(make_element("h2", one.case.label))
        points = [
            Point(
                i,
                point.ratio.value,
                (point.ratio.low, point.ratio.high),
                title=f"{point.commit[:12]} {point.subject}\n{point.time}",
            )
            for i, point in enumerate(one.points, 1)
        ]
        parts.append(
            draw_lines(
                [Line("commits", points)],
                title=one.case.label,
                x=Axis(label="commit of the sample, oldest first"),
                y=Axis(label="time ÷ that of the first commit", unit="×"),
                caption="Whiskers are 95 % intervals; less is better.",
            )
        )
        sentences = [make_element("li", text) for text in describe_commit_steps(one)]
        parts.append(make_element("ul", *sentences))
    with publish(out) as temporary:
        page = build_page(
            f"History of {history.repository}", Markup("").join(parts), styles=[read_asset("report.css", PACKAGE)]
        )
        temporary.write_text(page, encoding="utf-8")
    return out


def describe_commit_steps(one: CaseHistory) -> list[str]:
    """Return a sentence for each step of a case, or one about why there is none."""
    differences = (p.ratio for p in one.points if p.ratio.n and not p.ratio.low <= 1 <= p.ratio.high)
    if not one.steps and any(abs(math.log(ratio.value)) > math.log1p(one.margin) for ratio in differences):
        return ["UNCLEAR: commits differ from the first one, but no step is certain; give more --budget"]
    if not one.steps:
        return ["No step."]
    return [
        f"{step.commit[:12]} {'' if step.certain else '(the likeliest) '}is {abs(step.ratio.value - 1):.1%} "
        f"{'slower' if step.ratio.value > 1 else 'faster'} "
        f"[{step.ratio.low:.3f} to {step.ratio.high:.3f} ×]: {step.subject}"
        for step in one.steps
    ]


def _draw_series(series: Series) -> Markup:
    """Draw every record as a point with its interval, in order, and the levels as dashed lines."""
    unit = "×" if series.peers else "s"
    points = [
        Point(
            i,
            m.value.value,
            (m.value.low, m.value.high),
            title=f"{m.record.time}\ncommit {(m.record.code['commit'] or 'unknown')[:12]}\n"
            f"{format_si(m.value.value, unit)} {m.assessment.validity}\nrecord {m.record.id[:12]}\n{m.record.command}",
        )
        for i, m in enumerate(series.moments, 1)
    ]
    ends = [*(start for start, _ in series.levels[1:]), len(series.moments)]
    levels = [
        Line(f"level {n}", [Point(start + 1, level.value), Point(end, level.value)], dashed=True)
        for n, ((start, level), end) in enumerate(zip(series.levels, ends, strict=True), 1)
    ]
    return draw_lines(
        [Line("records", points), *levels],
        title=f"{series.last.workload} {series.last.label}",
        x=Axis(label="record, oldest first"),
        y=Axis(label="time ÷ peers" if series.peers else "time", unit=unit),
        caption="Whiskers are 95 % intervals within a record; less is better.",
    )
