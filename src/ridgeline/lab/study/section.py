"""A section of a study: sentences, tables and charts, for the page and as Markdown, and the words for numbers."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge import Estimate
from ridgeline.web import render_template

PACKAGE = "ridgeline.lab"
DASH = "–"
JSON_KEY = "json"  # metadata of a dataclass field: its key in JSON, where that differs from its name


@dataclass(frozen=True)
class Grid:
    """A small table.

    head      names of the columns
    rows      cells as text
    right     names of the columns that hold numbers
    max_rows  rows in view; the page folds the rest away, Markdown leaves it out and counts it
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    caption: str = ""
    max_rows: int = 24


@dataclass(frozen=True)
class Section:
    """One analysis for the reader; `findings` has the same as JSON data."""

    title: str
    sentences: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    charts: Sequence[Markup] = ()
    findings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def anchor(self) -> str:
        return "s-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def listed(self) -> bool:
        """Whether the sentences form a list, which is easier to read where there are many."""
        return len(self.sentences) > 2

    @property
    def markup(self) -> Markup:
        """The HTML of the section, without its heading."""
        return render_template("study_section.html", templates=PACKAGE, section=self)

    @property
    def markdown(self) -> str:
        """The section as Markdown, with its heading."""
        parts = [f"## {_escape(self.title)}"]
        if self.listed:
            parts.append("\n".join(f"- {_escape(sentence)}" for sentence in self.sentences))
        else:
            parts += map(_escape, self.sentences)
        for grid in self.grids:
            parts += [_escape(grid.caption)] if grid.caption else []
            rule = ["--:" if name in grid.right else "---" for name in grid.head]
            rows = [grid.head, rule, *grid.rows[: grid.max_rows]]
            parts.append("\n".join(f"| {' | '.join(map(_escape, row))} |" for row in rows))
            if len(grid.rows) > grid.max_rows:
                parts.append(f"… and {len(grid.rows) - grid.max_rows} more rows, on the page.")
        return "\n\n".join(parts)


def to_json(value: Any) -> Any:
    """Return any value of a study as JSON data; numbers that are not finite become null."""
    if isinstance(value, Estimate):
        return {"value": to_json(value.value), "low": to_json(value.low), "high": to_json(value.high), "n": value.n}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.metadata.get(JSON_KEY, f.name): to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def format_change(ratio: float) -> str:
    """Format a ratio as a change: 1.25 is +25 %, 0.9 is −10 %, 30 is × 30.

    >>> [format_change(r) for r in (1.25, 0.9, 1.004, 30.0, float("nan"))]
    ['+25 %', '−10 %', '+0.4 %', '× 30', '–']
    """
    if not math.isfinite(ratio):
        return DASH
    if ratio >= 3:
        return f"× {ratio:.3g}"
    more = 100 * (ratio - 1)
    text = f"{more:+.1f}" if abs(more) < 9.95 else f"{more:+.0f}"
    return "±0 %" if text in ("+0.0", "-0.0") else f"{text.removesuffix('.0').replace('-', '−')} %"


def format_share(part: float | None) -> str:
    """Format a share as a percentage.

    >>> format_share(0.074), format_share(0.42), format_share(None)
    ('7.4 %', '42 %', '–')
    """
    if part is None or not math.isfinite(part):
        return DASH
    return f"{100 * part:.1f} %" if part < 0.0995 else f"{100 * part:.0f} %"


def format_interval(ratio: Estimate) -> str:
    """Format the interval of a ratio as changes: "+10 % to +40 %"."""
    if not (math.isfinite(ratio.low) and math.isfinite(ratio.high)):
        return DASH
    return f"{format_change(ratio.low)} to {format_change(ratio.high)}"


def _escape(text: str) -> str:
    """Return text on one line in which Markdown sees no markup."""
    return re.sub(r"([\\`*<>\[\]|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(text).split()))
