"""The whole study: every analysis over one table of results, as sections, Markdown and plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.study.advice import advise, advising, recommendation
from ridgeline.lab.study.ask import ask
from ridgeline.lab.study.bound import bound, bounds
from ridgeline.lab.study.compiled import compiling, gains, with_size
from ridgeline.lab.study.crossover import crossing, crossovers
from ridgeline.lab.study.factor import effects, memory
from ridgeline.lab.study.following import following
from ridgeline.lab.study.overview import overview
from ridgeline.lab.study.placement import placement
from ridgeline.lab.study.regime import regimes
from ridgeline.lab.study.remote import by_distance
from ridgeline.lab.study.scaling import Fitted, fitted, predictions, scaling
from ridgeline.lab.study.section import PACKAGE, Section
from ridgeline.lab.study.significance import findings, significance
from ridgeline.lab.study.stability import paces, stability
from ridgeline.lab.study.sweep import every
from ridgeline.lab.study.table import Columns, tabulate
from ridgeline.lab.study.transfer import transfer
from ridgeline.machine import Ceilings
from ridgeline.web import page as web_page
from ridgeline.web import render


@dataclass(frozen=True)
class Study:
    sections: list[Section]
    recommendation: dict[str, Any]  # by goal and model, the node of every GPU, the next points
    laws: list[Fitted]
    columns: Columns

    @property
    def markdown(self) -> str:
        """summary.md"""
        return "\n\n".join(section.markdown for section in self.sections) + "\n"

    @property
    def findings(self) -> dict[str, Any]:
        """Everything the sections say, as JSON holds it."""
        return {section.title: dict(section.findings) for section in self.sections if section.findings}

    def predict(self, amounts: Mapping[str, float], **setting: Any) -> Estimate:
        """Seconds per batch of a point nobody has run: `predict({"flops": …, "h2d_bytes": …}, dtype="float16")`."""
        return ask(self.laws, amounts, setting, self.columns)

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

    `ceilings` are those of the device, or of several devices by name; without them the rows' own are taken.

    >>> run = {"success": True, "model": "tiny", "batch_size": 8, "batch_seconds": 0.002}
    >>> study([run]).sections[1].said[0]
    '1 of 1 runs gave a time.'
    """
    table = tabulate(rows, columns)
    lines = every(table)
    laws = fitted(table)
    unseen = predictions(table, laws, lines)
    crossed = crossovers(table, lines)
    compiled = gains(table)
    changed = effects(table)
    tested = findings([*by_distance(table), *changed])
    kept = paces(table)
    advice = advise(table, laws)
    after = following(unseen, crossed, tested, kept)
    sections = [
        advising(table, advice, after),
        overview(table),
        placement(table),
        transfer(table, lines),
        bound(table, bounds(table, ceilings)),
        crossing(table, crossed),
        regimes(table, lines),
        scaling(table, laws, unseen, lines),
        compiling(table, compiled, with_size(compiled)),
        memory(table, changed, lines),
        stability(table, kept),
        significance(tested),
    ]
    return Study([s for s in sections if s.said or s.grids], recommendation(table, advice, after), laws, columns)
