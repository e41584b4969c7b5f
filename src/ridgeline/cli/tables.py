"""Tables for the terminal: races, comparisons, lists of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table

from ridgeline.lab import analyse
from ridgeline.lab.analyse import Row
from ridgeline.lab.compare import Change
from ridgeline.lab.figures import rate_unit
from ridgeline.lab.record import Record
from ridgeline.lab.verdict import Validity
from ridgeline.web import si

COLOURS = {
    "VALID": "green",
    "NOISY": "yellow",
    "THROTTLED": "yellow",
    "WRONG": "red",
    "INCOMPLETE": "red",
    "SLOWER": "green",
    "SAME": "cyan",
    "FASTER": "red",
    "UNCLEAR": "yellow",
}


def coloured(word: str | None) -> str:
    return f"[{COLOURS[word]}]{word}[/]" if word else ""


def races(records: Sequence[Record]) -> Iterator[RenderableType]:
    """One table per workload; a peer's verdict is relative to ours (SLOWER: the peer is slower)."""
    for name in dict.fromkeys(r.workload for r in records):
        table = Table(title=name, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
        for column in ("case, contender", "median", "rate", "of ceiling", "time ÷ ours", "verdict", ""):
            right = column in ("median", "rate", "of ceiling", "time ÷ ours")
            table.add_column(column, justify="right" if right else "left", no_wrap=column != "case, contender")
        advice: list[str] = []
        for record in (r for r in records if r.workload == name):
            table.add_row(f"[dim]{record.label}[/]")
            for row in analyse.rows(record):
                table.add_row(*_cells(row))
                if row.judged.validity is not Validity.VALID:
                    advice.append(
                        f"{row.lane.contender}, {record.label}: {coloured(row.judged.validity)}, {row.judged.advice}"
                    )
            table.add_section()
        yield table
        yield from advice


def _cells(row: Row) -> list[str]:
    time, ratio = row.judged.time, row.ratio
    contender = f"  [bold]{row.lane.contender}[/]" if row.ours else f"  {row.lane.contender}"
    return [
        contender,
        f"{si(time.value / 1e9, 's')} [dim]±{time.relative:.1%}[/]" if time else "–",
        si(row.items_per_s, rate_unit(row.record)) if row.items_per_s else "",
        f"{row.share:.0%} {row.limit.resource}" if row.share and row.limit else "",
        f"{ratio.value:.3f} [dim]±{(ratio.high - ratio.low) / 2:.3f}[/]" if ratio else "",
        coloured(row.comparison),
        coloured(row.judged.validity) if row.judged.validity is not Validity.VALID else "",
    ]


def changes(found: Sequence[Change]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("workload", "case", "time B ÷ A", "verdict", "how compared"):
        table.add_column(column, justify="right" if "÷" in column else "left")
    for change in found:
        ratio = f"{change.ratio.value:.3f} [dim]{change.ratio.low:.3f}–{change.ratio.high:.3f}[/]"
        word = change.comparison
        colour = {"FASTER": "green", "SLOWER": "red"}.get(word, COLOURS[word])
        table.add_row(change.after.workload, change.after.label, ratio, f"[{colour}]{word}[/]", change.basis)
    return table


def listing(records: Sequence[Record]) -> Table:
    table = Table("id", "time", "workload", "case", "commit", "contenders", box=box.SIMPLE_HEAD, pad_edge=False)
    for record in records:
        commit = (record.code["commit"] or "")[:7] + ("+" if record.code["dirty"] else "")
        words = ", ".join(f"{r.lane.contender} {coloured(r.judged.validity)}" for r in analyse.rows(record))
        table.add_row(record.id[:8], record.time[:16], record.workload, record.label, commit, words)
    return table


def facts(record: Record) -> Table:
    """What stands behind a record: machine, code, race, weather, how to repeat it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    machine, code = record.machine, record.code
    gpus = ", ".join(g["name"] for g in machine["gpus"])
    versions = ", ".join(f"{k} {v}" for k, v in code["libraries"].items())
    rows = {
        "record": f"{record.id}, {record.time}",
        "machine": f"{machine['cpu']}, {machine['usable_cpus']} CPUs, {gpus or 'no GPU'} ({machine['fingerprint']})",
        "code": f"{(code['commit'] or 'no commit')[:12]}{' with changes' if code['dirty'] else ''}; {versions}",
        "race": f"{record.race['rounds']} rounds, ended by {record.race['ended']}",
        "ceilings": "; ".join(c["what"] for c in record.ceilings.values()) or "none for this work",
        "load": " → ".join(f"{record.weather[m]['load_average']:.1f}" for m in ("before", "after")),
        "repeat": record.command,
    }
    for name, value in rows.items():
        table.add_row(f"[dim]{name}[/]", value)
    return table
