"""How good is the detector? Labelled data, two baselines, one protocol.

    from ridgeline.audit.evaluate import evaluate
    answer = evaluate(Path("logs/hdfs_sessions"), ridgeline.Embedder().encode)

docs/audit.md has the figures and what they do not say.
"""

from __future__ import annotations

from ridgeline.audit.evaluate.protocol import evaluate, judged
from ridgeline.audit.evaluate.units import Labelled, Unit, load

__all__ = ["Labelled", "Unit", "evaluate", "judged", "load"]
