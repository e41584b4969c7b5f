"""The charts of one workload, from derived rows: sweeps, frontiers, bars against peers, timelines, raw samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from ridgeline.lab.judge.analyse import Row, rate_unit
from ridgeline.lab.judge.findings import best_peer
from ridgeline.lab.judge.sweeps import FEWEST, Sweep, sweeps, telling
from ridgeline.lab.judge.verdict import Validity
from ridgeline.lab.record.record import Record
from ridgeline.lab.workload import label
from ridgeline.web import Axis, Bar, Point, Samples, Series, bars, intervals, lines, samples, si

Told = Sequence[tuple[Record, list[Row]]]
MOST_BARS = 60  # more are no picture; the table has them all
WAYS = {"h2d": "to the device", "compute": "compute", "d2h": "back"}


def hover(row: Row) -> str:
    """What stands behind a mark; the page's list of records has the command that makes it again."""
    time, ratio = row.judged.time, row.ratio
    told = [
        f"{row.lane.contender} · {row.record.label}",
        f"median {si(time.value / 1e9, 's')} [{si(time.low / 1e9, 's')} to {si(time.high / 1e9, 's')}]" if time else "",
        f"{si(row.items_per_s, rate_unit(row.record))}" if row.items_per_s else "",
        f"{row.share:.0%} of {row.limit.what}" if row.share and row.limit else "",
        f"time ÷ ours {ratio.value:.3f} [{ratio.low:.3f} to {ratio.high:.3f}] {row.comparison}" if ratio else "",
        f"{len(row.lane.samples_ns)} samples, {row.judged.validity}",
        f"record {row.record.id[:12]}, {row.record.time}",
    ]
    return "\n".join(t for t in told if t)


def over(told: Told) -> list[Markup]:
    """Rate over each parameter that was swept; see lab/judge/sweeps.py."""
    rows_of = {record.id: rows for record, rows in told}
    return [_line(sweep, rows_of) for sweep in sweeps([record for record, _ in told])]


def _line(sweep: Sweep, rows_of: Mapping[str, list[Row]]) -> Markup:
    series: dict[str, list[Point]] = {}
    apart = telling(sweep)
    places = {(family[0].node, family[0].cold) for family in sweep.families}
    for record in (record for family in sweep.families for record in family):
        where = [f"node {record.node}"] if len({node for node, _ in places}) > 1 else []
        where += ["cold" if record.cold else "warm"] if len({cold for _, cold in places}) > 1 else []
        rest = [str(record.case[n]) if isinstance(record.case[n], str) else f"{n}={record.case[n]}" for n in apart]
        for row in rows_of[record.id]:
            if row.items_per_s and row.judged.time:
                time, items = row.judged.time, record.work["items"] * 1e9
                between = (items / time.high, items / time.low)
                point = Point(record.case[sweep.name], row.items_per_s, between, title=hover(row))
                series.setdefault(" ".join([row.lane.contender, *rest, *where]), []).append(point)
    record = sweep.families[0][0]
    name = f"{sweep.name} (and {sweep.along} with it)" if sweep.along else sweep.name
    return lines(
        [Series(n, p) for n, p in series.items()],
        title=f"{record.workload}: rate over {name}",
        x=Axis(label=name, scale="log2"),
        y=Axis(label="rate", unit=rate_unit(record), scale="log"),
        caption="Points are medians, whiskers their 95 % intervals; more is better.",
    )


def frontiers(told: Told) -> list[Markup]:
    """Rate against a quality that cases ask for by its name (recall): what each contender reached, not what was asked.

    One chart for each family of cases that differ in nothing else; a point up and to the right beats one below it.
    """
    families: dict[tuple[str, str], list[tuple[Record, list[Row]]]] = {}
    for record, rows in told:
        for name in {n for row in rows for n in row.quality if n in record.case}:
            rest = label({k: v for k, v in record.case.items() if k != name})
            families.setdefault((name, rest), []).append((record, rows))
    return [
        _frontier(name, rest, family)
        for (name, rest), family in families.items()
        if len({record.case[name] for record, _ in family}) >= FEWEST
    ]


def _frontier(quality: str, rest: str, family: Told) -> Markup:
    series: dict[str, list[Point]] = {}
    for record, rows in family:
        for row in rows:
            if row.items_per_s and row.judged.time and quality in row.quality:
                items = record.work["items"] * 1e9
                between = (items / row.judged.time.high, items / row.judged.time.low)
                point = Point(row.quality[quality], row.items_per_s, between, title=hover(row))
                series.setdefault(row.lane.contender, []).append(point)
    record = family[0][0]
    return lines(
        [Series(name, points) for name, points in series.items()],
        title=f"{record.workload}: rate against {quality}, {rest}",
        x=Axis(label=f"{quality} that was reached"),
        y=Axis(label="rate", unit=rate_unit(record), scale="log"),
        caption="Up and to the right is better. Whiskers are 95 % intervals of the medians.",
    )


def peers(told: Told) -> Markup | None:
    """Time of each peer as a multiple of ours, case by case; of many cases the best peer, of very many none."""
    several = sum(row.ratio is not None for _, rows in told for row in rows) > MOST_BARS
    best = {id(found) for _, rows in told if (found := best_peer(rows)) is not None}
    rows = [
        Bar(
            label=row.lane.contender,
            value=row.ratio.value,
            interval=(row.ratio.low, row.ratio.high),
            group=record.label,
            series=row.lane.contender,
            text=f"{row.ratio.value:.2f}× {row.comparison}",
            title=hover(row),
        )
        for record, contenders in told
        for row in contenders
        if row.ratio and (not several or id(row) in best)
    ]
    if not 0 < len(rows) <= MOST_BARS:
        return None
    widest = max(max(r.value, 1 / r.value) for r in rows)
    return bars(
        rows,
        title=f"{told[0][0].workload}: time of the {'best peer' if several else 'peers'} ÷ ours",
        axis=Axis(unit="×", scale="log" if widest > 4 else "linear"),
        reference=1.0,
        reference_label="ours",
        caption="Right of the line the peer takes longer. Whiskers are 95 % intervals of the ratio, round by round.",
    )


def strip(record: Record, rows: Sequence[Row]) -> Markup | None:
    """Every sample that was taken, in order."""
    lanes = [
        Samples(
            row.lane.contender,
            [ns / 1e9 for ns in row.lane.samples_ns],
            interval=(row.judged.time.low / 1e9, row.judged.time.high / 1e9),
            title=hover(row),
        )
        for row in rows
        if row.judged.time
    ]
    if not lanes:
        return None
    return samples(lanes, title=f"{record.workload} {record.label}: all samples", axis=Axis(unit="s"))


def timelines(told: Told, most: int = 4) -> list[Markup]:
    """What ran beside what, where a contender kept it (`extras["timeline"]`: lane -> begin and end of each batch)."""
    kept = [
        (record, row.lane.contender, row.lane.extras["timeline"])
        for record, rows in told
        for row in rows
        if row.lane.extras.get("timeline") and row.judged.validity not in (Validity.WRONG, Validity.INCOMPLETE)
    ]
    return [timeline(f"{record.label}, {contender}", lanes) for record, contender, lanes in kept[:most]]


def timeline(title: str, lanes: Mapping[str, Sequence[tuple[float, float]]], more: str = "") -> Markup:
    """Some batches on a common clock."""
    return intervals(
        {WAYS.get(stage, stage): [(b, e) for b, e in spans] for stage, spans in lanes.items()},
        title=title,
        axis=Axis(unit="s"),
        caption=f"Some batches from the middle of the run{more}.",
        what="batch",
    )
