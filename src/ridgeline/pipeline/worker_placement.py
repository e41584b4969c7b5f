"""Where the workers of a pool stand: a device and a place for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from ridgeline.errors import InputError
from ridgeline.machine import Placement, plan, topology


def stands(
    devices: str | int | Sequence[str], place: str | Sequence[Placement] | None
) -> list[tuple[str, Placement | None]]:
    """Each worker's device and place."""
    here = topology()
    if is_whole(devices):
        devices = int(devices)  # type: ignore[arg-type]  # NumPy's too
        if here.gpus and devices > len(here.gpus):
            raise InputError(f"{devices} workers asked for, this process sees {len(here.gpus)} GPUs; name the devices.")
        names = [f"cuda:{gpu.index}" for gpu in here.gpus[:devices]] or ["cpu"] * devices
    elif devices == "auto":
        nodes = {cpu.node for cpu in here.cpus if cpu.usable}
        names = [f"cuda:{gpu.index}" for gpu in here.gpus] or ["cpu"] * len(nodes)
    else:
        names = [devices] if isinstance(devices, str) else _listed(devices, "devices", "names, a count, or 'auto'")
    if not names:
        raise InputError(f"devices={devices!r} names no worker; give one or more.")
    numbers = [_gpu(name) for name in names]
    gpus = [number for number in numbers if number is not None]
    if gpus and len(gpus) < len(names):
        raise InputError("a pool is of GPUs or of CPU workers, not of both; use two.")
    names = [f"cuda:{number}" for number in gpus] or names
    for number in gpus:
        here.gpu(number)
    if place is None:
        return [(name, None) for name in names]
    if place == "auto":
        places = plan(here, len(names), "gpu", gpus) if gpus else plan(here, len(names), "node")
    elif isinstance(place, str):
        raise InputError(f"place is '{place}'; give 'auto', None, or a Placement for each worker.")
    else:
        places = _listed(place, "place", "'auto', None, or a Placement for each worker")
        for wrong in (one for one in places if not isinstance(one, Placement)):
            raise InputError(f"place has {wrong!r}; give a Placement for each worker.")
        if len(places) != len(names):
            raise InputError(f"{len(places)} places for {len(names)} workers; give one for each.")
    return list(zip(names, places, strict=True))


def is_whole(value: Any) -> bool:
    """Whether it is a whole number, NumPy's included."""
    return isinstance(value, Integral)


def _listed(given: Any, name: str, wanted: str) -> list[Any]:
    if not isinstance(given, Iterable):
        raise InputError(f"{name} is {given!r}; give {wanted}.")
    return list(given)


def _gpu(name: str) -> int | None:
    """The GPU's number; None for a CPU."""
    if not isinstance(name, str):
        raise InputError(f"there is no device {name!r} for a worker; there are: cpu, cuda, cuda:N.")
    if name == "cpu":
        return None
    kind, _, number = name.partition(":")
    if kind != "cuda" or (number and not number.isdecimal()):
        raise InputError(f"there is no device '{name}' for a worker; there are: cpu, cuda, cuda:N.")
    return int(number or 0)
