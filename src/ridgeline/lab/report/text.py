"""report.md, for a merge request or a mail, and report.json, for programs: the same findings as the page.

ridgeline report runs/ && jq '.machines[0].paths[].sentence' report.json
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from ridgeline.lab.judge import analyse
from ridgeline.lab.judge.findings import Standing, times
from ridgeline.lab.judge.limiting import percent
from ridgeline.lab.judge.scaling import Scaling
from ridgeline.lab.report.report import BEYOND, Chapter, dollars, mixed
from ridgeline.web import binary, si

SCHEMA = 1


def markdown(chapters: Sequence[Chapter], refused: Sequence[str] = ()) -> str:
    lines = ["# Ridgeline report", ""]
    lines += [mixed(chapters), ""] if mixed(chapters) else []
    lines += [f"- left out: {_inline(sentence)}" for sentence in refused] + ([""] if refused else [])
    for chapter in chapters:
        lines += _chapter(chapter)
    return "\n".join(lines).rstrip() + "\n"


def to_json(chapters: Sequence[Chapter], refused: Sequence[str] = ()) -> str:
    """Numbers that are none are null, as JSON wants it."""
    told = {
        "schema": SCHEMA,
        "mixed_machines": len(chapters) > 1,
        "refused": list(refused),
        "machines": [_data(chapter) for chapter in chapters],
    }
    return json.dumps(_finite(told), indent=1, ensure_ascii=False, default=str) + "\n"


def _data(chapter: Chapter) -> dict[str, Any]:
    return {
        "machine": dict(chapter.machine),
        "code": chapter.codes,
        "paths": [s.to_json() for s in chapter.standings],
        "changes": [change.to_json() for change in chapter.changes],
        "scaling": [s.to_json([times * s.steps[-1].at.n for times in BEYOND]) for s in chapter.scalings],
        "cost": [{"workload": s.workload, **plan.to_json()} for s, plan in chapter.plans],
        "placement": dict(chapter.placement.findings) if chapter.placement else None,
        "cases": [
            {**analyse.to_json(r), "time": r.time, "command": r.command, "ceilings": dict(r.ceilings)}
            for r in chapter.records
        ],
        "notes": list(chapter.notes),
    }


def _chapter(chapter: Chapter) -> list[str]:
    m = chapter.machine
    facts = f"{m['usable_cpus']} usable CPUs, {binary(m['memory_bytes'])} memory, {len(m['nodes'])} NUMA node"
    out = [f"## {_inline(chapter.name)}", "", f"{facts}{'s' if len(m['nodes']) > 1 else ''}.", "", "### Findings", ""]
    out += [f"- {_inline(s.sentence)}" for s in chapter.standings]
    out += ["", "| path | case | rate | of ceiling | limited by | best peer | time ÷ ours | verdict | record |"]
    out += ["|---|---|--:|--:|---|---|--:|---|---|"]
    out += [_row(_path(s)) for s in chapter.standings]
    out += ["", "A verdict is said of the peer: SLOWER means the peer is slower than ours.", ""]
    out += ["### What to change", ""]
    out += [_change(change.workload, change.what, change.why, change.case) for change in chapter.changes] or [
        "Nothing that was measured supports a change."
    ]
    if chapter.scalings:
        out += ["", "### Scaling", "", *(line for s in chapter.scalings for line in _scaling(s))]
    if chapter.placement:
        out += ["", chapter.placement.markdown.replace("## ", "### ", 1)]
    if chapter.plans:
        out += ["", "### Cost", "", "| path | never idle | per | price |", "|---|--:|---|---|"]
        for s, plan in chapter.plans:
            full, price = plan.usd_per_million_full, plan.price
            if full and price:
                words = f"{price.name}, ${price.hourly(1.0):.4g} an hour, {price.date}"
                per, by = dollars(s)
                value, low, high = (f"{by * usd:.3g}" for usd in full)
                out.append(_row([s.workload, f"${value} [{low} to {high}]", per, words]))
    out += ["", *map(_inline, chapter.notes)] if chapter.notes else []
    out += ["", "### Every case", ""]
    out += ["| workload | case | contender | median | rate | of ceiling | time ÷ ours | verdict | validity | record |"]
    out += ["|---|---|---|--:|--:|--:|--:|---|---|---|"]
    for record in chapter.records:
        for row in analyse.rows(record):
            cells = [
                record.workload,
                record.label,
                row.lane.contender,
                si(row.seconds, "s") if row.seconds else "–",
                si(row.items_per_s, analyse.rate_unit(record)) if row.items_per_s else "–",
                percent(row.share),
                f"{row.ratio.value:.3f}" if row.ratio else "",
                row.comparison or "",
                row.judged.validity,
                record.id[:12],
            ]
            out.append(_row(cells))
    out += ["", "### Commands", ""]
    out += [f"- `{r.id[:12]}` `{_code(r.command)}`" for r in chapter.records]
    return [*out, ""]


def _path(s: Standing) -> list[str]:
    return [
        s.workload,
        s.case,
        si(s.rate, s.unit) if s.rate else str(s.validity),
        percent(s.share),
        s.limit or ("not known" if s.rate is not None else ""),
        s.peer or "",
        times(s.ratio.value) if s.ratio else "",
        s.verdict or "",
        s.record.id[:12],
    ]


def _change(workload: str, what: str, why: str, case: str) -> str:
    shown = f" ({_inline(case)})" if case else ""
    head = f"**{_inline(what)}**, because " if what else ""
    return f"- {_inline(workload)}: {head}{_inline(why)}{shown}"


def _scaling(found: Scaling) -> list[str]:
    steps = ", ".join(f"{s.at.n:g}: {times(s.speedup)} × ({percent(s.efficiency)})" for s in found.steps)
    out = [f"- {_inline(found.name)}, {found.kind}: speed-up (efficiency) by workers {steps}"]
    for name, law in found.laws.items():
        for n in (beyond * found.steps[-1].at.n for beyond in BEYOND):
            told = found.predict(name, n)
            error = f"held-out error {percent(told.held_out)}" if told.held_out is not None else "untested"
            out.append(f"  - {name}: PREDICTED {times(told.speedup)} × at {n:g}, {error}")
        out += [f"  - {name}: {_inline(doubt)}" for doubt in law.doubts]
    return out + [f"  - {_inline(note)}" for note in found.notes]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_inline(str(cell)) for cell in cells)} |"


def _inline(text: str) -> str:
    """Text on one line that Markdown leaves alone."""
    return re.sub(r"([\\`*<>\[\]|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(text).split()))


def _code(text: str) -> str:
    return " ".join(text.split()).replace("`", "'")


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
