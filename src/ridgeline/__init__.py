"""Fast paths for AI data, each one measured against its limit.

`ridgeline.__all__` is the public API. Names load on first use, so importing the package costs milliseconds and
brings no torch:

>>> import ridgeline as rl
>>> rl.topology().nodes[0].id >= 0
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline import audit as audit
    from ridgeline import bulk as bulk
    from ridgeline import claims as claims
    from ridgeline import embed as embed
    from ridgeline import errors as errors
    from ridgeline import fabric as fabric
    from ridgeline import lab as lab
    from ridgeline import machine as machine
    from ridgeline import pipeline as pipeline
    from ridgeline import recommend as recommend
    from ridgeline import search as search
    from ridgeline import serve as serve
    from ridgeline import store as store
    from ridgeline import trajectory as trajectory
    from ridgeline import web as web
    from ridgeline.audit import Ledger as Ledger
    from ridgeline.embed import Embedder as Embedder
    from ridgeline.embed import Reranker as Reranker
    from ridgeline.errors import RidgelineError as RidgelineError
    from ridgeline.lab.race import race as race
    from ridgeline.machine import Placement as Placement
    from ridgeline.machine import Topology as Topology
    from ridgeline.machine import ceilings as ceilings
    from ridgeline.machine import placed as placed
    from ridgeline.machine import plan as plan
    from ridgeline.machine import topology as topology
    from ridgeline.pipeline import stream as stream
    from ridgeline.recommend import Recommender as Recommender
    from ridgeline.search import Index as Index
    from ridgeline.trajectory import Stream as Stream
    from ridgeline.trajectory import TrajectoryDataset as TrajectoryDataset
    from ridgeline.trajectory import align as align
    from ridgeline.trajectory import collate as collate
    from ridgeline.trajectory import resample as resample

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        ".": [
            "audit",
            "bulk",
            "claims",
            "embed",
            "errors",
            "fabric",
            "lab",
            "machine",
            "pipeline",
            "recommend",
            "search",
            "serve",
            "store",
            "trajectory",
            "web",
        ],
        "audit": ["Ledger"],
        "embed": ["Embedder", "Reranker"],
        "errors": ["RidgelineError"],
        "lab.race": ["race"],
        "machine": ["Placement", "Topology", "ceilings", "placed", "plan", "topology"],
        "pipeline": ["stream"],
        "recommend": ["Recommender"],
        "search": ["Index"],
        "trajectory": ["Stream", "TrajectoryDataset", "align", "collate", "resample"],
    },
)
__all__ += ["__version__"]
__all__.sort()
