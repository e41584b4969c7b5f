"""history.html: a line for every series, its levels, and what changed at each step; and the sentences for both."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from ridgeline.lab.judge.history import Series
from ridgeline.store import publish
from ridgeline.web import Axis, Point, asset, lines, page, render, si
from ridgeline.web import Series as Line

PACKAGE = "ridgeline.lab"
TONES = {"STEADY": "good", "FASTER": "good", "SLOWER": "bad", "DRIFTING": "warn", "TOO FEW": ""}


def write(found: Sequence[Series], out: Path, refused: Sequence[str] = ()) -> Path:
    with publish(out) as temporary:
        temporary.write_text(build(found, refused), encoding="utf-8")
    return out


def build(found: Sequence[Series], refused: Sequence[str] = ()) -> str:
    chapters = []
    for fingerprint in dict.fromkeys(s.last.machine["fingerprint"] for s in found):
        own = [s for s in found if s.last.machine["fingerprint"] == fingerprint]
        items = [{"series": s, "sentences": sentences(s), "chart": chart(s)} for s in own]
        chapters.append({"machine": own[-1].last.machine, "series": items})
    body = render("history.html", templates=PACKAGE, chapters=chapters, refused=refused, tones=TONES, si=si)
    return page("Ridgeline history", body, styles=[asset("report.css", PACKAGE)])


def sentences(series: Series) -> list[str]:
    """What a person would say of one series."""
    told = []
    for step in series.steps:
        word = "slower" if step.slower else "faster"
        size = f"{abs(step.ratio.value - 1):.1%} {word} [{step.ratio.low:.3f} to {step.ratio.high:.3f} ×]"
        what = ", ".join(step.changed) or "nothing that is recorded changed: look at the machine and its neighbours"
        told.append(f"{size} since {step.after.time[:16]} (p {step.p:.2g}): {what}")
        old, new = (r.code["commit"] for r in (step.before, step.after))
        if old and new and old != new:
            told.append(
                f"what lies between: git log {old[:12]}..{new[:12]}; to be sure: "
                f"ridgeline bench {step.after.workload} --against {old[:12]}"
            )
    if series.drift:
        told.append(f"the last level drifts by {series.drift:+.2%} from record to record")
    if len(series.moments) < series.needed:
        recent = series.recent.comparison if series.recent else None
        since = f"; the last is {recent} relative to the one before ({series.recent.basis})" if series.recent else ""
        told.append(f"{len(series.moments)} of the {series.needed} records that a step needs to be shown{since}")
    if series.without:
        told.append(f"{len(series.without)} more without a valid time")
    return [*told, series.basis]


def chart(series: Series) -> Markup:
    """Every record as a point with its interval, in order; levels dashed."""
    unit = "×" if series.peers else "s"
    points = [
        Point(
            i,
            m.value.value,
            (m.value.low, m.value.high),
            title=f"{m.record.time}\ncommit {(m.record.code['commit'] or 'unknown')[:12]}\n"
            f"{si(m.value.value, unit)} {m.judged.validity}\nrecord {m.record.id[:12]}\n{m.record.command}",
        )
        for i, m in enumerate(series.moments, 1)
    ]
    ends = [*(at for at, _ in series.levels[1:]), len(series.moments)]
    levels = [
        Line(f"level {n}", [Point(at + 1, level.value), Point(end, level.value)], dashed=True)
        for n, ((at, level), end) in enumerate(zip(series.levels, ends, strict=True), 1)
    ]
    return lines(
        [Line("records", points), *levels],
        title=f"{series.last.workload} {series.last.label}",
        x=Axis(label="record, oldest first"),
        y=Axis(label="time ÷ peers" if series.peers else "time", unit=unit),
        caption="Whiskers are 95 % intervals within a record; less is better.",
    )
