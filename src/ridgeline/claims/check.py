"""Check a report: run every rule over its statements and tables, and compare its bound numbers with records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.claims.bindings import check_bindings
from ridgeline.claims.changes import check_changes
from ridgeline.claims.context import Context, build_context
from ridgeline.claims.derived import check_derived
from ridgeline.claims.document import load_text, read_document
from ridgeline.claims.equations import check_equations
from ridgeline.claims.finding import Finding
from ridgeline.claims.peaks import check_peaks
from ridgeline.claims.percentiles import check_percentile_columns, check_percentile_statements
from ridgeline.claims.quantities import find_quantities
from ridgeline.claims.ratios import check_efficiencies, check_ratios
from ridgeline.claims.rows import check_batches, check_bracketed_shares, check_rates, check_shares
from ridgeline.claims.sentences import check_fractions, check_repeated_rows, check_sentences
from ridgeline.claims.totals import check_means, check_total_lines, check_totals


@dataclass(frozen=True)
class CheckResult:
    """The findings of one file.

    `findings` are contradictions, the surest first; `notes` may have another reason (mixed units, another base);
    `numbers` counts the numbers of the file; `bound` counts those that were compared with records.
    """

    file: str
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    numbers: int
    bound: int = 0

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        count, bound = len(self.findings), f", {self.bound} of them bound to records" if self.bound else ""
        verdict = f"{count} contradiction{'s' * (count != 1)}" if count else "no contradiction"
        return f"{self.file}: {self.numbers} numbers{bound}; {verdict}."


def check_text(text: str, file: str = "") -> CheckResult:
    """Check a report for numbers that contradict each other.

    The suffix of `file` decides how the text is read: `.csv` and `.tsv` as tables, anything else as Markdown, HTML or
    plain text.
    """
    document = read_document(text, file)
    surest: dict[tuple[int, str, bool], Finding] = {}
    for finding in _run_rules(build_context(document)):
        key = (finding.line, finding.says, finding.is_note)
        if key not in surest or finding.confidence > surest[key].confidence:
            surest[key] = finding
    ranked = sorted(surest.values(), key=lambda finding: (-finding.confidence, finding.line))
    numbers = sum(len(find_quantities(line.text)) for line in document.lines if not line.code)
    findings = tuple(finding for finding in ranked if not finding.is_note)
    return CheckResult(file, findings, tuple(finding for finding in ranked if finding.is_note), numbers)


def check_file(path: Path) -> CheckResult:
    """Check a report, and compare its bound numbers with the records of its project.

    Raises `InputError` if the file does not exist or is not text.
    """
    text = load_text(path)
    result = check_text(text, str(path))
    findings, bound = check_bindings(path, text)
    return replace(result, findings=(*findings, *result.findings), bound=bound)


def _run_rules(context: Context) -> Iterator[Finding]:
    yield from check_equations(context.document)
    for table, columns in [*context.tables, *context.views]:
        yield from check_rates(context, table, columns)
        yield from check_shares(context, table, columns)
        yield from check_ratios(context, table, columns)
        yield from check_efficiencies(context, table, columns)
        yield from check_percentile_columns(context, table, columns)
        yield from check_derived(context, table, columns)
    for table, columns in context.tables:
        yield from check_totals(context, table, columns)
        yield from check_means(context, table, columns)
        yield from check_peaks(context, table, columns)
        yield from check_batches(context, table, columns)
    for table, columns in context.views:
        yield from check_total_lines(context, table, columns)
        yield from check_bracketed_shares(context, table, columns)
    yield from check_percentile_statements(context)
    yield from check_sentences(context)
    yield from check_fractions(context)
    yield from check_changes(context)
    yield from check_repeated_rows(context)
