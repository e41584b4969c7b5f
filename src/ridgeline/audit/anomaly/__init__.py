"""How unusual an event is and why, online, without labels: parts that are p-values, one score, a reason in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.anomaly.sentences import sentence as sentence

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "sentences": ["sentence"],
    },
)
