"""A benchmark on one screen: a line for each path, and notes below."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from ridgeline.cli.tables import COLOURS, colour_word
from ridgeline.lab import format_install_hint
from ridgeline.lab.judge import (
    MIN_OBSERVATIONS,
    RESOURCES,
    Comparison,
    PathSummary,
    Validity,
    analyse_record,
    format_ratio,
    percent,
)
from ridgeline.lab.record import Record
from ridgeline.web import format_si

WIDE = 128  # columns that full words need
SHORT_RESOURCES = {
    "memory": "memory",
    "compute": "arithmetic",
    "pcie": "to device",
    "pcie_back": "from device",
    "launch": "launches",
    "wire": "network",
}
# Column -> its maximum width on a narrow and on a wide screen.
COLUMNS = {
    "path": (19, 26),
    "per second": (14, 22),
    "ceiling": (7, 7),
    "limited by": (11, 27),
    "best peer": (12, 27),
    "÷ ours": (6, 6),
    "it is": (7, 7),
}


def build_summary(paths: Sequence[PathSummary], width: int) -> Table:
    """Return a table of paths: rate, share of the ceiling, limit, and the best peer's time ÷ ours with its verdict."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    wide = width >= WIDE
    for name, widths in COLUMNS.items():
        right = name in ("per second", "ceiling", "÷ ours")
        cut = name in ("path", "per second", "limited by", "best peer")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if cut else 7,
            max_width=widths[wide],
        )
    devices = len({path.device for path in paths}) > 1
    for path in paths:
        table.add_row(*_format_cells(path, wide, f" · {path.device}" if devices else ""))
    return table


def _format_cells(path: PathSummary, wide: bool, device: str) -> tuple[str, ...]:
    doubt = "~" if path.rate is not None and path.validity is not Validity.VALID else ""
    rate = format_si(path.rate, path.unit).removesuffix("/s") if path.rate is not None else "–"
    verdict = colour_word(path.verdict) if path.rate is not None else colour_word(path.validity)
    return (
        escape(path.workload + device),
        escape(doubt + rate),
        ("< 0.1 %" if path.share < 0.001 else percent(path.share)) if path.share else "–",
        escape(_format_limit(path, wide)),
        escape(path.peer or "–"),
        format_ratio(path.ratio.value) if path.ratio else "–",
        verdict or "–",
    )


def _format_limit(path: PathSummary, wide: bool) -> str:
    if path.limit is None:
        return "not known" if path.rate is not None else "–"
    ceiling = path.limit == RESOURCES.get(path.resource or "")
    return SHORT_RESOURCES.get(path.resource or "", path.limit) if ceiling and not wide else path.limit


def list_notes(paths: Sequence[PathSummary], records: Sequence[Record]) -> Iterator[str]:
    """Yield what the table does not show: doubtful times, cases behind a peer, missing peers."""
    doubtful = Counter(p.validity for p in paths if p.validity is not Validity.VALID and p.rate is not None)
    if doubtful:
        yield f"~ {', '.join(f'{word} {count}' for word, count in doubtful.items())}: do not quote these."
    unknown: dict[str, list[str]] = {}
    for path in paths:
        if path.limit is None and path.measure:
            unknown.setdefault(path.measure, []).append(path.workload)
    for measure, names in unknown.items():
        yield f"Not known what limits {', '.join(names)}: {measure}."
    behind = {p.workload: n for p in paths if (n := p.verdict_counts.get(Comparison.FASTER, 0))}
    cases = {p.workload: p.cases for p in paths}
    if behind:
        yield f"A peer is faster in: {', '.join(f'{name} {n} of {cases[name]} cases' for name, n in behind.items())}."
    missing: dict[str, list[str]] = {}
    for record in records:
        for peer, extra in record.missing.items():
            missing.setdefault(extra, []).append(peer)
    for extra, peers in missing.items():
        yield f"Not installed, not raced: {', '.join(dict.fromkeys(peers))} ({format_install_hint(extra)})."


def compare_with_versions(records: Sequence[Record], versions: Sequence[str]) -> Iterator[RenderableType]:
    """Yield a table of the cases in which another version is not SAME, and the count of all verdicts."""
    commits = {name.partition("@")[2] for name in versions}
    everything = (row for record in records for row in analyse_record(record))
    rows = [row for row in everything if row.result.contender.partition("@")[2] in commits]
    counts = Counter(str(row.comparison or row.assessment.validity) for row in rows)
    others = [row for row in rows if row.comparison is not Comparison.SAME]
    if others:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for name in ("case", "time ÷ ours", "it is"):
            table.add_column(name, justify="right" if "÷" in name else "left")
        for row in others:
            ratio = row.ratio
            size = f"{ratio.value:.3f} [dim]{ratio.low:.3f}–{ratio.high:.3f}[/]" if ratio else "–"
            verdict = row.comparison or row.assessment.validity
            table.add_row(
                escape(f"{row.record.workload} {row.record.label}"), size, f"[{COLOURS[verdict]}]{verdict}[/]"
            )
        yield table
    short_races = [
        r
        for r in others
        if r.comparison is Comparison.UNCLEAR and len(r.record.race.get("executions", ())) < MIN_OBSERVATIONS
    ]
    if short_races:
        yield (
            f"{len(short_races)} UNCLEAR for lack of time: a difference must show in {MIN_OBSERVATIONS} starts of "
            "fresh processes. Give more --budget, or name fewer cases."
        )
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    names = dict.fromkeys(row.result.contender for row in rows)  # of a user's code: his project@commit
    yield f"{', '.join(names or versions)}: {words} of {len(rows)} lines."
