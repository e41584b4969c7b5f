"""`ridgeline machine`: the hardware of this computer, drawn or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ridgeline.cli.output import Json, print_json, print_line, status, stdout
from ridgeline.errors import InputError
from ridgeline.machine import (
    Ceilings,
    Finding,
    Gpu,
    Nic,
    Node,
    Placement,
    Topology,
    find_normal,
    fingerprint,
    format_spans,
    plan,
    topology,
    write_launch_lines,
)
from ridgeline.machine import ceilings as get_ceilings
from ridgeline.web import format_bytes

VERDICT_COLOURS = {"normal": "green", "low": "bold red", "high": "yellow", "unknown": "dim"}


def machine(
    as_json: Json = False,
    ceilings: Annotated[
        bool,
        typer.Option(
            "--ceilings", help="Also show the measured limits of memory, matmul and links (cached after the first run)."
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="With --ceilings or --normal: measure again.")] = False,
    normal: Annotated[
        bool,
        typer.Option(
            "--normal", help="Compare the limits with those of the same models: normal, low, and what to look at."
        ),
    ] = False,
    like: Annotated[
        list[Path] | None,
        typer.Option(
            "--like",
            metavar="FILE",
            help="With --normal: compare with `machine --ceilings --json` of another machine (may be repeated).",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="With --ceilings or --normal: auto, cpu, cuda or cuda:N.")
    ] = "auto",
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="Read a recorded tree that holds sys and proc.")
    ] = Path("/"),
    ranks: Annotated[
        int | None,
        typer.Option("--plan", metavar="RANKS", help="Show the CPUs, node and GPU of each of this many processes."),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option("--per", help="With --plan: gpu, node or core (default: gpu, or node without a GPU)."),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option("--as", help="With --plan: print lines to paste, for numactl, torchrun, slurm or systemd."),
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(help="With --as: the program of each rank, after -- (default: python train.py)."),
    ] = None,
) -> None:
    """Show nodes, caches, CPUs, memory, GPUs and network cards, and which of them are near each other.

    [dim]Examples:[/]

      ridgeline machine --ceilings

      ridgeline machine --normal

      ridgeline machine --plan 8 --per core

      ridgeline machine --plan 4 --per node --as numactl -- python train.py

      ridgeline machine --root recorded/ --json | jq '.nodes[0].cpus'
    """
    if (ceilings or fresh or normal) and root != Path("/"):
        option = "--normal" if normal else "--ceilings"
        raise InputError(f"{option} measures this machine, --root shows another; use one of them.")
    if like and not normal:
        raise InputError("--like names a machine to compare with; add --normal.")
    if per is not None and ranks is None:
        raise InputError("--per says how to plan; add --plan RANKS.")
    if launcher is not None and (ranks is None or as_json or ceilings or fresh or normal):
        raise InputError(
            "--as prints the lines of a plan and nothing else; add --plan RANKS, without --json or --ceilings."
        )
    if command and launcher is None:
        raise InputError(f"'{command[0]}' is no option; a program is for --plan RANKS --as LAUNCHER.")
    computer = topology(root)
    placements = plan(computer, ranks, per or ("gpu" if computer.gpus else "node")) if ranks is not None else None
    if placements is not None and launcher is not None:
        print_line(write_launch_lines(computer, placements, launcher, command or ["python", "train.py"]))
        return
    findings = _compare_with_models(computer, device, like or [], fresh) if normal else []
    show_ceilings = ceilings or (fresh and not normal)
    ceilings_by_device = _measure_ceilings(computer, device, fresh and not normal) if show_ceilings else []
    if as_json:
        answer = _make_json(computer, placements, ceilings_by_device)
        print_json({**answer, "normal": [f.to_json() for f in findings]} if normal else answer)
        return
    console = stdout()
    console.print(draw_machine(computer))
    if placements is not None:
        console.print(draw_plan(placements))
    for limits in ceilings_by_device:
        console.print(draw_ceilings(limits))
    if normal:
        _print_findings(findings)


def _compare_with_models(computer: Topology, device: str, like: Sequence[Path], fresh: bool) -> list[Finding]:
    with status("Measuring ceilings") as progress:
        return find_normal(_list_devices_to_measure(computer, device), like=like, fresh=fresh, progress=progress)


def _list_devices_to_measure(computer: Topology, device: str) -> list[str]:
    names = ["cpu", *(f"cuda:{g.index}" for g in computer.gpus)] if device == "auto" else [device]
    return ["cuda:0" if name == "cuda" else name for name in names]


def _print_findings(findings: Sequence[Finding]) -> None:
    """Print one table for each device, then what to look at, then the sources."""
    console = stdout()
    for device in dict.fromkeys(f.device for f in findings):
        rows = [f for f in findings if f.device == device]
        table = Table(
            title=f"Normal for {rows[0].model}? ({device})", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False
        )
        for name, side in (("what", "left"), ("here", "right"), ("typical", "right"), ("limit", "right"), ("", "left")):
            table.add_column(name, justify="right" if side == "right" else "left")
        for f in rows:
            figures = (f"{value:,.1f}" if value is not None else "–" for value in (f.typical, f.limit))
            verdict = Text(f.verdict, style=VERDICT_COLOURS[f.verdict])
            table.add_row(f.quantity, f"{f.value:,.1f} {f.unit}", *figures, verdict)
        console.print(table)
        for sentence in dict.fromkeys(s for f in rows for s in f.look_at):
            print_line(f"look at  {sentence}")
        for source in dict.fromkeys(f.source for f in rows if f.source):
            print_line(f"source   {source}")


def _measure_ceilings(computer: Topology, device: str, fresh: bool) -> list[Ceilings]:
    names = _list_devices_to_measure(computer, device)
    with status("Measuring ceilings") as progress:
        return [get_ceilings(name, fresh=fresh, progress=progress, on=computer) for name in names]


def _make_json(
    computer: Topology, placements: list[Placement] | None, ceilings_by_device: list[Ceilings]
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "nodes": [asdict(n) for n in computer.nodes],
        "cpus": [asdict(c) for c in computer.cpus],
        "caches": [asdict(c) for c in computer.caches],
        "gpus": [asdict(g) for g in computer.gpus],
        "nics": [asdict(n) for n in computer.nics],
        "limits": asdict(computer.limits),
        "model": computer.model,
        "fingerprint": fingerprint(computer),
        "notes": computer.notes,
    }
    if placements is not None:
        out["plan"] = [asdict(p) for p in placements]
    if ceilings_by_device:
        out["ceilings"] = {limits.device: limits.to_json()["measured"] for limits in ceilings_by_device}
    return out


def draw_machine(computer: Topology) -> RenderableType:
    """Draw nodes as boxes with their cache domains, CPUs, memory and devices; then the distances between nodes."""
    usable = set(computer.usable_cpus)
    head = Text.assemble(
        (computer.model, "bold"),
        f"  ·  {len(usable)} of {len(computer.cpus)} CPUs usable",
        f"  ·  {format_bytes(computer.usable_memory_bytes)} memory",
    )
    if computer.limits.cpu_quota is not None:
        head.append(f"  ·  quota {computer.limits.cpu_quota:g} CPUs", style="yellow")
    parts: list[RenderableType] = [head, Columns([_draw_node(computer, n) for n in computer.nodes])]
    unassigned = _list_devices(computer.gpus, computer.nics, None)
    unassigned_cpus = [c.id for c in computer.cpus if c.node is None]
    if unassigned_cpus:
        unassigned.insert(0, Text(f"CPUs {format_spans(unassigned_cpus)}"))
    if unassigned:
        parts.append(Panel(Group(*unassigned), title="node unknown", border_style="yellow", expand=False))
    if len(computer.nodes) > 1:
        parts.append(_draw_distances(computer.nodes))
    parts += [Text(f"note: {note}", style="dim") for note in computer.notes]
    return Group(*parts)


def draw_plan(placements: Sequence[Placement]) -> Table:
    table = Table("rank", "node", "CPUs", "GPU", title="Plan", box=box.SIMPLE_HEAD, title_justify="left")
    for rank, p in enumerate(placements):
        gpu = "–" if p.gpu is None else str(p.gpu)
        table.add_row(str(rank), "any" if p.node is None else str(p.node), format_spans(p.cpus or ()), gpu)
    return table


def draw_ceilings(limits: Ceilings) -> Table:
    """One row per kind of limit; the values of all working-set sizes stand in one column."""
    table = Table(title=f"Ceilings of {limits.device}", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("what", "how", "best", "by working set"):
        table.add_column(name)
    groups: dict[tuple[str, str], list[tuple[int | None, float, str]]] = {}
    for c in limits.measured:
        words = [c.dtype, c.how, f"{c.threads} thr." if c.threads and c.bytes else None]
        words += [
            None if c.node is None else f"node {c.node}",
            None if c.memory_node is None else f"memory {c.memory_node}",
        ]
        key = (c.kind, " ".join(w for w in words if w))
        groups.setdefault(key, []).append((c.bytes, c.value, c.unit))
    for (kind, how), sizes in groups.items():
        values = [v for _, v, _ in sizes]
        best = min(values) if kind == "launch" else max(values)
        by_size = "  ".join(f"[dim]{format_bytes(b)}[/] {v:,.0f}" for b, v, _ in sizes if b)
        table.add_row(kind, how, f"[bold]{best:,.1f}[/] {sizes[0][2]}", by_size if len(sizes) > 1 else "")
    return table


def _draw_node(computer: Topology, node: Node) -> Panel:
    usable = set(computer.usable_cpus)
    memory = f"{format_bytes(node.memory_bytes)} memory" if node.memory_bytes else "no memory"
    lines: list[RenderableType] = [Text(memory)]
    for domain in computer.llc_domains():
        if domain[0] in node.cpus:
            last = max((c for c in computer.caches if domain[0] in c.cpus), key=lambda c: c.level, default=None)
            title = f"L{last.level} {format_bytes(last.bytes)}" if last else "CPUs"
            cores = len({(c.package, c.core) for c in computer.cpus if c.id in domain})
            threads = f", {len(domain) // cores} threads each" if len(domain) > cores else ""
            lines.append(Text.assemble((title, "cyan"), f"  CPUs {format_spans(domain)}  ({cores} cores{threads})"))
    unusable = set(node.cpus) - usable
    if unusable:
        lines.append(Text(f"not usable: CPUs {format_spans(unusable)}", style="dim"))
    if not node.cpus:
        nearest = f"; nearest CPUs {format_spans(node.nearest_cpus)}" if node.nearest_cpus else ""
        lines.append(Text(f"no CPUs{nearest}", style="dim"))
    lines += _list_devices(computer.gpus, computer.nics, node.id)
    return Panel(Group(*lines), title=f"node {node.id}", expand=False, padding=(0, 1))


def _list_devices(gpus: Sequence[Gpu], nics: Sequence[Nic], node: int | None) -> list[Text]:
    lines = []
    for gpu in gpus:
        if gpu.node == node:
            facts = [gpu.pci, format_bytes(gpu.memory_bytes) if gpu.memory_bytes else None, gpu.link]
            label = f"  {gpu.name}  " + "  ".join(f for f in facts if f)
            lines.append(Text.assemble((f"GPU {gpu.index}", "bold green"), label))
    for nic in nics:
        if nic.node == node:
            speed = f"  {nic.speed / 1000:g} Gbit/s" if nic.speed else ""
            lines.append(Text.assemble(("NIC", "magenta"), f" {nic.name}  {nic.pci or ''}{speed}"))
    return lines


def _draw_distances(nodes: Sequence[Node]) -> Table:
    table = Table("distance", *(str(n.id) for n in nodes), box=box.SIMPLE_HEAD, title_justify="left")
    for row in nodes:
        table.add_row(str(row.id), *(str(row.distances.get(n.id, "?")) for n in nodes))
    return table
