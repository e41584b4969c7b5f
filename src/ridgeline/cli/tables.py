"""Tables for the terminal: races, comparisons, lists of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.output import escape_control
from ridgeline.errors import Exit
from ridgeline.lab.judge import Change, Row, Validity, analyse_record, rate_unit
from ridgeline.lab.record import Record
from ridgeline.web import format_si

EXIT_WORDS = {
    Exit.OK: "nothing is slower",
    Exit.SLOWER: "something is slower",
    Exit.UNCLEAR: "unclear: too noisy to tell",
}
COLUMNS = ("case, contender", "median", "rate", "of ceiling", "quality", "time ÷ ours", "verdict")
WIDE = 90  # columns that a full table needs
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


def escape_text(text: str) -> str:
    """Escape text from a record: Rich markup and control characters."""
    return escape(escape_control(text))


def colour_word(word: str | None) -> str:
    """Return a verdict or validity with its colour as markup; empty for None."""
    return f"[{COLOURS[word]}]{word}[/]" if word else ""


def list_race_tables(records: Sequence[Record], width: int = WIDE) -> Iterator[RenderableType]:
    """Yield one table per workload, its notes and its advice; a verdict describes the peer (SLOWER: slower than ours).

    A narrow screen has no columns for the rate and the share of the ceiling. Empty columns are left out.
    """
    for name in dict.fromkeys(r.workload for r in records):
        cases = [(r, [(row, _format_cells(row)) for row in analyse_record(r)]) for r in records if r.workload == name]
        lines = [cells for _, rows in cases for _, cells in rows]
        allowed = [c for c in COLUMNS if width >= WIDE or c not in ("rate", "of ceiling")]
        columns = [c for c in allowed if any(cells[c] for cells in lines)]
        table = Table(
            title=escape_text(name), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold", pad_edge=False
        )
        is_ours = all(r.is_ours for r, _ in cases)
        for column in columns:
            is_text = column in ("case, contender", "verdict")
            title = column if is_ours else column.replace("ours", "first")
            table.add_column(title, justify="left" if is_text else "right", no_wrap=not is_text)
        advice: list[str] = []
        for record, rows in cases:
            table.add_row(f"[dim]{escape_text(record.label)}[/]")
            for row, cells in rows:
                table.add_row(*(cells[column] for column in columns))
                if row.assessment.validity is not Validity.VALID:
                    name = escape_text(f"{row.result.contender}, {record.label}")
                    advice.append(
                        f"{name}: {colour_word(row.assessment.validity)}, {escape_text(row.assessment.advice)}"
                    )
            table.add_section()
        yield table
        yield from (f"[dim]{escape_text(note)}[/]" for note in dict.fromkeys(r.note for r, _ in cases) if note)
        yield from advice


def _format_cells(row: Row) -> dict[str, str]:
    time, ratio = row.assessment.time, row.ratio
    contender = escape_text(row.result.contender)
    doubt = row.assessment.validity if row.assessment.validity is not Validity.VALID else None
    cells = (
        f"  [bold]{contender}[/]" if row.ours else f"  {contender}",
        f"{format_si(time.value / 1e9, 's')} [dim]±{time.relative:.1%}[/]" if time else "–",
        format_si(row.items_per_s, escape_text(rate_unit(row.record))) if row.items_per_s else "",
        f"{row.share:.0%} {escape_text(row.limit.resource)}" if row.share and row.limit else "",
        ", ".join(f"{escape_text(name)} {value:.4g}" for name, value in row.quality.items()),
        f"{ratio.value:.3f} [dim]±{(ratio.high - ratio.low) / 2:.3f}[/]" if ratio else "",
        " ".join(filter(None, (colour_word(row.comparison), colour_word(doubt)))),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def build_change_table(changes: Sequence[Change]) -> Table:
    """Return a table of the cases of `ridgeline compare`."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("workload", "case", "time B ÷ A", "verdict", "how compared"):
        table.add_column(column, justify="right" if "÷" in column else "left")
    for change in changes:
        ratio, comparison, verdict = change.ratio, change.comparison, ""
        if comparison:
            colour = {"FASTER": "green", "SLOWER": "red"}.get(comparison, COLOURS[comparison])
            verdict = f"[{colour}]{comparison}[/]"
        times = f"{ratio.value:.3f} [dim]{ratio.low:.3f}–{ratio.high:.3f}[/]" if ratio else "–"
        table.add_row(
            escape_text(change.after.workload),
            escape_text(change.after.label),
            times,
            verdict,
            escape_text(change.basis),
        )
    return table


def format_change_markdown(changes: Sequence[Change], code: Exit) -> str:
    """Return the comparison as Markdown: what is worth a look first, and a sentence on top."""
    words = EXIT_WORDS
    order = {"SLOWER": 0, None: 1, "UNCLEAR": 2, "FASTER": 3, "SAME": 4}
    lines = [f"### Benchmarks: {words.get(code, 'a case lost its valid time')}", ""]
    lines += ["| workload | case | time B ÷ A | verdict | how compared |", "|---|---|--:|---|---|"]
    for change in sorted(changes, key=lambda c: order.get(c.comparison, 1)):
        ratio = change.ratio
        size = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})" if ratio else "–"
        verdict = f"**{change.comparison}**" if change.comparison == "SLOWER" else change.comparison or "no valid time"
        cells = (change.after.workload, change.after.label, size, verdict, change.basis)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def format_version_markdown(records: Sequence[Record], code: Exit) -> str:
    """Return the race of a working tree against a commit as Markdown, from the view of the working tree."""
    flip = {"FASTER": "SLOWER", "SLOWER": "FASTER"}  # the rows are about the commit
    rows = [(r, row) for r in records for row in analyse_record(r) if not row.ours]
    lines = [f"### Benchmarks: {EXIT_WORDS.get(code, 'a case has no valid time')}", ""]
    lines += ["| workload | case | time now ÷ before | verdict |", "|---|---|--:|---|"]
    for record, row in sorted(rows, key=lambda pair: str(pair[1].comparison) != "FASTER"):
        ratio = row.ratio
        size = f"{1 / ratio.value:.3f} ({1 / ratio.high:.3f} to {1 / ratio.low:.3f})" if ratio else "–"
        word = flip.get(str(row.comparison), str(row.comparison or row.assessment.validity))
        cells = (record.workload, record.label, size, f"**{word}**" if word == "SLOWER" else word)
        lines.append("| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines)


def build_record_list(records: Sequence[Record]) -> Table:
    """Return a table with one line per record."""
    table = Table("id", "time", "workload", "case", "commit", "contenders", box=box.SIMPLE_HEAD, pad_edge=False)
    for record in records:
        commit = (record.code["commit"] or "")[:7] + ("+" if record.code["dirty"] else "")
        words = ", ".join(
            f"{escape_text(r.result.contender)} {colour_word(r.assessment.validity)}" for r in analyse_record(record)
        )
        cells = (record.id[:8], record.time[:16], record.workload, record.label, commit)
        table.add_row(*map(escape_text, cells), words)
    return table


def build_record_facts(record: Record) -> Table:
    """Return a table of the facts of a record: machine, code, race, load, and the command that repeats it."""
    table = Table(box=None, show_header=False, pad_edge=False)
    machine, code = record.machine, record.code
    gpus = ", ".join(g["name"] for g in machine["gpus"])
    versions = ", ".join(f"{k} {v}" for k, v in code["libraries"].items())
    rows = {
        "record": f"{record.id}, {record.time}",
        "machine": f"{machine['cpu']}, {machine['usable_cpus']} CPUs, {gpus or 'no GPU'} ({machine['fingerprint']})",
        "code": f"{(code['commit'] or 'no commit')[:12]}{' with changes' if code['dirty'] else ''}; {versions}",
        "race": f"{record.race['rounds']} rounds, ended by {record.race['ended']}",
        "ceilings": "; ".join(c["what"] for c in record.ceilings.values()) or "no ceiling for this work",
        "load": " → ".join(f"{record.conditions[m]['load_average']:.1f}" for m in ("before", "after")),
        "repeat": record.command,
    }
    for name, value in rows.items():
        table.add_row(f"[dim]{name}[/]", escape_text(value))
    return table
