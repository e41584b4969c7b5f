"""Verdicts, derived from a record every time they are asked for.

Validity: VALID, or why not (each with a sentence of advice). Comparison: FASTER, SLOWER, SAME, UNCLEAR, said of
*them* relative to *us*, from the ratio their time / our time:

    SAME      its whole 95 % interval lies within the margin: shown to be equivalent
    SLOWER    the ratio lies beyond the margin, and is above 1 with 99.9 % certainty
    FASTER    the ratio lies beyond the margin, and is below 1 with 99.9 % certainty
    UNCLEAR   anything else: look longer, or in calmer weather

A claim of a difference needs more certainty than a claim of sameness: a report holds dozens of comparisons, and
one false FASTER costs more trust than ten UNCLEARs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ridgeline.lab.judge import stats
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.record.record import Lane, Record

MARGIN = 0.03  # differences within this are not worth a word
NOISY = 0.05  # relative half-width of the median's interval beyond which a time is not to be quoted
MOST_HEATS = 1000  # nobody waits for more


class Validity(StrEnum):
    VALID = "VALID"
    NOISY = "NOISY"
    THROTTLED = "THROTTLED"
    WRONG = "WRONG"
    INCOMPLETE = "INCOMPLETE"


class Comparison(StrEnum):
    FASTER = "FASTER"
    SLOWER = "SLOWER"
    SAME = "SAME"
    UNCLEAR = "UNCLEAR"


@dataclass(frozen=True)
class Judged:
    """A contender's validity, the sentence that goes with it, and its time if it may be shown."""

    validity: Validity
    advice: str
    time: Estimate | None  # nanoseconds per step


def judge(record: Record, lane: Lane) -> Judged:
    if lane.failure is not None:
        return Judged(Validity.INCOMPLETE, f"it {lane.failure}", None)
    if lane.check is not None and not lane.check["ok"]:
        error = lane.check.get("error")
        size = f" (error {error:.3g})" if error is not None else ""
        note = f": {lane.check['note']}" if lane.check.get("note") else ""
        return Judged(Validity.WRONG, f"the output failed its check{size}{note}; no time is shown", None)
    time = stats.median(stats.turns(lane.samples_ns, lane.samples_per_turn))
    if lane.check is None or time.n < stats.FEWEST:
        return Judged(Validity.INCOMPLETE, f"it had {time.n} turns only; give it more --budget", None)
    reasons = throttled(record)
    if reasons:
        return Judged(
            Validity.THROTTLED, f"the machine was held back ({reasons}); let it cool or raise the limit", time
        )
    if time.relative > NOISY:
        return Judged(
            Validity.NOISY,
            f"± {time.relative:.0%} on the median; stop what else runs here, or look longer",
            time,
        )
    return Judged(Validity.VALID, "", time)


def throttled(record: Record) -> str:
    """Why the machine ran slower than it can, by its own word; empty if it did not say so."""
    reasons: list[str] = []
    before, after = (record.weather.get(m) or {} for m in ("before", "after"))
    if str(record.case.get("device", "")).startswith("cuda"):
        # What a GPU says before the race is about the state it idled in: an H200 that wakes names a power cap.
        reasons += (after.get("gpu") or {}).get("throttle_reasons") or []
    for counter, words in (("thermal_events", "CPU heat"), ("quota_throttled", "cgroup CPU quota")):
        if (after.get(counter) or 0) > (before.get(counter) or 0):
            reasons.append(words)
    return ", ".join(dict.fromkeys(reasons))


def compare(ratio: Estimate, sure: Estimate, margin: float = MARGIN) -> Comparison:
    """The word for a ratio their time / our time with its 95 % interval, and the same at 99.9 %."""
    if not ratio.n or math.isnan(ratio.value):
        return Comparison.UNCLEAR
    if ratio.low >= 1 / (1 + margin) and ratio.high <= 1 + margin:
        return Comparison.SAME
    if sure.low > 1 and ratio.value > 1 + margin:
        return Comparison.SLOWER
    if sure.high < 1 and ratio.value < 1 / (1 + margin):
        return Comparison.FASTER
    return Comparison.UNCLEAR


def in_race(
    theirs: Lane, ours: Lane, margin: float = MARGIN, heats: Sequence[int] = (), versions: bool = False
) -> tuple[Estimate, Comparison]:
    """Contenders of one race, round by round; versions of one code in enough heats, heat by heat."""
    them, us = (stats.turns(lane.samples_ns, lane.samples_per_turn) for lane in (theirs, ours))
    return of_versions(them, us, heats, margin) if versions else _of_rounds(them, us, margin)


def of_versions(
    theirs: Sequence[float], ours: Sequence[float], heats: Sequence[int], margin: float = MARGIN
) -> tuple[Estimate, Comparison]:
    """Each heat has processes of its own, so their ratios are independent.

    In fewer heats than it takes luck of a process may look like a difference: their rounds can show that two are the
    same, but nothing else.
    """
    if len(heats) >= stats.FEWEST:
        ratios = stats.heat_ratios(theirs, ours, heats)
        ratio, sure = (stats.over_heats(ratios, confidence) for confidence in (stats.CONFIDENCE, stats.SURE))
        return ratio, compare(ratio, sure, margin)
    ratio, word = _of_rounds(theirs, ours, margin)
    return ratio, word if word is Comparison.SAME else Comparison.UNCLEAR


def wide_open(theirs: Sequence[float], ours: Sequence[float], margin: float = MARGIN) -> bool:
    """Whether rounds say so little about two versions that none of the words could be told but by chance."""
    ratio, word = _of_rounds(theirs, ours, margin)
    return word is Comparison.UNCLEAR and ratio.relative > margin


def heats_wanted(ratios: Sequence[float], margin: float = MARGIN) -> int:
    """How many more heats are thought to tell, by the spread of those that were: enough for a difference as large as
    the margin to be sure. Where they lie does not matter: who stops when a difference shows finds some in noise.
    """
    if len(ratios) < stats.FEWEST:
        return stats.FEWEST - len(ratios)
    deviation, heats = statistics.stdev(map(math.log, ratios)), len(ratios)
    while stats.heats_reach(deviation, heats, stats.SURE) > math.log1p(margin) and heats < MOST_HEATS:
        heats += 1
    return heats - len(ratios)


def _of_rounds(theirs: Sequence[float], ours: Sequence[float], margin: float) -> tuple[Estimate, Comparison]:
    ratio = stats.paired_ratio(theirs, ours)
    return ratio, compare(ratio, stats.paired_ratio(theirs, ours, stats.SURE), margin)
