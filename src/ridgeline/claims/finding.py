"""A finding: a number of a report that contradicts another one or its record."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

CERTAIN, LIKELY, UNSURE = 0.95, 0.85, 0.5  # base confidence: what a rule knows about the meaning of the numbers
_MIN_CONFIDENCE = 0.7  # with less, it is a note


@dataclass(frozen=True)
class Finding:
    """One contradiction: its place, what the report says, what the arithmetic gives, the confidence (0 to 1)."""

    file: str
    line: int
    kind: str
    says: str
    arithmetic: str
    confidence: float

    @property
    def is_note(self) -> bool:
        """Whether it is too unsure to be a contradiction."""
        return self.confidence < _MIN_CONFIDENCE

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict."""
        return asdict(self)


def grade_confidence(base: float, factor: float) -> float:
    """Lower the confidence of a rule a little if the stated and the computed value are close to each other."""
    grade = 1.0 if factor >= 1.5 else 0.97 if factor >= 1.05 else 0.93
    return round(base * grade, 2)
