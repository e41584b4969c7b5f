"""Device names: "auto", "cpu", "cuda" or "cuda:N"."""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from ridgeline.errors import InputError, MissingExtra, unknown

NAMES = ("auto", "cpu", "cuda", "cuda:N")
DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))  # on Linux, and on Linux under Windows


def resolve_device(device: object) -> str:
    """Return "cpu", "cuda" (the current GPU of the caller) or "cuda:N"; "auto" becomes "cuda" if torch has a GPU.

    device  a name or a torch.device

    Raises InputError for an unknown name or a GPU that does not exist, MissingExtra for a GPU without torch.

    >>> resolve_device("cpu")
    'cpu'
    >>> resolve_device("gpu")
    Traceback (most recent call last):
    ridgeline.errors.InputError: there is no device 'gpu'; did you mean 'cpu'? There are: auto, cpu, cuda, cuda:N.
    """
    name = "cpu" if str(device) == "cpu:0" else str(device)  # torch numbers the CPU, too
    number = name.removeprefix("cuda:")
    if name not in ("auto", "cpu", "cuda") and not (name != number and number.isdecimal()):
        raise unknown("device", name, NAMES)
    if name == "cpu":
        return name
    gpus = count_gpus()
    if name == "auto":
        return "cuda" if gpus else "cpu"
    if find_spec("torch") is None:
        raise MissingExtra(f"device {name}", "torch")
    if not gpus:
        raise InputError(f"device {name}: this process sees no GPU; use cpu.")
    if name == "cuda":
        return name
    if int(number) >= gpus:
        raise InputError(f"device {name}: there are {gpus} GPUs here, counted from 0.")
    return f"cuda:{int(number)}"


def parse_devices(text: str) -> list[str]:
    """Return the devices of a name, of several with commas, or of "cuda:all"; "auto" stays as it is.

    Raises InputError that names each device which is not there.

    >>> parse_devices("auto"), parse_devices("cpu, cpu")
    (['auto'], ['cpu', 'cpu'])
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise InputError(f"--device '{text}' names no device; give auto, cpu, cuda or several with commas.")
    if words == ["auto"]:
        return words
    if words == ["cuda:all"]:
        resolve_device("cuda")  # raises if there is no GPU
        return [f"cuda:{number}" for number in range(count_gpus())]
    devices, missing = [], []
    for word in words:
        try:
            devices.append(resolve_device(word))
        except InputError as error:
            missing.append(str(error).rstrip("."))
    if missing:
        raise InputError(f"{'; '.join(missing)}.")
    return devices


def has_cuda_build() -> bool:
    """Return whether the installed torch is built for CUDA. torch is not imported: that takes seconds beside a GPU.

    A driver that is too old for it shows only when torch is imported.
    """
    spec = find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return False
    version = Path(spec.submodule_search_locations[0], "version.py")
    text = version.read_text() if version.is_file() else ""
    return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None


def count_gpus() -> int:
    """Count the GPUs that torch can use. torch is imported (a second) only where a driver exists."""
    if find_spec("torch") is None or ("torch" not in sys.modules and not any(d.exists() for d in DRIVERS)):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
