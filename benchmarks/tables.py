"""What the table scripts share: the newest records by machine, contenders with ours first, Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ridgeline.lab.judge import analyse
from ridgeline.lab.judge.analyse import Row
from ridgeline.lab.record.record import Record, read

Cells = Sequence[str]


def machines(paths: Iterable[Path]) -> Iterator[tuple[str, list[Record]]]:
    """Each machine's name and the newest record of each of its cases."""
    found = [r for path in paths for r in read(path).records]
    newest = {(r.machine["fingerprint"], r.workload, r.subject): r for r in found}
    for fingerprint in dict.fromkeys(key[0] for key in newest):
        own = [r for r in newest.values() if r.machine["fingerprint"] == fingerprint]
        yield " · ".join([own[0].machine["cpu"], *(g["name"] for g in own[0].machine["gpus"])]), own


def show(title: str, heads: Cells, lines: Sequence[Cells], least: int = 2) -> None:
    if len(lines) >= least:
        print(f"## {title}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        print("\n".join(f"| {' | '.join(line)} |" for line in lines), end="\n\n")


def of(record: Record) -> list[Row]:
    """Ours first."""
    return sorted(analyse.rows(record), key=lambda row: not row.ours)


def seconds(row: Row) -> float:
    return row.seconds or float("nan")


def share(row: Row) -> str:
    return f"{row.share:.0%} {row.limit.resource}" if row.share and row.limit else "–"


def versus(peers: list[Row]) -> str:
    return ", ".join(f"{p.lane.contender} {p.ratio.value:.2f} {p.comparison}" for p in peers if p.ratio) or "–"
