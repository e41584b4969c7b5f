"""The history of a benchmark over a range of commits: measured now, on one machine, with the steps and their commits.

    ridgeline history benchmarks --commits v1.0..HEAD --points 9 --build 'pip install .'

A sample of the commits races the first one, each in fresh processes, so that the load of the machine cancels. Where
two neighbours of the sample differ, a binary search finds the commit between them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import CaseLeftOut, InputError
from ridgeline.lab.judge import (
    CONFIDENCE,
    Estimate,
    choose_confidence,
    count_missing_executions,
    mean_execution_ratio,
    t_quantile,
)
from ridgeline.lab.race.against import run_git
from ridgeline.lab.race.bisection import Search, list_commits, open_suite, race_commits
from ridgeline.lab.race.measure import Plan
from ridgeline.lab.race.process import ContenderSpec
from ridgeline.lab.race.repository import SUITE_MARGIN, choose_repository
from ridgeline.lab.workload import Case
from ridgeline.machine import topology

SURVEY_SHARE = 0.6  # of the budget, for the sample; the rest is for the searches
LEAST_POINTS = 3
Report = Callable[[str], None]


@dataclass(frozen=True)
class CommitPoint:
    """One commit beside the first one. `ratios`: its time / that of the first, one for each start of processes."""

    commit: str
    subject: str
    time: str
    ratios: tuple[float, ...]  # empty for the first commit itself

    @property
    def ratio(self) -> Estimate:
        """The mean ratio with its 95 % interval."""
        return mean_execution_ratio(self.ratios) if self.ratios else Estimate(1.0, 1.0, 1.0, 0)

    def to_json(self) -> dict[str, Any]:
        """Return the point as a dict for JSON."""
        ratio = self.ratio
        names = {"commit": self.commit, "subject": self.subject, "time": self.time}
        return {**names, "ratio": ratio.value, "ratio_interval": [ratio.low, ratio.high]}


@dataclass(frozen=True)
class CommitStep:
    """A commit that changed the time: `ratio` = after / before. `certain`: every race of the search was."""

    commit: str
    subject: str
    ratio: Estimate
    certain: bool

    def to_json(self) -> dict[str, Any]:
        """Return the step as a dict for JSON."""
        return {
            "commit": self.commit,
            "subject": self.subject,
            "ratio": self.ratio.value,
            "ratio_interval": [self.ratio.low, self.ratio.high],
            "slower": self.ratio.value > 1,
            "certain": self.certain,
        }


@dataclass(frozen=True)
class CaseHistory:
    """One case: its points, oldest first, and its steps."""

    case: Case
    points: tuple[CommitPoint, ...]
    steps: tuple[CommitStep, ...]
    margin: float  # smaller differences do not count

    def to_json(self) -> dict[str, Any]:
        """Return the case as a dict for JSON."""
        return {
            "case": self.case.to_json(),
            "points": [point.to_json() for point in self.points],
            "steps": [step.to_json() for step in self.steps],
        }


@dataclass(frozen=True)
class CommitHistory:
    """The history of all cases of a suite. `commits`: how many the range has."""

    repository: str
    commits: int
    cases: tuple[CaseHistory, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the history as a dict for JSON."""
        return {
            "repository": self.repository,
            "commits": self.commits,
            "cases": [case.to_json() for case in self.cases],
        }


def measure_history(
    reference: str,
    first: str,
    last: str,
    *,
    points: int = 9,
    build: str | None = None,
    budget_s: float = 900.0,
    repository: Path | None = None,
    timeout_s: float = 120.0,
    margin: float = SUITE_MARGIN,
    on_activity: Report = lambda _: None,
    on_message: Report = lambda _: None,
) -> CommitHistory:
    """Race a sample of the commits from `first` to `last` against `first`, and search the steps between them.

    `budget_s` is for the races; exports and builds come on top. Raises InputError for commits that are not in line,
    and NotComparable for a commit that cannot be measured.
    """
    root = choose_repository([reference], repository)
    if root is None:
        raise InputError("--commits is for your own repository; this one is ridgeline's.")
    if points < LEAST_POINTS:
        raise InputError(f"--points {points}: ask for {LEAST_POINTS} or more.")
    commits = list_commits(root, first, last)
    sample = choose_sample(len(commits), points)
    machine = topology()
    plan = Plan(timeout_s=timeout_s, versions=True, target=0.0, least_rounds=6, most_rounds=2000)
    with open_suite(root, reference, commits, build, on_activity, on_message) as suite:
        cases, base = list(suite.cases), suite.first
        measured = [[_describe(root, commits[0], ())] for _ in cases]
        share = SURVEY_SHARE * budget_s / len(cases) / max(1, len(sample) - 1)
        for number in sample[1:]:
            with suite.export(number) as spec:
                for line, case in list(zip(measured, cases, strict=True)):
                    on_activity(f"racing {spec.name} against {base.name}: {case.label}")
                    try:
                        ratios = race_commits(
                            reference,
                            case,
                            (base, spec),
                            plan,
                            machine,
                            share,
                            lambda result: not count_missing_executions(result, margin),
                        )
                    except CaseLeftOut:
                        measured.remove(line)
                        cases.remove(case)
                        continue
                    line.append(_describe(root, commits[number], ratios))
                    ratio = line[-1].ratio
                    on_message(f"{spec.name}: {ratio.value:.3f} times the time of {base.name}, {case.label}")
        pairs = [
            (k, i, step)
            for k, line in enumerate(measured)
            for i in range(len(sample) - 1)
            if (step := compare_points(line[i], line[i + 1], margin, len(cases) * len(sample)))
        ]
        steps: list[list[CommitStep]] = [[] for _ in cases]
        for k, i, ratio in pairs:
            number, certain = sample[i + 1], True
            if sample[i + 1] - sample[i] > 1:
                gap = sample[i + 1] - sample[i] + 1
                time_s = (1 - SURVEY_SHARE) * budget_s / len(pairs)
                search = Search(reference, plan, machine, budget_s=time_s, margin=margin, commits=gap)

                def export_after(number: int, start: int = sample[i]) -> AbstractContextManager[ContenderSpec]:
                    return suite.export(start + number)

                with suite.export(sample[i]) as before:
                    on_activity(f"searching between {commits[sample[i]][:7]} and {commits[sample[i + 1]][:7]}")
                    position, races = search.narrow(cases[k], before, ratio.value, export_after)
                number, certain = sample[i] + position, all(race.certain for race in races)
            point = _describe(root, commits[number], ())
            steps[k].append(CommitStep(point.commit, point.subject, ratio, certain))
            word = "slower" if ratio.value > 1 else "faster"
            on_message(f"{point.commit[:12]} is {abs(ratio.value - 1):.1%} {word}: {point.subject}")
    histories = tuple(
        CaseHistory(case, tuple(line), tuple(step_list), margin)
        for case, line, step_list in zip(cases, measured, steps, strict=True)
    )
    return CommitHistory(root.name, len(commits), histories)


def choose_sample(commits: int, points: int) -> list[int]:
    """Return numbers of commits, evenly spread, with the first and the last.

    >>> choose_sample(100, 4), choose_sample(3, 9)
    ([0, 33, 66, 99], [0, 1, 2])
    """
    count = min(commits, points)
    return [round(i * (commits - 1) / max(1, count - 1)) for i in range(count)]


def compare_points(before: CommitPoint, after: CommitPoint, margin: float, comparisons: int) -> Estimate | None:
    """Return after / before with its 95 % interval if they differ, else None.

    Both were raced against the first commit, in separate races, so the interval is Welch's. `comparisons`: how many
    pairs the history has; more pairs need more confidence each.
    """
    one, two = ([math.log(ratio) for ratio in point.ratios] for point in (before, after))
    if len(two) < 2:
        return None
    spread = [statistics.variance(logs) / len(logs) if len(logs) > 1 else 0.0 for logs in (one, two)]
    mean = statistics.fmean(two) - (statistics.fmean(one) if one else 0.0)
    error = math.sqrt(sum(spread))
    # A race stops when its interval is narrow, so that intervals come out too narrow: half of the degrees of freedom.
    freedom = max(2, (min(len(logs) for logs in (one, two) if logs) - 1) // 2)
    if abs(mean) <= math.log1p(margin) or abs(mean) <= t_quantile(choose_confidence(comparisons), freedom) * error:
        return None
    half = t_quantile(CONFIDENCE, freedom) * error
    return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(two))


def _describe(repository: Path, commit: str, ratios: Sequence[float]) -> CommitPoint:
    text = run_git(repository, "log", "-1", "--format=%cI%n%s", commit, failing="git shows no commit")
    time, _, subject = text.partition("\n")
    return CommitPoint(commit, subject, time, tuple(ratios))
