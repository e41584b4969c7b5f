"""Two sets of records, case by case: did B get slower than A?

    ridgeline compare before/ after/

Runs made at different times were made in different weather. Where both raced the same peers, times are taken
relative to those peers in the same race, which takes the weather out; else they are compared as they are, and
that is said. `ridgeline bench --against COMMIT` races two versions directly and sees smaller changes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ridgeline.errors import Exit, NotComparable
from ridgeline.lab import stats, verdict
from ridgeline.lab.record import Lane, Record
from ridgeline.lab.stats import Estimate
from ridgeline.lab.verdict import Comparison
from ridgeline.lab.workload import OURS


@dataclass(frozen=True)
class Change:
    """One case in both sets; the word is said of B relative to A."""

    before: Record
    after: Record
    ratio: Estimate  # time of B / time of A
    comparison: Comparison
    basis: str  # how the two were made comparable

    def to_json(self) -> dict[str, Any]:
        return {
            "workload": self.after.workload,
            "case": dict(self.after.case),
            "verdict": self.comparison,
            "ratio": self.ratio.value,
            "ratio_interval": [self.ratio.low, self.ratio.high],
            "basis": self.basis,
            "records": [self.before.id, self.after.id],
        }


def changes(a: Iterable[Record], b: Iterable[Record], margin: float = verdict.MARGIN) -> list[Change]:
    """Every case both sets have (the latest record of each); NotComparable when there is none."""
    old, new = ({r.subject: r for r in records} for records in (a, b))
    shared = [subject for subject in new if subject in old]
    if not shared:
        raise NotComparable("the two have no case in common; record the same workloads and cases in both.")
    alike = [s for s in shared if old[s].machine["fingerprint"] == new[s].machine["fingerprint"]]
    if not alike:
        raise NotComparable("the records come from different kinds of machine; compare runs of one kind.")
    found = [change for s in alike if (change := _change(old[s], new[s], margin)) is not None]
    if not found:
        raise NotComparable("no case in common has a valid time of ours on both sides.")
    return found


def exit_code(found: Iterable[Change]) -> Exit:
    """SLOWER outweighs UNCLEAR outweighs the rest."""
    words = {change.comparison for change in found}
    if Comparison.SLOWER in words:
        return Exit.SLOWER
    return Exit.UNCLEAR if Comparison.UNCLEAR in words else Exit.OK


def _change(before: Record, after: Record, margin: float) -> Change | None:
    ours = [_lane(r, OURS) or r.contenders[0] for r in (before, after)]
    if any(verdict.judge(r, lane).time is None for r, lane in zip((before, after), ours, strict=True)):
        return None
    if before.id == after.id:
        ratio, word = verdict.in_race(ours[1], ours[0], margin)
        return Change(before, after, ratio, word, "one and the same record")
    peers = _shared_peers(before, after)
    old, new = (_logs(lane, [_must(r, p) for p in peers]) for r, lane in zip((before, after), ours, strict=True))
    ratio, sure = (_exp(stats.difference(new, old, c)) for c in (stats.CONFIDENCE, stats.SURE))
    basis = (
        f"relative to {', '.join(peers)} in the same race"
        if peers
        else "separate runs, no shared peer: weather included"
    )
    return Change(before, after, ratio, verdict.compare(ratio, sure, margin), basis)


def _shared_peers(before: Record, after: Record) -> list[str]:
    """Peers with valid times on both sides and the same settings and libraries."""
    if before.code["libraries"] != after.code["libraries"]:
        return []
    shared = []
    for lane in after.contenders:
        other = _lane(before, lane.contender)
        if lane.contender == OURS or other is None or other.settings != lane.settings:
            continue
        if verdict.judge(before, other).time and verdict.judge(after, lane).time:
            shared.append(lane.contender)
    return shared


def _logs(lane: Lane, peers: list[Lane]) -> list[float]:
    """log of our time, less the mean log of the peers' in the same round."""
    own = [math.log(t) for t in stats.turns(lane.samples_ns, lane.samples_per_turn)]
    if not peers:
        return own
    rounds = zip(*([math.log(t) for t in stats.turns(p.samples_ns, p.samples_per_turn)] for p in peers), strict=False)
    return [o - statistics.fmean(p) for o, p in zip(own, rounds, strict=False)]


def _lane(record: Record, name: str) -> Lane | None:
    return next((lane for lane in record.contenders if lane.contender == name), None)


def _must(record: Record, name: str) -> Lane:
    lane = _lane(record, name)
    assert lane is not None  # noqa: S101  _shared_peers looked
    return lane


def _exp(logs: Estimate) -> Estimate:
    return Estimate(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.n)
