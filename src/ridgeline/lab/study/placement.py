"""Where a model should live: what a remote node costs, per model and GPU, to the device, back and overall."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.study import sensitivity
from ridgeline.lab.study.contrast import FEW, Contrast
from ridgeline.lab.study.remote import Place, Remote, by_distance, far_pairs, places_of, remotes
from ridgeline.lab.study.section import DASH, Grid, Section, percent, plain, spread
from ridgeline.lab.study.table import NONE, Table, number
from ridgeline.web import Axis, Cell, Point, Series, cells, lines

MOST = 8  # models drawn as lines; a chart with more is hair


def placement(table: Table) -> Section:
    title, nodes = "Placement", table.levels(table.columns.node)
    places = places_of(table)
    if not table.trials or nodes == [NONE]:
        return Section(title, ["No row tells the node its memory was on: placement cannot be studied."])
    if sum(map(len, places.values())) == len(places) == 1 or (len(nodes) == 1 and _one_each(places)):
        return Section(title, ["One node: no remote to measure."], findings={"nodes": plain(nodes), "remote": []})
    found = remotes(table)
    if not found:
        return Section(
            title,
            [f"{len(nodes)} nodes were used, but no far run has a near twin: nothing to compare."],
            findings={"nodes": plain(nodes), "remote": []},
        )
    said = _sentences(table, found, places)
    rows = [_row(r) for r in found]
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
    grids = [Grid(head, rows, head[3:], f"Time from the far node over time from the nearest. {FEW}")]
    points = sensitivity.sensitivities(far_pairs(table), table.columns)
    rises = sensitivity.with_transfers(points)
    said += sensitivity.sentences(points, rises)
    if len(points) > 1:
        grids.append(sensitivity.grid(points))
    charts = [*_maps(table, found, places), *_against_distance(found), *sensitivity.chart(points)]
    findings = {
        "nodes": nodes,
        "remote": found,
        "by_distance": by_distance(table),
        "points": points,
        "with_transfers": rises,
    }
    return Section(title, said, grids, charts, plain(findings))


def _one_each(places: dict[str, list[Place]]) -> bool:
    return all(len(held) == 1 for held in places.values())


def _sentences(table: Table, found: Sequence[Remote], places: dict[str, list[Place]]) -> list[str]:
    said = []
    ranked = sorted(found, key=lambda r: r.overall.ratio.value, reverse=True)
    worst, least = ranked[0], ranked[-1]
    where = f"from node {worst.node} against node {worst.near}"
    if not worst.overall.ratio.low > 1:
        said.append("No model as a whole is shown to suffer from a far node.")
    said.append(f"Most sensitive: {worst.model} on {worst.who}, {_penalty(worst.overall.ratio)} time {where}.")
    if least is not worst:
        said.append(f"Least sensitive: {least.model} on {least.who}, {_penalty(least.overall.ratio)}.")
    if any(r.overall.one_run for r in found):
        said.append(
            "A pair that was not repeated has an interval from within its two runs: noise between runs is not in it."
        )
    if not any(number(place[1]) is not None for held in places.values() for place in held):
        said.append("No row tells a distance: the lowest-numbered node is taken for the nearest.")
    for who, held in places.items():
        if len(held) == 1:
            said.append(f"{who} was fed from node {held[0][0]} only: no remote to measure.")
    return said


def _maps(table: Table, found: Sequence[Remote], places: dict[str, list[Place]]) -> list[Markup]:
    """GPU × node for each model: the whole pipeline, and each way over the bus where it was timed."""
    ways: list[tuple[str, Callable[[Remote], Contrast]]] = [
        ("the whole pipeline", lambda r: r.overall),
        ("the way to the device", lambda r: r.up),
        ("the way back", lambda r: r.down),
    ]
    return [chart for name, way in ways if (chart := _map(table, found, places, name, way)) is not None]


def _map(
    table: Table,
    found: Sequence[Remote],
    places: dict[str, list[Place]],
    name: str,
    way: Callable[[Remote], Contrast],
) -> Markup | None:
    drawn = []
    nodes = [str(n) for n in table.levels(table.columns.node)]
    told = [r for r in found if way(r).ratio.n]
    several = len({r.who for r in told}) > 1
    for model, who in dict.fromkeys((r.model, r.who) for r in told):
        own = {str(r.node): r for r in told if (r.model, r.who) == (model, who)}
        row, group = (who, str(model)) if several else (str(model), who)
        near = str(places[who][0][0])
        for node in nodes:
            if node == near:
                drawn.append(Cell(row, f"node {node}", 0.0, "nearest", group))
            elif node in own:
                value = way(own[node]).ratio.value
                drawn.append(Cell(row, f"node {node}", value - 1, percent(value), group, _about(own[node])))
    if not drawn:
        return None
    drawn.sort(key=lambda cell: nodes.index(cell.column.removeprefix("node ")))
    order_of = list(dict.fromkeys((str(r.model), r.who) for r in told))
    drawn.sort(key=lambda cell: order_of.index((cell.group, cell.row) if several else (cell.row, cell.group)))
    return cells(
        drawn,
        title=f"Penalty of a far node: {name}",
        across="memory on",
        full=max(0.5, max(abs(cell.value) for cell in drawn)),
        caption="How much longer it takes than from the nearest node; blue is faster. Hover a cell for its interval.",
    )


def _against_distance(found: Sequence[Remote]) -> list[Markup]:
    """Penalty over distance, a line per model: only where distances are told."""
    told = [r for r in found if r.distance is not None]
    series = []
    models = sorted({str(r.model) for r in told})
    if not told or len(models) > MOST:
        return []
    for model in models:
        points = [
            Point(float(r.distance or 0), r.overall.ratio.value, _between(r.overall.ratio), title=_about(r))
            for r in told
            if str(r.model) == model
        ]
        series.append(Series(model, points))
    return [
        lines(
            series,
            title="Time against distance",
            x=Axis("node distance, 10 is local", low=10),
            y=Axis("time over time from the nearest node", "×"),
            reference=1.0,
            reference_label="as from the nearest node",
            caption="A point is one model on one GPU from one node. Whiskers are 95 % intervals.",
        )
    ]


def _row(r: Remote) -> list[str]:
    ways = [percent(way.ratio.value) for way in (r.up, r.down)]
    distance = f"{r.distance:g}" if r.distance is not None else DASH
    ratio = r.overall.ratio
    return [
        str(r.model),
        r.who,
        str(r.node),
        distance,
        percent(ratio.value),
        spread(ratio),
        *ways,
        str(ratio.n),
    ]


def _about(r: Remote) -> str:
    told = [
        f"{r.model} · {r.who} · node {r.node} against {r.near}",
        f"whole pipeline {_penalty(r.overall.ratio)}",
        f"to the device {_penalty(r.up.ratio)}" if r.up.ratio.n else "",
        f"back {_penalty(r.down.ratio)}" if r.down.ratio.n else "",
        r.overall.basis,
    ]
    return "\n".join(t for t in told if t)


def _penalty(ratio: Estimate) -> str:
    between = spread(ratio)
    return percent(ratio.value) + (f" ({between})" if between != DASH else "")


def _between(ratio: Estimate) -> tuple[float, float] | None:
    return (ratio.low, ratio.high) if ratio.low <= ratio.high else None
