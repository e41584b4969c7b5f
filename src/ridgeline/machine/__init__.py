"""What this computer is and where to stand in it: topology · placement · clock · ceilings.

>>> from ridgeline import machine
>>> here = machine.topology()
>>> with machine.placed(machine.Placement(node=here.nodes[0].id)) as where:
...     where.cpus == tuple(c for c in here.nodes[0].cpus if c in here.usable_cpus)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.machine.ceiling import (
        Ceiling as Ceiling,
    )
    from ridgeline.machine.ceiling import (
        Ceilings as Ceilings,
    )
    from ridgeline.machine.ceiling import (
        cached as cached,
    )
    from ridgeline.machine.ceiling import (
        ceilings as ceilings,
    )
    from ridgeline.machine.ceiling import (
        sharpen as sharpen,
    )
    from ridgeline.machine.clock import (
        OVERHEAD_SHARE as OVERHEAD_SHARE,
    )
    from ridgeline.machine.clock import (
        Timer as Timer,
    )
    from ridgeline.machine.clock import (
        batch_for as batch_for,
    )
    from ridgeline.machine.clock import (
        clock_cost_ns as clock_cost_ns,
    )
    from ridgeline.machine.clock import (
        least_ns as least_ns,
    )
    from ridgeline.machine.clock import (
        now_ns as now_ns,
    )
    from ridgeline.machine.clock import (
        timer as timer,
    )
    from ridgeline.machine.device_name import device_named as device_named
    from ridgeline.machine.hardware import (
        Cache as Cache,
    )
    from ridgeline.machine.hardware import (
        Cpu as Cpu,
    )
    from ridgeline.machine.hardware import (
        Gpu as Gpu,
    )
    from ridgeline.machine.hardware import (
        Nic as Nic,
    )
    from ridgeline.machine.hardware import (
        Node as Node,
    )
    from ridgeline.machine.hardware import (
        Topology as Topology,
    )
    from ridgeline.machine.hardware import (
        topology as topology,
    )
    from ridgeline.machine.identity import facts as facts
    from ridgeline.machine.identity import fingerprint as fingerprint
    from ridgeline.machine.load import weather as weather
    from ridgeline.machine.numa import nodes_of as nodes_of
    from ridgeline.machine.placement import (
        Placed as Placed,
    )
    from ridgeline.machine.placement import (
        Placement as Placement,
    )
    from ridgeline.machine.placement import (
        placed as placed,
    )
    from ridgeline.machine.placement import (
        resolve as resolve,
    )
    from ridgeline.machine.planning import nearest_gpus as nearest_gpus
    from ridgeline.machine.planning import nearest_node as nearest_node
    from ridgeline.machine.planning import plan as plan
    from ridgeline.machine.quick_ceilings import glance as glance

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ceiling": ["Ceiling", "Ceilings", "cached", "ceilings", "sharpen"],
        "clock": ["OVERHEAD_SHARE", "Timer", "batch_for", "clock_cost_ns", "least_ns", "now_ns", "timer"],
        "device_name": ["device_named"],
        "hardware": ["Cache", "Cpu", "Gpu", "Nic", "Node", "Topology", "topology"],
        "identity": ["facts", "fingerprint"],
        "load": ["weather"],
        "numa": ["nodes_of"],
        "placement": ["Placed", "Placement", "placed", "resolve"],
        "planning": ["nearest_gpus", "nearest_node", "plan"],
        "quick_ceilings": ["glance"],
    },
)
