"""`ridgeline audit serve`: a log on a page of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from ridgeline.cli.audit_words import Key, Log, verifier_of
from ridgeline.cli.speak import Device, stderr, tell


def register(app: typer.Typer) -> None:
    app.command("serve")(serve)


def serve(
    log: Log,
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(help="'auto' makes one; needed for an address others can reach.")] = None,
    key: Key = None,
    encoder: Annotated[str, typer.Option(metavar="NAME", help="The model that reads events.")] = "all-MiniLM-L6-v2",
    device: Device = "cpu",
) -> None:
    """Events as they come, anomalies with their reasons, search, and proofs that the browser verifies itself.

    Reads only; a watcher may run beside it or not. /metrics is for Prometheus, /openapi.json describes the rest.
    """
    from ridgeline import web
    from ridgeline.audit import Ledger
    from ridgeline.audit.serve import Live, service

    with Ledger.open(log, verifier=verifier_of(key) if key is not None else None) as ledger:
        app = service(Live(ledger, encoder, device), token=token)
        web.serve(app, host=host, port=port, announce=lambda line: tell(line, stderr()))
