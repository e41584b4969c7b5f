"""Hold a report against itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.claims import (
    bound,
    changes,
    derived,
    differences,
    equations,
    limits,
    order,
    reading,
    relations,
    restated,
    scaling,
    sections,
    sentences,
    stated,
    totals,
    twice,
    words,
)
from ridgeline.claims.context import Context, gather
from ridgeline.claims.finding import Finding
from ridgeline.claims.quantities import find


@dataclass(frozen=True)
class Checked:
    """What was found in one file: contradictions, and what only mixes units."""

    file: str
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    numbers: int
    bound: int = 0  # numbers re-derived from records

    @property
    def sentence(self) -> str:
        found, held = len(self.findings), f", {self.bound} of them bound to records" if self.bound else ""
        said = f"{found} contradiction{'s' * (found != 1)}" if found else "no contradiction"
        return f"{self.file}: {self.numbers} numbers{held}; {said}."


def check_text(text: str, file: str = "") -> Checked:
    document = reading.read(text, file)
    context = gather(document)
    found: dict[tuple[int, str], Finding] = {}
    for finding in _all(context):
        key = (finding.line, finding.arithmetic)
        if key not in found or finding.confidence > found[key].confidence:
            found[key] = finding
    named = {finding.line for finding in found.values() if finding.kind not in ("derived", "unit")}
    found |= {(f.line, f.arithmetic): f for f in stated.check(context) if f.line not in named}
    told = [finding for finding in found.values() if finding.kind != "derived" or finding.line not in named]
    ranked = sorted(told, key=lambda f: (-f.confidence, f.line))
    numbers = sum(len(find(line.text)) for line in document.lines if not line.code)
    return Checked(
        file,
        tuple(f for f in ranked if f.kind != "unit"),
        tuple(f for f in ranked if f.kind == "unit"),
        numbers,
    )


def check_file(path: Path) -> Checked:
    """A report held against itself; Markdown of a project with records also against them."""
    text = reading.load(path)
    own = check_text(text, str(path))
    findings, references = bound.check(path, text)
    return replace(own, findings=(*findings, *own.findings), bound=references)


def _all(context: Context) -> Iterator[Finding]:
    yield from equations.check(context.document)
    for table, columns in context.tables:
        yield from relations.check(context, table, columns)
        yield from scaling.check(context, table, columns)
        yield from differences.check(context, table, columns)
        yield from totals.check(context, table, columns)
        yield from limits.check(context, table, columns)
        yield from derived.check(context, table, columns)
        yield from order.check(context, table, columns)
        yield from twice.check(context, table, columns)
    for table, columns in context.turned:
        told = [f for part in (relations, scaling, differences) for f in part.check(context, table, columns)]
        yield from told or derived.check(context, table, columns)
        yield from order.check(context, table, columns)
    yield from order.statements(context)
    yield from totals.lists(context)
    yield from limits.statements(context)
    yield from sections.check(context)
    yield from sentences.check(context)
    yield from changes.check(context)
    yield from restated.check(context)
    yield from words.check(context)
