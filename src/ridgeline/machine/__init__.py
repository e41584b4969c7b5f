"""What this computer is and where to stand in it: topology · placement · clock · ceilings.

>>> from ridgeline import machine
>>> here = machine.topology()
>>> with machine.placed(machine.Placement(node=here.nodes[0].id)) as where:
...     where.cpus == tuple(c for c in here.nodes[0].cpus if c in here.usable_cpus)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ridgeline import errors
from ridgeline.machine.placement import Placed, Placement, placed
from ridgeline.machine.plan import nearest_gpus, nearest_node, plan
from ridgeline.machine.topology import Cache, Cpu, Gpu, Nic, Node, Topology, topology

if TYPE_CHECKING:
    from ridgeline.machine.ceiling import Ceilings, ceilings
    from ridgeline.machine.identity import fingerprint

__all__ = [
    "Cache",
    "Ceilings",
    "Cpu",
    "Gpu",
    "Nic",
    "Node",
    "Placed",
    "Placement",
    "Topology",
    "ceilings",
    "errors",
    "fingerprint",
    "nearest_gpus",
    "nearest_node",
    "placed",
    "plan",
    "topology",
]


def __getattr__(name: str) -> Any:
    # Ceilings need numpy and the native loops; topology and placement must run with neither.
    if name in ("Ceilings", "ceilings"):
        import importlib

        return getattr(importlib.import_module("ridgeline.machine.ceiling"), name)
    if name == "fingerprint":
        from ridgeline.machine.identity import fingerprint

        return fingerprint
    raise AttributeError(f"module 'ridgeline.machine' has no attribute {name!r}")
