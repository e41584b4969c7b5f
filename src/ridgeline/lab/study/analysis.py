"""All analyses over one table of results, as sections, Markdown, a page and JSON data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.judge import Estimate
from ridgeline.lab.study.advice import advise, choose_next_points, describe_advice, recommend
from ridgeline.lab.study.compilation import compare_compiled, describe_compilation, fit_size_trend
from ridgeline.lab.study.contrasts import compare_factors, describe_contrasts, judge_contrasts
from ridgeline.lab.study.limits import describe_limits, find_run_limits
from ridgeline.lab.study.memory import describe_memory
from ridgeline.lab.study.placement import compare_distances, describe_placement
from ridgeline.lab.study.scaling import (
    SettingLaws,
    describe_regimes,
    describe_scaling,
    fit_laws,
    predict_seconds,
    predict_unseen,
)
from ridgeline.lab.study.section import PACKAGE, Grid, Section, to_json
from ridgeline.lab.study.stability import describe_stability, judge_stability
from ridgeline.lab.study.table import Columns, Table, find_all_sweeps, tabulate
from ridgeline.lab.study.transfers import describe_crossovers, describe_transfers, find_crossovers
from ridgeline.machine import Ceilings
from ridgeline.web import build_page as web_page
from ridgeline.web import render_template

MAX_NAMED = 8  # reasons and levels named before "and more"


@dataclass(frozen=True)
class Study:
    """The results of `study`.

    sections        one per analysis, in the order of the page
    recommendation  JSON data: by goal and model, the node of every GPU, the points to run next
    laws            the fitted laws of every setting
    columns         the names of the columns that were read
    """

    sections: list[Section]
    recommendation: dict[str, Any]
    laws: list[SettingLaws]
    columns: Columns

    @property
    def markdown(self) -> str:
        """All sections as Markdown, the text of summary.md."""
        return "\n\n".join(section.markdown for section in self.sections) + "\n"

    @property
    def findings(self) -> dict[str, Any]:
        """All sections as JSON data, by title."""
        return {section.title: dict(section.findings) for section in self.sections if section.findings}

    def predict(self, amounts: Mapping[str, float], **setting: Any) -> Estimate:
        """Return the seconds per batch of a point that was not run: `predict({"flops": …}, dtype="float16")`.

        `amounts` are FLOPs, bytes and sizes by column name; `setting` selects the laws. Raises InputError where no
        law, or more than one, fits the request.
        """
        return predict_seconds(self.laws, amounts, setting, self.columns)

    def page(self, title: str, lead: str = "") -> str:
        """Return one self-contained HTML page."""
        body = render_template("study.html", templates=PACKAGE, title=title, lead=lead, sections=self.sections)
        return web_page(title, body)


def study(
    rows: Iterable[Mapping[str, Any]],
    *,
    ceilings: Ceilings | Mapping[str, Ceilings] | None = None,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
) -> Study:
    """Analyse rows of results. Missing columns, failed runs and odd values are reported, never an error.

    rows      one mapping per run, as in results.json
    ceilings  measured rates of the device, or of several devices by name; without them the rates in the rows count
    columns   which column has which meaning

    >>> run = {"success": True, "model": "tiny", "batch_size": 8, "batch_seconds": 0.002}
    >>> study([run]).sections[1].sentences[0]
    '1 of 1 runs gave a time.'
    """
    table = tabulate(rows, columns)
    sweeps = find_all_sweeps(table)
    laws = fit_laws(table)
    predictions = predict_unseen(table, laws, sweeps)
    crossovers = find_crossovers(table, sweeps)
    gains = compare_compiled(table)
    contrasts = compare_factors(table)
    findings = judge_contrasts([*compare_distances(table), *contrasts])
    runs = judge_stability(table)
    advice = advise(table, laws)
    next_points = choose_next_points(predictions, crossovers, findings, runs)
    sections = [
        describe_advice(table, advice, next_points),
        describe_runs(table),
        describe_placement(table),
        describe_transfers(table, sweeps),
        describe_limits(table, find_run_limits(table, ceilings)),
        describe_crossovers(table, crossovers),
        describe_regimes(table, sweeps),
        describe_scaling(table, laws, predictions, sweeps),
        describe_compilation(table, gains, fit_size_trend(gains)),
        describe_memory(table, contrasts, sweeps),
        describe_stability(table, runs),
        describe_contrasts(findings),
    ]
    filled = [section for section in sections if section.sentences or section.grids]
    return Study(filled, recommend(table, advice, next_points), laws, columns)


def describe_runs(table: Table) -> Section:
    """Return the section on what was run: how many runs, which failed and why, which columns are missing."""
    columns, runs = table.columns, len(table.trials) + len(table.failed) + len(table.untimed)
    sentences = [f"{len(table.trials)} of {runs} runs gave a time." if runs else "There are no runs to study."]
    reasons = Counter(str(row.get(columns.error) or "no reason given") for row in table.failed)
    for reason, count in reasons.most_common(MAX_NAMED):
        sentences.append(f"{count} failed: {reason[:200]}")
    if table.untimed:
        sentences.append(f"{len(table.untimed)} succeeded but have no time: the study leaves them out.")
    if table.missing and runs:
        sentences.append(f"No row has {', '.join(table.missing)}: analyses that need these are left out.")
    varied = {name: table.levels(name) for name in columns.identity if len(table.levels(name)) > 1}
    rows = [
        [name, str(len(levels)), _list_first([str(v) or "none" for v in levels])] for name, levels in varied.items()
    ]
    grids = [Grid(("varied", "levels", "values"), rows, ("levels",))] if rows else []
    findings = {
        "runs": runs,
        "measured": len(table.trials),
        "failed": len(table.failed),
        "without_time": len(table.untimed),
        "missing_columns": table.missing,
        "varied": varied,
    }
    return Section("What was run", sentences, grids, findings=to_json(findings))


def _list_first(values: list[str]) -> str:
    return ", ".join(values[:MAX_NAMED]) + (f" and {len(values) - MAX_NAMED} more" if len(values) > MAX_NAMED else "")
