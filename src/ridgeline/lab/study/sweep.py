"""Which trials form a sweep: all equal but one column, and what may rise with it (a width and its heads)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.study.table import NONE, Table, Trial, groups, key, number

FEWEST = 3  # points that make a line


@dataclass(frozen=True)
class Sweep:
    column: str
    fixed: Mapping[str, Any]  # what all its trials agree in
    points: Sequence[tuple[float, Sequence[Trial]]]  # x > 0 rising, with the trials there

    @property
    def trials(self) -> list[Trial]:
        return [trial for _, own in self.points for trial in own]

    def median(self, column: str) -> list[float | None]:
        """The middle of a column's values at each point; None where no trial has one above zero."""
        told = [[v for t in own if (v := t.positive(column)) is not None] for _, own in self.points]
        return [statistics.median(values) if values else None for values in told]


def every(table: Table) -> list[Sweep]:
    """All sweeps over sizes and batches."""
    return [s for column in (*table.columns.sizes, table.columns.batch) for s in sweeps(table, column)]


def sweeps(table: Table, column: str) -> list[Sweep]:
    """Every family of at least three points along a column. A name given to each size is no difference."""
    columns = table.columns
    loose = (column, columns.model, *columns.along.get(column, ()))
    families: dict[tuple[Any, ...], list[Trial]] = {}
    for trial in table.trials:
        if trial.positive(column) is not None:
            families.setdefault(key(trial, columns.identity, loose), []).append(trial)
    found = []
    for family in families.values():
        for own in _split(family, column, loose[1:]):
            points: dict[float, list[Trial]] = {}
            for trial in own:
                points.setdefault(trial.positive(column) or 0.0, []).append(trial)
            if len(points) >= FEWEST:
                fixed = {n: own[0].level(n) for n in columns.identity if len({t.level(n) for t in own}) == 1}
                found.append(Sweep(column, fixed, sorted(points.items(), key=lambda p: p[0])))
    return found


def telling(found: Sequence[Sweep]) -> list[str]:
    """A name for each sweep: what it is fixed at that others of them are not."""
    return apart([s.fixed for s in found])


def apart(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Short names by what differs; a column that only repeats what those before it tell is left out.

    >>> apart([{"dim": 64, "heads": 1, "dtype": "half"}, {"dim": 128, "heads": 2, "dtype": "half"}])
    ['dim 64', 'dim 128']
    """
    names: list[str] = []
    kinds = 1
    for name in dict.fromkeys(n for one in found for n in one):
        told = {tuple(str(one.get(n, NONE)) for n in (*names, name)) for one in found}
        if len(told) > kinds:
            names.append(name)
            kinds = len(told)
    return [", ".join(said(n, one[n]) for n in names if one.get(n, NONE) != NONE) for one in found]


def subjects(table: Table) -> dict[str, list[Trial]]:
    """The trials of every model by its name; sizes are told where one name stands for several."""
    columns = table.columns
    found = groups(table.trials, columns.subject)
    names = apart([dict(zip(columns.subject, levels, strict=True)) for levels in found])
    out: dict[str, list[Trial]] = {}
    for name, trials in zip(names, found.values(), strict=True):
        known = name or str(trials[0].level(columns.model)) or "the model"
        out.setdefault(known, []).extend(trials)
    return out


def said(name: str, value: Any) -> str:
    """A level in words: "float16", "batch_size 8", "compile_mode default"."""
    known = number(value) is None and not isinstance(value, bool) and value != "default"
    return str(value) if known else f"{name} {value}"


def _split(family: Sequence[Trial], column: str, loose: Sequence[str]) -> list[list[Trial]]:
    """One family, or one per level of what was held loose where that is not settled by the column."""
    for name in loose:
        by_x: dict[float | None, set[Any]] = {}
        for trial in family:
            by_x.setdefault(trial.positive(column), set()).add(trial.level(name))
        if any(len(held) > 1 for held in by_x.values()):
            parts: dict[Any, list[Trial]] = {}
            for trial in family:
                parts.setdefault(trial.level(name), []).append(trial)
            rest = [n for n in loose if n != name]
            return [deeper for part in parts.values() for deeper in _split(part, column, rest)]
    return [list(family)]
