"""Which device a caller means: "auto", "cpu", "cuda" or "cuda:N"."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra, unknown

NAMES = ("auto", "cpu", "cuda", "cuda:N")
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # as Linux has it, and Linux under Windows


def device_named(device: object) -> str:
    """cpu, cuda (the one that is current where it is used) or cuda:N; auto is cuda where there is one.

    What is no such name, and what is not to be had here, is refused. A torch.device is as good as its name.

    >>> device_named("cpu")
    'cpu'
    >>> device_named("gpu")
    Traceback (most recent call last):
    ridgeline.errors.InputError: there is no device 'gpu'; did you mean 'cpu'? There are: auto, cpu, cuda, cuda:N.
    """
    name = "cpu" if str(device) == "cpu:0" else str(device)  # torch numbers it, too
    number = name.removeprefix("cuda:")
    if name not in ("auto", "cpu", "cuda") and not (name != number and number.isdecimal()):
        raise unknown("device", name, NAMES)
    if name == "cpu":
        return name
    gpus = gpus_ready()
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if find_spec("torch") is None:
        raise MissingExtra(f"device {name}", "torch")
    if not gpus:
        raise InputError(f"device {name}: no GPU is to be seen here; use cpu.")
    if name == "cuda":
        return name
    if int(number) >= gpus:
        raise InputError(f"device {name}: there are {gpus} GPUs here, counted from 0.")
    return f"cuda:{int(number)}"


def gpus_ready() -> int:
    """How many GPUs torch can use. It is imported for that, which takes a second, only where there is a driver."""
    if find_spec("torch") is None or ("torch" not in sys.modules and not any(d.exists() for d in DRIVERS)):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
