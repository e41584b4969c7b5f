"""A bench on one screen: a line for each path, and below it what one must know beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.tables import COLOURS, coloured
from ridgeline.lab import cure
from ridgeline.lab.judge import RESOURCES, Comparison, Standing, Validity, analyse, percent, times
from ridgeline.lab.record import Record
from ridgeline.web import si

WIDE = 110  # what whole words need
SHORT = {
    "memory": "memory",
    "compute": "arithmetic",
    "pcie": "to device",
    "pcie_back": "from device",
    "launch": "launches",
    "wire": "network",
}
# Column -> its most characters on a narrow and on a wide screen.
COLUMNS = {
    "path": (19, 28),
    "per second": (14, 22),
    "ceiling": (8, 8),
    "limited by": (11, 27),
    "best peer": (12, 27),
    "÷ ours": (6, 6),
    "it is": (10, 10),
}


def summary(found: Sequence[Standing], width: int) -> Table:
    """What each path does, how near to its ceiling, what limits it, its best peer's time ÷ ours and what that means."""
    table = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 0) if width < WIDE else (0, 1, 0, 0), show_edge=False
    )
    wide = width >= WIDE
    for name, most in COLUMNS.items():
        right = name in ("per second", "ceiling", "÷ ours")
        cut = name in ("path", "per second", "limited by", "best peer")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if cut else 7,
            max_width=most[wide],
        )
    devices = len({s.device for s in found}) > 1
    for one in found:
        table.add_row(*_cells(one, wide, f" · {one.device}" if devices else ""))
    return table


def _cells(one: Standing, wide: bool, device: str) -> tuple[str, ...]:
    doubt = "~" if one.rate is not None and one.validity is not Validity.VALID else ""
    rate = si(one.rate, one.unit).removesuffix("/s") if one.rate is not None else "–"
    word = coloured(one.verdict) if one.rate is not None else coloured(one.validity)
    return (
        escape(one.workload + device),
        escape(doubt + rate),
        ("< 0.1 %" if one.share < 0.001 else percent(one.share)) if one.share else "–",
        escape(_limit(one, wide)),
        escape(one.peer or "–"),
        times(one.ratio.value) if one.ratio else "–",
        word or "–",
    )


def _limit(one: Standing, wide: bool) -> str:
    if one.limit is None:
        return "not known" if one.rate is not None else "–"
    ceiling = one.limit == RESOURCES.get(one.resource or "")
    return SHORT.get(one.resource or "", one.limit) if ceiling and not wide else one.limit


def asides(found: Sequence[Standing], records: Sequence[Record]) -> Iterator[str]:
    """What the lines do not show: doubt, cases that went otherwise, peers that were not there."""
    doubtful = Counter(s.validity for s in found if s.validity is not Validity.VALID and s.rate is not None)
    if doubtful:
        yield f"~ {', '.join(f'{word} {count}' for word, count in doubtful.items())}: not to be quoted."
    unknown: dict[str, list[str]] = {}
    for one in found:
        if one.limit is None and one.measure:
            unknown.setdefault(one.measure, []).append(one.workload)
    for measure, names in unknown.items():
        yield f"Not known what limits {', '.join(names)}: {measure}."
    behind = {s.workload: n for s in found if (n := s.words.get(Comparison.FASTER, 0))}
    cases = {s.workload: s.cases for s in found}
    if behind:
        yield f"A peer is faster in: {', '.join(f'{name} {n} of {cases[name]} cases' for name, n in behind.items())}."
    missing: dict[str, list[str]] = {}
    for record in records:
        for peer, extra in record.missing.items():
            missing.setdefault(extra, []).append(peer)
    for extra, peers in missing.items():
        yield f"Not installed, not raced: {', '.join(dict.fromkeys(peers))} ({cure(extra)})."


def against(records: Sequence[Record], rivals: Sequence[str]) -> Iterator[RenderableType]:
    """How the working tree does against other versions: every line that is not SAME, and the count of all."""
    rows = [row for record in records for row in analyse.rows(record) if row.lane.contender in rivals]
    counts = Counter(str(row.comparison or row.judged.validity) for row in rows)
    others = [row for row in rows if row.comparison is not Comparison.SAME]
    if others:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("case", "time ÷ ours", "it is"):
            table.add_column(name, justify="right" if "÷" in name else "left")
        for row in others:
            ratio = row.ratio
            told = f"{ratio.value:.3f} [dim]{ratio.low:.3f}–{ratio.high:.3f}[/]" if ratio else "–"
            word = row.comparison or row.judged.validity
            table.add_row(escape(f"{row.record.workload} {row.record.label}"), told, f"[{COLOURS[word]}]{word}[/]")
        yield table
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    yield f"{', '.join(rivals)}: {words} of {len(rows)} lines."
