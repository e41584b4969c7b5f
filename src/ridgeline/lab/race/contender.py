"""A contender's own process: prepares one run, then waits for the baton.

    python -m ridgeline.lab.race.contender IN OUT       (started by lab.baton; any interpreter that has ridgeline)

Orders come as JSON lines, answers go back the same way. The library under test may print what it likes: its
stdout is sent to stderr, which the parent keeps for the day it dies.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import ridgeline
from ridgeline.lab.race.loading import load
from ridgeline.lab.workload import Case, Run, Workload, libraries_of
from ridgeline.machine import (
    OVERHEAD_SHARE,
    Placement,
    Timer,
    batch_for,
    clock_cost_ns,
    least_ns,
    now_ns,
    placed,
    timer,
)

PROTOCOL = 1
WARM_NS = 50_000_000  # keep stepping this long before the first sample: JITs, clocks, page faults
WARM_STEPS = 3


class Contender:
    """Holds the prepared run and the place it stands on."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._workload: Workload | None = None
        self._run: Run | None = None
        self._case = Case({})
        self._timer: Timer = timer()
        self._calls = 1
        self._usage = _usage()
        self._steps: Counter[str] = Counter()

    def load(self, order: dict[str, Any]) -> dict[str, Any]:
        """Import what is needed and wake the device: slow, never timed, so all contenders may do it at once."""
        workload, case, place = load(order["workload"]), _case(order), _place(order)
        with placed(place):
            for module in libraries_of(workload, case, order["contender"]):
                import_module(module)
            if case.device.startswith("cuda") and "torch" in sys.modules:
                import torch

                torch.empty(1, device=case.device)
        return {}

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        self.close({})
        self._workload = load(order["workload"])
        self._case, place = _case(order), _place(order)
        where = self._stack.enter_context(placed(place))
        reset_peaks(self._case.device)
        self._run = self._workload.prepare(self._case, order["contender"], place)
        self._timer = timer(self._case.device, order["cache_bytes"])
        self._run.reset()
        # Ranks of a collective must make as many calls as each other: where a run can, it agrees on what clocks say.
        agree = getattr(self._run, "agree", None)
        start, steps, spent = now_ns(), 0, 0
        while steps < WARM_STEPS or spent < WARM_NS:
            self._timer.time(self._run.step, 1)
            steps += 1
            spent = agree(now_ns() - start) if agree else now_ns() - start
            if spent > 20 * WARM_NS:
                break
        self._calls = 1
        clock: Any = _Agreed(self._timer, agree) if agree else self._timer
        if not order["cold"]:
            floor = max(order["sample_ns"], clock_cost_ns() / OVERHEAD_SHARE)
            self._calls = batch_for(clock, self._run.step, int(floor))
        once = least_ns(clock, self._run.step, self._calls)
        self._usage, self._steps = _usage(), Counter()
        return {
            "sample_ns": once,
            "calls_per_sample": self._calls,
            "settings": dict(getattr(self._run, "settings", {})),
            "placed": asdict(where),
            "check": self._check(),
        }

    def turn(self, order: dict[str, Any]) -> dict[str, Any]:
        """Rewrite the inputs, then time `samples` samples, each of so many `calls`."""
        run, cold, calls = self._live(), order["cold"], order["calls"]
        began = now_ns()
        _start_on(order["start_cpu"])
        run.reset()
        if not cold:
            self._timer.time(run.step, 1)  # the reset has pushed things out: a warm race starts warm
        samples: list[float] = []
        used, queued, start = _usage(), _queued_ns(), now_ns()
        for _ in range(order["samples"]):
            if cold:
                self._timer.flush()
            samples.append(self._timer.time(run.step, calls) / calls)
        if not cold:  # where the steps' CPU time goes; emptying caches is none of theirs
            wall, now = now_ns() - start, _usage()
            spent = {kind: now[f"cpu_{kind}_ns"] - used[f"cpu_{kind}_ns"] for kind in ("user", "system")}
            spent |= {"wall": wall, "queued": _queued_ns() - queued}
            self._steps.update({f"steps_{kind}_ns": ns for kind, ns in spent.items()})
        return {"samples_ns": samples, "turn_ns": now_ns() - began}

    def check(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"check": self._check()}

    def extras(self, order: dict[str, Any]) -> dict[str, Any]:
        """What was measured besides time since `prepare`."""
        now = _usage()  # before a workload measures its parts
        told: dict[str, Any] = dict(getattr(self._live(), "extras", dict)())
        used = {k: now[k] - self._usage[k] for k in now}
        return {"extras": {**used, **self._steps, **peaks(self._case.device), **told}}

    def close(self, order: dict[str, Any]) -> dict[str, Any]:
        if self._run is not None:
            self._run.close()
            self._run = None
        self._stack.close()
        return {}

    def _live(self) -> Run:
        if self._run is None:
            raise RuntimeError("no run is prepared")
        return self._run

    def _check(self) -> dict[str, Any]:
        run, workload = self._live(), self._workload
        assert workload is not None  # noqa: S101  set beside the run
        return asdict(workload.check(self._case, run.result()))


class _Agreed:
    """A timer whose answer is the same on all ranks: the slowest one's."""

    def __init__(self, timer: Timer, agree: Callable[[int], int]) -> None:
        self._timer, self._agree = timer, agree

    def time(self, step: Callable[[], object], calls: int) -> float:
        return self._agree(round(self._timer.time(step, calls)))

    def flush(self) -> None:
        self._timer.flush()


def serve(orders: TextIO, answers: TextIO) -> None:
    """Obey until the parent closes the pipe."""
    contender = Contender()

    def answer(body: dict[str, Any]) -> None:
        answers.write(json.dumps(body, default=_plain) + "\n")
        answers.flush()

    home = str(Path(ridgeline.__file__).resolve().parent)
    answer({"protocol": PROTOCOL, "pid": os.getpid(), "python": sys.version.split()[0], "home": home})
    for line in orders:
        order = json.loads(line)
        try:
            answer(getattr(contender, order["do"])(order))
        except Exception as error:  # whatever a peer throws is its result, not our crash
            traceback.print_exc()
            answer({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"})
    with suppress(Exception):
        contender.close({})


def _plain(value: Any) -> Any:
    """Libraries answer in numbers of their own; a record holds plain ones."""
    return value.item() if hasattr(value, "item") else str(value)


def _start_on(cpu: int) -> None:
    """Begin the turn on this CPU, then be free again.

    The kernel lets a process wake where it last ran, so one contender could live on a quiet core and another on a
    noisy one for a whole race. All turns of a race start on one core.
    """
    allowed = os.sched_getaffinity(0)
    if cpu in allowed:
        os.sched_setaffinity(0, {cpu})
        os.sched_setaffinity(0, allowed)


def _case(order: dict[str, Any]) -> Case:
    case = order["case"]
    return Case(case["params"], case["device"], case["ranks"])


def _place(order: dict[str, Any]) -> Placement:
    place = order["placement"]
    return Placement(**{**place, "cpus": tuple(place["cpus"]) if place["cpus"] is not None else None})


def _usage() -> dict[str, int]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_user_ns": round(used.ru_utime * 1e9),
        "cpu_system_ns": round(used.ru_stime * 1e9),
        "context_switches_voluntary": used.ru_nvcsw,
        "context_switches_involuntary": used.ru_nivcsw,
    }


def _queued_ns() -> int:
    """How long this thread was ready and others ran; 0 where the kernel does not count it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return 0


def reset_peaks(device: str) -> None:
    """Peaks are counted from here on; a workload may call it again, when what it loaded is not the question."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    if device.startswith("cuda") and "torch" in sys.modules:
        import torch

        torch.cuda.reset_peak_memory_stats()


def peaks(device: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            found["peak_host_bytes"] = int(line.split()[1]) * 1024
    if device.startswith("cuda") and "torch" in sys.modules:
        import torch

        found["peak_gpu_bytes"] = int(torch.cuda.max_memory_allocated())
    return found


def main() -> None:
    os.dup2(2, 1)
    with open(_end(sys.argv[1])) as orders, open(_end(sys.argv[2]), "w") as answers:
        serve(orders, answers)


def _end(word: str) -> int | str:
    """A descriptor's number, or a named pipe in whose path a launcher's variable stands for the rank."""
    return int(word) if word.isdigit() else os.path.expandvars(word)


if __name__ == "__main__":
    main()
