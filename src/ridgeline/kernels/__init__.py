"""Triton kernels: the GPU's hot loops, one folder per engine. Importing it loads neither torch nor triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.kernels.bandwidth import make_read_step as make_read_step
    from ridgeline.kernels.launch import LaunchSequence as LaunchSequence
    from ridgeline.kernels.launch.cuda_graphs import get_recording_stream as get_recording_stream
    from ridgeline.kernels.launch.cuda_graphs import record_graph as record_graph
    from ridgeline.kernels.launch.cuda_graphs import recording as recording

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "bandwidth": ["make_read_step"],
        "launch.cuda_graphs": ["get_recording_stream", "record_graph", "recording"],
        "launch": ["LaunchSequence"],
    },
)
