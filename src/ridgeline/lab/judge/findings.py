"""Where each path stands: how fast, how near to its ceiling, what limits it, how it does against its best peer.

    ridgeline report benchmarks/records/h200-lab.jsonl

A path is a workload on a device of one kind of machine. Its word is that of one case: of the kind recorded first (a
workload lists its main one first: stage, task, dtype) the one with the most work by the workload's own count. So the
choice hangs on what was asked, never on how it went. The other cases are counted beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ridgeline.lab.judge import analyse
from ridgeline.lab.judge.analyse import Row, rate_unit
from ridgeline.lab.judge.limiting import limiting, percent
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.judge.verdict import Comparison, Validity
from ridgeline.lab.record.record import Record
from ridgeline.web import si

CEILINGS = {"memory": "memory", "pcie": "host-to-device", "pcie_back": "device-to-host", "launch": "launch"}


@dataclass(frozen=True)
class Standing:
    """One path. `verdict` is said of the peer relative to ours, as everywhere: SLOWER is good news."""

    machine: str  # fingerprint
    workload: str
    device: str  # cpu | cuda | cuda:1
    record: Record  # the case chosen
    unit: str  # "texts/s", "B/s"
    rate: float | None  # None: ours has no time to show, `validity` and `advice` say why
    validity: Validity
    advice: str
    share: float | None  # of the ceiling with the highest floor
    resource: str | None  # memory | compute | pcie | pcie_back | launch: whose ceiling that is
    ceiling: str | None  # in words: "copy of 64 MiB", "bfloat16 matmul (torch)"
    stages: Mapping[str, float]  # share of a step that each stage takes by itself, where it was taken apart
    limit: str | None  # in words, see limiting.py; None: not known
    measure: str  # what would tell, where it is not known
    peer: str | None  # the best one
    ratio: Estimate | None  # the best peer's time ÷ ours
    verdict: Comparison | None
    quality: Mapping[str, float]
    missing: Mapping[str, str]  # peers not installed -> what brings them
    cases: int  # of this path, the chosen one included
    words: Mapping[str, int] = field(default_factory=dict)  # of the cases: how often the best peer is SLOWER, SAME, …
    bad: int = 0  # cases in which ours is WRONG or INCOMPLETE

    @property
    def case(self) -> str:
        return self.record.label

    @property
    def place(self) -> str:
        """ "this CPU", "this GPU" """
        return "this CPU" if self.device == "cpu" else "this GPU"

    @property
    def reached(self) -> str:
        """ "31 % of the bfloat16 ceiling"; empty without a ceiling."""
        name = CEILINGS.get(self.resource or "", str(self.record.work.get("dtype", "compute")))
        return f"{percent(self.share)} of the {name} ceiling" if self.share else ""

    @property
    def against(self) -> str:
        """How it does against the best peer, in words; empty if none took part."""
        if self.ratio is None or self.peer is None:
            return ""
        value = self.ratio.value
        return {
            Comparison.SLOWER: f"{times(value)} × as fast as {self.peer}",
            Comparison.SAME: f"level with {self.peer}",
            Comparison.FASTER: f"{self.peer} is {times(1 / value)} × as fast",
            Comparison.UNCLEAR: f"unclear against {self.peer} ({times(self.ratio.low)} to {times(self.ratio.high)} ×)",
        }[self.verdict or Comparison.UNCLEAR]

    @property
    def sentence(self) -> str:
        """The finding, and the word for what makes it doubtful."""
        doubt = f" ({self.validity})" if self.rate is not None and self.validity is not Validity.VALID else ""
        return f"{self.finding}{doubt}."

    @property
    def finding(self) -> str:
        """ "embed is limited by tokenize on this CPU: 31 % of the bfloat16 ceiling; 3.1 × as fast as …" """
        if self.rate is None:
            return f"{self.workload} on {self.place}: {self.validity}, {self.advice}"
        if self.limit:
            head = f"{self.workload} is limited by {self.limit} on {self.place}"
            head += f": {self.reached}" if self.reached else ""
        else:
            does = f"reaches {self.reached}" if self.reached else f"does {si(self.rate, self.unit)}"
            head = f"{self.workload} {does} on {self.place}; what limits it is not known: {self.measure}"
        parts = [head, self.against or _alone(self.missing)]
        if behind := self.words.get(Comparison.FASTER, 0) - (self.verdict is Comparison.FASTER):
            parts.append(f"behind a peer in {behind} other of {self.cases} cases")
        if self.bad:
            parts.append(f"{self.bad} of {self.cases} cases WRONG or INCOMPLETE")
        return "; ".join(filter(None, parts))

    def to_json(self) -> dict[str, Any]:
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
            "verdicts": dict(self.words),
            "wrong_or_incomplete": self.bad,
            "sentence": self.sentence,
        }


def latest(records: Iterable[Record]) -> list[Record]:
    """The newest of each case on each kind of machine, in the order in which cases first came."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        old = found.get(at := (record.machine["fingerprint"], record.subject))
        found[at] = record if old is None or str(record.time) >= str(old.time) else old
    return list(found.values())


def standings(records: Iterable[Record]) -> list[Standing]:
    """Every path of these records, machine by machine, in the order in which they were recorded."""
    paths: dict[tuple[str, str, str], list[Record]] = {}
    for record in latest(records):
        paths.setdefault((record.machine["fingerprint"], record.workload, str(record.case["device"])), []).append(
            record
        )
    machines = list(dict.fromkeys(machine for machine, _, _ in paths))
    ordered = sorted(paths.items(), key=lambda path: machines.index(path[0][0]))
    return [made for _, own in ordered if (made := _standing(own)) is not None]


def best_peer(rows: Iterable[Row]) -> Row | None:
    """The fastest of those whose race says how we do."""
    return min(
        (row for row in rows if row.peer and row.ratio),
        key=lambda row: row.ratio.value if row.ratio else 0.0,
        default=None,
    )


def _standing(records: Sequence[Record]) -> Standing | None:
    all_rows = ((record, analyse.rows(record)) for record in records)
    told = [(record, rows) for record, rows in all_rows if any(row.ours for row in rows)]
    if not told:
        return None
    ours = {record.id: next(row for row in rows if row.ours) for record, rows in told}
    timed = [(record, rows) for record, rows in told if ours[record.id].seconds]
    main = kind_of((timed or told)[0][0])
    record, rows = max((t for t in timed or told if kind_of(t[0]) == main), key=lambda t: _amount(t[0]))
    row, best = ours[record.id], best_peer(rows)
    words = Counter(str(peer.comparison) for _, held in told if (peer := best_peer(held)) and peer.comparison)
    limit = row.limit if row.share else None
    stages = {stage: s / row.seconds for stage, s in row.stages.items()} if row.seconds else {}
    found = limiting(row, rows, [own for own in ours.values() if own is not row])
    return Standing(
        machine=record.machine["fingerprint"],
        workload=record.workload,
        device=str(record.case["device"]),
        record=record,
        unit=rate_unit(record),
        rate=row.items_per_s,
        validity=row.judged.validity,
        advice=row.judged.advice,
        share=row.share,
        resource=limit.resource if limit else None,
        ceiling=str(record.ceilings[limit.resource].get("name") or limit.what) if limit else None,
        stages=stages,
        limit=found.words,
        measure=found.measure,
        peer=best.lane.contender if best else None,
        ratio=best.ratio if best else None,
        verdict=best.comparison if best else None,
        quality=dict(row.quality),
        missing=dict(record.missing),
        cases=len(told),
        words=dict(words),
        bad=sum(row.judged.validity in (Validity.WRONG, Validity.INCOMPLETE) for row in ours.values()),
    )


def kind_of(record: Record) -> tuple[tuple[str, str], ...]:
    """What kind of case it is: its parameters that are no numbers."""
    numbers = (int, float)
    kind = [(k, str(v)) for k, v in record.case.items() if isinstance(v, bool) or not isinstance(v, numbers)]
    return (*kind, ("cold", str(record.cold)))


def _amount(record: Record) -> tuple[float, float]:
    """How much work a case is: the seconds it cannot take less than, else its items."""
    return max((limit.floor_s for limit in analyse.limits(record)), default=0.0), float(record.work["items"])


def _alone(missing: Mapping[str, str]) -> str:
    return f"no peer took part ({', '.join(missing)} not installed)" if missing else "no peer took part"


def times(ratio: float) -> str:
    """
    >>> times(3.14159), times(12.3456), times(1.0512), times(184.2)
    ('3.1', '12', '1.05', '184')
    """
    return f"{ratio:.2f}" if ratio < 1.995 else f"{ratio:.1f}" if ratio < 9.95 else f"{ratio:.0f}"
