"""`ridgeline fabric`: draw, prove and predict collectives; measure them on this host; check this host."""

from __future__ import annotations

import itertools
import json
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ridgeline.cli.fabric_columns import columns
from ridgeline.cli.fabric_launch import launch
from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note, status, stdout
from ridgeline.errors import Exit, InputError

if TYPE_CHECKING:
    from ridgeline.fabric import Schedule

fabric = typer.Typer(
    no_args_is_help=True,
    help="Collectives: show, prove, predict, tune; doctor checks this host, hosts tries several, launch starts "
    "ranks on them, watch shows ranks.",
)

fabric.command("columns")(columns)
fabric.command("launch")(launch)

Algorithm = Annotated[
    str,
    typer.Argument(metavar="ALGORITHM|FILE.json", help="ring, tree, rabenseifner, …, or a custom schedule in JSON."),
]
Op = Annotated[str, typer.Option("--op", help="all_reduce, all_gather, reduce_scatter, broadcast, reduce.")]
Ranks = Annotated[int, typer.Option("--ranks", "-n", help="Number of ranks.")]
Chunks = Annotated[int | None, typer.Option("--chunks", help="Pieces of each block, sent one after the other.")]
Nodes = Annotated[int | None, typer.Option("--nodes", help="Machines, for hierarchical and ring.")]
Channels = Annotated[
    int | None,
    typer.Option("--channels", help="Rings at once, through other adapters (default: 1; predict: one per adapter)."),
]
UNITS = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "kib": 1 << 10,
    "kb": 1 << 10,
    "mib": 1 << 20,
    "mb": 1 << 20,
    "gib": 1 << 30,
    "gb": 1 << 30,
}


def _make_schedule(algorithm: str, op: str, **options: Any) -> Schedule:
    from ridgeline.fabric import Schedule, schedule

    if not algorithm.endswith(".json"):
        return schedule(op, algorithm, **options)
    if not Path(algorithm).is_file():
        raise InputError(f"there is no file '{algorithm}'.")
    try:
        return Schedule.from_json(Path(algorithm).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{algorithm}' cannot be read as text: {error}.") from None
    except InputError as error:
        raise InputError(f"'{algorithm}' holds no schedule: {error}") from None


@fabric.command()
def show(
    algorithm: Algorithm,
    op: Op = "all_reduce",
    ranks: Ranks = 8,
    chunks: Chunks = None,
    nodes: Nodes = None,
    channels: Channels = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write a picture: FILE.svg.")] = None,
    as_json: Json = False,
) -> None:
    """Draw a schedule: which rank sends which chunk to which rank, round by round; + marks chunks that are added."""
    from ridgeline.fabric import draw_svg, draw_text
    from ridgeline.store import publish

    plan = _make_schedule(algorithm, op, ranks=ranks, chunks=chunks, nodes=nodes, channels=channels)
    if out is not None:
        if out.suffix != ".svg":
            raise InputError(f"--out '{out}' does not end in .svg.")
        svg = draw_svg(plan)
        with publish(out) as temporary:
            temporary.write_text(svg)
        print_line(f"{algorithm} → {out}")
    elif as_json:
        print_line(plan.to_json())
    else:
        print_line(draw_text(plan))


@fabric.command()
def prove(
    algorithm: Algorithm,
    op: Op = "all_reduce",
    ranks: Ranks = 8,
    chunks: Chunks = None,
    nodes: Nodes = None,
    channels: Channels = None,
    buffers: Annotated[int, typer.Option(help="Messages that a link may hold (default: 1).")] = 1,
    as_json: Json = False,
) -> None:
    """Prove that every rank ends with the right data and no rank waits for ever.

    Exit 1 if the schedule is wrong, 2 if the file holds no schedule.
    """
    from ridgeline import fabric as engine

    plan = _make_schedule(algorithm, op, ranks=ranks, chunks=chunks, nodes=nodes, channels=channels)
    try:
        proof = engine.prove(plan, buffers=buffers)
    except engine.ProofError as error:
        if as_json:
            print_json({"proved": False, "rank": error.rank, "step": error.step, "why": str(error)})
        else:
            print_line(f"refuted: {error}")
        raise typer.Exit(Exit.FINDINGS) from None
    if as_json:
        print_json({"proved": True, **asdict(proof)})
    else:
        print_line(
            f"proved: {plan.op} {plan.algorithm} over {plan.ranks} ranks: {proof.steps:,} steps, {proof.messages:,} "
            f"messages, {proof.buffers} per link at most."
        )


@fabric.command()
def predict(
    algorithm: Annotated[
        str, typer.Argument(metavar="ALGORITHM|FILE.json|all", help="One algorithm, a custom schedule, or all of --op.")
    ] = "all",
    op: Op = "all_reduce",
    ranks: Ranks = 64,
    size: Annotated[
        str, typer.Option("--bytes", "-b", help="One or several sizes, such as 1KiB,1MiB,1GiB.")
    ] = "1KiB,64KiB,1MiB,64MiB,1GiB",
    network: Annotated[str, typer.Option(help="host, dgx-a100, dgx-h100, 100gbe, or FILE.yaml.")] = "dgx-a100",
    chunks: Chunks = None,
    nodes: Nodes = None,
    channels: Channels = None,
    training: Annotated[
        str | None,
        typer.Option(help="Predict a training step instead: resnet-50, bert-large, vit-large, gpt-1.5b, gpt-175b."),
    ] = None,
    scaling: Annotated[str, typer.Option(help="With --training: weak or strong.")] = "weak",
    as_json: Json = False,
) -> None:
    """Predict times from a model of the network. Nothing is measured; `host` prints the error of its calibration.

    [dim]Examples:[/]

      ridgeline fabric predict ring --ranks 64 --bytes 1GiB

      ridgeline fabric predict --training resnet-50 --ranks 512
    """
    from ridgeline import fabric as engine
    from ridgeline.fabric import load_tuned_network

    model: Any = network
    if network == "host":
        tuned = load_tuned_network(ranks)
        if tuned is None:
            print_note(
                f"no measurement for {ranks} ranks on this host: an estimate; run ridgeline fabric tune -n {ranks}."
            )
        else:
            model, worst = tuned
            print_note(f"calibrated on this host; predictions between measured sizes are off by at most {worst:.0%}.")
    if training is not None:
        _predict_training(training, ranks, model, scaling, as_json)
        return
    names = list(engine.ALGORITHMS.get(op, {})) if algorithm == "all" else [algorithm]
    options: dict[str, Any] = {"ranks": ranks, "chunks": chunks, "nodes": nodes, "network": model}
    plans = [
        _make_schedule(name, op, channels=channels if algorithm != "all" or name == "ring" else None, **options)
        for name in names or [algorithm]
    ]
    sizes = [_parse_bytes(word) for word in size.split(",")]
    predictions = [engine.predict(plan, network=model, nbytes=n) for plan in plans for n in sizes]
    if as_json:
        print_json([asdict(prediction) for prediction in predictions])
        return
    first = predictions[0]
    table = Table(title=f"predicted: {first.op}, {first.ranks} ranks, {first.network}")
    for column in ("algorithm", "bytes", "time", "algbw GB/s", "busbw GB/s", "busiest link", "busy"):
        table.add_column(column, justify="left" if column in ("algorithm", "busiest link") else "right")
    for p in predictions:
        rates = (f"{p.algbw / 1e9:.3g}", f"{p.busbw / 1e9:.3g}")
        name = p.algorithm if p.channels == 1 else f"{p.algorithm}, {p.channels} channels"
        table.add_row(name, f"{p.nbytes:,}", _format_time(p.seconds), *rates, p.busiest_link, f"{p.busiest_share:.0%}")
    stdout().print(table)


def _predict_training(model: str, ranks: int, network: Any, scaling: str, as_json: bool) -> None:
    from ridgeline import fabric as engine

    least = max(8, engine.MODELS[model].replica) if model in engine.MODELS else 8
    counts = sorted({ranks, *(least << k for k in range(12) if least << k < ranks)})
    steps = [engine.training_step(model, ranks=n, network=network, scaling=scaling) for n in counts]
    if as_json:
        print_json([asdict(step) for step in steps])
        return
    table = Table(title=f"predicted: {model}, {scaling} scaling")
    for column in ("nodes", "ranks", "algorithm", "step", "efficiency", "comm share", "comm / compute", "items/s"):
        table.add_column(column, justify="left" if column == "algorithm" else "right")
    for step in steps:
        shares = (f"{step.efficiency:.1%}", f"{step.comm_share:.1%}", f"{step.comm_s / step.compute_s:.3f}")
        seconds = _format_time(step.step_s)
        table.add_row(str(step.nodes), str(step.ranks), step.algorithm, seconds, *shares, f"{step.items_per_s:,.0f}")
    stdout().print(table)


@fabric.command()
def tables(
    network: Annotated[str, typer.Option(help="dgx-a100, dgx-h100, 100gbe, or FILE.yaml.")] = "dgx-a100",
    as_json: Json = False,
) -> None:
    """Predict the usual tables of such systems, up to 64 nodes: collectives, models, strong and weak scaling.

    [dim]Example:[/]

      ridgeline fabric tables --network dgx-h100 --json > tables.json
    """
    from ridgeline.fabric import make_tables

    predicted = make_tables(network)
    if as_json:
        print_json([asdict(entry) for entry in predicted])
        return
    for entry in predicted:
        table = Table(title=f"predicted: {entry.title}")
        for column in entry.columns:
            table.add_column(column, justify="right")
        for row in entry.rows:
            table.add_row(*(_format_cell(column, value) for column, value in zip(entry.columns, row, strict=True)))
        stdout().print(table)


def _format_cell(column: str, value: Any) -> str:
    if column == "seconds":
        return _format_time(value)
    if isinstance(value, float):
        if column in ("efficiency", "comm share"):
            return f"{value:.1%}"
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


@fabric.command()
def tune(
    ranks: Annotated[
        int | None, typer.Option("--ranks", "-n", help="Number of ranks (default: all usable CPUs).")
    ] = None,
    hosts: Annotated[
        bool, typer.Option("--hosts", help="Measure the hosts of a job: a launcher starts this command for every rank.")
    ] = False,
    sizes: Annotated[str, typer.Option(help="With --hosts: bytes of the all-reduces.")] = "4K,16K,64K,256K,1M,4M,16M",
    keep: Annotated[bool, typer.Option(help="Save the result for later calls and predictions.")] = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure the algorithms on this host, or with --hosts between hosts: the fastest for each size, and the error of
    predictions.

    [dim]Example:[/]

      torchrun --nnodes 2 --nproc-per-node 4 … --no-python ridgeline fabric tune --hosts
    """
    from ridgeline import fabric as engine
    from ridgeline.fabric import NEVER
    from ridgeline.machine import topology

    if hosts:
        _tune_hosts([_parse_bytes(word) for word in sizes.split(",")], keep, as_json, quiet)
        return
    count = ranks or len(topology().usable_cpus)
    with status("measuring") as progress:
        result = engine.tune(count, keep=keep, progress=(lambda _: None) if quiet or as_json else progress)
    if as_json:
        errors = [{**asdict(e), "relative": e.relative} for e in result.errors]
        print_json(
            {
                "ranks": count,
                "seconds": result.seconds,
                "choice": result.choice,
                "ways": result.thresholds,
                "errors": errors,
                "worst": result.worst,
            }
        )
        return
    measured = sorted(set.intersection(*(set(s) for s in result.seconds.values())))
    table = Table(title=f"measured: all_reduce, {count} ranks, float32")
    table.add_column("algorithm")
    for n in measured:
        table.add_column(f"{n >> 10:,} KiB", justify="right")
    for name, seconds in result.seconds.items():
        table.add_row(name, *(_format_time(seconds[n]) for n in measured))
    stdout().print(table)
    starts = {name: "never" if n >= NEVER else f"from {n:,} bytes" for name, n in result.thresholds.items()}
    lines = [f"small data added in parts {starts['whole_bytes']}"]
    if "foreign_bytes" in starts:
        lines.append(f"others' memory read in place {starts['foreign_bytes']}, moves {starts['foreign_move_bytes']}")
    print_line("; ".join(lines) + ".")
    print_line(f"predictions between these sizes are off by at most {result.worst:.0%}.")


def _tune_hosts(sizes: list[int], keep: bool, as_json: bool, quiet: bool) -> None:
    from ridgeline import fabric as engine

    with engine.init() as comm:
        if comm.size == 1:
            raise InputError("tune --hosts needs ranks: start it by torchrun, mpirun or srun, once for each rank.")
        is_first = comm.rank == 0
        with status("measuring") if is_first else nullcontext() as progress:
            report = progress if progress is not None and not (quiet or as_json) else (lambda _: None)
            result = engine.tune_hosts(comm, keep=keep, sizes=sizes, progress=report)
    if not is_first:
        return
    if as_json:
        print_json({**asdict(result), "median_error": result.median_error})
        return
    print_line(f"ranks of each host: {result.layout}; transport {result.transport}")
    for name, level in (("inside a host", result.inside), ("between hosts", result.between)):
        if level is not None:
            print_line(f"{name}: α {_format_time(level.alpha)}, β {level.beta / 1e6:,.0f} MB/s out of each rank")
    rows = [(r.algorithm, r.bytes, r.predicted, r.measured) for r in result.rows]
    stdout().print(_draw_algorithms(rows, {n: result.get_chosen(n) for n in sizes}))
    worst = max(result.get_regret(n) for n in sizes)
    print_line(
        f"predictions are off by {result.median_error:.0%} (median); the chosen algorithm (*) takes {worst:.2f} times "
        "as long as the fastest one at most."
    )


def _draw_algorithms(rows: list[tuple[str, int, float, float]], chosen: dict[int, str]) -> Table:
    """Predicted and measured times of several algorithms; a star marks the one that calls use."""
    table = Table(title="all_reduce, float32: predicted → measured")
    sizes = sorted({nbytes for _, nbytes, _, _ in rows})
    table.add_column("algorithm")
    for nbytes in sizes:
        table.add_column(f"{nbytes >> 10:,} KiB", justify="right")
    times = {(name, nbytes): (predicted, measured) for name, nbytes, predicted, measured in rows}
    for name in dict.fromkeys(row[0] for row in rows):
        cells = []
        for nbytes in sizes:
            predicted, measured = times[name, nbytes]
            star = " *" if chosen.get(nbytes) == name else ""
            cells.append(f"{_format_time(predicted)} → {_format_time(measured)}{star}")
        table.add_row(name, *cells)
    return table


@fabric.command()
def doctor(as_json: Json = False) -> None:
    """Find what slows ranks down or stops them on this host. Exit 1 if a check fails."""
    from ridgeline.fabric import doctor as run_checks

    findings = run_checks()
    if as_json:
        print_json([{"what": f.what, "ok": f.ok, "found": f.value, "cure": f.cure} for f in findings])
    else:
        for f in findings:
            print_line(
                f"{'ok ' if f.ok else 'off'}  {f.what}: {f.value}" + (f"\n     cure: {f.cure}" if f.cure else "")
            )
    if not all(f.ok for f in findings):
        raise typer.Exit(Exit.FINDINGS)


@fabric.command()
def hosts(
    count: Annotated[int, typer.Option("--hosts", help="Number of hosts (default: 2).")] = 2,
    ranks: Annotated[int, typer.Option(help="Ranks on each host (default: 1).")] = 1,
    rate: Annotated[str, typer.Option(help="Of each link, as in 500mbit or 2gbit (default: no limit).")] = "",
    delay: Annotated[str, typer.Option(help="Of each link, one way, as in 500us or 10ms (default: none).")] = "",
    loss: Annotated[float, typer.Option(help="Share of packets that each link loses, 0 to 0.5 (default: 0).")] = 0.0,
    duplicates: Annotated[float, typer.Option(help="Share of packets that come twice, 0 to 0.5 (default: 0).")] = 0.0,
    reorder: Annotated[
        float, typer.Option(help="Share of packets that come later than others, 0 to 0.5 (default: 0).")
    ] = 0.0,
    sizes: Annotated[str, typer.Option(help="Bytes of the all-reduces.")] = "4K,16K,64K,256K,1M,4M,8M",
    algorithms: Annotated[
        str, typer.Option(help="Of all-reduce: direct, ring, hierarchical …, or all (default: direct).")
    ] = "direct",
    transport: Annotated[
        str, typer.Option(help="tcp, udp, ucx, or auto: shared memory inside a host (default: tcp).")
    ] = "tcp",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Try several hosts on this machine: network namespaces with a given rate, delay and loss. Needs root.

    It predicts the times of all-reduce from exchanges of messages, then measures them, and removes the namespaces.

    [dim]Example:[/]

      sudo ridgeline fabric hosts --hosts 4 --ranks 2 --rate 500mbit --transport auto --algorithms all
    """
    from ridgeline.fabric import ALGORITHMS, study_hosts

    chosen = [_parse_bytes(word) for word in sizes.split(",")]
    with status("measuring") as progress:
        study = study_hosts(
            count,
            ranks=ranks,
            rate=rate,
            delay=delay,
            loss=loss,
            duplicates=duplicates,
            reorder=reorder,
            sizes=chosen,
            algorithms=list(ALGORITHMS["all_reduce"]) if algorithms == "all" else algorithms.split(","),
            transport=transport,
            progress=(lambda _: None) if quiet or as_json else progress,
        )
    if as_json:
        print_json({**asdict(study), "median_error": study.median_error})
        return
    if len({row.algorithm for row in study.rows}) > 1:
        rows = [(r.algorithm, r.bytes, r.predicted, r.measured) for r in study.rows]
        stdout().print(_draw_algorithms(rows, {n: study.get_chosen(n) for n in chosen}))
        print_line(f"predictions are off by {study.median_error:.0%} (median); * is what tune --hosts would choose.")
        return
    table = Table(title=f"all_reduce, {count} hosts, {transport}, float32")
    for column in ("bytes", "predicted", "measured", "error", "busbw MB/s"):
        table.add_column(column, justify="right")
    for row in study.rows:
        times = (_format_time(row.predicted), _format_time(row.measured))
        table.add_row(f"{row.bytes:,}", *times, f"{row.error:+.0%}", f"{row.busbw / 1e6:,.1f}")
    stdout().print(table)
    rate_text = f"{study.bandwidth / 1e6:,.1f} MB/s"
    print_line(
        f"exchanges between all hosts: {_format_time(study.latency)} at least, {rate_text} out of each rank at most."
    )


@fabric.command()
def watch(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The metrics of any rank of the job.")],
    every: Annotated[float, typer.Option(help="Seconds between two readings (default: 1).")] = 1.0,
    count: Annotated[int | None, typer.Option(help="Stop after this many readings (default: at Ctrl-C).")] = None,
    as_json: Json = False,
) -> None:
    """Show a live table of all ranks: traffic, which rank waits for which, the slowest rank and the slowest link.

    The ranks run with RIDGELINE_FABRIC_METRICS=:PORT; the first reading has no rates.
    """
    import time

    from rich.live import Live

    from ridgeline.fabric import Watcher

    if every <= 0:
        raise InputError(f"--every is {every:g}; give seconds above 0.")
    watcher = Watcher(address)
    reading = watcher.read()
    with Live(console=stdout(), auto_refresh=False) if not as_json else nullcontext() as live:
        for number in itertools.count(1):
            if live is None:
                print_line(json.dumps(reading))
            else:
                live.update(_draw_ranks(reading), refresh=True)
            if number == count:
                return
            time.sleep(every)
            reading = watcher.read()


def _draw_ranks(reading: dict[str, Any]) -> Table:
    link, slowest = reading["slowest_link"], reading["slowest_rank"]
    caption = f"slowest rank: {'none' if slowest is None else slowest}"
    if link is not None:
        caption += f"; slowest link: {link[0]} to {link[1]}"
    table = Table(caption=caption)
    for column in ("rank", "call", "MB/s", "waiting for", "longest rtt", "sent again"):
        table.add_column(column, justify="left" if column in ("call", "waiting for") else "right")
    for row in reading["ranks"]:
        if "rtt" not in row:
            table.add_row(str(row["rank"]), row["state"], "", "", "", "")
            continue
        waiting = ", ".join(f"{p}: {share:.0%}" for p, share in row["waiting"].items() if share >= 0.005)
        if row["waits_for"] is not None:
            waiting = f"{row['waits_for']} now" + (f"; {waiting}" if waiting else "")
        rtt = _format_time(max(row["rtt"].values())) if row["rtt"] else ""
        rate = f"{row['bytes_per_s'] / 1e6:,.1f}"
        table.add_row(str(row["rank"]), row["state"], rate, waiting, rtt, f"{row['retransmissions']:,.0f}")
    return table


def _parse_bytes(word: str) -> int:
    number = word.strip().rstrip("KMGiBbkmg")
    unit = word.strip()[len(number) :].lower()
    try:
        return int(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        raise InputError(f"--bytes '{word}': expected something like 64KiB, 1MiB or 1048576.") from None


def _format_time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
