"""A point's own process: stands where it was told, then lets its subject measure.

    python -m ridgeline.lab.experiment.child ANSWER_FD LIFELINE_FD PARENT_PID       (the order comes on stdin)

First the place, then the libraries: threads and memory they make while loading stay near too. What the subject prints
goes to the run's log. The kernel ends this process when its parent is gone.
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
from ridgeline.lab.race.contender import peaks, reset_peaks
from ridgeline.machine import Placement, now_ns, placed, topology
from ridgeline.machine import numa as memory
from ridgeline.pipeline import die_with_parent


@dataclass(frozen=True)
class Order:
    """What a subject is given: the parameters, the device, and where its staging memory is to lie."""

    params: Mapping[str, Any]
    device: str  # "cpu", "cuda:1"
    staging: Placement  # enter `placed(order.staging)` to allocate what is staged


@dataclass
class Outcome:
    """What a subject gives back. Samples are nanoseconds of single steps, raw, in their order."""

    samples_ns: list[float]
    work: Mapping[str, Any] | None = None  # where it was not known beforehand
    check: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    extras: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)  # name -> JSON: kept beside the run's log


Subject = Callable[[Order], Outcome]


def obey(order: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the point; the answer for the parent."""
    began = now_ns()
    with ExitStack() as stack:
        here = topology()
        cpus = tuple(order["cpus"])
        home, node = order["cpu_node"], order["node"]
        policy = _policy(len(here.memory_nodes))
        # With a GPU, all memory is the node's; without one, only what is staged: the CPUs compute at home.
        where = stack.enter_context(placed(Placement(home, cpus, policy if home in here.memory_nodes else "local")))
        staging = Placement(node, cpus, policy)
        with placed(staging) as staged:
            pass  # told before anything is loaded
        gpu = order["gpu"]
        device = "cpu" if gpu is None else f"cuda:{gpu}"
        subject = resolve(order["subject"])
        reset_peaks(device)
        outcome = subject(Order(order["params"], device, staging))
        answer = asdict(outcome)
        answer["extras"] = {**peaks(device), **answer["extras"]}
        answer["placed"] = {**asdict(where), "staging": asdict(staged)}
        answer["duration_s"] = (now_ns() - began) / 1e9
    return answer


def resolve(reference: str) -> Any:
    """The thing a "package.module:name" means; the working folder counts as a place to look."""
    module, colon, name = reference.partition(":")
    if not colon or not module or not name:
        raise InputError(f"'{reference}' names no function; write package.module:function.")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise InputError(f"'{reference}' cannot be imported: {error}.") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"'{module}' has no '{name}'.")
        found = getattr(found, part)
    return found


def _policy(nodes: int) -> str:
    """Bound, always; but where there is one node and the kernel lets nobody bind, memory has no choice anyway."""
    return "bind" if nodes > 1 or memory.supported() else "local"


def main() -> None:
    answers, lifeline, parent = map(int, sys.argv[1:4])
    die_with_parent(lifeline, parent)
    faulthandler.enable()
    os.set_inheritable(answers, False)
    order = json.load(sys.stdin)
    try:
        answer = obey(order)
    except Exception as error:  # whatever a subject throws is the point's result
        traceback.print_exc()
        words = " ".join(str(error).split())[:500]
        answer = {"failed": words if isinstance(error, RidgelineError) else f"raised {type(error).__name__}: {words}"}
    with open(answers, "w") as out:
        json.dump(answer, out, default=_plain)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else str(value)


if __name__ == "__main__":
    main()
