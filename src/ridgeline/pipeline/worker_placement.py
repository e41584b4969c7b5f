"""The device and the placement of each worker of a pool."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from ridgeline.errors import InputError
from ridgeline.machine import Placement, plan, topology


def place_workers(
    devices: str | int | Sequence[str], place: str | Sequence[Placement] | None
) -> list[tuple[str, Placement | None]]:
    """Return the device and the placement of each worker."""
    machine = topology()
    if is_integer(devices):
        count = int(devices)  # type: ignore[arg-type]  # NumPy integers too
        if machine.gpus and count > len(machine.gpus):
            raise InputError(
                f"{count} workers requested, this process sees {len(machine.gpus)} GPUs; name the devices."
            )
        names = [f"cuda:{gpu.index}" for gpu in machine.gpus[:count]] or ["cpu"] * count
    elif devices == "auto":
        nodes = {cpu.node for cpu in machine.cpus if cpu.usable}
        names = [f"cuda:{gpu.index}" for gpu in machine.gpus] or ["cpu"] * len(nodes)
    else:
        names = [devices] if isinstance(devices, str) else _make_list(devices, "devices", "names, a count, or 'auto'")
    if not names:
        raise InputError(f"devices={devices!r} names no worker; give one or more.")
    numbers = [_parse_gpu(name) for name in names]
    gpus = [number for number in numbers if number is not None]
    if gpus and len(gpus) < len(names):
        raise InputError("a pool is of GPUs or of CPU workers, not of both; use two.")
    names = [f"cuda:{number}" for number in gpus] or names
    for number in gpus:
        machine.gpu(number)
    if place is None:
        return [(name, None) for name in names]
    if place == "auto":
        placements = plan(machine, len(names), "gpu", gpus) if gpus else plan(machine, len(names), "node")
    elif isinstance(place, str):
        raise InputError(f"place is '{place}'; give 'auto', None, or a Placement for each worker.")
    else:
        placements = _make_list(place, "place", "'auto', None, or a Placement for each worker")
        for value in placements:
            if not isinstance(value, Placement):
                raise InputError(f"place has {value!r}; give a Placement for each worker.")
        if len(placements) != len(names):
            raise InputError(f"{len(placements)} places for {len(names)} workers; give one for each.")
    return list(zip(names, placements, strict=True))


def is_integer(value: Any) -> bool:
    """Whether a value is an integer, of NumPy's types too."""
    return isinstance(value, Integral)


def _make_list(value: Any, name: str, expected: str) -> list[Any]:
    if not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; give {expected}.")
    return list(value)


def _parse_gpu(name: str) -> int | None:
    """The number of a GPU; None for a CPU."""
    if not isinstance(name, str):
        raise InputError(f"there is no device {name!r} for a worker; there are: cpu, cuda, cuda:N.")
    if name == "cpu":
        return None
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InputError(f"there is no device '{name}' for a worker; there are: cpu, cuda, cuda:N.")
    return int(number or 0)
