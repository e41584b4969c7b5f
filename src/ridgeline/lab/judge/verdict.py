"""Verdicts: validity and comparison, computed from a record each time.

Validity: VALID, or why not, with a sentence of advice. Comparison: FASTER, SLOWER, SAME, UNCLEAR. It describes *them*
relative to *us*, by the ratio of their time to our time:

    SAME      the whole 95 % interval lies within the margin: the two are equivalent
    SLOWER    the ratio lies beyond the margin, and above 1 with 99.9 % confidence
    FASTER    the ratio lies beyond the margin, and below 1 with 99.9 % confidence
    UNCLEAR   anything else: measure longer, or on an idle machine

A difference needs more confidence than equivalence: a report holds dozens of comparisons, and one false FASTER costs
more trust than ten UNCLEARs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.lab.judge import stats
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.record import ContenderResult, Record

MARGIN = 0.03  # smaller relative differences do not matter
FALSE_ALARMS = 0.01  # of a run with several cases: the probability of one false FASTER or SLOWER
NOISY = 0.05  # a time with a wider interval (relative half-width of the median's interval) should not be quoted
MAX_EXECUTIONS = 1000


class Validity(StrEnum):
    """Whether a time may be quoted."""

    VALID = "VALID"
    NOISY = "NOISY"
    THROTTLED = "THROTTLED"
    WRONG = "WRONG"
    INCOMPLETE = "INCOMPLETE"


class Comparison(StrEnum):
    """How a contender compares with ours."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Assessment:
    """The validity of a contender's result, advice in words, and its time if that may be shown."""

    validity: Validity
    advice: str
    time: Estimate | None  # nanoseconds per step


def assess(record: Record, result: ContenderResult) -> Assessment:
    """Decide whether the time of a contender is valid."""
    if result.failure is not None:
        return Assessment(Validity.INCOMPLETE, f"it {result.failure}", None)
    if result.check is not None and not result.check["ok"]:
        error = result.check.get("error")
        size = f" (error {error:.3g})" if error is not None else ""
        note = f": {result.check['note']}" if result.check.get("note") else ""
        return Assessment(Validity.WRONG, f"the output failed its check{size}{note}; no time is shown", None)
    time = stats.median(stats.turn_medians(result.samples_ns, result.samples_per_turn))
    if result.check is None or time.n < stats.MIN_OBSERVATIONS:
        return Assessment(Validity.INCOMPLETE, _describe_lack(record, time.n), None)
    reasons = list_throttle_reasons(record)
    if reasons:
        advice = f"the machine was throttled ({', '.join(reasons)}); let it cool or raise the limit"
        return Assessment(Validity.THROTTLED, advice, time)
    if time.relative > NOISY:
        advice = f"± {time.relative:.0%} on the median; stop other programs on this machine, or measure longer"
        return Assessment(Validity.NOISY, advice, time)
    return Assessment(Validity.VALID, "", time)


def _describe_lack(record: Record, turns: int) -> str:
    if record.plan.get("imported"):
        count = "one repetition" if turns == 1 else f"{turns} repetitions"
        return f"it had {count}, and a verdict needs {stats.MIN_OBSERVATIONS}; repeat the benchmark in its own tool"
    return f"it had {turns} turns only; give it more --budget"


def list_throttle_reasons(record: Record) -> list[str]:
    """List why the machine ran below its speed, as it reports itself; empty if it reports nothing."""
    reasons: list[str] = []
    before, after = (record.conditions.get(moment) or {} for moment in ("before", "after"))
    if str(record.case.get("device", "")).startswith("cuda"):
        # Before the race a GPU reports its idle state: an H200 that wakes up reports a power cap.
        reasons += (after.get("gpu") or {}).get("throttle_reasons") or []
    for counter, words in (("thermal_events", "CPU heat"), ("quota_throttled", "cgroup CPU quota")):
        if (after.get(counter) or 0) > (before.get(counter) or 0):
            reasons.append(words)
    return list(dict.fromkeys(reasons))


def classify_ratio(ratio: Estimate, confident: Estimate, margin: float = MARGIN) -> Comparison:
    """Classify a ratio of their time to our time: `ratio` with its 95 % interval, `confident` with its 99.9 % one."""
    if not ratio.n or math.isnan(ratio.value):
        return Comparison.UNCLEAR
    if ratio.low >= 1 / (1 + margin) and ratio.high <= 1 + margin:
        return Comparison.SAME
    if confident.low > 1 and ratio.value > 1 + margin:
        return Comparison.SLOWER
    if confident.high < 1 and ratio.value < 1 / (1 + margin):
        return Comparison.FASTER
    return Comparison.UNCLEAR


def compare_in_race(
    peer: ContenderResult,
    ours: ContenderResult,
    margin: float = MARGIN,
    executions: Sequence[int] = (),
    versions: bool = False,
    cases: int = 1,
) -> tuple[Estimate, Comparison]:
    """Compare two contenders of one race, round by round.

    `versions`: they are versions of one code; see `compare_versions`. `executions`: the rounds of each execution.
    """
    them, us = (stats.turn_medians(result.samples_ns, result.samples_per_turn) for result in (peer, ours))
    return compare_versions(them, us, executions, margin, cases) if versions else _compare_rounds(them, us, margin)


def choose_confidence(cases: int) -> float:
    """Return the confidence of a difference in a run of that many cases: one false alarm ends it with SLOWER.

    >>> choose_confidence(1), choose_confidence(100)
    (0.999, 0.9999)
    """
    return max(stats.HIGH_CONFIDENCE, 1 - FALSE_ALARMS / max(1, cases))


def compare_versions(
    peer: Sequence[float],
    ours: Sequence[float],
    executions: Sequence[int],
    margin: float = MARGIN,
    cases: int = 1,
) -> tuple[Estimate, Comparison]:
    """Compare two versions of one code. Each execution starts fresh processes, so their ratios are independent.

    `cases`: how many cases the run compares; more cases need more confidence each.

    With fewer than MIN_OBSERVATIONS executions the memory layout of one process can look like a difference. The
    rounds can then show SAME, but nothing else.
    """
    if len(executions) >= stats.MIN_OBSERVATIONS:
        ratios = stats.execution_ratios(peer, ours, executions)
        ratio, confident = (
            stats.mean_execution_ratio(ratios, confidence)
            for confidence in (stats.CONFIDENCE, choose_confidence(cases))
        )
        return ratio, classify_ratio(ratio, confident, margin)
    ratio, comparison = _compare_rounds(peer, ours, margin)
    return ratio, comparison if comparison is Comparison.SAME else Comparison.UNCLEAR


def is_undecided(peer: Sequence[float], ours: Sequence[float], margin: float = MARGIN) -> bool:
    """Whether the rounds say too little about two versions: a verdict would be chance."""
    ratio, comparison = _compare_rounds(peer, ours, margin)
    return comparison is Comparison.UNCLEAR and ratio.relative > margin


def count_missing_executions(ratios: Sequence[float], margin: float = MARGIN, cases: int = 1) -> int:
    """Estimate how many more executions make a difference of `margin` certain, from the spread of the ratios so far.

    The values of the ratios do not matter: a race that stops when it sees a difference finds differences in noise.
    """
    if len(ratios) < stats.MIN_OBSERVATIONS:
        return stats.MIN_OBSERVATIONS - len(ratios)
    deviation, count = statistics.stdev(map(math.log, ratios)), len(ratios)
    limit = math.log1p(margin)
    confidence = choose_confidence(cases)
    while stats.execution_half_width(deviation, count, confidence) > limit and count < MAX_EXECUTIONS:
        count += 1
    return count - len(ratios)


def _compare_rounds(peer: Sequence[float], ours: Sequence[float], margin: float) -> tuple[Estimate, Comparison]:
    ratio = stats.paired_ratio(peer, ours)
    return ratio, classify_ratio(ratio, stats.paired_ratio(peer, ours, stats.HIGH_CONFIDENCE), margin)
