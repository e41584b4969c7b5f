"""A finding: a number of a report that contradicts another one or its record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One contradiction: its place, what the report says, what the arithmetic gives, the confidence (0 to 1)."""

    file: str
    line: int
    kind: str
    says: str
    arithmetic: str
    confidence: float

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return asdict(self)


def confidence(factor: float, base_confidence: float = 0.95) -> float:
    """Lower a confidence by the size of the gap: a small gap may have a reason that the report does not state."""
    if factor >= 1.5:
        grade = 1.0
    elif factor >= 1.05:
        grade = 0.92
    elif factor >= 1.01:
        grade = 0.8
    else:
        grade = 0.62
    return round(base_confidence * grade, 2)
