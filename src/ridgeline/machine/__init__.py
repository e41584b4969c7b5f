"""The hardware of this computer, placement of processes on it, timers, and measured ceilings.

>>> from ridgeline import machine
>>> computer = machine.topology()
>>> with machine.placed(machine.Placement(node=computer.nodes[0].id)) as where:
...     where.cpus == tuple(c for c in computer.nodes[0].cpus if c in computer.usable_cpus)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.machine.causes import Cause as Cause
    from ridgeline.machine.causes import find_causes as find_causes
    from ridgeline.machine.ceiling_measurement import ceilings as ceilings
    from ridgeline.machine.ceiling_measurement import measure_quick_ceilings as measure_quick_ceilings
    from ridgeline.machine.ceiling_measurement import read_cached_ceilings as read_cached_ceilings
    from ridgeline.machine.ceiling_measurement import remeasure_ceiling as remeasure_ceiling
    from ridgeline.machine.ceiling_types import Ceiling as Ceiling
    from ridgeline.machine.ceiling_types import Ceilings as Ceilings
    from ridgeline.machine.clock import OVERHEAD_SHARE as OVERHEAD_SHARE
    from ridgeline.machine.clock import Timer as Timer
    from ridgeline.machine.clock import choose_calls as choose_calls
    from ridgeline.machine.clock import make_timer as make_timer
    from ridgeline.machine.clock import measure_clock_cost_ns as measure_clock_cost_ns
    from ridgeline.machine.clock import measure_least_ns as measure_least_ns
    from ridgeline.machine.clock import now_ns as now_ns
    from ridgeline.machine.device_name import has_cuda_build as has_cuda_build
    from ridgeline.machine.device_name import parse_devices as parse_devices
    from ridgeline.machine.device_name import resolve_device as resolve_device
    from ridgeline.machine.devices import Gpu as Gpu
    from ridgeline.machine.devices import Nic as Nic
    from ridgeline.machine.hardware import Cache as Cache
    from ridgeline.machine.hardware import Cpu as Cpu
    from ridgeline.machine.hardware import Node as Node
    from ridgeline.machine.hardware import Topology as Topology
    from ridgeline.machine.hardware import topology as topology
    from ridgeline.machine.identity import describe_machine as describe_machine
    from ridgeline.machine.identity import fingerprint as fingerprint
    from ridgeline.machine.launch_lines import format_spans as format_spans
    from ridgeline.machine.launch_lines import write_launch_lines as write_launch_lines
    from ridgeline.machine.near_gpu import NearGpu as NearGpu
    from ridgeline.machine.near_gpu import placed_near_gpu as placed_near_gpu
    from ridgeline.machine.normal import Finding as Finding
    from ridgeline.machine.normal import find_normal as find_normal
    from ridgeline.machine.numa import count_pages_by_node as count_pages_by_node
    from ridgeline.machine.numa import memory_policy_supported as memory_policy_supported
    from ridgeline.machine.placement import Placed as Placed
    from ridgeline.machine.placement import Placement as Placement
    from ridgeline.machine.placement import placed as placed
    from ridgeline.machine.placement import resolve_placement as resolve_placement
    from ridgeline.machine.planning import find_nearest_gpus as find_nearest_gpus
    from ridgeline.machine.planning import find_nearest_node as find_nearest_node
    from ridgeline.machine.planning import plan as plan
    from ridgeline.machine.state import read_machine_state as read_machine_state

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "causes": ["Cause", "find_causes"],
        "ceiling_measurement": ["ceilings", "measure_quick_ceilings", "read_cached_ceilings", "remeasure_ceiling"],
        "ceiling_types": ["Ceiling", "Ceilings"],
        "clock": [
            "OVERHEAD_SHARE",
            "Timer",
            "choose_calls",
            "make_timer",
            "measure_clock_cost_ns",
            "measure_least_ns",
            "now_ns",
        ],
        "device_name": ["has_cuda_build", "parse_devices", "resolve_device"],
        "devices": ["Gpu", "Nic"],
        "hardware": ["Cache", "Cpu", "Node", "Topology", "topology"],
        "identity": ["describe_machine", "fingerprint"],
        "launch_lines": ["format_spans", "write_launch_lines"],
        "near_gpu": ["NearGpu", "placed_near_gpu"],
        "normal": ["Finding", "find_normal"],
        "numa": ["count_pages_by_node", "memory_policy_supported"],
        "placement": ["Placed", "Placement", "placed", "resolve_placement"],
        "planning": ["find_nearest_gpus", "find_nearest_node", "plan"],
        "state": ["read_machine_state"],
    },
)
