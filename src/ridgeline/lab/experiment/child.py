"""The process of one point: binds itself to its placement, then lets its subject measure.

    python -m ridgeline.lab.experiment.child ANSWER_FD LIFELINE_FD PARENT_PID       (the request comes on stdin)

The placement comes before the libraries: threads and memory that they create while loading are then local too. What
the subject prints goes to the run's log. The kernel ends this process when its parent dies.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any

from ridgeline.errors import InputError, RidgelineError
from ridgeline.lab.race import read_peaks, reset_peaks
from ridgeline.machine import Placement, memory_policy_supported, now_ns, placed, topology
from ridgeline.pipeline import die_with_parent


@dataclass(frozen=True)
class PointRequest:
    """What a subject receives.

    params   the parameters of the point
    device   "cpu", "cuda:1"; of several GPUs the first
    staging  where staging memory belongs: allocate it inside `placed(request.staging)`
    """

    params: Mapping[str, Any]
    device: str
    staging: Placement
    partners: tuple[str, ...] = ()  # devices that work together with `device`

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices of the point."""
        return (self.device, *self.partners)


@dataclass
class PointResult:
    """What a subject returns.

    samples_ns  nanoseconds of single steps, raw, in their order
    work        the work of a step, where it was not known beforehand
    check       whether the output is right, as in a record
    settings    how the subject ran
    extras      other measurements
    files       name -> JSON data, saved beside the run's log
    """

    samples_ns: list[float]
    work: Mapping[str, Any] | None = None
    check: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)


Subject = Callable[[PointRequest], PointResult]


def measure_point(request: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the point; return the answer for the parent as JSON data."""
    start_ns = now_ns()
    with ExitStack() as stack:
        machine = topology()
        cpus = tuple(request["cpus"])
        home, node = request["cpu_node"], request["node"]
        policy = _choose_policy(len(machine.memory_nodes))
        # With a GPU, all memory is on the node; without one, only staging memory: the CPUs compute in local memory.
        placement = Placement(home, cpus, policy if home in machine.memory_nodes else "local")
        process_placement = stack.enter_context(placed(placement))
        staging = Placement(node, cpus, policy)
        with placed(staging) as staging_placement:
            pass  # a refusal must come before anything is loaded
        gpu = request["gpu"]
        device = "cpu" if gpu is None else f"cuda:{gpu}"
        subject = import_name(request["subject"])
        reset_peaks(device)
        partners = tuple(f"cuda:{gpu}" for gpu in request["partners"])
        answer = asdict(subject(PointRequest(request["params"], device, staging, partners)))
        answer["extras"] = {**read_peaks(device), **answer["extras"]}
        answer["placed"] = {**asdict(process_placement), "staging": asdict(staging_placement)}
        answer["duration_s"] = (now_ns() - start_ns) / 1e9
    return answer


def import_name(reference: str) -> Any:
    """Return the object that "package.module:name" names; modules of the working folder can be imported too.

    Raises InputError where the reference has no such form, or its module or name does not exist.
    """
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise InputError(f"'{reference}' names no function; write package.module:function.")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"'{reference}' cannot be imported: {error}.") from error
    for part in name.split("."):
        if not hasattr(target, part):
            raise InputError(f"'{module}' has no '{name}'.")
        target = getattr(target, part)
    return target


def _choose_policy(nodes: int) -> str:
    """Bind memory always, except on one node where the kernel forbids it: memory then has no other place anyway."""
    return "bind" if nodes > 1 or memory_policy_supported() else "local"


def main() -> None:
    answer_fd, lifeline, parent = map(int, sys.argv[1:4])
    die_with_parent(lifeline, parent)
    faulthandler.enable()
    os.set_inheritable(answer_fd, False)
    request = json.load(sys.stdin)
    try:
        answer = measure_point(request)
    except Exception as error:  # any exception of a subject is the result of the point
        traceback.print_exc()
        message = " ".join(str(error).split())[:500]
        known = isinstance(error, RidgelineError)
        answer = {"failed": message if known else f"raised {type(error).__name__}: {message}"}
    with open(answer_fd, "w") as out:
        json.dump(answer, out, default=_to_json)


def _to_json(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


if __name__ == "__main__":
    main()
