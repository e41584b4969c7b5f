"""Find sweeps: records that differ in one parameter, or in two that rise together (a length and its half)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Any

from ridgeline.lab.record import Record

MIN_POINTS = 3  # of a line in a chart


@dataclass(frozen=True)
class Sweep:
    """Families of records over the parameter `name`; `second` is the parameter that rises with it, if any."""

    name: str
    second: str | None
    families: tuple[tuple[Record, ...], ...]  # each family in rising order


def find_sweeps(records: Sequence[Record]) -> list[Sweep]:
    """Return every sweep among the records of one workload, in the order of the parameters."""
    numeric = [n for n in (records[0].case if records else ()) if n != "device" and _is_numeric(records, n)]
    single = {n: _group_families(records, n, None) for n in numeric}
    sweeps = [Sweep(n, None, families) for n, families in single.items() if families]
    names = {s.name for s in sweeps}
    for name, second in permutations(numeric, 2):
        families = () if {name, second} & names else _group_families(records, name, second)
        if families:
            sweeps.append(Sweep(name, second, families))
            names |= {name, second}
    return sorted(sweeps, key=lambda s: numeric.index(s.name))


def list_differing_parameters(sweep: Sweep) -> list[str]:
    """Return the parameters in which the families of a sweep differ."""
    cases = [family[0].case for family in sweep.families]
    names = (n for n in cases[0] if n not in (sweep.name, sweep.second))
    return [n for n in names if len({str(case.get(n)) for case in cases}) > 1]


def _is_numeric(records: Sequence[Record], name: str) -> bool:
    values = [r.case.get(name) for r in records]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    return len(numbers) == len(values) and len(set(numbers)) >= MIN_POINTS


def _group_families(records: Sequence[Record], name: str, second: str | None) -> tuple[tuple[Record, ...], ...]:
    groups: dict[str, dict[Any, Record]] = {}
    for record in records:
        rest = {k: v for k, v in record.case.items() if k not in (name, second)}
        key = json.dumps([rest, record.cold, record.placement], default=str)
        groups.setdefault(key, {})[record.case[name], second and record.case[second]] = record
    families = [tuple(group[value] for value in sorted(group)) for group in groups.values()]
    return tuple(f for f in families if len(f) >= MIN_POINTS and (second is None or _rise_together(f, name, second)))


def _rise_together(family: Sequence[Record], name: str, second: str) -> bool:
    steps = pairwise((r.case[name], r.case[second]) for r in family)
    return all(a[0] < b[0] and a[1] < b[1] for a, b in steps)
