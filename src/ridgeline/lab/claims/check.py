"""Hold a report against itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.lab.claims import equations, limits, reading, relations, scaling, statements, totals
from ridgeline.lab.claims.context import Context, gather
from ridgeline.lab.claims.finding import Finding
from ridgeline.lab.claims.quantities import find


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
    ranked = sorted(found.values(), key=lambda f: (-f.confidence, f.line))
    numbers = sum(len(find(line.text)) for line in document.lines if not line.code)
    return Checked(
        file,
        tuple(f for f in ranked if f.kind != "unit"),
        tuple(f for f in ranked if f.kind == "unit"),
        numbers,
    )


def check_file(path: Path) -> Checked:
    return check_text(reading.load(path), str(path))


def _all(context: Context) -> Iterator[Finding]:
    yield from equations.check(context.document)
    for table, columns in context.tables:
        yield from relations.check(context, table, columns)
        yield from scaling.check(context, table, columns)
        yield from totals.check(context, table, columns)
        yield from limits.check(context, table, columns)
    yield from totals.lists(context)
    yield from limits.statements(context)
    yield from statements.check(context)
