"""The contract between a workload and the lab.

A workload lists the cases of a sweep, counts the compulsory work of a case, names its contenders, prepares one
contender in that contender's process, and checks its output. The lab makes races, records, verdicts, rooflines and
reports from this. CONTRIBUTING.md shows a complete workload.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from ridgeline.errors import InputError, format_install
from ridgeline.machine import Placement

OURS = "ridgeline"
Scalar = int | float | str | bool
Result = Any
BINARY = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Profile(StrEnum):
    """How many cases a benchmark measures."""

    QUICK = "quick"  # all workloads in minutes: a report on this machine
    FULL = "full"  # the cases for published numbers


@dataclass(frozen=True)
class Case:
    """One point of a sweep: the parameters, the device, and the number of ranks (processes) of a contender.

    A workload leaves the device at "any" unless a case needs one kind of device; the benchmark chooses it.
    """

    params: Mapping[str, Scalar]
    device: str = "any"
    ranks: int = 1

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    @property
    def label(self) -> str:
        """The case as text for people: "bytes=64 MiB dtype=int8 · cpu"."""
        return format_case(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the parameters, "device" and "ranks" as one dict."""
        return {**self.params, "device": self.device, "ranks": self.ranks}


@dataclass(frozen=True)
class Work:
    """The compulsory work of one step: read each input once, write each output once, compute each product once.

    `items` and `unit`: how many items a step processes and their name. `flops`: floating-point operations.
    `bytes`: bytes by medium: memory, pcie (to the device), pcie_back (from the device), wire.
    `mix`, `working_set` (bytes) and `threads` choose the memory ceiling for the result; `dtype` chooses the compute
    ceiling. `launches`: the smallest possible number of kernel launches on a GPU.
    """

    items: float
    unit: str = "items"
    flops: float = 0
    bytes: Mapping[str, float] = field(default_factory=dict)
    dtype: str = "float32"
    mix: str = "copy"
    working_set: int | None = None
    threads: int = 1
    launches: int = 1


@dataclass(frozen=True)
class Check:
    """Whether the timed output is correct: `ok`, the largest `error`, and qualities such as recall or F1."""

    ok: bool
    error: float | None = None
    quality: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@runtime_checkable
class Run(Protocol):
    """One contender that is ready to run, in its own process."""

    def reset(self) -> None:
        """Rewrite the inputs (not timed)."""

    def step(self) -> Any:
        """Do the work; the lab times this."""

    def result(self) -> Result:
        """Return the output of the last step, from the timed buffers."""

    def close(self) -> None:
        """Release memory and files."""


class Workload(Protocol):
    """What a workload file defines as `workload`. The functions below read its optional attributes."""

    name: str

    def cases(self, profile: Profile) -> Iterable[Case]:
        """List the cases of a profile, the main one first."""

    def work(self, case: Case) -> Work:
        """Count the compulsory work of one step."""

    def contenders(self, case: Case) -> Sequence[str]:
        """Name the contenders that are installed: "ridgeline" first, then its peers."""

    def prepare(self, case: Case, contender: str, place: Placement) -> Run:
        """Prepare one contender in this process, which is bound to `place`."""

    def check(self, case: Case, result: Result) -> Check:
        """Check a result of any contender."""


@dataclass(frozen=True)
class Launcher:
    """A command that starts all ranks of a contender at once, for example mpirun."""

    command: tuple[str, ...]  # the command line of a rank follows it
    rank: str  # the environment variable that holds the number of a rank
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class Steps:
    """A Run made of plain functions, for workloads that need no class.

    `settings`: how the contender is tuned. "arithmetic" names the type it multiplies in if that differs from the
    work's dtype; the compute ceiling then does not apply to it. A control (see `list_controls`) has the settings
    "does" and "lacks" in words: if it takes at least half of our time, "does" limits us, else "lacks".
    `extras`: returns what the contender measured besides time. Reports show the extra
    "stages_ns": {stage: [nanoseconds of each step]} stage by stage.
    """

    step: Callable[[], Any]
    result: Callable[[], Result]
    reset: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    settings: Mapping[str, Any] = field(default_factory=dict)
    extras: Callable[[], Mapping[str, Any]] = dict
    agree: Callable[[int], int] | None = None  # for a collective: returns the maximum over all ranks


def is_path(reference: str) -> bool:
    """Whether a workload is a file or a folder of a user, not a module of ridgeline.

    >>> is_path("mine/decode.py"), is_path("/home/me/benchmarks"), is_path("ridgeline.workloads.copy")
    (True, True, False)
    """
    return reference.endswith(".py") or "/" in reference


def format_case(case: Mapping[str, Any]) -> str:
    """Format a case for people; exact multiples of KiB, MiB, GiB and TiB use that unit.

    >>> format_case({"bytes": 67108864, "dtype": "int8", "device": "cpu", "ranks": 4})
    'bytes=64 MiB dtype=int8 · cpu · 4 ranks'
    """
    words = [
        f"{k}={_format_size(v) if k.endswith('bytes') else v}" for k, v in case.items() if k not in ("device", "ranks")
    ]
    ranks = case.get("ranks", 1)
    parts = [" ".join(words), str(case.get("device", "cpu")), f"{ranks} ranks" if ranks > 1 else ""]
    return " · ".join(part for part in parts if part)


def _format_size(value: Scalar) -> Scalar:
    """Keep the value exact: 1025 KiB, never 1 MiB."""
    for unit, size in reversed(BINARY.items()):
        if isinstance(value, int) and value and value % size == 0:
            return f"{value // size} {unit}"
    return value


def list_devices(workload: Workload) -> Sequence[str]:
    """List the kinds of device a workload runs on (attribute `devices`; default: "cpu")."""
    return getattr(workload, "devices", ("cpu",))


def get_default_device(workload: Workload) -> str:
    """Return the device for "auto" (attribute `default_device`; default: "cuda" if the machine has one)."""
    return getattr(workload, "default_device", "cuda")


def list_missing_peers(workload: Workload, case: Case) -> Mapping[str, str]:
    """Map each peer that is not installed to the extra that installs it, or to a hint in words (method `missing`)."""
    find_missing = getattr(workload, "missing", None)
    return find_missing(case) if find_missing else {}


def format_install_hint(extra: str) -> str:
    """Say how to install a missing peer: the command for the name of an extra, or the hint itself if it has words.

    >>> format_install_hint("peers")
    "pip install '.[peers]' in the folder of Ridgeline's sources"
    """
    return extra if " " in extra else format_install(extra)


def get_required_ranks(workload: Workload) -> int | None:
    """Return the only possible number of ranks (attribute `only_ranks`: a ping-pong needs 2), or None."""
    return getattr(workload, "only_ranks", None)


def get_note(workload: Workload) -> str:
    """Return a sentence that every reader of the numbers needs (attribute `note`; default: empty)."""
    return getattr(workload, "note", "")


def list_libraries(workload: Workload, case: Case, contender: str) -> Sequence[str]:
    """List slow imports of a contender (method `libraries`): all contenders import them at once, before preparing."""
    find_libraries = getattr(workload, "libraries", None)
    return find_libraries(case, contender) if find_libraries else ()


def get_weight(workload: Workload) -> float:
    """Return the share of a benchmark's time relative to other workloads (attribute `weight`; default: 1)."""
    return float(getattr(workload, "weight", 1.0))


def list_controls(workload: Workload) -> Sequence[str]:
    """List contenders that are not peers (attribute `controls`): a bound, a part of the work, a test of the lab."""
    return getattr(workload, "controls", ())


def map_interpreters(workload: Workload) -> Mapping[str, str]:
    """Map contenders with conflicting dependencies to the path of another Python (attribute `interpreters`)."""
    return getattr(workload, "interpreters", {})


def choose_launcher(workload: Workload, case: Case, contender: str, interpreter: str) -> Launcher | None:
    """Return the launcher of a contender's ranks (method `launcher`); None: the lab starts them one by one."""
    find_launcher = getattr(workload, "launcher", None)
    return find_launcher(case, contender, interpreter) if find_launcher else None


def installed(module: str) -> bool:
    """Whether `module` can be imported; does not import it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def parse_case(template: Case, text: str) -> Case:
    """Parse "bytes=1048576,dtype=float16" from the command line; `template` supplies the other parameters.

    Raises InputError for an unknown parameter or a value of another type.
    """
    params = dict(template.params)
    for word in filter(None, (w.strip() for w in text.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--case '{word}' is not of the form name=value.")
        if name not in params:
            raise InputError(f"this workload's cases have no '{name}'; they have: {', '.join(params)}.")
        params[name] = _convert(name, value, params[name])
    return replace(template, params=params)


def _convert(name: str, value: str, example: Scalar) -> Scalar:
    try:
        if isinstance(example, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if isinstance(example, int):
            number, unit = value.strip(), 1
            if number[-3:] in BINARY:
                number, unit = number[:-3].strip(), BINARY[number[-3:]]
            return unit * (int(number.replace("_", ""), 0) if not _is_float(number) else int(float(number)))
        return type(example)(value)
    except (ValueError, KeyError, OverflowError):
        raise InputError(f"--case {name}={value}: expected something like {example!r}.") from None


def _is_float(value: str) -> bool:
    """1e6 is a valid size."""
    return "e" in value.lower() and not value.lower().startswith("0x")
