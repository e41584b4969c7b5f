"""Which records form a sweep: all parameters equal but one, or two that rise together (a length and its half)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

from ridgeline.lab.record.record import Record

FEWEST = 3  # points that make a line worth drawing


@dataclass(frozen=True)
class Sweep:
    """Families of records over one parameter; `along` is the one that rises with it, if any."""

    name: str
    along: str | None
    families: tuple[tuple[Record, ...], ...]  # each in rising order


def sweeps(records: Sequence[Record]) -> list[Sweep]:
    """Every sweep there is among the records of one workload, by the order of the parameters."""
    numeric = [n for n in (records[0].case if records else ()) if n != "device" and _rises(records, n)]
    alone = {n: _families(records, n, None) for n in numeric}
    found = [Sweep(n, None, families) for n, families in alone.items() if families]
    told = {s.name for s in found}
    for name, along in permutations(numeric, 2):
        families = () if {name, along} & told else _families(records, name, along)
        if families:
            found.append(Sweep(name, along, families))
            told |= {name, along}
    return sorted(found, key=lambda s: numeric.index(s.name))


def telling(sweep: Sweep) -> list[str]:
    """The parameters in which the families of a sweep differ."""
    cases = [family[0].case for family in sweep.families]
    names = (n for n in cases[0] if n not in (sweep.name, sweep.along))
    return [n for n in names if len({str(case.get(n)) for case in cases}) > 1]


def _rises(records: Sequence[Record], name: str) -> bool:
    values = [r.case.get(name) for r in records]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    return len(numbers) == len(values) and len(set(numbers)) >= FEWEST


def _families(records: Sequence[Record], name: str, along: str | None) -> tuple[tuple[Record, ...], ...]:
    groups: dict[str, dict[Any, Record]] = {}
    for record in records:
        rest = {k: v for k, v in record.case.items() if k not in (name, along)}
        key = json.dumps([rest, record.cold, record.placement], default=str)
        groups.setdefault(key, {})[record.case[name], along and record.case[along]] = record
    families = [tuple(group[value] for value in sorted(group)) for group in groups.values()]
    return tuple(f for f in families if len(f) >= FEWEST and (along is None or _together(f, name, along)))


def _together(family: Sequence[Record], name: str, along: str) -> bool:
    steps = pairwise((r.case[name], r.case[along]) for r in family)
    return all(a[0] < b[0] and a[1] < b[1] for a, b in steps)
