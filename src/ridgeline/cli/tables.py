"""Tables for the terminal: races, comparisons, lists of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.speak import plain
from ridgeline.lab.judge import Change, Row, Validity, analyse, rate_unit
from ridgeline.lab.record import Record
from ridgeline.web import si

COLUMNS = ("case, contender", "median", "rate", "of ceiling", "quality", "time ÷ ours", "verdict")
WIDE = 90  # what a whole table needs
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


def shown(text: str) -> str:
    """What a record says, as it is: no markup, and nothing that steers a terminal."""
    return escape(plain(text))


def coloured(word: str | None) -> str:
    return f"[{COLOURS[word]}]{word}[/]" if word else ""


def races(records: Sequence[Record], width: int = WIDE) -> Iterator[RenderableType]:
    """One table per workload; a peer's verdict is relative to ours (SLOWER: the peer is slower).

    On a narrow screen, rate and share of the ceiling make room for the names and the verdict; a column that has
    nothing to say is left out on any.
    """
    for name in dict.fromkeys(r.workload for r in records):
        told = [(r, [(row, _cells(row)) for row in analyse.rows(r)]) for r in records if r.workload == name]
        lines = [cells for _, rows in told for _, cells in rows]
        wanted = [c for c in COLUMNS if width >= WIDE or c not in ("rate", "of ceiling")]
        columns = [c for c in wanted if any(cells[c] for cells in lines)]
        table = Table(title=shown(name), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False)
        for column in columns:
            words = column in ("case, contender", "verdict")
            table.add_column(column, justify="left" if words else "right", no_wrap=not words)
        advice: list[str] = []
        for record, rows in told:
            table.add_row(f"[dim]{shown(record.label)}[/]")
            for row, cells in rows:
                table.add_row(*(cells[column] for column in columns))
                if row.judged.validity is not Validity.VALID:
                    who = shown(f"{row.lane.contender}, {record.label}")
                    advice.append(f"{who}: {coloured(row.judged.validity)}, {shown(row.judged.advice)}")
            table.add_section()
        yield table
        yield from (f"[dim]{shown(note)}[/]" for note in dict.fromkeys(r.note for r, _ in told) if note)
        yield from advice


def _cells(row: Row) -> dict[str, str]:
    time, ratio = row.judged.time, row.ratio
    contender = shown(row.lane.contender)
    doubt = row.judged.validity if row.judged.validity is not Validity.VALID else None
    cells = (
        f"  [bold]{contender}[/]" if row.ours else f"  {contender}",
        f"{si(time.value / 1e9, 's')} [dim]±{time.relative:.1%}[/]" if time else "–",
        si(row.items_per_s, shown(rate_unit(row.record))) if row.items_per_s else "",
        f"{row.share:.0%} {shown(row.limit.resource)}" if row.share and row.limit else "",
        ", ".join(f"{shown(name)} {value:.4g}" for name, value in row.quality.items()),
        f"{ratio.value:.3f} [dim]±{(ratio.high - ratio.low) / 2:.3f}[/]" if ratio else "",
        " ".join(filter(None, (coloured(row.comparison), coloured(doubt)))),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def changes(found: Sequence[Change]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("workload", "case", "time B ÷ A", "verdict", "how compared"):
        table.add_column(column, justify="right" if "÷" in column else "left")
    for change in found:
        ratio, word, verdict = change.ratio, change.comparison, ""
        if word:
            verdict = f"[{ {'FASTER': 'green', 'SLOWER': 'red'}.get(word, COLOURS[word]) }]{word}[/]"
        times = f"{ratio.value:.3f} [dim]{ratio.low:.3f}–{ratio.high:.3f}[/]" if ratio else "–"
        table.add_row(shown(change.after.workload), shown(change.after.label), times, verdict, shown(change.basis))
    return table


def listing(records: Sequence[Record]) -> Table:
    table = Table("id", "time", "workload", "case", "commit", "contenders", box=box.SIMPLE_HEAD, pad_edge=False)
    for record in records:
        commit = (record.code["commit"] or "")[:7] + ("+" if record.code["dirty"] else "")
        words = ", ".join(f"{shown(r.lane.contender)} {coloured(r.judged.validity)}" for r in analyse.rows(record))
        told = (record.id[:8], record.time[:16], record.workload, record.label, commit)
        table.add_row(*map(shown, told), words)
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
        table.add_row(f"[dim]{name}[/]", shown(value))
    return table
