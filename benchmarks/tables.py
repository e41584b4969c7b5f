"""Shared code of the table scripts: the newest records by machine, contenders with ours first, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ridgeline.lab.judge import Row, analyse_record
from ridgeline.lab.record import Record
from ridgeline.lab.record.record import read_records

Cells = Sequence[str]


def list_machines(paths: Iterable[Path]) -> Iterator[tuple[str, list[Record]]]:
    """Yield the name of each machine and the newest record of each of its cases."""
    records = [r for path in paths for r in read_records(path).records]
    newest = {(r.machine["fingerprint"], r.workload, r.subject): r for r in records}
    for fingerprint in dict.fromkeys(key[0] for key in newest):
        of_machine = [r for r in newest.values() if r.machine["fingerprint"] == fingerprint]
        yield (
            " · ".join([of_machine[0].machine["cpu"], *(g["name"] for g in of_machine[0].machine["gpus"])]),
            of_machine,
        )


def print_table(title: str, heads: Cells, lines: Sequence[Cells], least: int = 2) -> None:
    if len(lines) >= least:
        print(f"## {title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n")


def list_rows(record: Record) -> list[Row]:
    """The rows of a record, ours first."""
    return sorted(analyse_record(record), key=lambda row: not row.ours)


def get_seconds(row: Row) -> float:
    return row.seconds or float("nan")


def format_share(row: Row) -> str:
    return f"{row.share:.0%} {row.limit.resource}" if row.share and row.limit else "–"


def format_ratios(peers: list[Row]) -> str:
    return ", ".join(f"{p.result.contender} {p.ratio.value:.2f} {p.comparison}" for p in peers if p.ratio) or "–"
