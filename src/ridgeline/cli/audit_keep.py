"""`ridgeline audit export | prune`: events out of a ledger, and payloads whose time is over."""

from __future__ import annotations

import getpass
import socket
import sys
from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.audit_words import Key, Log, verifier_of
from ridgeline.cli.speak import Json, Quiet, note, print_json, stderr, tell
from ridgeline.errors import InputError


def register(app: typer.Typer) -> None:
    app.command("export")(export)
    app.command("prune")(prune)


def export(
    log: Log,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="JSON lines.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV with a header.")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="Parquet; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A file; else stdout.")] = None,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="2026-11-15T08:00Z, 24h, ns.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Up to here, not included.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="source == 'dbus' and attributes.n > 2")
    ] = None,
    key: Key = None,
    quiet: Quiet = False,
) -> None:
    """Write events as JSON, JSON lines, CSV or Parquet; what was pruned is left out and counted."""
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import (
        Selection,
        parse_moment,
        parse_where,
        write_csv,
        write_json,
        write_jsonl,
        write_parquet,
    )
    from ridgeline.store import publish

    if as_json + as_jsonl + as_csv + as_parquet != 1:
        raise InputError("say which: one of --json, --jsonl, --csv, --parquet.")
    if as_parquet and out is None:
        raise InputError("--parquet needs a file; give --out events.parquet.")
    with Ledger.open(log, verifier=verifier_of(key) if key is not None else None) as ledger:
        chosen = Selection(
            ledger,
            parse_moment(start) if start else None,
            parse_moment(end) if end else None,
            parse_where(where) if where else None,
        )
        write = write_json if as_json else write_jsonl if as_jsonl else write_csv
        if out is None:
            write(chosen, sys.stdout)
        else:
            with publish(out) as tmp:
                if as_parquet:
                    write_parquet(chosen, tmp)
                else:
                    with tmp.open("w", encoding="utf-8", newline="") as file:
                        write(chosen, file)
    note(f"{chosen.missing:,} entries were pruned and are not in it." if chosen.missing else None)
    if not quiet and out is not None:
        tell(f"{chosen.rows:,} events → {out}", stderr())


def prune(
    log: Log,
    before: Annotated[str, typer.Option("--older-than", metavar="TIME", help="90d, 24h, 2026-01-01, ns.")],
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who prunes; default you, at this host.")] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; the log keeps it.")] = "",
    as_json: Json = False,
) -> None:
    """Remove payloads of old entries, in whole bundles of 256; hashes stay, and an event says who did it and when."""
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import parse_moment

    who = by or f"{getpass.getuser()}@{socket.gethostname()}"
    with Ledger.open(log) as ledger:
        count = ledger.prune(parse_moment(before), by=who, reason=reason)
        size = ledger.size
    if as_json:
        print_json({"log": str(log), "pruned": count, "by": who, "size": size})
    else:
        tell(
            f"{count:,} payloads pruned; the log has {size:,} entries." if count else "nothing is that old: unchanged."
        )
