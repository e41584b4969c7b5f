"""Pictures for the terminal: the machine as nested boxes, its distances, its ceilings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ridgeline.machine import Ceilings, Gpu, Nic, Node, Placement, Topology
from ridgeline.web import binary


def machine(here: Topology) -> RenderableType:
    """Nodes as boxes with their cache domains, CPUs, memory and devices; then what is far from what."""
    usable = set(here.usable_cpus)
    head = Text.assemble(
        (here.model, "bold"),
        f"  ·  {len(usable)} of {len(here.cpus)} CPUs usable  ·  {binary(here.usable_memory_bytes)} memory",
    )
    if here.limits.cpu_quota is not None:
        head.append(f"  ·  quota {here.limits.cpu_quota:g} CPUs", style="yellow")
    parts: list[RenderableType] = [head, Columns([_node(here, n) for n in here.nodes])]
    homeless = _devices(here.gpus, here.nics, None)
    stray = [c.id for c in here.cpus if c.node is None]
    if stray:
        homeless.insert(0, Text(f"CPUs {spans(stray)}"))
    if homeless:
        parts.append(Panel(Group(*homeless), title="node unknown", border_style="yellow", expand=False))
    if len(here.nodes) > 1:
        parts.append(_distances(here.nodes))
    parts += [Text(f"note: {note}", style="dim") for note in here.notes]
    return Group(*parts)


def plan(placements: Sequence[Placement]) -> Table:
    table = Table("rank", "node", "CPUs", "GPU", title="Plan", box=box.SIMPLE_HEAD, title_justify="left")
    for rank, p in enumerate(placements):
        gpu = "–" if p.gpu is None else str(p.gpu)
        table.add_row(str(rank), "any" if p.node is None else str(p.node), spans(p.cpus or ()), gpu)
    return table


def ceilings(found: Ceilings) -> Table:
    """One row per kind of limit; the columns of a ladder are merged into one line of figures."""
    table = Table(title=f"Ceilings of {found.device}", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("what", "how", "best", "by working set"):
        table.add_column(name)
    groups: dict[tuple[str, str], list[tuple[int | None, float, str]]] = {}
    for c in found.measured:
        words = [c.dtype, c.how, f"{c.threads} thr." if c.threads and c.bytes else None]
        words += [
            None if c.node is None else f"node {c.node}",
            None if c.memory_node is None else f"memory {c.memory_node}",
        ]
        key = (c.kind, " ".join(w for w in words if w))
        groups.setdefault(key, []).append((c.bytes, c.value, c.unit))
    for (kind, how), rungs in groups.items():
        values = [v for _, v, _ in rungs]
        best = min(values) if kind == "launch" else max(values)
        ladder = "  ".join(f"[dim]{binary(b)}[/] {v:,.0f}" for b, v, _ in rungs if b)
        table.add_row(kind, how, f"[bold]{best:,.1f}[/] {rungs[0][2]}", ladder if len(rungs) > 1 else "")
    return table


def spans(numbers: Iterable[int]) -> str:
    """Runs written short.

    >>> spans([0, 1, 2, 3, 8, 10])
    '0-3,8,10'
    """
    out: list[list[int]] = []
    for n in sorted(numbers):
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in out)


def _node(here: Topology, node: Node) -> Panel:
    usable = set(here.usable_cpus)
    lines: list[RenderableType] = [Text(f"{binary(node.memory_bytes)} memory" if node.memory_bytes else "no memory")]
    for domain in here.llc_domains():
        if domain[0] in node.cpus:
            last = max((c for c in here.caches if domain[0] in c.cpus), key=lambda c: c.level, default=None)
            title = f"L{last.level} {binary(last.bytes)}" if last else "CPUs"
            cores = len({(c.package, c.core) for c in here.cpus if c.id in domain})
            threads = f", {len(domain) // cores} threads each" if len(domain) > cores else ""
            lines.append(Text.assemble((title, "cyan"), f"  CPUs {spans(domain)}  ({cores} cores{threads})"))
    barred = set(node.cpus) - usable
    if barred:
        lines.append(Text(f"not usable: CPUs {spans(barred)}", style="dim"))
    if not node.cpus:
        lines.append(Text("no CPUs", style="dim"))
    lines += _devices(here.gpus, here.nics, node.id)
    return Panel(Group(*lines), title=f"node {node.id}", expand=False, padding=(0, 1))


def _devices(gpus: Sequence[Gpu], nics: Sequence[Nic], node: int | None) -> list[Text]:
    lines = []
    for gpu in gpus:
        if gpu.node == node:
            facts = [gpu.pci, binary(gpu.memory_bytes) if gpu.memory_bytes else None, gpu.link]
            label = f"  {gpu.name}  " + "  ".join(f for f in facts if f)
            lines.append(Text.assemble((f"GPU {gpu.index}", "bold green"), label))
    for nic in nics:
        if nic.node == node:
            speed = f"  {nic.speed / 1000:g} Gbit/s" if nic.speed else ""
            lines.append(Text.assemble(("NIC", "magenta"), f" {nic.name}  {nic.pci or ''}{speed}"))
    return lines


def _distances(nodes: Sequence[Node]) -> Table:
    table = Table("distance", *(str(n.id) for n in nodes), box=box.SIMPLE_HEAD, title_justify="left")
    for row in nodes:
        table.add_row(str(row.id), *(str(row.distances.get(n.id, "?")) for n in nodes))
    return table
