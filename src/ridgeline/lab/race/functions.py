"""Race functions of a script or a notebook, in this process.

    import ridgeline as rl
    rl.race({"mine": f, "numpy": g}, setup=lambda n: (make(n),), cases={"n": [1_000, 20_000]}, budget=10)

The first function is the reference. A race consists of executions: each calls `setup` again for every function, in
shuffled order, checks the outputs, and lets the functions take turns. Where the inputs of a function lie in memory
stays the same during one execution and can cost or save several percent; so the verdict comes from the spread of the
executions, not of the rounds (Kalibera and Jones, Rigorous Benchmarking in Reasonable Time, 2013).
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse_record
from ridgeline.lab.race.contender import move_to_cpu
from ridgeline.lab.race.measure import Plan, measure_case, repeat_execution
from ridgeline.lab.race.own_race import OwnPool, OwnRace, iterate_cases, make_own_record
from ridgeline.lab.race.process import ContenderFailure, ContenderSpec, Group
from ridgeline.lab.record import Record, append_record
from ridgeline.lab.workload import Case
from ridgeline.machine import (
    OVERHEAD_SHARE,
    choose_calls,
    make_timer,
    measure_clock_cost_ns,
    measure_least_ns,
    topology,
)
from ridgeline.web import format_si, make_element

EXECUTIONS = 24  # as many as the budget is divided into; a slow setup leaves fewer, at least MIN_EXECUTIONS
MIN_EXECUTIONS = 6  # a verdict needs that many
MIN_ROUNDS = 3  # of an execution
SAMPLE_NS = 300_000
# Two callables of equal work can differ for as long as their process runs: calling work(20000) from a lambda took 0.8 %
# longer than calling work(round(20000 * 1.0)), over 17 executions with an interval of 0.2 %.
FUNCTION_MARGIN = 0.02
LEAST_S = 0.05  # of a case for which no time is left
WARM_NS = 20_000_000
RELATIVE, ABSOLUTE = 1e-4, 1e-6  # tolerance of equal outputs
COLOURS = {"FASTER": "#1a7f37", "SLOWER": "#cf222e", "SAME": "#57606a", "UNCLEAR": "#9a6700"}
Function = Callable[..., Any]


@dataclass(frozen=True)
class RaceResult:
    """What `race` measured. `rows`: one dict for each case and function. Notebooks show a table and a chart."""

    records: tuple[Record, ...]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict for each case and function: contender, case, validity, median_ns, verdict, ratio …"""
        return [
            {"case": dict(record.case), **row.to_json()} for record in self.records for row in analyse_record(record)
        ]

    def save(self, out: Path | str) -> None:
        """Append the records to records.jsonl in the folder `out`, for `ridgeline report`, `compare` and `history`."""
        Path(out).mkdir(parents=True, exist_ok=True)
        for record in self.records:
            append_record(Path(out), record)

    def __str__(self) -> str:
        """Return the table for a terminal."""
        lines = [("contender", "median", "time ÷ reference", "verdict"), *self._list_cells()]
        widths = [max(len(line[k]) for line in lines) for k in range(4)]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table and the chart for a notebook."""
        head = make_element(
            "tr", *(make_element("th", t) for t in ("contender", "median", "time ÷ reference", "verdict"))
        )
        body = [make_element("tr", *(make_element("td", cell) for cell in line)) for line in self._list_cells()]
        return str(make_element("div", make_element("table", head, *body), *self._draw()))

    def _list_cells(self) -> Iterator[tuple[str, str, str, str]]:
        for record in self.records:
            label = record.label if len(self.records) > 1 else ""
            for row in analyse_record(record):
                time_ns, ratio = row.assessment.time, row.ratio
                doubt = "" if row.assessment.validity == "VALID" else str(row.assessment.validity)
                advice = f"{doubt}: {row.assessment.advice}" if doubt and time_ns is None else doubt
                yield (
                    " · ".join(filter(None, (row.result.contender, label))),
                    f"{format_si(time_ns.value / 1e9, 's')} ±{time_ns.relative:.1%}" if time_ns else "–",
                    f"{ratio.value:.3f} [{ratio.low:.3f} to {ratio.high:.3f}]" if ratio else "",
                    " ".join(filter(None, (str(row.comparison or ""), advice))),
                )

    def _draw(self) -> list[Any]:
        """Draw the median time of each function with its interval, one bar each, on one scale for each case."""
        charts = []
        for record in self.records:
            rows = [row for row in analyse_record(record) if row.assessment.time]
            longest = max((row.assessment.time.high for row in rows if row.assessment.time), default=1.0)
            parts = []
            for i, row in enumerate(rows):
                assert row.assessment.time is not None  # noqa: S101  selected above
                scale, y, median = 320 / longest, 20 * i, row.assessment.time
                colour = COLOURS.get(str(row.comparison), "#0969da")
                parts += [
                    make_element("text", row.result.contender[:24], x=150, y=y + 14, text_anchor="end", font_size=12),
                    make_element("rect", x=156, y=y + 3, width=max(1.0, median.value * scale), height=14, fill=colour),
                    make_element(
                        "line",
                        x1=156 + median.low * scale,
                        x2=156 + median.high * scale,
                        y1=y + 10,
                        y2=y + 10,
                        stroke="#24292f",
                        stroke_width=2,
                    ),
                    make_element("text", format_si(median.value / 1e9, "s"), x=484, y=y + 14, font_size=12),
                ]
            title = make_element("div", record.label)
            svg = make_element(
                "svg", *parts, xmlns="http://www.w3.org/2000/svg", width=580, height=20 * len(rows) + 4, role="img"
            )
            charts += [title, svg]
        return charts


def race(
    contenders: Mapping[str, Function],
    *,
    setup: Function | None = None,
    check: Callable[..., bool] | bool = True,
    cases: Mapping[str, Sequence[Any]] | None = None,
    budget: float = 20.0,
    device: str = "cpu",
    fresh: bool = False,
    margin: float = FUNCTION_MARGIN,
    timeout: float = 120.0,
    name: str = "race",
    out: Path | str | None = None,
    seed: int = 0,
) -> RaceResult:
    """Race functions against the first of them.

    contenders  name → function
    setup       called with the parameters of a case; the tuple that it returns are the arguments of every function
    check       True: outputs must equal those of the first function (floats within 1e-4); False: no check; a function
                of the output, or of the output and that of the first function, that returns whether it is right
    cases       name → values: every combination is a case; without `setup` the functions get them as keywords
    budget      seconds for all cases
    device      "cuda" times on the GPU by events
    fresh       call `setup` before every sample: for functions that change their inputs
    margin      smaller relative differences are SAME
    timeout     seconds for one turn of a function; only Python code can be stopped, and only in the main thread
    out         folder for records.jsonl

    >>> result = race({"sum": sum, "loop": lambda x: sum([v for v in x])}, setup=lambda: (range(9),), budget=0.2)
    >>> [row["contender"] for row in result.rows]
    ['sum', 'loop']
    """
    _check_arguments(contenders, cases, budget, margin)
    machine = topology()
    plan = Plan(
        target=0.0,
        least_rounds=MIN_ROUNDS,
        most_rounds=100_000,
        sample_ns=1 if fresh else SAMPLE_NS,
        turn_ns=1_000_000,
        timeout_s=timeout,
        versions=True,
        ratios_only=True,
        seed=seed,
    )
    points = list(iterate_cases(dict(cases or {}), device))
    end = time.monotonic() + budget
    result = RaceResult(
        tuple(
            _race_case(
                name,
                contenders,
                setup,
                check,
                case,
                plan,
                machine,
                max(LEAST_S, (end - time.monotonic()) / (len(points) - i)),
                fresh,
                margin,
            )
            for i, case in enumerate(points)
        )
    )
    if out is not None:
        result.save(out)
    return result


def _check_arguments(
    contenders: Mapping[str, Function], cases: Mapping[str, Sequence[Any]] | None, budget: float, margin: float
) -> None:
    if not contenders:
        raise InputError("race({}) has no functions; give at least one: race({'mine': f, 'numpy': g}).")
    for name, function in contenders.items():
        if not callable(function):
            raise InputError(f"the contender '{name}' is {function!r}, which cannot be called; give a function.")
    for name, values in (cases or {}).items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"cases['{name}'] is {values!r}; give a list of values: cases={{'{name}': [1, 10]}}.")
        if name in ("device", "ranks"):
            raise InputError(f"cases['{name}'] is taken already; choose another name.")
        for value in values:
            if not isinstance(value, int | float | str | bool):
                raise InputError(
                    f"cases['{name}'] holds {value!r}; give numbers or texts, and build the rest in setup."
                )
    if not budget > 0:
        raise InputError(f"budget={budget:g} is no time; give seconds above 0.")
    if not 0 < margin < 1:
        raise InputError(f"margin={margin:g} is not between 0 and 1; 0.03 is three percent.")


def _race_case(
    name: str,
    contenders: Mapping[str, Function],
    setup: Function | None,
    check: Callable[..., bool] | bool,
    case: Case,
    plan: Plan,
    machine: Any,
    budget_s: float,
    fresh: bool,
    margin: float,
) -> Record:
    """Run executions for `budget_s` seconds; how many is decided by the time, never by what they show."""
    shuffle = random.Random(plan.seed)  # noqa: S311
    end = time.monotonic() + budget_s

    @contextmanager
    def open_pool() -> Iterator[OwnPool]:
        groups = {key: FunctionGroup(function, setup, case, check, fresh) for key, function in contenders.items()}
        for group in shuffle.sample(list(groups.values()), len(groups)):
            group.set_up()  # the order decides which inputs lie where
        reference = next(iter(groups.values()))
        for group in groups.values():
            group.reference = reference
        groups_by_case: dict[str, Group] = dict(groups)
        yield OwnPool(groups_by_case)

    specs = [ContenderSpec(key, key) for key in contenders]
    start = time.monotonic()
    first = replace(plan, budget_s=budget_s / EXECUTIONS)
    with open_pool() as pool:
        result = measure_case(name, case, specs, plan=first, pool=pool, machine=machine)
    seconds = [time.monotonic() - start]
    while any(lane.racing for lane in result.lanes):
        left = end - time.monotonic()
        if len(result.executions) >= MIN_EXECUTIONS and left < sum(seconds) / len(seconds):
            break
        start = time.monotonic()
        repeat_execution(result, MIN_ROUNDS, open_pool=open_pool, budget_s=budget_s / EXECUTIONS)
        seconds.append(time.monotonic() - start)
    own_race = OwnRace(name, tuple(contenders), unit="calls", margin=margin)
    return make_own_record(own_race, case, result, machine)


class FunctionGroup:
    """One function of a race, in this process."""

    ranks = 1
    fresh = False

    def __init__(
        self, function: Function, setup: Function | None, case: Case, check: Callable[..., bool] | bool, fresh: bool
    ) -> None:
        self._function, self._setup, self._case, self._rule, self._fresh = function, setup, case, check, fresh
        self._timer = make_timer(case.device)
        self._step: Callable[[], Any] = function
        self._output: Any = None
        self.reference: FunctionGroup = self

    def set_up(self) -> None:
        """Make the arguments."""
        params = dict(self._case.params)
        if self._setup is None:
            self._step = partial(self._function, **params)
            return
        arguments = self._setup(**params)
        arguments = arguments if isinstance(arguments, tuple) else () if arguments is None else (arguments,)
        self._step = partial(self._function, *arguments)

    def do(
        self, what: str, timeout_s: float, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any
    ) -> list[dict[str, Any]]:
        """Carry out one order; an exception of the function is its result."""
        start = dict(per_rank[0]) if per_rank else {}
        try:
            with _limit_time(timeout_s):
                return [getattr(self, f"_do_{what}")({**order, **start})]
        except _TimeIsUp:
            raise ContenderFailure(
                f"did not end within {timeout_s:.3g} s and was stopped; timeout= gives it more"
            ) from None
        except Exception as error:
            raise ContenderFailure(f"raised {type(error).__name__}: {' '.join(str(error).split())[:300]}") from error

    def send(self, what: str, per_rank: Sequence[Mapping[str, Any]] | None = None, **order: Any) -> None:
        """Do nothing: nothing has to be loaded."""

    def receive(self, timeout_s: float, *, allow_failure: bool = False) -> list[dict[str, Any]]:
        """Return nothing."""
        return []

    def kill(self) -> None:
        """Do nothing: others are still checked against its output, and an execution ends with its groups."""

    def compute_output(self) -> Any:
        """Return the output of the first call."""
        if self._output is None:
            self._output = self._step()
        return self._output

    def _do_prepare(self, order: Mapping[str, Any]) -> dict[str, Any]:
        verdict = self._check(self.compute_output())
        if self._fresh:
            self.set_up()
        calls, shortest = 1, 1
        if verdict["ok"]:
            end = time.perf_counter_ns() + WARM_NS
            while not self._fresh and time.perf_counter_ns() < end:
                self._timer.time(self._step, 1)
            if not self._fresh:
                floor = max(order["sample_ns"], measure_clock_cost_ns(200) / OVERHEAD_SHARE)
                calls = choose_calls(self._timer, self._step, int(floor))
                shortest = measure_least_ns(self._timer, self._step, calls)
            else:
                shortest = order["sample_ns"] + 1_000_000_000  # one sample a turn
        cpus = sorted(os.sched_getaffinity(0))
        return {
            "sample_ns": shortest,
            "calls_per_sample": calls,
            "settings": {},
            "placed": {"cpus": cpus},
            "check": verdict,
        }

    def _do_turn(self, order: Mapping[str, Any]) -> dict[str, Any]:
        start = time.perf_counter_ns()
        move_to_cpu(order["start_cpu"])
        collecting = gc.isenabled()
        gc.disable()
        try:
            if self._fresh:
                self.set_up()
            else:
                self._timer.time(self._step, 1)
            samples = [self._timer.time(self._step, order["calls"]) / order["calls"] for _ in range(order["samples"])]
        finally:
            if collecting:
                gc.enable()
        return {"samples_ns": [max(ns, 1e-3) for ns in samples], "turn_ns": time.perf_counter_ns() - start}

    def _do_check(self, order: Mapping[str, Any]) -> dict[str, Any]:
        if self._fresh:
            self.set_up()
        return {"check": self._check(self._step())}

    def _do_extras(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return {"extras": {}}

    def _do_close(self, order: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    def _check(self, output: Any) -> dict[str, Any]:
        """Check an output by the rule of the user, or against the reference's; the reference alone is right."""
        note = ""
        if callable(self._rule):
            both = len(inspect.signature(self._rule).parameters) >= 2
            ok = bool(self._rule(output, self.reference.compute_output()) if both else self._rule(output))
            note = "" if ok else "check() returned False"
        elif self._rule and self.reference is not self:
            ok = is_equal(output, self.reference.compute_output())
            note = "" if ok else "another output than the first function"
        else:
            ok = True
        return {"ok": ok, "error": None, "quality": {}, "note": note}


def is_equal(a: Any, b: Any) -> bool:
    """Whether two outputs are equal; numbers and arrays within a small tolerance, whatever library they are from.

    >>> is_equal([1, 2.0], (1.0, 2)), is_equal({"a": 1.0}, {"a": 1.1}), is_equal("x", "x")
    (True, False, True)
    """
    import numpy as np

    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
    if isinstance(a, str | bytes) or isinstance(b, str | bytes) or a is None or b is None:
        return bool(a == b)
    try:
        left, right = _to_array(a), _to_array(b)
    except (TypeError, ValueError):
        left = right = np.asarray(None)
    if left.dtype.kind in "biufc" and right.dtype.kind in "biufc":
        return left.shape == right.shape and bool(np.allclose(left, right, RELATIVE, ABSOLUTE, equal_nan=True))
    if isinstance(a, Sequence) and isinstance(b, Sequence):
        return len(a) == len(b) and all(map(is_equal, a, b))
    if left.shape and left.shape == right.shape:
        return bool((left == right).all())
    return bool(a == b)


def _to_array(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):  # torch; NumPy has no bfloat16
        value = value.detach().cpu()
        value = value.double() if value.is_floating_point() else value
    return np.asarray(value)


class _TimeIsUp(BaseException):
    """Raised inside a function that takes too long; an `except Exception` of the function does not catch it."""


@contextmanager
def _limit_time(seconds: float) -> Iterator[None]:
    """Raise _TimeIsUp in the block after `seconds`: only in the main thread, which alone gets signals."""
    if threading.current_thread() is not threading.main_thread() or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def stop(*_: Any) -> None:
        raise _TimeIsUp

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
