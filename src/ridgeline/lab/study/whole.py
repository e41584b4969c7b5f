"""The whole study: every analysis over one table of results, as sections, Markdown and plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.study.bound import bound, bounds
from ridgeline.lab.study.crossover import crossing, crossovers
from ridgeline.lab.study.overview import overview
from ridgeline.lab.study.placement import placement
from ridgeline.lab.study.regime import regimes
from ridgeline.lab.study.scaling import fitted, predictions, scaling
from ridgeline.lab.study.section import PACKAGE, Section
from ridgeline.lab.study.sweep import every
from ridgeline.lab.study.table import Columns, tabulate
from ridgeline.machine.ceiling import Ceilings
from ridgeline.web import page as web_page
from ridgeline.web import render


@dataclass(frozen=True)
class Study:
    sections: list[Section]
    recommendation: dict[str, Any]

    @property
    def markdown(self) -> str:
        """summary.md"""
        return "\n\n".join(section.markdown for section in self.sections) + "\n"

    @property
    def findings(self) -> dict[str, Any]:
        """Everything the sections say, as JSON holds it."""
        return {section.title: dict(section.findings) for section in self.sections if section.findings}

    def page(self, title: str, lead: str = "") -> str:
        """report.html"""
        body = render("study.html", templates=PACKAGE, title=title, lead=lead, sections=self.sections)
        return web_page(title, body)


def study(
    rows: Iterable[Mapping[str, Any]],
    *,
    ceilings: Ceilings | Mapping[str, Ceilings] | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> Study:
    """Analyse rows of results. Missing columns, failed runs and odd values are said, never an error.

    >>> run = {"success": True, "model": "tiny", "batch_size": 8, "batch_seconds": 0.002}
    >>> study([run]).sections[0].said[0]
    '1 of 1 runs gave a time.'
    """
    table = tabulate(rows, columns)
    laws = fitted(table)
    lines = every(table)
    unseen = predictions(table, laws, lines)
    sections: Sequence[Section] = [
        overview(table),
        placement(table),
        bound(table, bounds(table, ceilings), ceilings),
        crossing(table, crossovers(table, lines)),
        regimes(table, lines),
        scaling(table, laws, unseen, lines),
    ]
    return Study([section for section in sections if section.said or section.grids], {})
