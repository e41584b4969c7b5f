"""Far runs with their near twins: what a node costs that is not the nearest.

Every trial from a far node is paired with one from the nearest node of the same GPU (or of the CPUs that take its part)
that did the same work. The nearest is the one of the smallest distance; where no distance is told, the lowest-numbered
node stands in for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.lab.study.contrast import Contrast, Pair, column, contrast, pairs
from ridgeline.lab.study.sweep import subjects
from ridgeline.lab.study.table import NONE, Table, Trial, groups, number, order, seat

Place = tuple[Any, Any]  # node, distance


@dataclass(frozen=True)
class Remote:
    """One model on one GPU from one far node, against its nearest."""

    model: str
    who: str  # GPU 0, CPUs of node 1
    node: Any
    distance: float | None
    near: Any  # the nearest node
    overall: Contrast
    up: Contrast
    down: Contrast


def remotes(table: Table) -> list[Remote]:
    """Every model × GPU × far node for which there are pairs."""
    columns, found = table.columns, []
    models = subjects(table)
    for who, places in places_of(table).items():
        for model, every in models.items():
            near, trials = places[0], [t for t in every if seat(t, columns) == who]
            for far in places[1:]:
                twins = _twins(table, trials, near, far)
                if twins:
                    found.append(_remote(table, model, who, near, far, twins))
    return found


def by_distance(table: Table) -> list[Contrast]:
    """What each distance costs over all models and GPUs."""
    twins: dict[Any, list[Pair]] = {}
    for pair in far_pairs(table):
        twins.setdefault(pair[1].level(table.columns.distance), []).append(pair)
    what = "node distance" if any(d != NONE for d in twins) else "node"
    return [
        contrast(_distinct(twins[d]), what, "nearest", "far" if d == NONE else d, within="all points")
        for d in sorted(twins, key=order)
    ]


def pairings(table: Table) -> list[tuple[str, Any, list[Contrast]]]:
    """For every GPU the nearest node, and what each other one costs over all models."""
    columns, found = table.columns, []
    for who, places in places_of(table).items():
        own = [t for t in table.trials if seat(t, columns) == who]
        costs = [
            contrast(twins, "node", places[0][0], far[0], within=who)
            for far in places[1:]
            if (twins := _twins(table, own, places[0], far))
        ]
        if costs:
            found.append((who, places[0][0], costs))
    return found


def far_pairs(table: Table) -> list[Pair]:
    """Every trial from a far node with its twin from the nearest; several far ones may share a near one."""
    columns, found = table.columns, []
    for who, places in places_of(table).items():
        own = [t for t in table.trials if seat(t, columns) == who]
        for far in places[1:]:
            found += _twins(table, own, places[0], far)
    return found


def places_of(table: Table) -> dict[str, list[Place]]:
    """Per GPU the places it was fed from, nearest first."""
    columns = table.columns
    found: dict[str, set[Place]] = {}
    for trial in table.trials:
        place = (trial.level(columns.node), trial.level(columns.distance))
        found.setdefault(seat(trial, columns), set()).add(place)
    return {who: sorted(found[who], key=lambda place: (order(place[1]), order(place[0]))) for who in sorted(found)}


def _twins(table: Table, trials: Sequence[Trial], near: Place, far: Place) -> list[Pair]:
    columns = table.columns
    both = (columns.node, columns.distance)
    at = groups(trials, both)
    return pairs(at.get(near, []), at.get(far, []), columns.identity, both)


def _distinct(found: Sequence[Pair]) -> list[Pair]:
    """Pairs of which none shares a run with one before it."""
    seen: set[int] = set()
    kept = []
    for pair in found:
        if not seen & {id(t) for t in pair}:
            seen |= {id(t) for t in pair}
            kept.append(pair)
    return kept


def _remote(table: Table, model: str, who: str, near: Place, far: Place, twins: list[Pair]) -> Remote:
    columns = table.columns
    where = f"{model}, {who}"
    overall, up, down = (
        contrast(twins, "node", near[0], far[0], within=where, **asked)
        for asked in ({}, {"response": column(columns.up)}, {"response": column(columns.down)})
    )
    return Remote(model, who, far[0], number(far[1]), near[0], overall, up, down)
