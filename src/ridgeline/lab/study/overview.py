"""What the study holds: how many runs, what failed and why, what no row tells."""

from __future__ import annotations

from collections import Counter

from ridgeline.lab.study.section import Grid, Section, plain
from ridgeline.lab.study.table import Table

MOST = 8  # reasons and levels named before "and more"


def overview(table: Table) -> Section:
    columns, runs = table.columns, len(table.trials) + len(table.failed) + len(table.timeless)
    said = [f"{len(table.trials)} of {runs} runs gave a time." if runs else "There are no runs to study."]
    reasons = Counter(str(row.get(columns.error) or "no reason given") for row in table.failed)
    for reason, count in reasons.most_common(MOST):
        said.append(f"{count} failed: {reason[:200]}")
    if table.timeless:
        said.append(f"{len(table.timeless)} succeeded by their own word but tell no time: they are left out.")
    if table.missing and runs:
        said.append(f"No row tells {', '.join(table.missing)}: what needs these is left out.")
    varied = {name: table.levels(name) for name in columns.identity if len(table.levels(name)) > 1}
    rows = [[name, str(len(found)), _few([str(v) or "none" for v in found])] for name, found in varied.items()]
    grids = [Grid(("varied", "levels", "values"), rows, ("levels",))] if rows else []
    findings = {
        "runs": runs,
        "measured": len(table.trials),
        "failed": len(table.failed),
        "without_time": len(table.timeless),
        "missing_columns": table.missing,
        "varied": varied,
    }
    return Section("What was run", said, grids, findings=plain(findings))


def _few(values: list[str]) -> str:
    return ", ".join(values[:MOST]) + (f" and {len(values) - MOST} more" if len(values) > MOST else "")
