"""`ridgeline fabric launch`: start a command for every rank on several hosts, by a remote shell."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ridgeline.cli.output import RemoteShell
from ridgeline.errors import InputError


def launch(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND…", help="What every rank runs, found in the same place on all hosts."),
    ] = None,
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="A,B,…", help="Names of the hosts; rank 0 is on the first.")
    ] = "",
    ranks: Annotated[int, typer.Option("--ranks", "-n", help="Ranks on each host.")] = 1,
    shell: RemoteShell = None,
    rendezvous: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where rank 0 listens (default: the first host, port 4400)."),
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Variable of every rank: RIDGELINE_FABRIC_TRANSPORT=ucx."),
    ] = None,
) -> None:
    """Start a command for every rank on several hosts, by ssh or another remote shell. No mpirun is needed.

    [dim]Example:[/]

      ridgeline fabric launch --hosts node1,node2 --ranks 4 -- ridgeline fabric tune --hosts

    It makes the rendezvous and a secret. It prints what rank 0 prints, and ends with the exit code of the first rank
    that failed. When it ends, it ends all ranks.
    """
    from ridgeline.fabric import launch_remotely

    pairs = [text.partition("=") for text in variables or ()]
    for text, (name, equals, _) in zip(variables or (), pairs, strict=True):
        if not equals or not name.isidentifier():
            raise InputError(f"--env '{text}' is not of the form NAME=VALUE.")
    code = launch_remotely(
        [host.strip() for host in hosts.split(",") if host.strip()],
        ranks,
        command or (),
        remote_shell=shell,
        rendezvous=rendezvous,
        environment={name: value for name, _, value in pairs},
        folder=os.getcwd(),
    )
    if code:
        raise typer.Exit(code)
