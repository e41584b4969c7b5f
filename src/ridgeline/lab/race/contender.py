"""The process of a contender: it prepares one run, then times it whenever the parent orders a turn.

    python -m ridgeline.lab.race.contender IN OUT       (race/process.py starts it; any interpreter with ridgeline)

Orders and answers are JSON lines. The library under test may print anything: its stdout goes to stderr, which the
parent keeps for the message if the process dies. `bench --against` starts this module of older versions as well, so
the keys of orders and answers must not change without a new PROTOCOL.
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
from ridgeline.lab.race.checkout import check_modules
from ridgeline.lab.race.loader import load_workload
from ridgeline.lab.workload import Case, Run, Workload, list_libraries
from ridgeline.machine import (
    OVERHEAD_SHARE,
    Placement,
    Timer,
    choose_calls,
    make_timer,
    measure_clock_cost_ns,
    measure_least_ns,
    now_ns,
    placed,
)

PROTOCOL = 1
WARM_NS = 50_000_000  # run for this long before the first sample: JIT compilation, clocks, page faults
WARM_STEPS = 3


class Contender:
    """The prepared run and its placement. Each public method carries out one order."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._workload: Workload | None = None
        self._run: Run | None = None
        self._case = Case({})
        self._timer: Timer = make_timer()
        self._calls = 1
        self._usage = _read_usage()
        self._steps: Counter[str] = Counter()

    def load(self, order: dict[str, Any]) -> dict[str, Any]:
        """Import libraries and wake the device: slow and never timed, so all contenders do it at once."""
        workload, case, place = load_workload(order["workload"]), _parse_case(order), _parse_placement(order)
        with placed(place):
            for module in list_libraries(workload, case, order["contender"]):
                import_module(module)
            if case.device.startswith("cuda") and "torch" in sys.modules:
                import torch

                torch.empty(1, device=case.device)
        return {}

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Bind this process, prepare the run, warm it up, and choose the number of calls per sample."""
        self.close({})
        self._workload = load_workload(order["workload"])
        self._case, place = _parse_case(order), _parse_placement(order)
        binding = self._stack.enter_context(placed(place))
        reset_peaks(self._case.device)
        self._run = self._workload.prepare(self._case, order["contender"], place)
        self._timer = make_timer(self._case.device, order["cache_bytes"])
        self._run.reset()
        # All ranks of a collective must make the same number of calls, so they agree on the times that decide it.
        agree = getattr(self._run, "agree", None)
        start, steps, elapsed_ns = now_ns(), 0, 0
        while steps < WARM_STEPS or elapsed_ns < WARM_NS:
            self._timer.time(self._run.step, 1)
            steps += 1
            elapsed_ns = agree(now_ns() - start) if agree else now_ns() - start
            if elapsed_ns > 20 * WARM_NS:
                break
        self._calls = 1
        clock: Any = _CollectiveTimer(self._timer, agree) if agree else self._timer
        if not order["cold"]:
            floor = max(order["sample_ns"], measure_clock_cost_ns() / OVERHEAD_SHARE)
            self._calls = choose_calls(clock, self._run.step, int(floor))
        shortest = measure_least_ns(clock, self._run.step, self._calls)
        check_modules()
        self._usage, self._steps = _read_usage(), Counter()
        return {
            "sample_ns": shortest,
            "calls_per_sample": self._calls,
            "settings": dict(getattr(self._run, "settings", {})),
            "placed": asdict(binding),
            "check": self._check(),
        }

    def turn(self, order: dict[str, Any]) -> dict[str, Any]:
        """Rewrite the inputs, then time `samples` samples of `calls` calls each."""
        run, cold, calls = self._get_run(), order["cold"], order["calls"]
        turn_start = now_ns()
        move_to_cpu(order["start_cpu"])
        run.reset()
        if not cold:
            self._timer.time(run.step, 1)  # the reset evicts data from the caches: a warm race starts warm
        samples: list[float] = []
        before, queued_ns, start = _read_usage(), _read_queued_ns(), now_ns()
        for _ in range(order["samples"]):
            if cold:
                self._timer.flush()
            samples.append(self._timer.time(run.step, calls) / calls)
        if not cold:  # the CPU time of the steps; a cold turn also empties the caches, which does not count
            wall_ns, after = now_ns() - start, _read_usage()
            times = {kind: after[f"cpu_{kind}_ns"] - before[f"cpu_{kind}_ns"] for kind in ("user", "system")}
            times |= {"wall": wall_ns, "queued": _read_queued_ns() - queued_ns}
            self._steps.update({f"steps_{kind}_ns": ns for kind, ns in times.items()})
        return {"samples_ns": samples, "turn_ns": now_ns() - turn_start}

    def check(self, order: dict[str, Any]) -> dict[str, Any]:
        """Check the output of the last timed step."""
        return {"check": self._check()}

    def extras(self, order: dict[str, Any]) -> dict[str, Any]:
        """Return what was measured besides time since `prepare`."""
        now = _read_usage()  # before the workload measures its stages
        extras: dict[str, Any] = dict(getattr(self._get_run(), "extras", dict)())
        usage = {k: now[k] - self._usage[k] for k in now}
        return {"extras": {**usage, **self._steps, **read_peaks(self._case.device), **extras}}

    def close(self, order: dict[str, Any]) -> dict[str, Any]:
        """Release the run and its placement."""
        if self._run is not None:
            self._run.close()
            self._run = None
        self._stack.close()
        return {}

    def _get_run(self) -> Run:
        if self._run is None:
            raise RuntimeError("no run is prepared")
        return self._run

    def _check(self) -> dict[str, Any]:
        run, workload = self._get_run(), self._workload
        assert workload is not None  # noqa: S101  set together with the run
        return asdict(workload.check(self._case, run.result()))


class _CollectiveTimer:
    """A timer that returns the time of the slowest rank on all ranks."""

    def __init__(self, timer: Timer, agree: Callable[[int], int]) -> None:
        self._timer, self._agree = timer, agree

    def time(self, step: Callable[[], object], calls: int) -> float:
        return self._agree(round(self._timer.time(step, calls)))

    def flush(self) -> None:
        self._timer.flush()


def serve(orders: TextIO, answers: TextIO) -> None:
    """Carry out orders until the parent closes the pipe."""
    contender = Contender()

    def answer(body: dict[str, Any]) -> None:
        answers.write(json.dumps(body, default=_to_python) + "\n")
        answers.flush()

    home = str(Path(ridgeline.__file__).resolve().parent)
    answer({"protocol": PROTOCOL, "pid": os.getpid(), "python": sys.version.split()[0], "home": home})
    for line in orders:
        order = json.loads(line)
        try:
            answer(getattr(contender, order["do"])(order))
        except Exception as error:  # an exception of a peer is its result, not our crash
            traceback.print_exc()
            answer({"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"})
    with suppress(Exception):
        contender.close({})


def _to_python(value: Any) -> Any:
    """Convert numbers of NumPy and torch; a record holds Python numbers."""
    return value.item() if hasattr(value, "item") else str(value)


def move_to_cpu(cpu: int) -> None:
    """Move this process to a CPU, then allow all its CPUs again.

    The kernel wakes a process on the core where it last ran, so one contender could stay on an idle core and another
    on a busy one for a whole race. All turns of a race start on one core.
    """
    allowed = os.sched_getaffinity(0)
    if cpu in allowed:
        os.sched_setaffinity(0, {cpu})
        os.sched_setaffinity(0, allowed)


def _parse_case(order: dict[str, Any]) -> Case:
    case = order["case"]
    return Case(case["params"], case["device"], case["ranks"])


def _parse_placement(order: dict[str, Any]) -> Placement:
    place = order["placement"]
    return Placement(**{**place, "cpus": tuple(place["cpus"]) if place["cpus"] is not None else None})


def _read_usage() -> dict[str, int]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_user_ns": round(usage.ru_utime * 1e9),
        "cpu_system_ns": round(usage.ru_stime * 1e9),
        "context_switches_voluntary": usage.ru_nvcsw,
        "context_switches_involuntary": usage.ru_nivcsw,
    }


def _read_queued_ns() -> int:
    """Return how long this thread waited for a CPU; 0 if the kernel does not count it."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return 0


def reset_peaks(device: str) -> None:
    """Start to count peak memory from now on; a workload may call it again after loading, to leave that out."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    if device.startswith("cuda") and "torch" in sys.modules:
        import torch

        torch.cuda.reset_peak_memory_stats()


def read_peaks(device: str) -> dict[str, int]:
    """Return the peak memory of this process since `reset_peaks`, in bytes: host, and GPU if `device` is one."""
    peaks: dict[str, int] = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            peaks["peak_host_bytes"] = int(line.split()[1]) * 1024
    if device.startswith("cuda") and "torch" in sys.modules:
        import torch

        peaks["peak_gpu_bytes"] = int(torch.cuda.max_memory_allocated())
    return peaks


def main() -> None:
    """Serve the two pipes that the command line names."""
    os.dup2(2, 1)
    with open(_parse_pipe(sys.argv[1])) as orders, open(_parse_pipe(sys.argv[2]), "w") as answers:
        serve(orders, answers)


def _parse_pipe(word: str) -> int | str:
    """Parse the number of a descriptor, or the path of a named pipe with a launcher's variable for the rank."""
    return int(word) if word.isdigit() else os.path.expandvars(word)


if __name__ == "__main__":
    main()
