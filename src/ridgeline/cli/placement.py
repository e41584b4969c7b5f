"""Where a command runs: near its GPU, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from ridgeline.cli.output import print_line, stderr

Place = Annotated[
    bool, typer.Option("--place/--no-place", help="Run on the CPUs near the GPU, or on any CPU (default: near).")
]


@contextmanager
def stay_near(device: str, place: bool, quiet: bool) -> Iterator[dict[str, Any] | None]:
    """Run the block on the CPUs near `device`, and say so on stderr.

    Yields the placement for --json, or None if the device is a CPU or `place` is False.
    """
    from ridgeline.machine import placed_near_gpu, resolve_device

    name = resolve_device(device) if place else "cpu"
    if name == "cpu":
        yield None
        return
    with placed_near_gpu(int(name.partition(":")[2] or 0)) as location:
        if location.node is not None and not quiet:
            print_line(location.reason, stderr())
        yield {"node": location.node, "cpus": list(location.cpus), "reason": location.reason}
