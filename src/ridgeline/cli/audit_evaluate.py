"""`ridgeline audit evaluate`: how well the watcher's score tells anomalies from the rest, on labelled data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.speak import Device, Json, print_json, status, stdout, tell


def register(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)


def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Labelled sessions (JSONL) or lines; see below.")],
    train: Annotated[
        float, typer.Option("--train", metavar="SHARE", help="The first so many are learnt from, if it is one file.")
    ] = 0.5,
    encoder: Annotated[str | None, typer.Option("--encoder", metavar="MODEL", help="A folder or a name.")] = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Precision, recall, F1 and AUROC of the score, with intervals, beside two simple baselines.

    DATA is a file of lines with the label in the first column (Loghub; "-" is normal), a JSONL file of sessions
    (label, templates), or what the names of two such files begin with (DATA_train.jsonl.gz, DATA_test.jsonl.gz).

    [dim]Examples:[/]

      ridgeline audit evaluate logs/hdfs_sessions

      ridgeline audit evaluate BGL.log --train 0.2 --json
    """
    from ridgeline.audit.anomaly.evaluate import judged, load
    from ridgeline.embed import DEFAULT, Embedder

    labelled = load(data, train)
    with status("evaluating") as say, Embedder(encoder or DEFAULT, device=device) as embedder:
        answer = judged(labelled, embedder.encode, say)
    answer["protocol"]["encoder"] = embedder.name
    if as_json:
        print_json(answer)
    else:
        _show(answer)


def _show(answer: dict[str, Any]) -> None:
    from rich.table import Table

    protocol = answer["protocol"]
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("precision", "recall", "F1", "95 %", "AUROC", "95 %"):
        table.add_column(name, justify="right")
    for name in ("ridgeline", "never_seen", "count_vector"):
        row = answer[name]
        cells = [f"{row['precision']:.3f}", f"{row['recall']:.3f}"]
        for figure in ("f1", "auroc"):
            low, high = row["ci"][figure]
            cells += [f"{row[figure]:.3f}", f"{low:.3f} to {high:.3f}"]
        table.add_row(name, *cells)
    tell(
        f"{protocol['data']}: {protocol['test']:,} {protocol['unit']}s judged, {protocol['test_anomalies']:,} of them "
        f"anomalies; {protocol['train']:,} to learn from, {protocol['train_anomalies']:,} of them anomalies"
    )
    stdout().print(table)
    tell(f"split       {protocol['split']}")
    tell(f"threshold   {protocol['threshold']}")
    tell(f"intervals   {protocol['intervals']}")
