"""`ridgeline recommend sizing`: measured and predicted time and memory of embedding a catalogue, from records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import Json, print_json, print_line, print_note, stdout
from ridgeline.errors import InputError
from ridgeline.web import format_si

if TYPE_CHECKING:
    from ridgeline.lab.judge import Row
    from ridgeline.lab.record import Record

PREDICTED_SIZES = (1_000_000, 10_000_000, 100_000_000)
MIN_SIZES = 3  # two sizes give a line, the third its error
BENCH_COMMAND = "ridgeline bench recommend --profile full"


@dataclass(frozen=True)
class Line:
    """Seconds for n texts: `base + each · n`; `off` is its relative error at the largest size if fitted without it."""

    base: float
    each: float
    off: float

    def at(self, texts: int) -> float:
        return self.base + self.each * texts


def fit_time_line(texts: Sequence[int], seconds: Sequence[float]) -> Line:
    """Fit a line by least squares of relative errors; the base is never below 0.

    >>> fit_time_line([10, 20, 40], [1.0, 1.5, 2.5])
    Line(base=0.5, each=0.05, off=0.0)
    """
    import numpy as np

    if len(set(texts)) < MIN_SIZES:
        raise InputError(f"a prediction needs {MIN_SIZES} sizes and has {len(set(texts))}; {BENCH_COMMAND} has more.")
    order = np.argsort(texts)
    n, t = np.asarray(texts, float)[order], np.asarray(seconds, float)[order]
    without_largest = _fit_line(n[n < n[-1]], t[n < n[-1]])
    base, each = _fit_line(n, t)
    off = max(abs((without_largest[0] + without_largest[1] * n[-1]) / last - 1) for last in t[n == n[-1]])
    return Line(round(base, 9), round(each, 12), round(float(off), 9))


def _fit_line(texts: Any, seconds: Any) -> tuple[float, float]:
    import numpy as np

    left = np.stack([1 / seconds, texts / seconds], axis=1)
    base, each = np.linalg.lstsq(left, np.ones(len(texts)), rcond=None)[0]
    if base < 0:
        base, each = 0.0, float((texts / seconds).sum() / ((texts / seconds) ** 2).sum())
    return float(base), float(each)


def sizing(
    files: Annotated[
        list[Path], typer.Argument(metavar="RECORDS…", help=".jsonl files, or folders that hold records.jsonl.")
    ],
    as_json: Json = False,
) -> None:
    """Show measured texts per second, memory and load time, and predictions for 1, 10 and 100 million texts.

    The command measures nothing. A prediction is a line through the sizes of `ridgeline bench recommend` with
    task=embed. Its error is the larger of two: the error at the largest size if the line is fitted without it, and
    the spread of the times. Without such records, those of `ridgeline bench embed` are shown, without a prediction.

    [dim]Example:[/]  ridgeline recommend sizing ridgeline-report
    """
    from ridgeline.lab.judge import analyse_record
    from ridgeline.lab.record import read_records

    records: list[Record] = []
    for file in files:
        loaded = read_records(file)
        print_note(loaded.warning)
        records += loaded.records
    catalogues = [r for r in records if r.workload == "recommend" and r.case.get("task") == "embed"]
    # A bench with little time may have measured other tasks only; it measured the encoder by itself.
    encoders = [r for r in records if r.workload == "embed" and r.case.get("stage") == "end to end"]
    rows = [row for r in catalogues or encoders for row in analyse_record(r) if row.seconds]
    if not rows:
        raise InputError(
            f"'{files[0]}' holds no record of task=embed or of the workload embed; run {BENCH_COMMAND} first."
        )
    if not catalogues:
        print_note(f"no record of task=embed: these are of the workload embed. {BENCH_COMMAND} measures catalogues.")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        machine = row.record.machine
        groups.setdefault((machine["fingerprint"], row.record.case["device"], row.result.contender), []).append(row)
    summaries = [_summarize(device, contender, group_rows) for (_, device, contender), group_rows in groups.items()]
    if as_json:
        print_json(summaries)
        return
    for summary in summaries:
        _print_summary(summary)


def _summarize(device: str, contender: str, rows: list[Row]) -> dict[str, Any]:
    by_size = sorted(rows, key=lambda r: (r.record.work["items"], r.record.case["batch"]))
    measurements = [_describe_row(row) for row in by_size]
    automatic_batch = [row for row in rows if not row.record.case["batch"]]
    machine = rows[0].record.machine
    names = [g["name"] for g in machine["gpus"]] if device != "cpu" else [machine["cpu"]]
    where = f"{', '.join(names)} ({device})"
    summary: dict[str, Any] = {"where": where, "contender": contender, "measured": measurements}
    try:
        sizes = [r.record.case["items"] for r in automatic_batch]
        line = fit_time_line(sizes, [r.seconds or 0.0 for r in automatic_batch])
    except InputError as too_few:
        return {**summary, "predicted": [], "why": str(too_few)}
    times = [r.assessment.time for r in automatic_batch if r.assessment.time]
    spread = max((t.high - t.low) / 2 / t.value for t in times)
    error, dim = max(line.off, spread), automatic_batch[0].record.case["dim"]
    predictions = [
        {"texts": n, "seconds": line.at(n), "error": error, "vector_bytes": 4 * dim * n} for n in PREDICTED_SIZES
    ]
    return {**summary, "predicted": predictions, "largest_left_out": line.off, "spread": spread}


def _describe_row(row: Row) -> dict[str, Any]:
    case, extras = row.record.case, row.result.extras
    return {
        "texts": row.record.work["items"],
        "batch": case["batch"] or None,
        "tokens": case.get("tokens"),
        "seconds": row.seconds,
        "texts_per_s": row.items_per_s,
        "ms_per_text": 1e3 / row.items_per_s if row.items_per_s else None,
        "peak_bytes": extras.get("peak_gpu_bytes") or extras.get("peak_host_bytes"),
        "load_seconds": extras["load_ns"] / 1e9 if "load_ns" in extras else None,
        "lowest_cosine": row.quality.get("lowest cosine"),
        "validity": row.assessment.validity,
    }


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    print_line(f"{summary['contender']} on {summary['where']}")
    table = Table(box=None, pad_edge=False)
    for head in ("texts", "tokens each", "batch", "texts/s", "ms per text", "peak memory", "load", "lowest cosine", ""):
        table.add_column(head, justify="right")
    for m in summary["measured"]:
        cells = [f"{m['texts']:,}", str(m["tokens"] or "–"), str(m["batch"] or "own")]
        cells += [f"{m['texts_per_s']:,.1f}", f"{m['ms_per_text']:.3g}"]
        cells += [format_si(m["peak_bytes"], "B") if m["peak_bytes"] else "–"]
        cells += [format_si(m["load_seconds"], "s") if m["load_seconds"] else "–"]
        table.add_row(*cells, f"{m['lowest_cosine']:.6f}" if m["lowest_cosine"] else "–", escape(m["validity"]))
    for p in summary["predicted"]:
        size = format_si(p["vector_bytes"], "B")
        text = f"predicted: {_format_duration(p['seconds'])} ± {p['error']:.0%}, vectors {size}"
        table.add_row(f"{p['texts']:,}", "–", "own", *[""] * 5, text)
    stdout().print(table)
    if not summary["predicted"]:
        print_note(summary["why"])


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
