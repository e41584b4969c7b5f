"""Check a report: run every rule over its statements and tables, and compare its bound numbers with records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.claims.bindings import check_bindings
from ridgeline.claims.changes import check_changes
from ridgeline.claims.comparisons import check_differences, check_scaling
from ridgeline.claims.context import Context, build_context
from ridgeline.claims.derived import check_derived_columns
from ridgeline.claims.document import load_text, read_document
from ridgeline.claims.equations import check_equations
from ridgeline.claims.finding import Finding
from ridgeline.claims.limits import check_statement_limits, check_table_limits
from ridgeline.claims.percentiles import check_percentile_columns, check_percentile_statements
from ridgeline.claims.quantities import find_quantities
from ridgeline.claims.relations import check_relations
from ridgeline.claims.restated import check_linear_claims, check_restated, check_unit_columns
from ridgeline.claims.sections import check_sections
from ridgeline.claims.sentences import check_results, check_sentences
from ridgeline.claims.totals import check_total_lists, check_totals


@dataclass(frozen=True)
class CheckResult:
    """The findings of one file.

    `findings` are contradictions, the surest first; `notes` only mix units (MB for MiB); `numbers` counts the numbers
    of the file; `bound` counts those that were compared with records.
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
    context = build_context(document)
    findings: dict[tuple[int, str], Finding] = {}
    for finding in _run_rules(context):
        key = (finding.line, finding.arithmetic)
        if key not in findings or finding.confidence > findings[key].confidence:
            findings[key] = finding
    named_lines = {finding.line for finding in findings.values() if finding.kind not in ("derived", "unit")}
    findings |= {(f.line, f.arithmetic): f for f in check_results(context) if f.line not in named_lines}
    reported = [f for f in findings.values() if f.kind != "derived" or f.line not in named_lines]
    ranked = sorted(reported, key=lambda f: (-f.confidence, f.line))
    numbers = sum(len(find_quantities(line.text)) for line in document.lines if not line.code)
    return CheckResult(
        file,
        tuple(f for f in ranked if f.kind != "unit"),
        tuple(f for f in ranked if f.kind == "unit"),
        numbers,
    )


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
    for table, columns in context.tables:
        yield from check_relations(context, table, columns)
        yield from check_scaling(context, table, columns)
        yield from check_differences(context, table, columns)
        yield from check_totals(context, table, columns)
        yield from check_table_limits(context, table, columns)
        yield from check_derived_columns(context, table, columns)
        yield from check_percentile_columns(context, table, columns)
        yield from check_unit_columns(context, table, columns)
    for table, columns in context.transposed:
        rules = (check_relations, check_scaling, check_differences)
        findings = [finding for rule in rules for finding in rule(context, table, columns)]
        yield from findings or check_derived_columns(context, table, columns)
        yield from check_percentile_columns(context, table, columns)
    yield from check_percentile_statements(context)
    yield from check_total_lists(context)
    yield from check_statement_limits(context)
    yield from check_sections(context)
    yield from check_sentences(context)
    yield from check_changes(context)
    yield from check_restated(context)
    yield from check_linear_claims(context)
