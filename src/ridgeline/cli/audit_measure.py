"""`ridgeline audit evaluate | capacity`: how well the watcher's score separates anomalies, and how busy it will be."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.output import Device, Json, print_json, print_line, status, stdout
from ridgeline.errors import InputError


def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled sessions (JSONL) or lines; see below.")],
    train: Annotated[
        float, typer.Option("--train", metavar="SHARE", help="Share of a single file to learn from: its first lines.")
    ] = 0.5,
    encoder: Annotated[
        str | None, typer.Option("--encoder", metavar="MODEL", help="Encoder: a name or a folder.")
    ] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Show precision, recall, F1 and AUROC of the score, with intervals, and those of six simple baselines.

    DATA is a file of lines with the label in the first column (Loghub; "-" is normal), a JSONL file of sessions
    (label, templates), or the common beginning of two file names (DATA_train.jsonl.gz, DATA_test.jsonl.gz).

    [dim]Examples:[/]

      ridgeline audit evaluate logs/hdfs_sessions

      ridgeline audit evaluate BGL.log --train 0.2 --json
    """
    from ridgeline.audit.anomaly.evaluate import compare_methods, load
    from ridgeline.embed import DEFAULT, Embedder

    labelled = load(data, train)
    with status("evaluating") as update, Embedder(encoder or DEFAULT, device=device) as embedder:
        answer = compare_methods(labelled, embedder.encode, update)
    answer["protocol"]["encoder"] = embedder.name
    if as_json:
        print_json(answer)
    else:
        _print_answer(answer)


def _print_answer(answer: dict[str, Any]) -> None:
    from rich.table import Table

    protocol = answer["protocol"]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("precision", "recall", "F1", "95 %", "AUROC", "95 %", "F1, no labels", "95 %"):
        table.add_column(name, justify="right")
    for name, row in answer.items():
        if name == "protocol":
            continue
        cells = [f"{row['precision']:.3f}", f"{row['recall']:.3f}"]
        for part, figure in ((row, "f1"), (row, "auroc"), (row["unlabelled"], "f1")):
            low, high = part["ci"][figure]
            cells += [f"{part[figure]:.3f}", f"{low:.3f} to {high:.3f}"]
        table.add_row(name, *cells)
    print_line(
        f"{protocol['data']}: {protocol['test']:,} {protocol['unit']}s judged, {protocol['test_anomalies']:,} of them "
        f"anomalies; {protocol['train']:,} to learn from, {protocol['train_anomalies']:,} of them anomalies"
    )
    stdout().print(table)
    print_line(f"split       {protocol['split']}")
    print_line(f"threshold   {protocol['threshold']}")
    print_line(f"no labels   {protocol['unlabelled']}")
    unlabelled = answer["ridgeline"]["unlabelled"]
    low, high = unlabelled["exceeded_ci"]
    drift = "; that is drift: what is normal has changed" if unlabelled["drift"] else ""
    print_line(f"exceeded    by {unlabelled['exceeded']:.1%} of the normal units ({low:.1%} to {high:.1%}){drift}")
    print_line(f"intervals   {protocol['intervals']}")


def capacity(
    speed: Annotated[
        float, typer.Argument(metavar="EVENTS/S", help="Events per second that `ridgeline bench audit` measured.")
    ],
    rate: Annotated[
        list[float] | None,
        typer.Option(metavar="N", help="Events per hour; may be repeated (default: four common rates)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Forecast how busy a watcher is, how long events wait (besides the batch window), and how its backlog grows."""
    from rich.table import Table

    from ridgeline.audit.watch import HOUR, RATES, forecast
    from ridgeline.web import format_si

    if any(not 0 <= given < math.inf for given in rate or ()):
        raise InputError("--rate is a number of events per hour, 0 or more.")
    if speed == math.inf:
        raise InputError("the speed is a number of events per second; give what was measured.")
    forecasts = forecast(speed, {f"{n:,g} per hour": n / HOUR for n in rate} if rate else RATES)
    if as_json:
        print_json([vars(f) for f in forecasts])
        return
    table = Table(box=None, pad_edge=False)
    for title in ("rate", "busy", "wait", "backlog after an hour"):
        table.add_column(title, justify="left" if title == "rate" else "right")
    for f in forecasts:
        wait = "grows" if f.wait_s is None else format_si(f.wait_s, "s")
        table.add_row(f.what, f"{f.utilisation:.3%}", wait, f"{f.backlog_per_hour:,.0f}")
    stdout().print(table)
