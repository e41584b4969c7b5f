"""How unusual an event is, and why: an online detector without labels. Each part is a p-value; together they give
one score and a reason in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.anomaly.detector import Detector as Detector
    from ridgeline.audit.anomaly.detector import Judgement as Judgement
    from ridgeline.audit.anomaly.sentences import describe_event as describe_event
    from ridgeline.audit.anomaly.template import Miner as Miner
    from ridgeline.audit.anomaly.template import Template as Template
    from ridgeline.audit.anomaly.template import mask as mask

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "detector": ["Detector", "Judgement"],
        "sentences": ["describe_event"],
        "template": ["Miner", "Template", "mask"],
    },
)
