"""report.html, report.md and report.json: what the records of one or several machines say, and nothing but records.

    ridgeline report benchmarks/records --out /tmp

Records of several kinds of machine are chapters of their own; nothing is compared across them. This file gathers what
a chapter says; report_page.py draws it, report_text.py writes it as Markdown and JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.experiment.rows import row as study_row
from ridgeline.lab.judge import cost, prices, scaling
from ridgeline.lab.judge.cost import Plan
from ridgeline.lab.judge.findings import Standing, latest, standings
from ridgeline.lab.judge.scaling import Scaling
from ridgeline.lab.judge.tuning import Change, changes, is_study
from ridgeline.lab.record.record import Record
from ridgeline.lab.study.placement import placement
from ridgeline.lab.study.section import Section
from ridgeline.lab.study.table import Columns, tabulate
from ridgeline.store import publish

WORKERS = ("ranks", "workers", "writers")  # numbers of those who share the work
FEWEST = 3  # of them, before a law is worth a picture
BEYOND = (2, 4)  # times the most that was measured: how far laws are asked
Picture = tuple[str, str]  # a title and an SVG
Pictures = Callable[[Record], Iterable[Picture]]


@dataclass(frozen=True)
class Chapter:
    """One kind of machine."""

    machine: Mapping[str, Any]
    records: Sequence[Record]  # the newest of each case, as they came
    standings: Sequence[Standing]
    changes: Sequence[Change]
    scalings: Sequence[Scaling]
    plans: Sequence[tuple[Standing, Plan]]  # with a price, at the share of busy time that plans allow
    placement: Section | None  # of experiments that stood on several nodes
    notes: Sequence[str]

    @property
    def name(self) -> str:
        return " · ".join([str(self.machine["cpu"]), *(str(gpu["name"]) for gpu in self.machine["gpus"])])

    @property
    def workloads(self) -> list[str]:
        return list(dict.fromkeys(r.workload for r in self.records))

    @property
    def codes(self) -> list[str]:
        """The versions of the code, as people write them: "1833f01+ (local changes)"."""
        marks = {True: " with local changes", None: " (local changes unknown)", False: ""}
        told = ((r.code["commit"] or "no commit")[:12] + marks.get(r.code["dirty"], "") for r in self.records)
        return list(dict.fromkeys(told))


def chapters(records: Sequence[Record]) -> list[Chapter]:
    """By kind of machine, in the order in which they came."""
    if not records:
        raise InputError("there is no record to report on; run ridgeline bench first.")
    held = latest(records)
    told = standings(held)
    known, trouble = _prices()
    out = []
    for fingerprint in dict.fromkeys(r.machine["fingerprint"] for r in held):
        own = [r for r in held if r.machine["fingerprint"] == fingerprint]
        stand = [s for s in told if s.machine == fingerprint]
        newest = max(own, key=lambda r: str(r.time))
        plans = [(s, plan) for s in stand if (plan := _plan(s, known)) is not None]
        notes = [trouble] if trouble else []
        out.append(
            Chapter(newest.machine, own, stand, changes(own), _scalings(own), plans, _placement(own), notes),
        )
    return out


def write(
    records: Sequence[Record], out: Path, *, refused: Sequence[str] = (), pictures: Pictures | None = None
) -> Path:
    """Publish report.html, report.md and report.json into `out`; the page's path comes back.

    `refused` are sentences about files that were left out; `pictures` draws what the lab knows nothing about, a
    schedule for example.
    """
    from ridgeline.lab.report import page as report_page
    from ridgeline.lab.report import text as report_text

    told = chapters(records)
    files = {
        "report.html": report_page.build(told, refused, pictures),
        "report.md": report_text.markdown(told, refused),
        "report.json": report_text.to_json(told, refused),
    }
    for name, text in files.items():
        with publish(out / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return out / "report.html"


def build(records: Sequence[Record], refused: Sequence[str] = (), pictures: Pictures | None = None) -> str:
    """The page itself."""
    from ridgeline.lab.report import page as report_page

    return report_page.build(chapters(records), refused, pictures)


def mixed(told: Sequence[Chapter]) -> str:
    """What must be said where records come from several kinds of machine; empty for one."""
    if len(told) < 2:
        return ""
    return f"Records of {len(told)} kinds of machine: each has a chapter of its own, none is compared with another."


def dollars(standing: Standing) -> tuple[str, float]:
    """What dollars are told per, and how many millions of items that is: a million texts, but a terabyte."""
    unit = str(standing.record.work["unit"])
    return ("TB", 1e6) if unit == "bytes" else (f"million {unit}", 1.0)


def _scalings(records: Sequence[Record]) -> list[Scaling]:
    found = []
    for over in WORKERS:
        try:
            found += [s for s in scaling.of_records(records, over) if len(s.steps) >= FEWEST]
        except InputError:  # points that make no family say nothing about scaling
            continue
    return found


def _placement(records: Sequence[Record]) -> Section | None:
    rows = [study_row(r) for r in records if is_study(r)]
    section = placement(tabulate(rows, Columns())) if rows else None
    return section if section is not None and section.findings.get("remote") else None


def _prices() -> tuple[list[prices.Price], str]:
    """The price book; a broken one costs the dollars, not the report."""
    try:
        return prices.books(), ""
    except InputError as refusal:
        return [], f"Costs are left out: {refusal}"


def _plan(standing: Standing, known: Sequence[prices.Price]) -> Plan | None:
    found, _ = cost.services([standing.record])
    if not found:
        return None
    price = prices.find(known, standing.record.machine, found[0].device)
    return cost.plan(found[0], found[0].rate * cost.TARGET, price) if price else None
