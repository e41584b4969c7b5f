"""How good the detector is: labelled data, six baselines, one protocol.

    from ridgeline.audit.anomaly.evaluate import evaluate
    answer = evaluate(Path("logs/hdfs_sessions"), ridgeline.Embedder().encode)

docs/audit.md has the results and their limits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.anomaly.evaluate.protocol import compare_methods as compare_methods
    from ridgeline.audit.anomaly.evaluate.protocol import evaluate as evaluate
    from ridgeline.audit.anomaly.evaluate.units import Labelled as Labelled
    from ridgeline.audit.anomaly.evaluate.units import Unit as Unit
    from ridgeline.audit.anomaly.evaluate.units import load as load

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "protocol": ["compare_methods", "evaluate"],
        "units": ["Labelled", "Unit", "load"],
    },
)
