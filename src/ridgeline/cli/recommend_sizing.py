"""`ridgeline recommend sizing`: what embedding a catalogue takes, and would take, from records of the workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ridgeline.cli.speak import Json, note, print_json, stdout, tell
from ridgeline.errors import InputError
from ridgeline.lab.judge import Row, analyse
from ridgeline.lab.record import record
from ridgeline.web import si

AT = (1_000_000, 10_000_000, 100_000_000)
FEWEST = 3  # sizes: two give a line, the third says how good it is


@dataclass(frozen=True)
class Line:
    """Seconds for n texts: `base + each · n`; `off` is how far it lay from the largest size when made without it."""

    base: float
    each: float
    off: float

    def at(self, texts: int) -> float:
        return self.base + self.each * texts


def line_through(texts: Sequence[int], seconds: Sequence[float]) -> Line:
    """By least squares of relative errors; what a call costs by itself is never below 0.

    >>> line_through([10, 20, 40], [1.0, 1.5, 2.5])
    Line(base=0.5, each=0.05, off=0.0)
    """
    if len(set(texts)) < FEWEST:
        raise InputError(f"a prediction needs {FEWEST} sizes and has {len(set(texts))}; bench more of them.")
    order = np.argsort(texts)
    n, t = np.asarray(texts, float)[order], np.asarray(seconds, float)[order]
    shorter = _fitted(n[n < n[-1]], t[n < n[-1]])
    base, each = _fitted(n, t)
    off = max(abs((shorter[0] + shorter[1] * n[-1]) / last - 1) for last in t[n == n[-1]])
    return Line(round(base, 9), round(each, 12), round(float(off), 9))


def _fitted(texts: Any, seconds: Any) -> tuple[float, float]:
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
    """Item texts per second, memory and loading as measured; 1, 10 and 100 million as predictions with their error.

    Nothing is measured and no prediction is stored: it is a line through the sizes of `ridgeline bench recommend`
    with task=embed, and its error is how far it lay from the largest of them when that one was left out, or the
    spread of the times where that is more.

    [dim]Example:[/]  ridgeline recommend sizing ridgeline-report
    """
    rows = []
    for file in files:
        found = record.read(file)
        note(found.warning)
        own = (r for r in found.records if r.workload == "recommend" and r.case.get("task") == "embed")
        rows += [row for r in own for row in analyse.rows(r) if row.seconds]
    if not rows:
        raise InputError(f"'{files[0]}' holds no record of task=embed; run ridgeline bench recommend first.")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        machine = row.record.machine
        groups.setdefault((machine["fingerprint"], row.record.case["device"], row.lane.contender), []).append(row)
    told = [_told(device, contender, own) for (_, device, contender), own in groups.items()]
    if as_json:
        print_json(told)
        return
    for one in told:
        _show(one)


def _told(device: str, contender: str, rows: list[Row]) -> dict[str, Any]:
    measured = [_measured(row) for row in sorted(rows, key=lambda r: (r.record.case["items"], r.record.case["batch"]))]
    usual = [row for row in rows if not row.record.case["batch"]]
    machine = rows[0].record.machine
    names = [g["name"] for g in machine["gpus"]] if device != "cpu" else [machine["cpu"]]
    told: dict[str, Any] = {"where": f"{', '.join(names)} ({device})", "contender": contender, "measured": measured}
    try:
        line = line_through([r.record.case["items"] for r in usual], [r.seconds or 0.0 for r in usual])
    except InputError as lacking:
        return {**told, "predicted": [], "why": str(lacking)}
    spread = max((r.judged.time.high - r.judged.time.low) / 2 / r.judged.time.value for r in usual if r.judged.time)
    error, dim = max(line.off, spread), usual[0].record.case["dim"]
    ahead = [{"texts": n, "seconds": line.at(n), "error": error, "vector_bytes": 4 * dim * n} for n in AT]
    return {**told, "predicted": ahead, "largest_left_out": line.off, "spread": spread}


def _measured(row: Row) -> dict[str, Any]:
    case, extras = row.record.case, row.lane.extras
    return {
        "texts": case["items"],
        "batch": case["batch"] or None,
        "seconds": row.seconds,
        "texts_per_s": row.items_per_s,
        "ms_per_text": 1e3 / row.items_per_s if row.items_per_s else None,
        "peak_bytes": extras.get("peak_gpu_bytes") or extras.get("peak_host_bytes"),
        "load_seconds": extras["load_ns"] / 1e9 if "load_ns" in extras else None,
        "lowest_cosine": row.quality.get("lowest cosine"),
        "validity": row.judged.validity,
    }


def _show(told: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    tell(f"{told['contender']} on {told['where']}")
    table = Table(box=None, pad_edge=False)
    for head in ("texts", "batch", "texts/s", "ms per text", "peak memory", "load", "lowest cosine", ""):
        table.add_column(head, justify="right")
    for m in told["measured"]:
        cells = [f"{m['texts']:,}", str(m["batch"] or "own"), f"{m['texts_per_s']:,.1f}", f"{m['ms_per_text']:.3g}"]
        cells += [si(m["peak_bytes"], "B") if m["peak_bytes"] else "–"]
        cells += [si(m["load_seconds"], "s") if m["load_seconds"] else "–"]
        table.add_row(*cells, f"{m['lowest_cosine']:.6f}" if m["lowest_cosine"] else "–", escape(m["validity"]))
    for p in told["predicted"]:
        words = f"predicted: {_span(p['seconds'])} ± {p['error']:.0%}, vectors {si(p['vector_bytes'], 'B')}"
        table.add_row(f"{p['texts']:,}", "own", *[""] * 5, words)
    stdout().print(table)
    if not told["predicted"]:
        note(told["why"])


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"
