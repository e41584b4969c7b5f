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
    Gpu,
    Nic,
    Node,
    Placement,
    Topology,
    fingerprint,
    format_spans,
    plan,
    topology,
    write_launch_lines,
)
from ridgeline.machine import ceilings as get_ceilings
from ridgeline.web import format_bytes


def machine(
    as_json: Json = False,
    ceilings: Annotated[
        bool,
        typer.Option(
            "--ceilings", help="Also show the measured limits of memory, matmul and links (cached after the first run)."
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="With --ceilings: measure again.")] = False,
    device: Annotated[str, typer.Option("--device", help="With --ceilings: auto, cpu, cuda or cuda:N.")] = "auto",
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

      ridgeline machine --plan 8 --per core

      ridgeline machine --plan 4 --per node --as numactl -- python train.py

      ridgeline machine --root recorded/ --json | jq '.nodes[0].cpus'
    """
    if (ceilings or fresh) and root != Path("/"):
        raise InputError("--ceilings measures this machine, --root shows another; use one of them.")
    if per is not None and ranks is None:
        raise InputError("--per says how to plan; add --plan RANKS.")
    if launcher is not None and (ranks is None or as_json or ceilings or fresh):
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
    ceilings_by_device = _measure_ceilings(computer, device, fresh) if ceilings or fresh else []
    if as_json:
        print_json(_make_json(computer, placements, ceilings_by_device))
        return
    console = stdout()
    console.print(draw_machine(computer))
    if placements is not None:
        console.print(draw_plan(placements))
    for limits in ceilings_by_device:
        console.print(draw_ceilings(limits))


def _measure_ceilings(computer: Topology, device: str, fresh: bool) -> list[Ceilings]:
    names = ["cpu", *(f"cuda:{g.index}" for g in computer.gpus)] if device == "auto" else [device]
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
