"""`ridgeline fabric`: draw, prove and predict collectives; measure them on this host; see what is in their way."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ridgeline.cli.fabric_columns import columns
from ridgeline.cli.speak import Json, Quiet, note, print_json, status, stdout, tell
from ridgeline.errors import Exit, InputError

if TYPE_CHECKING:
    from ridgeline.fabric import Schedule

fabric = typer.Typer(no_args_is_help=True, help="Collectives: show, prove, predict, tune; doctor looks at this host.")

fabric.command("columns")(columns)

Algorithm = Annotated[str, typer.Argument(metavar="ALGORITHM", help="ring, tree, recursive_doubling, rabenseifner, …")]
Op = Annotated[str, typer.Option("--op", help="all_reduce, all_gather, reduce_scatter, broadcast, reduce.")]
Ranks = Annotated[int, typer.Option("--ranks", "-n", help="How many.")]
Chunks = Annotated[int | None, typer.Option("--chunks", help="Pieces of each block that follow one another.")]
Nodes = Annotated[int | None, typer.Option("--nodes", help="Machines, for hierarchical.")]
UNITS = {"": 1, "b": 1, "kib": 1 << 10, "kb": 1 << 10, "mib": 1 << 20, "mb": 1 << 20, "gib": 1 << 30, "gb": 1 << 30}


def _schedule(algorithm: str, op: str, ranks: int, chunks: int | None, nodes: int | None) -> Schedule:
    from ridgeline.fabric import schedule

    return schedule(op, algorithm, ranks=ranks, chunks=chunks, nodes=nodes)


@fabric.command()
def show(
    algorithm: Algorithm,
    op: Op = "all_reduce",
    ranks: Ranks = 8,
    chunks: Chunks = None,
    nodes: Nodes = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a picture: FILE.svg.")] = None,
    as_json: Json = False,
) -> None:
    """Draw a schedule: who sends which chunk to whom, round by round; + where it is added."""
    from ridgeline.fabric import picture
    from ridgeline.store import publish

    made = _schedule(algorithm, op, ranks, chunks, nodes)
    if out is not None:
        if out.suffix != ".svg":
            raise InputError(f"--out '{out}' does not end in .svg.")
        drawn = picture.svg(made)
        with publish(out) as tmp:
            tmp.write_text(drawn)
        tell(f"{algorithm} → {out}")
    elif as_json:
        tell(made.to_json())
    else:
        tell(picture.text(made))


@fabric.command()
def prove(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM|FILE.json", help="A name, or a schedule of your own.")],
    op: Op = "all_reduce",
    ranks: Ranks = 8,
    chunks: Chunks = None,
    nodes: Nodes = None,
    buffers: Annotated[int, typer.Option(help="Messages a link may hold.")] = 1,
    as_json: Json = False,
) -> None:
    """Prove that every rank ends with the right data and nobody waits for ever. Exit 1 if it is refuted."""
    from ridgeline import fabric as engine

    if algorithm.endswith(".json"):
        if not Path(algorithm).is_file():
            raise InputError(f"there is no file '{algorithm}'.")
        try:
            made = engine.Schedule.from_json(Path(algorithm).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"'{algorithm}' cannot be read as text: {error}.") from None
    else:
        made = _schedule(algorithm, op, ranks, chunks, nodes)
    try:
        proof = engine.prove(made, buffers=buffers)
    except engine.Refuted as refuted:
        if as_json:
            print_json({"proved": False, "rank": refuted.rank, "step": refuted.step, "why": str(refuted)})
        else:
            tell(f"refuted: {refuted}")
        raise typer.Exit(Exit.FINDINGS) from None
    if as_json:
        print_json({"proved": True, **asdict(proof)})
    else:
        tell(
            f"proved: {made.op} {made.algorithm} over {made.ranks} ranks: {proof.steps:,} steps, {proof.messages:,} "
            f"messages, {proof.buffers} per link at most."
        )


@fabric.command()
def predict(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM|all", help="One, or all that --op has.")] = "all",
    op: Op = "all_reduce",
    ranks: Ranks = 64,
    size: Annotated[
        str, typer.Option("--bytes", "-b", help="1KiB,1MiB,1GiB: one or several.")
    ] = "1KiB,64KiB,1MiB,64MiB,1GiB",
    network: Annotated[str, typer.Option(help="host, dgx-a100, dgx-h100, 100gbe, or FILE.yaml.")] = "dgx-a100",
    chunks: Chunks = None,
    nodes: Nodes = None,
    training: Annotated[
        str | None, typer.Option(help="A whole step instead: resnet-50, bert-large, vit-large, gpt-1.5b, gpt-175b.")
    ] = None,
    scaling: Annotated[str, typer.Option(help="Of --training: weak or strong.")] = "weak",
    as_json: Json = False,
) -> None:
    """Predict times from a model of the network. Nothing here is measured; `host` says how far off it was when tuned.

    [dim]Examples:[/]

      ridgeline fabric predict ring --ranks 64 --bytes 1GiB

      ridgeline fabric predict --training resnet-50 --ranks 512
    """
    from ridgeline import fabric as engine
    from ridgeline.fabric import tuned_network

    on: Any = network
    if network == "host":
        tuned = tuned_network(ranks)
        if tuned is None:
            note(f"nothing was measured for {ranks} ranks here: a usual host; ridgeline fabric tune -n {ranks}.")
        else:
            on, worst = tuned
            note(f"calibrated here; predictions between the measured sizes were off by at most {worst:.0%}.")
    if training is not None:
        _training(training, ranks, on, scaling, as_json)
        return
    names = list(engine.ALGORITHMS.get(op, {})) if algorithm == "all" else [algorithm]
    found = [
        engine.predict(_schedule(name, op, ranks, chunks, nodes), network=on, nbytes=n)
        for name in names or [algorithm]
        for n in map(_bytes, size.split(","))
    ]
    if as_json:
        print_json([asdict(one) for one in found])
        return
    table = Table(title=f"predicted: {op}, {ranks} ranks, {found[0].network}")
    for column in ("algorithm", "bytes", "time", "algbw GB/s", "busbw GB/s", "busiest link", "busy"):
        table.add_column(column, justify="left" if column in ("algorithm", "busiest link") else "right")
    for one in found:
        rates = (f"{one.algbw / 1e9:.3g}", f"{one.busbw / 1e9:.3g}")
        table.add_row(
            one.algorithm, f"{one.nbytes:,}", _time(one.seconds), *rates, one.busiest_link, f"{one.busiest_share:.0%}"
        )
    stdout().print(table)


def _training(model: str, ranks: int, network: Any, scaling: str, as_json: bool) -> None:
    from ridgeline import fabric as engine

    least = max(8, engine.MODELS[model].replica) if model in engine.MODELS else 8
    counts = sorted({ranks, *(least << k for k in range(12) if least << k < ranks)})
    steps = [engine.training_step(model, ranks=n, network=network, scaling=scaling) for n in counts]
    if as_json:
        print_json([asdict(one) for one in steps])
        return
    table = Table(title=f"predicted: {model}, {scaling} scaling")
    for column in ("nodes", "ranks", "algorithm", "step", "efficiency", "comm share", "comm / compute", "items/s"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for one in steps:
        share = (f"{one.efficiency:.1%}", f"{one.comm_share:.1%}", f"{one.comm_s / one.compute_s:.3f}")
        table.add_row(
            str(one.nodes), str(one.ranks), one.algorithm, _time(one.step_s), *share, f"{one.items_per_s:,.0f}"
        )
    stdout().print(table)


@fabric.command()
def tables(
    network: Annotated[str, typer.Option(help="dgx-a100, dgx-h100, 100gbe, or FILE.yaml.")] = "dgx-a100",
    as_json: Json = False,
) -> None:
    """The tables that systems like this publish, to 64 nodes: collectives, models, strong and weak scaling; predicted.

    [dim]Example:[/]

      ridgeline fabric tables --network dgx-h100 --json > tables.json
    """
    from ridgeline.fabric import tables as predicted

    found = predicted(network)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    for one in found:
        table = Table(title=f"predicted: {one.title}")
        for column in one.columns:
            table.add_column(column, justify="right")
        for row in one.rows:
            table.add_row(*(_cell(column, value) for column, value in zip(one.columns, row, strict=True)))
        stdout().print(table)


def _cell(column: str, value: Any) -> str:
    if column == "seconds":
        return _time(value)
    if isinstance(value, float):
        if column in ("efficiency", "comm share"):
            return f"{value:.1%}"
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@fabric.command()
def tune(
    ranks: Annotated[int | None, typer.Option("--ranks", "-n", help="How many; all usable CPUs.")] = None,
    keep: Annotated[bool, typer.Option(help="Let later calls and predictions use it.")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure algorithms and the engine's own ways on this host: which is fastest when; how well predictions fit."""
    from ridgeline import fabric as engine
    from ridgeline.fabric import NEVER
    from ridgeline.machine import topology

    count = ranks or len(topology().usable_cpus)
    with status("measuring") as say:
        found = engine.tune(count, keep=keep, say=(lambda _: None) if quiet or as_json else say)
    if as_json:
        errors = [{**asdict(e), "relative": e.relative} for e in found.errors]
        print_json(
            {
                "ranks": count,
                "seconds": found.seconds,
                "choice": found.choice,
                "ways": found.ways,
                "errors": errors,
                "worst": found.worst,
            }
        )
        return
    sizes = sorted(set.intersection(*(set(s) for s in found.seconds.values())))
    table = Table(title=f"measured: all_reduce, {count} ranks, float32")
    table.add_column("algorithm")
    for n in sizes:
        table.add_column(f"{n >> 10:,} KiB", justify="right")
    for name, seconds in found.seconds.items():
        table.add_row(name, *(_time(seconds[n]) for n in sizes))
    stdout().print(table)
    first = {name: "never" if n >= NEVER else f"from {n:,} bytes" for name, n in found.ways.items()}
    told = [f"small data added in parts {first['whole_bytes']}"]
    if "foreign_bytes" in first:
        told.append(f"others' memory read in place {first['foreign_bytes']}, moves {first['foreign_move_bytes']}")
    tell("; ".join(told) + ".")
    tell(f"predictions between these sizes are off by at most {found.worst:.0%}.")


@fabric.command()
def doctor(as_json: Json = False) -> None:
    """Look for what slows ranks down or stops them on this host. Exit 1 if something is off."""
    from ridgeline.fabric import doctor as look

    found = look()
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        for one in found:
            tell(
                f"{'ok ' if one.ok else 'off'}  {one.what}: {one.found}"
                + (f"\n     cure: {one.cure}" if one.cure else "")
            )
    if not all(one.ok for one in found):
        raise typer.Exit(Exit.FINDINGS)


def _bytes(word: str) -> int:
    number = word.strip().rstrip("KMGiBbkmg")
    unit = word.strip()[len(number) :].lower()
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        raise InputError(f"--bytes '{word}': expected something like 64KiB, 1MiB or 1048576.") from None


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
