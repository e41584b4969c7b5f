"""Where a model should run: what a far NUMA node costs, per model and GPU, to the device, back and in total.

Every trial with memory on a far node is paired with a trial on the nearest node of the same GPU (or of the same CPUs,
where there is no GPU) that did the same work. The nearest node has the smallest distance; where rows have no distance,
the node with the lowest number counts as the nearest. The last part says which points suffer most, and whether that
follows from the share of their time that goes into transfers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from ridgeline.lab.judge import Estimate
from ridgeline.lab.study.contrasts import (
    PAIRS_NOTE,
    Contrast,
    Pair,
    Trend,
    compare_pairs,
    fit_trend,
    pair_trials,
    read_column,
)
from ridgeline.lab.study.section import (
    DASH,
    JSON_KEY,
    Grid,
    Section,
    format_change,
    format_interval,
    format_share,
    to_json,
)
from ridgeline.lab.study.table import (
    NONE,
    Columns,
    Table,
    Trial,
    group_by_model,
    group_trials,
    name_differences,
    name_processor,
    parse_number,
    sort_key,
    transfer_share,
)
from ridgeline.web import Axis, Cell, Point, Series, draw_cells, draw_lines

MAX_LINES = 8  # models in a line chart
MAX_POINTS = 10  # rows of the table of sensitive points
Place = tuple[Any, Any]  # node, distance


@dataclass(frozen=True)
class FarNode:
    """One model on one GPU with memory on one far node, against memory on the nearest node."""

    model: str
    processor: str = field(metadata={JSON_KEY: "who"})  # GPU 0, CPUs of node 1
    node: Any
    distance: float | None
    nearest: Any = field(metadata={JSON_KEY: "near"})
    overall: Contrast
    up: Contrast
    down: Contrast


@dataclass(frozen=True)
class NodeChoice:
    """The nearest node of a GPU, and what every other node costs over all models."""

    processor: str
    nearest: Any
    others: Sequence[Contrast]


@dataclass(frozen=True)
class Sensitivity:
    """What one far node costs one point."""

    what: dict[str, Any]
    node: Any
    penalty: Contrast
    transfers: float | None  # share of the stages' time in transfers, from the nearest node


def describe_placement(table: Table) -> Section:
    """Return the section on placement: the penalty of far nodes as sentences, tables and maps.

    Where nothing can be compared, the section has one sentence that says why, and its findings have no "remote" runs.
    """
    title, nodes = "Placement", table.levels(table.columns.node)
    places = list_places(table)
    if not table.trials or nodes == [NONE]:
        return Section(title, ["No row names the node of its memory: placement cannot be studied."])
    if sum(map(len, places.values())) == len(places) == 1 or (len(nodes) == 1 and _one_place_each(places)):
        return Section(
            title, ["One node: there is no far node to measure."], findings={"nodes": to_json(nodes), "remote": []}
        )
    far_nodes = compare_far_nodes(table)
    if not far_nodes:
        return Section(
            title,
            [f"{len(nodes)} nodes were used, but no far run matches a near one: nothing to compare."],
            findings={"nodes": to_json(nodes), "remote": []},
        )
    head = (
        "model",
        "computed by",
        "node",
        "distance",
        "whole pipeline",
        "95 % interval",
        "to the device",
        "back",
        "pairs",
    )
    rows = [_far_node_row(r) for r in far_nodes]
    grids = [Grid(head, rows, head[3:], f"Time from the far node over time from the nearest. {PAIRS_NOTE}")]
    points = rank_sensitivity(pair_far_trials(table), table.columns)
    trend = fit_transfer_trend(points)
    if len(points) > 1:
        grids.append(_sensitivity_grid(points))
    charts = [*_draw_maps(table, far_nodes, places), *_draw_distance(far_nodes), *_draw_sensitivity(points)]
    findings = {
        "nodes": nodes,
        "remote": far_nodes,
        "by_distance": compare_distances(table),
        "points": points,
        "with_transfers": trend,
    }
    sentences = [*_describe_far_nodes(far_nodes, places), *_describe_sensitivity(points, trend)]
    return Section(title, sentences, grids, charts, to_json(findings))


def compare_far_nodes(table: Table) -> list[FarNode]:
    """Return every model × GPU × far node that has pairs."""
    columns, far_nodes = table.columns, []
    models = group_by_model(table)
    for processor, places in list_places(table).items():
        for model, all_trials in models.items():
            nearest, trials = places[0], [t for t in all_trials if name_processor(t, columns) == processor]
            for far in places[1:]:
                pairs = _pair_places(table, trials, nearest, far)
                if pairs:
                    far_nodes.append(_compare_far_node(table, model, processor, nearest, far, pairs))
    return far_nodes


def compare_distances(table: Table) -> list[Contrast]:
    """Return what each distance costs over all models and GPUs."""
    by_distance: dict[Any, list[Pair]] = {}
    for pair in pair_far_trials(table):
        by_distance.setdefault(pair[1].level(table.columns.distance), []).append(pair)
    factor = "node distance" if any(d != NONE for d in by_distance) else "node"
    return [
        compare_pairs(
            _drop_shared_runs(by_distance[d]), factor, "nearest", "far" if d == NONE else d, within="all points"
        )
        for d in sorted(by_distance, key=sort_key)
    ]


def compare_nodes(table: Table) -> list[NodeChoice]:
    """Return for every GPU the nearest node, and what each other node costs over all models."""
    columns, choices = table.columns, []
    for processor, places in list_places(table).items():
        trials = [t for t in table.trials if name_processor(t, columns) == processor]
        costs = [
            compare_pairs(pairs, "node", places[0][0], far[0], within=processor)
            for far in places[1:]
            if (pairs := _pair_places(table, trials, places[0], far))
        ]
        if costs:
            choices.append(NodeChoice(processor, places[0][0], costs))
    return choices


def pair_far_trials(table: Table) -> list[Pair]:
    """Pair every far trial with its nearest one; far trials of several nodes may share a nearest one."""
    columns, pairs = table.columns, []
    for processor, places in list_places(table).items():
        trials = [t for t in table.trials if name_processor(t, columns) == processor]
        for far in places[1:]:
            pairs += _pair_places(table, trials, places[0], far)
    return pairs


def list_places(table: Table) -> dict[str, list[Place]]:
    """Return for every GPU (or the CPUs of a node) the places of its memory, nearest first."""
    columns = table.columns
    places: dict[str, set[Place]] = {}
    for trial in table.trials:
        place = (trial.level(columns.node), trial.level(columns.distance))
        places.setdefault(name_processor(trial, columns), set()).add(place)
    return {
        processor: sorted(places[processor], key=lambda place: (sort_key(place[1]), sort_key(place[0])))
        for processor in sorted(places)
    }


def rank_sensitivity(far_pairs: Sequence[Pair], columns: Columns) -> list[Sensitivity]:
    """Return every point by itself, the most sensitive first; repeats of a point count together."""
    places = (columns.node, columns.distance)
    by_point: dict[tuple[Any, ...], list[Pair]] = {}
    for a, b in far_pairs:
        by_point.setdefault(tuple(b.level(n) for n in columns.identity), []).append((a, b))
    points = []
    for pairs in by_point.values():
        a, b = pairs[0]
        what = {n: a.level(n) for n in columns.identity if n not in places}
        node = b.level(columns.node)
        penalty = compare_pairs(pairs, columns.node, a.level(columns.node), node)
        points.append(Sensitivity(what, node, penalty, transfer_share(a, columns)))
    return sorted(points, key=lambda s: -s.penalty.ratio.value)


def fit_transfer_trend(points: Sequence[Sensitivity]) -> Trend | None:
    """Return how the logarithm of the penalty rises with the share of transfers; None where the share is constant."""
    known = [(s.transfers, math.log(s.penalty.ratio.value)) for s in points if s.transfers is not None]
    return fit_trend([x for x, _ in known], [y for _, y in known]) if len({x for x, _ in known}) > 1 else None


def _one_place_each(places: dict[str, list[Place]]) -> bool:
    return all(len(own_places) == 1 for own_places in places.values())


def _pair_places(table: Table, trials: Sequence[Trial], nearest: Place, far: Place) -> list[Pair]:
    columns = table.columns
    both = (columns.node, columns.distance)
    by_place = group_trials(trials, both)
    return pair_trials(by_place.get(nearest, []), by_place.get(far, []), columns.identity, both)


def _drop_shared_runs(pairs: Sequence[Pair]) -> list[Pair]:
    """Drop pairs that share a run with an earlier pair."""
    seen: set[int] = set()
    distinct = []
    for pair in pairs:
        if not seen & {id(t) for t in pair}:
            seen |= {id(t) for t in pair}
            distinct.append(pair)
    return distinct


def _compare_far_node(
    table: Table, model: str, processor: str, nearest: Place, far: Place, pairs: list[Pair]
) -> FarNode:
    columns = table.columns
    within = f"{model}, {processor}"
    overall, up, down = (
        compare_pairs(pairs, "node", nearest[0], far[0], within=within, **options)
        for options in ({}, {"response": read_column(columns.up)}, {"response": read_column(columns.down)})
    )
    return FarNode(model, processor, far[0], parse_number(far[1]), nearest[0], overall, up, down)


def _describe_far_nodes(far_nodes: Sequence[FarNode], places: dict[str, list[Place]]) -> list[str]:
    sentences = []
    ranked = sorted(far_nodes, key=lambda r: r.overall.ratio.value, reverse=True)
    worst, least = ranked[0], ranked[-1]
    nodes = f"from node {worst.node} against node {worst.nearest}"
    if not worst.overall.ratio.low > 1:
        sentences.append("No model as a whole is shown to suffer from a far node.")
    penalty = _format_penalty(worst.overall.ratio)
    sentences.append(f"Most sensitive: {worst.model} on {worst.processor}, {penalty} time {nodes}.")
    if least is not worst:
        sentences.append(
            f"Least sensitive: {least.model} on {least.processor}, {_format_penalty(least.overall.ratio)}."
        )
    if any(r.overall.one_run for r in far_nodes):
        sentences.append(
            "A pair that was not repeated has an interval from within its two runs: noise between runs is not in it."
        )
    if not any(parse_number(distance) is not None for own_places in places.values() for _, distance in own_places):
        sentences.append("No row has a distance: the node with the lowest number counts as the nearest.")
    for processor, own_places in places.items():
        if len(own_places) == 1:
            sentences.append(
                f"{processor} used memory of node {own_places[0][0]} only: there is no far node to measure."
            )
    return sentences


def _describe_sensitivity(points: Sequence[Sensitivity], trend: Trend | None) -> list[str]:
    sentences = []
    if len(points) > 1:
        worst, names = points[0], name_differences([s.what for s in points])
        sentences.append(
            f"The most sensitive point: {names[0] or 'the point'}, "
            f"{format_change(worst.penalty.ratio.value)} from node {worst.node}."
        )
    if trend is not None and math.isfinite(trend.slope):
        test = f"p = {trend.p:.2g}" if trend.p is not None else "too few points for a test"
        change = format_change(trend.factor(0.1))
        sentences.append(
            f"For every tenth of the time that goes into transfers the penalty changes by {change} ({test})."
        )
    return sentences


def _far_node_row(r: FarNode) -> list[str]:
    directions = [format_change(direction.ratio.value) for direction in (r.up, r.down)]
    distance = f"{r.distance:g}" if r.distance is not None else DASH
    ratio = r.overall.ratio
    return [
        str(r.model),
        r.processor,
        str(r.node),
        distance,
        format_change(ratio.value),
        format_interval(ratio),
        *directions,
        str(ratio.n),
    ]


def _sensitivity_grid(points: Sequence[Sensitivity]) -> Grid:
    names = name_differences([s.what for s in points])
    head = ("point", "from node", "time", "95 % interval", "transfer share", "pairs")
    rows = [
        [
            name or "the point",
            str(s.node),
            format_change(s.penalty.ratio.value),
            format_interval(s.penalty.ratio),
            format_share(s.transfers),
            str(s.penalty.ratio.n),
        ]
        for s, name in zip(points, names, strict=True)
    ]
    return Grid(head, rows, head[2:], "Each point by itself, the most sensitive first.", max_rows=MAX_POINTS)


def _draw_maps(table: Table, far_nodes: Sequence[FarNode], places: dict[str, list[Place]]) -> list[Markup]:
    """Draw GPU × node for each model: the whole pipeline, and each transfer direction that has times."""
    directions: list[tuple[str, Callable[[FarNode], Contrast]]] = [
        ("the whole pipeline", lambda r: r.overall),
        ("the way to the device", lambda r: r.up),
        ("the way back", lambda r: r.down),
    ]
    charts = (_draw_map(table, far_nodes, places, name, select) for name, select in directions)
    return [chart for chart in charts if chart is not None]


def _draw_map(
    table: Table,
    far_nodes: Sequence[FarNode],
    places: dict[str, list[Place]],
    name: str,
    select: Callable[[FarNode], Contrast],
) -> Markup | None:
    map_cells = []
    nodes = [str(n) for n in table.levels(table.columns.node)]
    known = [r for r in far_nodes if select(r).ratio.n]
    several = len({r.processor for r in known}) > 1
    for model, processor in dict.fromkeys((r.model, r.processor) for r in known):
        by_node = {str(r.node): r for r in known if (r.model, r.processor) == (model, processor)}
        row, group = (processor, str(model)) if several else (str(model), processor)
        nearest = str(places[processor][0][0])
        for node in nodes:
            if node == nearest:
                map_cells.append(Cell(row, f"node {node}", 0.0, "nearest", group))
            elif node in by_node:
                value = select(by_node[node]).ratio.value
                about = _hover_text(by_node[node])
                map_cells.append(Cell(row, f"node {node}", value - 1, format_change(value), group, about))
    if not map_cells:
        return None
    map_cells.sort(key=lambda cell: nodes.index(cell.column.removeprefix("node ")))
    order = list(dict.fromkeys((str(r.model), r.processor) for r in known))
    map_cells.sort(key=lambda cell: order.index((cell.group, cell.row) if several else (cell.row, cell.group)))
    return draw_cells(
        map_cells,
        title=f"Penalty of a far node: {name}",
        across="memory on",
        full=max(0.5, max(abs(cell.value) for cell in map_cells)),
        caption="How much longer it takes than from the nearest node; blue is faster. Hover a cell for its interval.",
    )


def _draw_distance(far_nodes: Sequence[FarNode]) -> list[Markup]:
    """Draw penalty over distance, a line per model, where rows have distances."""
    known = [r for r in far_nodes if r.distance is not None]
    models = sorted({str(r.model) for r in known})
    if not known or len(models) > MAX_LINES:
        return []
    series = []
    for model in models:
        points = [
            Point(float(r.distance or 0), r.overall.ratio.value, _get_interval(r.overall.ratio), title=_hover_text(r))
            for r in known
            if str(r.model) == model
        ]
        series.append(Series(model, points))
    return [
        draw_lines(
            series,
            title="Time against distance",
            x=Axis("node distance, 10 is local", low=10),
            y=Axis("time over time from the nearest node", "×"),
            reference=1.0,
            reference_label="as from the nearest node",
            caption="A point is one model on one GPU from one node. Whiskers are 95 % intervals.",
        )
    ]


def _draw_sensitivity(points: Sequence[Sensitivity]) -> list[Markup]:
    """Draw penalty over transfer share, a dot per point."""
    names = name_differences([s.what for s in points])
    series: dict[str, list[Point]] = {}
    for s, name in zip(points, names, strict=True):
        if s.transfers is not None:
            change, share = format_change(s.penalty.ratio.value), format_share(s.transfers)
            about = f"{name}\nfrom node {s.node}: {change}\n{share} of the time in transfers"
            dot = Point(s.transfers, s.penalty.ratio.value, title=about)
            series.setdefault(f"from node {s.node}", []).append(dot)
    if sum(map(len, series.values())) < 3:
        return []
    return [
        draw_lines(
            [Series(name, dots, points_only=True) for name, dots in series.items()],
            title="Penalty over the share of transfers",
            x=Axis("share of the stages' time in transfers, from the nearest node", low=0.0, high=1.0),
            y=Axis("time over time from the nearest node", "×"),
            reference=1.0,
            reference_label="as from the nearest node",
            caption="A dot is one point of the study. Long computing hides the distance of the memory.",
        )
    ]


def _hover_text(r: FarNode) -> str:
    parts = [
        f"{r.model} · {r.processor} · node {r.node} against {r.nearest}",
        f"whole pipeline {_format_penalty(r.overall.ratio)}",
        f"to the device {_format_penalty(r.up.ratio)}" if r.up.ratio.n else "",
        f"back {_format_penalty(r.down.ratio)}" if r.down.ratio.n else "",
        r.overall.basis,
    ]
    return "\n".join(part for part in parts if part)


def _format_penalty(ratio: Estimate) -> str:
    interval = format_interval(ratio)
    return format_change(ratio.value) + (f" ({interval})" if interval != DASH else "")


def _get_interval(ratio: Estimate) -> tuple[float, float] | None:
    return (ratio.low, ratio.high) if ratio.low <= ratio.high else None
