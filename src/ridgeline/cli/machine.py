"""`ridgeline machine`: what this computer is, drawn or as JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline import machine as parts
from ridgeline.cli import picture
from ridgeline.cli.speak import Json, print_json, status, stdout
from ridgeline.errors import InputError
from ridgeline.machine import identity


def machine(
    as_json: Json = False,
    ceilings: Annotated[
        bool,
        typer.Option(
            "--ceilings", help="Also show how fast memory, matmul and links are (measured once, then cached)."
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="With --ceilings: measure again.")] = False,
    device: Annotated[str, typer.Option("--device", help="With --ceilings: auto, cpu, cuda or cuda:N.")] = "auto",
    root: Annotated[
        Path, typer.Option("--root", metavar="DIR", help="Read a recorded tree that holds sys and proc.")
    ] = Path("/"),
    ranks: Annotated[
        int | None,
        typer.Option("--plan", metavar="RANKS", help="Show where that many processes would stand."),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option("--per", help="With --plan: gpu, node or core (default: gpu if there is one)."),
    ] = None,
) -> None:
    """Show nodes, caches, CPUs, memory, GPUs and network cards, and which is near which.

    [dim]Examples:[/]

      ridgeline machine --ceilings

      ridgeline machine --plan 8 --per core

      ridgeline machine --root recorded/ --json | jq '.nodes[0].cpus'
    """
    if (ceilings or fresh) and root != Path("/"):
        raise InputError("--ceilings measures this machine, --root shows another; use one of them.")
    if per is not None and ranks is None:
        raise InputError("--per says how to plan; add --plan RANKS.")
    here = parts.topology(root)
    placements = parts.plan(here, ranks, per or ("gpu" if here.gpus else "node")) if ranks is not None else None
    measured = _ceilings(here, device, fresh) if ceilings or fresh else []
    if as_json:
        print_json(_json(here, placements, measured))
        return
    console = stdout()
    console.print(picture.machine(here))
    if placements is not None:
        console.print(picture.plan(placements))
    for found in measured:
        console.print(picture.ceilings(found))


def _ceilings(here: parts.Topology, device: str, fresh: bool) -> list[parts.Ceilings]:
    names = ["cpu", *(f"cuda:{g.index}" for g in here.gpus)] if device == "auto" else [device]
    with status("Measuring ceilings") as say:
        return [parts.ceilings(name, fresh=fresh, progress=say, on=here) for name in names]


def _json(
    here: parts.Topology, placements: list[parts.Placement] | None, measured: list[parts.Ceilings]
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "nodes": [asdict(n) for n in here.nodes],
        "cpus": [asdict(c) for c in here.cpus],
        "caches": [asdict(c) for c in here.caches],
        "gpus": [asdict(g) for g in here.gpus],
        "nics": [asdict(n) for n in here.nics],
        "limits": asdict(here.limits),
        "model": here.model,
        "fingerprint": identity.fingerprint(here),
        "notes": here.notes,
    }
    if placements is not None:
        out["plan"] = [asdict(p) for p in placements]
    if measured:
        out["ceilings"] = {found.device: found.to_json()["measured"] for found in measured}
    return out
