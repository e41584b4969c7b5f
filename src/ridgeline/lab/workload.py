"""The contract: what a workload tells the lab, and nothing the lab must know about it.

A workload lists the points of a sweep, counts the work that cannot be avoided, names its contenders, prepares
one of them in that contender's own process, and checks what came out. From that the lab makes races, records,
verdicts, rooflines and reports. CONTRIBUTING.md shows a whole one.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from ridgeline.errors import InputError
from ridgeline.machine import Placement

OURS = "ridgeline"
Scalar = int | float | str | bool
Result = Any
BINARY = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


class Profile(StrEnum):
    QUICK = "quick"  # minutes for everything: a report on this machine
    FULL = "full"  # the numbers one publishes


@dataclass(frozen=True)
class Case:
    """One point of a sweep: its parameters, the device it runs on, how many ranks take part.

    A workload leaves the device open ("any") unless a case makes sense on one kind only; the bench fills it in.
    """

    params: Mapping[str, Scalar]
    device: str = "any"
    ranks: int = 1

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    @property
    def label(self) -> str:
        return label(self.to_json())

    def to_json(self) -> dict[str, Any]:
        return {**self.params, "device": self.device, "ranks": self.ranks}


@dataclass(frozen=True)
class Work:
    """The compulsory work of one step: each input read once, each output written once, each product done once.

    `bytes` is by medium: memory, pcie (to the device), pcie_back, wire. `mix`, `working_set` and `threads` choose the
    memory ceiling the result is held against, `dtype` the compute ceiling. `launches` are the fewest kernels a GPU must
    be given.
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
    """Whether the timed output is right: a largest error, and qualities such as recall or F1 where they apply."""

    ok: bool
    error: float | None = None
    quality: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


@runtime_checkable
class Run(Protocol):
    """One contender, ready, in its own process."""

    def reset(self) -> None:
        """Rewrite the inputs (not timed)."""

    def step(self) -> Any:
        """What is timed."""

    def result(self) -> Result:
        """The output of the last step, from the timed buffers."""

    def close(self) -> None: ...


class Workload(Protocol):
    name: str

    def cases(self, profile: Profile) -> Iterable[Case]: ...
    def work(self, case: Case) -> Work: ...
    def contenders(self, case: Case) -> Sequence[str]: ...
    def prepare(self, case: Case, contender: str, place: Placement) -> Run: ...
    def check(self, case: Case, result: Result) -> Check: ...


@dataclass(frozen=True)
class Launcher:
    """What starts all ranks of a contender at once, where they cannot be started one by one: mpirun."""

    command: tuple[str, ...]  # the rank's own is put behind it
    rank: str  # the environment variable in which a rank finds its number
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class Steps:
    """A Run made of plain functions, for workloads that need no class.

    `settings` are what the contender was tuned to ("arithmetic" names the type it multiplies in, where that is not the
    work's: the compute ceiling is then not its own); `extras` gives what it measured besides time. An extra of the form
    "stages_ns": {stage: [ns of each step]} is shown stage by stage. A control whose settings have "does" and "lacks",
    in words, tells what limits ours: the one if it takes half of our time, else the other.
    """

    step: Callable[[], Any]
    result: Callable[[], Result]
    reset: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None
    settings: Mapping[str, Any] = field(default_factory=dict)
    extras: Callable[[], Mapping[str, Any]] = dict
    agree: Callable[[int], int] | None = None  # of a collective: the largest of what the ranks say


def label(case: Mapping[str, Any]) -> str:
    """A case as people read it; sizes that are round in binary are written so.

    >>> label({"bytes": 67108864, "dtype": "int8", "device": "cpu", "ranks": 4})
    'bytes=64 MiB dtype=int8 · cpu · 4 ranks'
    """
    words = [f"{k}={_size(v) if k.endswith('bytes') else v}" for k, v in case.items() if k not in ("device", "ranks")]
    ranks = case.get("ranks", 1)
    parts = [" ".join(words), str(case.get("device", "cpu")), f"{ranks} ranks" if ranks > 1 else ""]
    return " · ".join(part for part in parts if part)


def _size(value: Scalar) -> Scalar:
    """Exact: 1025 KiB, never 1 MiB."""
    for unit, size in reversed(BINARY.items()):
        if isinstance(value, int) and value and value % size == 0:
            return f"{value // size} {unit}"
    return value


def devices_of(workload: Workload) -> Sequence[str]:
    """The kinds of device a workload can run on ("cpu" unless it says more)."""
    return getattr(workload, "devices", ("cpu",))


def default_device_of(workload: Workload) -> str:
    """Where it runs if nothing is asked for and the machine has it: on a GPU, unless it says otherwise."""
    return getattr(workload, "default_device", "cuda")


def missing_peers(workload: Workload, case: Case) -> Mapping[str, str]:
    """Peers that are not installed, each with the extra that brings it or, in words, with what does."""
    tell = getattr(workload, "missing", None)
    return tell(case) if tell else {}


def cure(told: str) -> str:
    """What a user does about a missing peer: an extra's name stands for its command, words for themselves.

    >>> cure("peers")
    "pip install 'ridgeline[peers]'"
    """
    return told if " " in told else f"pip install 'ridgeline[{told}]'"


def only_ranks_of(workload: Workload) -> int | None:
    """The one number of ranks that makes sense, where there is but one: a ping-pong is between two."""
    return getattr(workload, "only_ranks", None)


def note_of(workload: Workload) -> str:
    """What a reader of its numbers must know, in a sentence; most need none."""
    return getattr(workload, "note", "")


def libraries_of(workload: Workload, case: Case, contender: str) -> Sequence[str]:
    """Modules a contender imports anyway, and that take long: all contenders do it at once, before any is prepared."""
    tell = getattr(workload, "libraries", None)
    return tell(case, contender) if tell else ()


def weight_of(workload: Workload) -> float:
    """How large a part of a bench's time it deserves beside the others; 1 unless it says more or less."""
    return float(getattr(workload, "weight", 1.0))


def controls_of(workload: Workload) -> Sequence[str]:
    """Contenders that are no peers: a bound, the work with a part left out, the lab's own test."""
    return getattr(workload, "controls", ())


def interpreters_of(workload: Workload) -> Mapping[str, str]:
    """Contenders that need a Python of their own (clashing dependencies), and its path."""
    return getattr(workload, "interpreters", {})


def launcher_of(workload: Workload, case: Case, contender: str, interpreter: str) -> Launcher | None:
    """How the ranks of a contender are started; None: by the lab, one by one."""
    tell = getattr(workload, "launcher", None)
    return tell(case, contender, interpreter) if tell else None


def installed(module: str) -> bool:
    """Whether a peer can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def own_case(template: Case, words: str) -> Case:
    """A case of the user's own: "bytes=1048576,dtype=float16" over a template's other parameters."""
    params = dict(template.params)
    for word in filter(None, (w.strip() for w in words.split(","))):
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--case '{word}' is not of the form name=value.")
        if name not in params:
            raise InputError(f"this workload's cases have no '{name}'; they have: {', '.join(params)}.")
        params[name] = _cast(name, value, params[name])
    return replace(template, params=params)


def _cast(name: str, value: str, like: Scalar) -> Scalar:
    try:
        if isinstance(like, bool):
            return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
        if isinstance(like, int):
            number, unit = value.strip(), 1
            if number[-3:] in BINARY:
                number, unit = number[:-3].strip(), BINARY[number[-3:]]
            return unit * (int(number.replace("_", ""), 0) if not _is_float(number) else int(float(number)))
        return type(like)(value)
    except (ValueError, KeyError, OverflowError):
        raise InputError(f"--case {name}={value}: expected something like {like!r}.") from None


def _is_float(value: str) -> bool:
    """1e6 is a fine way to write a size."""
    return "e" in value.lower() and not value.lower().startswith("0x")
