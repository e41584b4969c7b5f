"""report.html: one self-contained page. First the machine and what was found, then every figure with its record.

    python -m pytest tests/lab/test_report.py

A page stays below 4 MB. What has no room is left out, raw samples first, then charts, then cases, and the page says so:
report.json has every case, the records have every sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge import analyse, scaling
from ridgeline.lab.judge.analyse import Row
from ridgeline.lab.judge.limiting import percent
from ridgeline.lab.judge.verdict import MARGIN, Comparison, Validity
from ridgeline.lab.record.record import Record
from ridgeline.lab.report import figures, report
from ridgeline.lab.report import overview as figures_overview
from ridgeline.lab.report.report import BEYOND, Chapter, Pictures, mixed
from ridgeline.lab.workload import cure
from ridgeline.web import asset, binary, page, render, si

PACKAGE = "ridgeline.lab"
LARGEST = 3_900_000  # bytes of a page
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
WORDS = {  # of ours, where the verdict is said of the peer
    Comparison.SLOWER: "ahead",
    Comparison.FASTER: "behind",
    Comparison.SAME: "level",
    Comparison.UNCLEAR: "unclear",
}
WAYS = {"pcie": "host → device", "pcie_back": "device → host"}


@dataclass(frozen=True)
class Room:
    """How much a page may hold of what takes the most."""

    strips: int  # bytes of raw samples
    charts: bool = True  # of each workload
    cases: int | None = None  # of each workload in its table


ROOMS = (Room(1_200_000), Room(0), Room(0, False), Room(0, False, 40), Room(0, False, 8))


class _Left:
    """Bytes that are still to be had."""

    def __init__(self, count: int) -> None:
        self._count = count

    def take(self, count: int) -> bool:
        self._count -= count
        return self._count >= 0


@dataclass(frozen=True)
class Part:
    """One workload on one kind of machine."""

    name: str
    anchor: str
    notes: Sequence[str]
    charts: Sequence[Markup]
    records: Sequence[tuple[Record, list[Row]]]
    strips: Sequence[Markup]
    missing: Mapping[str, str]  # peer -> what brings it
    without: Mapping[str, int] = field(default_factory=dict)  # what had no room: raw samples, charts, cases


def build(chapters: Sequence[Chapter], refused: Sequence[str] = (), pictures: Pictures | None = None) -> str:
    """The whole document, with as much in it as 4 MB hold."""
    where: dict[str, str] = {}
    whole: list[tuple[dict[str, Any], list[Part]]] = []
    for number, chapter in enumerate(chapters):
        names = enumerate(chapter.workloads)
        parts = [_part(chapter, f"m{number}-w{n}", name, pictures) for n, name in names]
        where |= {r.id: f"m{number}-r{i}" for i, r in enumerate(chapter.records)}
        whole.append((_overview(chapter, number, parts), parts))
    about = {"refused": refused, "mixed": mixed(chapters), "where": where}
    for room in ROOMS:
        strips = _Left(room.strips)
        told = [{**overview, "parts": [_fitting(part, room, strips) for part in parts]} for overview, parts in whole]
        text = _document({**about, "chapters": told})
        if len(text.encode()) <= LARGEST:
            break
    return text


def _document(context: Mapping[str, Any]) -> str:
    body = render(
        "report.html",
        templates=PACKAGE,
        tones=TONES,
        words=WORDS,
        dollars=report.dollars,
        si=si,
        unit=analyse.rate_unit,
        size=binary,
        percent=percent,
        margin=MARGIN,
        **context,
    )
    return page("Ridgeline report", body, styles=[asset("report.css", PACKAGE)])


def _fitting(part: Part, room: Room, left: _Left) -> Part:
    """What of a workload there is room for; the rest is counted, and the page says where it is."""
    strips = [strip for strip in part.strips if left.take(len(strip))]
    charts = part.charts if room.charts else ()
    return replace(
        part,
        strips=strips,
        charts=charts,
        records=part.records[: room.cases],
        without={
            "raw samples": len(part.strips) - len(strips),
            "charts": len(part.charts) - len(charts),
            "cases": max(0, len(part.records) - (room.cases or len(part.records))),
        },
    )


def _overview(chapter: Chapter, number: int, parts: Sequence[Part]) -> dict[str, Any]:
    stand = chapter.standings
    units = {r.id: analyse.rate_unit(r) for r in chapter.records}
    scalings = [
        (
            s,
            scaling.figure(s, BEYOND[-1] * s.steps[-1].at.n),
            [_ahead(s, law) for law in s.laws],
            units[s.steps[0].at.record],
        )
        for s in chapter.scalings
    ]
    return {
        "chapter": chapter,
        "anchor": f"m{number}",
        "part_of": {part.name: part.anchor for part in parts},
        "ceilings": ceilings(chapter.records),
        "shares": figures_overview.shares(stand),
        "rooflines": figures_overview.rooflines(chapter.records, stand),
        "unplaced": figures_overview.unplaced(stand),
        "against": figures_overview.against(stand),
        "nodes": figures_overview.nodes(chapter.records),
        "scalings": scalings,
        "name": lambda s: figures_overview.name(s, stand),
        "overhead_us": _overhead_us(chapter.records),
        "rounds": sum(r.race["rounds"] for r in chapter.records),
        "libraries": {k: v for r in chapter.records for k, v in r.code["libraries"].items()},
    }


def _part(chapter: Chapter, anchor: str, name: str, pictures: Pictures | None) -> Part:
    own = sorted((r for r in chapter.records if r.workload == name), key=_by_case)
    told = [(r, analyse.rows(r)) for r in own]
    charts = [*figures.frontiers(told), *figures.over(told), figures.peers(told), *figures.timelines(told)]
    charts += [_picture(title, svg) for title, svg in _drawn(own, pictures)]
    strips = [strip for record, rows in told if (strip := figures.strip(record, rows))]
    notes = [note for note in dict.fromkeys(r.note for r in own) if note]
    missing = {peer: cure(extra) for r in own for peer, extra in r.missing.items()}
    return Part(name, anchor, notes, [c for c in charts if c], told, strips, missing)


def _drawn(records: Iterable[Record], pictures: Pictures | None) -> list[tuple[str, str]]:
    """Each picture once, whatever number of records shows it."""
    return list(dict.fromkeys(p for r in records for p in pictures(r))) if pictures else []


def _picture(title: str, svg: str) -> Markup:
    inside = Markup(svg)  # noqa: S704  (drawn by ourselves, from numbers)
    frame = '<figure class="chart"><p class="chart-title">{}</p><div class="picture" tabindex="0">{}</div></figure>'
    return Markup(frame).format(title, inside)  # noqa: S704


def ceilings(records: Iterable[Record]) -> dict[str, list[tuple[str, str]]]:
    """By kind of device, what the cases were held against: memory as a range over sizes, the rest each by its best."""
    seen: dict[str, dict[tuple[str, str], list[float]]] = {}
    for record in records:
        device = str(record.case["device"]).partition(":")[0]
        for resource, told in record.ceilings.items():
            name = str(told.get("name") or told["what"])
            short = name.partition(" (")[0] if resource == "compute" else ""
            seen.setdefault(device, {}).setdefault((resource, short), []).append(float(told["rate"]))
    return {device: [_ceiling(*key, rates) for key, rates in held.items()] for device, held in seen.items()}


def _ceiling(resource: str, name: str, rates: Sequence[float]) -> tuple[str, str]:
    if resource == "compute":
        return name, si(max(rates), "FLOP/s")
    if resource == "launch":
        return "one launch", si(1 / max(rates), "s")
    if resource == "direct":
        return "one launch from the host", si(1 / max(rates), "s")
    low, high = si(min(rates), "B/s"), si(max(rates), "B/s")
    return WAYS.get(resource, resource), high if low == high or resource in WAYS else f"{low} to {high}"


def _ahead(found: scaling.Scaling, law: str) -> tuple[str, list[scaling.Prediction], scaling.Law]:
    last = found.steps[-1].at.n
    return law, [found.predict(law, times * last) for times in BEYOND], found.laws[law]


def _by_case(record: Record) -> list[tuple[bool, float, str]]:
    """Sizes rise, words go by the alphabet, whatever order the files came in."""
    numbers = (int, float)
    return [(False, v, "") if isinstance(v, numbers) else (True, 0.0, str(v)) for v in record.case.values()]


def _overhead_us(records: Iterable[Record]) -> float | None:
    """What handing over the baton costs: the part of a turn that is not timed (reset and warm-up included)."""
    costs = [ns for r in records for lane in r.contenders for ns in lane.turn_overhead_ns]
    return statistics.median(costs) / 1e3 if costs else None
