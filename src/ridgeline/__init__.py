"""Fast paths for AI data, each one measured against its limit.

`ridgeline.__all__` is the public API. Names load on first use, so importing the package costs nothing and
brings no torch:

>>> import ridgeline
>>> ridgeline.topology().nodes[0].id >= 0
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline import embed, errors, fabric, lab, machine, search, trajectory
    from ridgeline.embed import Embedder
    from ridgeline.errors import RidgelineError
    from ridgeline.machine.ceiling import ceilings
    from ridgeline.machine.placement import Placement, placed
    from ridgeline.machine.plan import plan
    from ridgeline.machine.topology import Topology, topology
    from ridgeline.search import Index
    from ridgeline.trajectory import TrajectoryDataset, collate, resample

__version__ = "0.1.0"

# public name -> the module it lives in; a module of that very name is given itself
_HOMES = {
    "Embedder": "ridgeline.embed",
    "Index": "ridgeline.search",
    "Placement": "ridgeline.machine",
    "RidgelineError": "ridgeline.errors",
    "Topology": "ridgeline.machine",
    "TrajectoryDataset": "ridgeline.trajectory",
    "ceilings": "ridgeline.machine",
    "collate": "ridgeline.trajectory",
    "embed": "ridgeline.embed",
    "errors": "ridgeline.errors",
    "fabric": "ridgeline.fabric",
    "lab": "ridgeline.lab",
    "machine": "ridgeline.machine",
    "placed": "ridgeline.machine",
    "plan": "ridgeline.machine",
    "resample": "ridgeline.trajectory",
    "search": "ridgeline.search",
    "topology": "ridgeline.machine",
    "trajectory": "ridgeline.trajectory",
}

__all__ = [
    "Embedder",
    "Index",
    "Placement",
    "RidgelineError",
    "Topology",
    "TrajectoryDataset",
    "__version__",
    "ceilings",
    "collate",
    "embed",
    "errors",
    "fabric",
    "lab",
    "machine",
    "placed",
    "plan",
    "resample",
    "search",
    "topology",
    "trajectory",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    module = import_module(home)
    value = module if home == f"ridgeline.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
