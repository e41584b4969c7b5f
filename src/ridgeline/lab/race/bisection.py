"""Find the commit that made a benchmark slower: binary search over the commits between a fast and a slow one.

    ridgeline bisect benchmarks --good v1.0 --bad HEAD --build 'pip install .'

The first race compares the good and the bad commit on every case and keeps the case with the clearest slowdown. Each
following race compares the good commit with the one in the middle, in fresh processes, until the interval of the ratio
lies on one side of the square root of that slowdown, or the time of the step is over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ridgeline.errors import CaseLeftOut, InputError, NotComparable
from ridgeline.lab.judge import Estimate, execution_ratios, mean_execution_ratio
from ridgeline.lab.race.against import run_git
from ridgeline.lab.race.loader import load_workload
from ridgeline.lab.race.measure import Plan, measure_case, repeat_execution
from ridgeline.lab.race.process import ContenderSpec, ProcessPool
from ridgeline.lab.race.repository import (
    SUITE_MARGIN,
    add_packages,
    choose_repository,
    export_version,
    find_commit,
    open_version_folder,
)
from ridgeline.lab.workload import OURS, Case, Profile
from ridgeline.machine import Topology, topology

MIN_EXECUTIONS, CONFIDENCE = 3, 0.99  # of a step: that a commit is on its side of the threshold
FIRST_EXECUTIONS, FIRST_CONFIDENCE = 6, 0.999  # of the first race: that there is a slowdown at all
FIRST_SHARE = 0.3  # of the budget, for the first race
EXECUTION_S = 0.5  # rounds of one execution

Report = Callable[[str], None]


@dataclass(frozen=True)
class BisectStep:
    """One commit that was raced against the good one."""

    commit: str
    ratio: Estimate  # its time / the time of the good commit
    slow: bool  # it has the change
    certain: bool
    number: int = 0  # of the commit, from the good one on

    def to_json(self) -> dict[str, Any]:
        """Return the step as a dict for JSON."""
        ratio = self.ratio
        return {
            "commit": self.commit,
            "ratio": ratio.value,
            "ratio_interval": [ratio.low, ratio.high],
            "slow": self.slow,
            "certain": self.certain,
        }


@dataclass(frozen=True)
class BisectResult:
    """The first slow commit. `certain`: every step was; else the commit is the likeliest one."""

    commit: str
    subject: str
    case: Case
    ratio: Estimate  # bad / good
    steps: tuple[BisectStep, ...]
    commits: int  # how many were searched

    @property
    def certain(self) -> bool:
        """Whether every step was certain."""
        return all(step.certain for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        return {
            "commit": self.commit,
            "subject": self.subject,
            "case": self.case.to_json(),
            "ratio": self.ratio.value,
            "ratio_interval": [self.ratio.low, self.ratio.high],
            "certain": self.certain,
            "commits": self.commits,
            "steps": [step.to_json() for step in self.steps],
        }


def find_slow_commit(
    reference: str,
    good: str,
    bad: str,
    *,
    build: str | None = None,
    budget_s: float = 600.0,
    repository: Path | None = None,
    timeout_s: float = 120.0,
    margin: float = SUITE_MARGIN,
    on_activity: Report = lambda _: None,
    on_message: Report = lambda _: None,
) -> BisectResult:
    """Return the first commit after `good`, up to `bad`, that has the slowdown of `bad`.

    `budget_s` is for the races; exports and builds come on top. `margin`: the least slowdown that counts. Raises
    InputError for commits that are not in line, and NotComparable if the bad commit is not slower.
    """
    root = choose_repository([reference], repository)
    if root is None:
        raise InputError("bisect is for your own repository; this one is ridgeline's.")
    commits = list_commits(root, good, bad)
    plan = Plan(timeout_s=timeout_s, versions=True, target=0.0, least_rounds=6, most_rounds=2000)
    search = Search(reference, plan, topology(), budget_s=budget_s, margin=margin, commits=len(commits))
    with open_suite(root, reference, commits, build, on_activity, on_message) as suite:
        fast = suite.first
        with suite.export(len(commits) - 1) as slow:
            ratios = []
            for case in suite.cases:
                on_activity(f"racing {slow.name} against {fast.name}: {case.label}")
                with suppress(CaseLeftOut):
                    ratios.append((search.compare_ends(case, fast, slow, len(suite.cases)), case))
        if not ratios:
            raise NotComparable(f"'{reference}' leaves all of its cases out.")
        ratio, case = max(ratios, key=lambda pair: pair[0].low)
        if ratio.low <= 1 or ratio.value <= 1 + margin:
            raise NotComparable(
                f"{commits[-1][:7]} is not slower than {commits[0][:7]}: it takes {ratio.value:.3f} times the time "
                f"({ratio.low:.3f} to {ratio.high:.3f}); name other commits, or give more --budget."
            )

        def report(step: BisectStep, left: int) -> None:
            on_message(f"{step.commit}: {step.ratio.value:.3f} times the time of {fast.name}; {left} commits left")

        culprit, steps = search.narrow(case, fast, ratio.value, suite.export, report)
    steps = [replace(step, commit=commits[step.number]) for step in steps]
    subject = run_git(root, "log", "-1", "--format=%s", commits[culprit], failing="git shows no commit")
    return BisectResult(commits[culprit], subject, case, ratio, tuple(steps), len(commits) - 1)


class Search:
    """The races of a binary search. Commits are numbers from 0, the good one, to `commits` - 1, the bad one."""

    def __init__(
        self, reference: str, plan: Plan, machine: Topology, *, budget_s: float, margin: float, commits: int
    ) -> None:
        self._reference, self._plan, self._machine = reference, plan, machine
        self._budget_s, self._margin, self._commits = budget_s, margin, commits

    def compare_ends(self, case: Case, fast: ContenderSpec, slow: ContenderSpec, cases: int) -> Estimate:
        """Return the ratio of the bad commit's time to that of the good one, for one of several cases."""
        share = FIRST_SHARE * self._budget_s / cases
        return self._compare(case, (fast, slow), share, 1.0, FIRST_EXECUTIONS, FIRST_CONFIDENCE)

    def narrow(
        self,
        case: Case,
        fast: ContenderSpec,
        ratio: float,
        export: Callable[[int], AbstractContextManager[ContenderSpec]],
        report: Callable[[BisectStep, int], None] = lambda step, left: None,
    ) -> tuple[int, list[BisectStep]]:
        """Return the number of the first commit that has the change `ratio`, and the races that found it."""
        threshold = math.sqrt(ratio)
        races = max(1, math.ceil(math.log2(self._commits)))
        seconds = (1 - FIRST_SHARE) * self._budget_s / races
        low, high, steps = 0, self._commits - 1, []
        while high - low > 1:
            middle = (low + high) // 2
            with export(middle) as spec:
                one = self._compare(case, (fast, spec), seconds, threshold, MIN_EXECUTIONS, CONFIDENCE)
            slow_here = (one.value > threshold) == (ratio > 1)
            certain = one.low > threshold or one.high < threshold
            steps.append(BisectStep(spec.name, one, slow_here, certain, middle))
            low, high = (low, middle) if slow_here else (middle, high)
            report(steps[-1], high - low - 1)
        return high, steps

    def _compare(
        self,
        case: Case,
        specs: Sequence[ContenderSpec],
        seconds: float,
        threshold: float,
        least: int,
        confidence: float,
    ) -> Estimate:
        """Race two commits until the interval leaves the threshold on one side, or the time is over."""

        def is_clear(ratios: Sequence[float]) -> bool:
            ratio = mean_execution_ratio(ratios, confidence)
            return len(ratios) >= least and not ratio.low <= threshold <= ratio.high

        ratios = race_commits(self._reference, case, specs, self._plan, self._machine, seconds, is_clear, least=least)
        return mean_execution_ratio(ratios, confidence)


@dataclass(frozen=True)
class Suite:
    """The benchmarks of a repository: their cases, the oldest commit, and the function that exports a commit."""

    cases: list[Case]
    first: ContenderSpec
    export: Callable[[int], AbstractContextManager[ContenderSpec]]


@contextmanager
def open_suite(
    root: Path, reference: str, commits: Sequence[str], build: str | None, on_activity: Report, on_message: Report
) -> Iterator[Suite]:
    """Load the suite with the packages of the oldest commit, which stays built."""
    contender = ""
    with open_version_folder() as folder:

        @contextmanager
        def export(number: int) -> Iterator[ContenderSpec]:
            commit = commits[number]
            spec = export_version(root, commit, [reference], folder / commit[:12], build, on_activity, on_message)
            yield replace(spec, name=commit[:12], contender=contender)

        with export(0) as built:
            add_packages(built.interpreter)
            cases, contender = load_suite(reference)
            yield Suite(cases, replace(built, contender=contender), export)


def load_suite(reference: str) -> tuple[list[Case], str]:
    """Return the cases of a suite, and the name of the contender whose versions race."""
    workload = load_workload(reference)
    cases = [
        replace(case, device="cpu" if case.device == "any" else case.device) for case in workload.cases(Profile.QUICK)
    ]
    if not cases:
        raise InputError(f"'{reference}' has no case to race.")
    names = workload.contenders(cases[0])
    return cases, OURS if OURS in names else names[0]


def list_commits(repository: Path, good: str, bad: str) -> list[str]:
    """Return the commits from good to bad, oldest first, along the first parents."""
    first, last = find_commit(repository, good), find_commit(repository, bad)
    failing = f"git does not list the commits from {good} to {bad}"
    between = run_git(repository, "rev-list", "--reverse", "--first-parent", f"{first}..{last}", failing=failing)
    commits = between.split()
    base = run_git(repository, "merge-base", first, last, failing=f"{good} and {bad} have no commit in common")
    if base != first or not commits:
        raise InputError(f"--good {good} is no ancestor of --bad {bad}; name an older commit that was fast.")
    return [first, *commits]


def race_commits(
    reference: str,
    case: Case,
    specs: Sequence[ContenderSpec],
    plan: Plan,
    machine: Topology,
    seconds: float,
    is_done: Callable[[Sequence[float]], bool],
    least: int = FIRST_EXECUTIONS,
) -> list[float]:
    """Race two commits in fresh processes until `is_done`, or the time is over.

    Return second / first of each start of processes, at least `least` of them.
    """
    end = time.monotonic() + seconds
    with ProcessPool() as pool:
        result = measure_case(
            reference, case, specs, plan=replace(plan, budget_s=EXECUTION_S), pool=pool, machine=machine
        )
    if result.left_out:
        raise CaseLeftOut(f"{case.label} is left out by its setup.")
    for lane in result.lanes:
        lane.group = None
        if not lane.racing:
            reason = lane.failure or (lane.check or {}).get("note") or "its check failed"
            raise NotComparable(f"commit {lane.spec.name} cannot be measured: it {reason}.")
    while True:
        first, second = (lane.turn_medians() for lane in result.lanes)
        ratios = execution_ratios(second, first, result.executions)
        if len(ratios) >= max(2, least) and (time.monotonic() > end or is_done(ratios)):
            return ratios
        repeat_execution(result, 6, budget_s=EXECUTION_S)
        for lane in result.lanes:
            if not lane.racing:
                raise NotComparable(f"commit {lane.spec.name} cannot be measured: it {lane.failure or 'became wrong'}.")
