"""report.html: one self-contained page from records, and nothing but records.

    ridgeline report ridgeline-report/

Every figure carries its record (hover) and the command that makes it again.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.lab import analyse, figures
from ridgeline.lab.analyse import Row
from ridgeline.lab.record import Record
from ridgeline.lab.verdict import MARGIN, Comparison, Validity
from ridgeline.store import publish
from ridgeline.web import asset, binary, page, render, si

PACKAGE = "ridgeline.lab"
TONES = {
    Validity.VALID: "good",
    Validity.NOISY: "warn",
    Validity.THROTTLED: "warn",
    Validity.WRONG: "bad",
    Validity.INCOMPLETE: "bad",
    Comparison.SLOWER: "good",
    Comparison.FASTER: "bad",
    Comparison.UNCLEAR: "warn",
    Comparison.SAME: "",
}


@dataclass(frozen=True)
class Section:
    """One workload on one kind of machine."""

    name: str
    anchor: str
    notes: list[str]
    findings: list[str]
    charts: list[Any]
    records: list[tuple[Record, list[Row]]]
    strips: list[Any]
    missing: dict[str, str]  # peer -> the extra that brings it


def write(records: Sequence[Record], out: Path) -> Path:
    """Publish report.html into `out`."""
    target = out / "report.html"
    with publish(target) as temporary:
        temporary.write_text(build(records), encoding="utf-8")
    return target


def build(records: Sequence[Record]) -> str:
    """The page. Records of several kinds of machine are grouped, one chapter each."""
    latest = {(r.machine["fingerprint"], r.subject): r for r in records}  # the newest of each case
    chapters = []
    for fingerprint in dict.fromkeys(r.machine["fingerprint"] for r in latest.values()):
        own = [r for r in latest.values() if r.machine["fingerprint"] == fingerprint]
        sections = [_section(name, own) for name in dict.fromkeys(r.workload for r in own)]
        chapters.append(
            {
                "machine": own[-1].machine,
                "code": own[-1].code,
                "rooflines": figures.rooflines(own),
                "sections": sections,
                "overhead_us": _overhead_us(own),
                "rounds": sum(r.race["rounds"] for r in own),
            }
        )
    body = render(
        "report.html",
        templates=PACKAGE,
        chapters=chapters,
        tones=TONES,
        si=si,
        unit=analyse.rate_unit,
        size=binary,
        margin=MARGIN,
    )
    return page("Ridgeline report", body, styles=[asset("report.css", PACKAGE)])


def _section(name: str, records: Iterable[Record]) -> Section:
    own = sorted((r for r in records if r.workload == name), key=_by_case)
    told = [(r, analyse.rows(r)) for r in own]
    findings = [sentence for r, rows in told for sentence in _findings(r, rows)]
    charts = [chart for chart in (*figures.frontiers(told), *figures.over(told), figures.peers(told)) if chart]
    strips = [figures.strip(r, rows) for r, rows in told]
    notes = [note for note in dict.fromkeys(r.note for r in own) if note]
    missing = {peer: extra for r in own for peer, extra in r.missing.items()}
    return Section(name, f"w-{name}", notes, findings, charts, told, [s for s in strips if s], missing)


def _by_case(record: Record) -> list[tuple[bool, float, str]]:
    """Sizes rise, words go by the alphabet, whatever order the files came in."""
    numbers = (int, float)
    return [(False, v, "") if isinstance(v, numbers) else (True, 0.0, str(v)) for v in record.case.values()]


def _findings(record: Record, rows: list[Row]) -> Iterable[str]:
    """What a person would say of one case, in a sentence."""
    ours = next((row for row in rows if row.ours), None)
    if ours is None:
        return
    if ours.seconds is None:
        yield f"{record.label}: {ours.judged.validity}. {ours.judged.advice}."
        return
    rate = si(ours.items_per_s or 0, analyse.rate_unit(record))
    share = f", {ours.share:.0%} of the {ours.limit.resource} ceiling" if ours.share and ours.limit else ""
    best = min(
        (r for r in rows if not r.ours and r.ratio),
        key=lambda r: r.ratio.value if r.ratio else 0,
        default=None,
    )
    against = ""
    if best and best.ratio:
        words = {
            Comparison.SAME: f"level with {best.lane.contender}, the best peer",
            Comparison.SLOWER: f"{best.ratio.value:.2f} × as fast as {best.lane.contender}, the best peer",
            Comparison.FASTER: f"behind {best.lane.contender}, which takes {best.ratio.value:.2f} × our time",
            Comparison.UNCLEAR: f"against {best.lane.contender}, the best peer, the race is unclear",
        }
        against = f"; {words[best.comparison or Comparison.UNCLEAR]}"
    doubt = f" ({ours.judged.validity})" if ours.judged.validity is not Validity.VALID else ""
    yield f"{record.label}: {rate}{share}{against}{doubt}."


def _overhead_us(records: Iterable[Record]) -> float | None:
    """What handing over the baton costs: the part of a turn that is not timed (reset and warm-up included)."""
    costs = [ns for r in records for lane in r.contenders for ns in lane.turn_overhead_ns]
    return statistics.median(costs) / 1e3 if costs else None
