"""Summarise each path: its rate, its share of the ceiling, what limits it, and its best peer.

    ridgeline report benchmarks/records/h200-lab.jsonl

A path is a workload on one device of one kind of machine. One case represents it: the case with the most compulsory
work among those of the first kind (stage, task, dtype; a workload lists its main kind first). So the choice depends
on the question, never on the result. The summary counts the other cases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.lab.judge.analyse import Row, analyse_record, list_limits, rate_unit
from ridgeline.lab.judge.limits import find_limit, percent
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.verdict import NOISY, Comparison, Validity
from ridgeline.lab.record import Record
from ridgeline.web import format_si

CEILINGS = {"memory": "memory", "pcie": "host-to-device", "pcie_back": "device-to-host", "launch": "launch"}


@dataclass(frozen=True)
class PathSummary:
    """One path. `verdict` describes the peer relative to ours, as everywhere: SLOWER is good news."""

    machine: str  # fingerprint
    workload: str
    device: str  # cpu | cuda | cuda:1
    record: Record  # the case that represents the path
    unit: str  # "texts/s", "B/s"
    rate: float | None  # None: ours has no valid time, `validity` and `advice` say why
    validity: Validity
    advice: str
    share: float | None  # of the ceiling with the highest floor
    resource: str | None  # of that ceiling: memory | compute | pcie | pcie_back | launch
    ceiling: str | None  # in words: "copy of 64 MiB", "bfloat16 matmul (torch)"
    stages: Mapping[str, float]  # stage -> its share of a step, if the contender measured its stages
    limit: str | None  # what limits the path, in words, see limits.py; None: not known
    measure: str  # what to measure to find out, if it is not known
    peer: str | None  # the best peer
    ratio: Estimate | None  # the best peer's time ÷ ours
    verdict: Comparison | None
    quality: Mapping[str, float]
    missing: Mapping[str, str]  # peers that are not installed -> how to install them
    cases: int  # the number of cases of this path
    verdict_counts: Mapping[str, int] = field(
        default_factory=dict
    )  # in how many cases the best peer is SLOWER, SAME, …
    bad: int = 0  # the number of cases in which ours is WRONG or INCOMPLETE
    uncertainty: float = 0.0  # of the rate: half of its interval's width divided by its value

    @property
    def losses(self) -> int:
        """The number of cases in which a peer is faster."""
        return self.verdict_counts.get(Comparison.FASTER, 0)

    @property
    def rate_text(self) -> str:
        """The rate with as many digits as its interval supports; empty without a rate."""
        return format_si(self.rate, self.unit, choose_digits(self.uncertainty)) if self.rate is not None else ""

    @property
    def case(self) -> str:
        """The representative case as text for people."""
        return self.record.label

    @property
    def place(self) -> str:
        """ "this CPU", "this GPU" """
        return "this CPU" if self.device == "cpu" else "this GPU"

    @property
    def share_text(self) -> str:
        """ "31 % of the bfloat16 ceiling"; empty without a ceiling."""
        name = CEILINGS.get(self.resource or "", str(self.record.work.get("dtype", "compute")))
        return f"{percent(self.share)} of the {name} ceiling" if self.share else ""

    @property
    def peer_text(self) -> str:
        """The comparison with the best peer, in words; empty if no peer took part."""
        if self.ratio is None or self.peer is None:
            return ""
        value, low, high = (format_ratio(r) for r in (self.ratio.value, self.ratio.low, self.ratio.high))
        inverse = format_ratio(1 / self.ratio.value)
        return {
            Comparison.SLOWER: f"{value} × as fast as {self.peer}",
            Comparison.SAME: f"level with {self.peer}",
            Comparison.FASTER: f"a loss: {self.peer} is {inverse} × as fast",
            Comparison.UNCLEAR: f"unclear against {self.peer} ({low} to {high} ×)",
        }[self.verdict or Comparison.UNCLEAR]

    @property
    def sentence(self) -> str:
        """The finding, and its validity if that is not VALID."""
        doubt = f" ({self.validity})" if self.rate is not None and self.validity is not Validity.VALID else ""
        return f"{self.finding}{doubt}."

    @property
    def finding(self) -> str:
        """ "embed is limited by tokenize on this CPU: 31 % of the bfloat16 ceiling; 3.1 × as fast as …" """
        if self.rate is None:
            return f"{self.workload} on {self.place}: {self.validity}, {self.advice}"
        if self.limit:
            head = f"{self.workload} is limited by {self.limit} on {self.place}"
            head += f": {self.share_text}" if self.share_text else ""
        else:
            does = f"reaches {self.share_text}" if self.share_text else f"does {self.rate_text}"
            head = f"{self.workload} {does} on {self.place}; what limits it is not known: {self.measure}"
        parts = [head, self.peer_text or _format_no_peer(self.missing)]
        if others := self.losses - (self.verdict is Comparison.FASTER):
            parts.append(f"a loss in {others} other of {self.cases} cases")
        if self.bad:
            parts.append(f"{self.bad} of {self.cases} cases WRONG or INCOMPLETE")
        return "; ".join(filter(None, parts))

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a dict for JSON."""
        ratio = self.ratio
        return {
            "machine": self.machine,
            "workload": self.workload,
            "device": self.device,
            "case": dict(self.record.case),
            "record": self.record.id,
            "command": self.record.command,
            "items_per_s": self.rate,
            "unit": self.unit,
            "validity": self.validity,
            "share_of_ceiling": self.share,
            "ceiling": self.ceiling,
            "resource": self.resource,
            "stage_shares": dict(self.stages),
            "limited_by": self.limit,
            "to_measure": self.measure or None,
            "best_peer": self.peer,
            "ratio": ratio.value if ratio else None,
            "ratio_interval": [ratio.low, ratio.high] if ratio else None,
            "verdict": self.verdict,
            "quality": dict(self.quality),
            "missing": dict(self.missing),
            "cases": self.cases,
            "verdicts": dict(self.verdict_counts),
            "wrong_or_incomplete": self.bad,
            "sentence": self.sentence,
        }


def select_latest(records: Iterable[Record]) -> list[Record]:
    """Return the newest record of each case on each kind of machine, in the order in which the cases first appear."""
    newest: dict[tuple[str, str], Record] = {}
    for record in records:
        old = newest.get(key := (record.machine["fingerprint"], record.subject))
        newest[key] = record if old is None or str(record.time) >= str(old.time) else old
    return list(newest.values())


def summarise_paths(records: Iterable[Record]) -> list[PathSummary]:
    """Return a summary of every path of these records, machine by machine, in the order of the records."""
    paths: dict[tuple[str, str, str], list[Record]] = {}
    for record in select_latest(records):
        paths.setdefault((record.machine["fingerprint"], record.workload, str(record.case["device"])), []).append(
            record
        )
    machines = list(dict.fromkeys(machine for machine, _, _ in paths))
    ordered = sorted(paths.items(), key=lambda path: machines.index(path[0][0]))
    return [summary for _, path_records in ordered if (summary := _summarise(path_records)) is not None]


def rank_path(path: PathSummary) -> tuple[int, float]:
    """Return the place of a path in a report, what matters most first.

    No result, then losses (the largest first), then losses in other cases and wrong cases, then times in doubt, then
    unclear, level, without a peer, and ahead.
    """
    ratio = path.ratio.value if path.ratio else 0.0
    if path.rate is None:
        return 0, 0.0
    if path.verdict is Comparison.FASTER:
        return 1, ratio
    if path.losses or path.bad:
        return 2, -float(path.losses + path.bad)
    if path.validity is not Validity.VALID:
        return 3, -path.uncertainty
    order = {Comparison.UNCLEAR: 4, Comparison.SAME: 5, None: 6, Comparison.SLOWER: 7}
    return order[path.verdict], ratio


def find_best_peer(rows: Iterable[Row]) -> Row | None:
    """Return the row of the fastest peer, or None if no peer has a valid time."""
    return min(
        (row for row in rows if row.peer and row.ratio),
        key=lambda row: row.ratio.value if row.ratio else 0.0,
        default=None,
    )


def _summarise(records: Sequence[Record]) -> PathSummary | None:
    all_cases = ((record, analyse_record(record)) for record in records)
    cases = [(record, rows) for record, rows in all_cases if any(row.ours for row in rows)]
    if not cases:
        return None
    ours = {record.id: next(row for row in rows if row.ours) for record, rows in cases}
    timed = [(record, rows) for record, rows in cases if ours[record.id].seconds]
    main = describe_kind((timed or cases)[0][0])
    record, rows = max((c for c in timed or cases if describe_kind(c[0]) == main), key=lambda c: _measure_work(c[0]))
    row, best = ours[record.id], find_best_peer(rows)
    peers = [find_best_peer(case_rows) for _, case_rows in cases]
    verdict_counts = Counter(str(peer.comparison) for peer in peers if peer and peer.comparison)
    limit = row.limit if row.share else None
    stages = {stage: s / row.seconds for stage, s in row.stages.items()} if row.seconds else {}
    bottleneck = find_limit(row, rows, [other for other in ours.values() if other is not row])
    return PathSummary(
        machine=record.machine["fingerprint"],
        workload=record.workload,
        device=str(record.case["device"]),
        record=record,
        unit=rate_unit(record),
        rate=row.items_per_s,
        validity=row.assessment.validity,
        advice=row.assessment.advice,
        share=row.share,
        resource=limit.resource if limit else None,
        ceiling=str(record.ceilings[limit.resource].get("name") or limit.what) if limit else None,
        stages=stages,
        limit=bottleneck.words,
        measure=bottleneck.measure,
        peer=best.result.contender if best else None,
        ratio=best.ratio if best else None,
        verdict=best.comparison if best else None,
        quality=dict(row.quality),
        missing=dict(record.missing),
        cases=len(cases),
        verdict_counts=dict(verdict_counts),
        uncertainty=row.assessment.time.relative if row.assessment.time else 0.0,
        bad=sum(row.assessment.validity in (Validity.WRONG, Validity.INCOMPLETE) for row in ours.values()),
    )


def describe_kind(record: Record) -> tuple[tuple[str, str], ...]:
    """Return the kind of a case: its parameters that are not numbers."""
    numbers = (int, float)
    kind = [(k, str(v)) for k, v in record.case.items() if isinstance(v, bool) or not isinstance(v, numbers)]
    return (*kind, ("cold", str(record.cold)))


def _measure_work(record: Record) -> tuple[float, float]:
    """Return the amount of work of a case: its shortest possible time in seconds, then its items."""
    return max((limit.floor_s for limit in list_limits(record)), default=0.0), float(record.work["items"])


def _format_no_peer(missing: Mapping[str, str]) -> str:
    return f"no peer took part ({', '.join(missing)} not installed)" if missing else "no peer took part"


def choose_digits(uncertainty: float) -> int:
    """Return how many significant digits a value has if half of its interval is this share of it.

    >>> choose_digits(0.004), choose_digits(0.12), choose_digits(0.8)
    (3, 2, 1)
    """
    return 3 if uncertainty <= NOISY else 2 if uncertainty <= 10 * NOISY else 1


def format_interval(estimate: Estimate) -> tuple[str, str, str]:
    """Format value, low and high of a ratio with the decimals that the interval supports.

    >>> format_interval(Estimate(1.1778, 0.7962, 1.5731, 20)), format_interval(Estimate(1.0008, 0.9931, 1.0092, 99))
    (('1.2', '0.8', '1.6'), ('1.001', '0.993', '1.009'))
    """
    half = (estimate.high - estimate.low) / 2
    decimals = min(3, max(0, math.ceil(-math.log10(half)))) if 0 < half < math.inf else 3
    value, low, high = (f"{number:.{decimals}f}" for number in (estimate.value, estimate.low, estimate.high))
    return value, low, high


def format_ratio(ratio: float) -> str:
    """Format a ratio with two or three significant digits.

    >>> format_ratio(3.14159), format_ratio(12.3456), format_ratio(1.0512), format_ratio(184.2)
    ('3.1', '12', '1.05', '184')
    """
    return f"{ratio:.2f}" if ratio < 1.995 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"
