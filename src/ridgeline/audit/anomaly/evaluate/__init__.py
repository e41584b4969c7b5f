"""How good is the detector? Labelled data, two baselines, one protocol.

    from ridgeline.audit.anomaly.evaluate import evaluate
    answer = evaluate(Path("logs/hdfs_sessions"), ridgeline.Embedder().encode)

docs/audit.md has the figures and what they do not say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.anomaly.evaluate.protocol import evaluate as evaluate
    from ridgeline.audit.anomaly.evaluate.protocol import judged as judged
    from ridgeline.audit.anomaly.evaluate.units import Labelled as Labelled
    from ridgeline.audit.anomaly.evaluate.units import Unit as Unit
    from ridgeline.audit.anomaly.evaluate.units import load as load

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "protocol": ["evaluate", "judged"],
        "units": ["Labelled", "Unit", "load"],
    },
)
