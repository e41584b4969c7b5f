"""What an analysis hands over: sentences, tables and charts, once for the page and once as Markdown."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge.stats import Estimate
from ridgeline.web import render

PACKAGE = "ridgeline.lab"
DASH = "–"


@dataclass(frozen=True)
class Grid:
    """A small table; columns named in `right` hold numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    caption: str = ""
    most: int = 24  # rows shown at once; the page folds the rest away, Markdown leaves it out and says so


@dataclass(frozen=True)
class Section:
    title: str
    said: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    charts: Sequence[Markup] = ()
    findings: Mapping[str, Any] = field(default_factory=dict)  # the same as data

    @property
    def anchor(self) -> str:
        return "s-" + re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @property
    def listed(self) -> bool:
        """Whether the sentences stand as a list: where they are many, an eye finds its way better."""
        return len(self.said) > 2

    @property
    def markup(self) -> Markup:
        """The section's body, without its heading."""
        return render("study_section.html", templates=PACKAGE, section=self)

    @property
    def markdown(self) -> str:
        parts = [f"## {_inline(self.title)}"]
        if self.listed:
            parts.append("\n".join(f"- {_inline(sentence)}" for sentence in self.said))
        else:
            parts += map(_inline, self.said)
        for grid in self.grids:
            parts += [_inline(grid.caption)] if grid.caption else []
            rule = ["--:" if name in grid.right else "---" for name in grid.head]
            rows = [grid.head, rule, *grid.rows[: grid.most]]
            parts.append("\n".join(f"| {' | '.join(map(_inline, row))} |" for row in rows))
            if len(grid.rows) > grid.most:
                parts.append(f"… and {len(grid.rows) - grid.most} more rows, on the page.")
        return "\n\n".join(parts)


def plain(value: Any) -> Any:
    """Anything of a study as JSON can hold it: numbers that are none become null."""
    if isinstance(value, Estimate):
        return {"value": plain(value.value), "low": plain(value.low), "high": plain(value.high), "n": value.n}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | bool | None) else str(value)


def percent(ratio: float) -> str:
    """How much more: 1.25 is +25 %, 0.9 is −10 %, 30 is × 30.

    >>> percent(1.25), percent(0.9), percent(1.004), percent(30.0), percent(float("nan"))
    ('+25 %', '−10 %', '+0.4 %', '× 30', '–')
    """
    if not math.isfinite(ratio):
        return DASH
    if ratio >= 3:
        return f"× {ratio:.3g}"
    more = 100 * (ratio - 1)
    text = f"{more:+.1f}" if abs(more) < 9.95 else f"{more:+.0f}"
    return "±0 %" if text in ("+0.0", "-0.0") else f"{text.removesuffix('.0').replace('-', '−')} %"


def share(part: float | None) -> str:
    """
    >>> share(0.074), share(0.42), share(None)
    ('7.4 %', '42 %', '–')
    """
    if part is None or not math.isfinite(part):
        return DASH
    return f"{100 * part:.1f} %" if part < 0.0995 else f"{100 * part:.0f} %"


def spread(ratio: Estimate) -> str:
    """The interval of a ratio, in the same words."""
    if not (math.isfinite(ratio.low) and math.isfinite(ratio.high)):
        return DASH
    return f"{percent(ratio.low)} to {percent(ratio.high)}"


def _inline(text: str) -> str:
    """Text on one line that Markdown leaves alone."""
    return re.sub(r"([\\`*<>\[\]|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(str(text).split()))
