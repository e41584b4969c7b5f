"""`ridgeline audit`: a ledger of events that cannot be rewritten; making one, appending, looking at it."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.audit_words import Log
from ridgeline.cli.speak import Json, Quiet, note, print_json, stderr, tell
from ridgeline.errors import InputError, RidgelineError

audit = typer.Typer(no_args_is_help=True, help="Events that cannot be rewritten: a ledger on plain files.")

_CHUNK = 1 << 20


@audit.command("init")
def init(
    log: Log,
    origin: Annotated[
        str | None, typer.Option(metavar="NAME", help="The log's name, like example.com/audit; else host/folder.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A key file of one's own; made there if it is not there yet.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a ledger; its public key is printed, its private one lies beside it in LOG.private (0600)."""
    from ridgeline.audit import Ledger, new_signer
    from ridgeline.audit.ledger import write_key

    origin = origin if origin is not None else _origin(log)
    if key is not None and not key.exists():
        if log.resolve() in key.resolve().parents:
            raise InputError(f"the key {key} would lie in the log, which may be served to anyone; keep it elsewhere.")
        write_key(key, new_signer(origin))
    with Ledger.create(log, origin, key) as made:
        verifier = made.verifier
    if as_json:
        print_json({"log": str(log), "origin": origin, "key": str(verifier)})
    else:
        tell(f"{log} is ready; whoever verifies it needs this key:\n{verifier}")


@audit.command("append")
def append(log: Log, as_json: Json = False, quiet: Quiet = False) -> None:
    """Append events from stdin, one JSON object per line; they are on the disk when this ends.

    [dim]Example:[/]

      echo '{"source":"me","action":"bridge.create","subject":"br0"}' | ridgeline audit append LOG

    If another process writes the log, it appends for us.
    """
    from ridgeline.audit.ledger import Appender, parse_line

    count, first, size, number = 0, -1, 0, 0
    with Appender(log) as into:
        for lines in _lines():
            events, numbers = [], []
            try:
                for line in lines:
                    number += 1
                    if line.strip():
                        events.append(_foreign(parse_line(line, f"line {number} of stdin"), number))
                        numbers.append(number)
                at, size = into.append(events) if events else (-1, size)
            except RidgelineError as error:
                note(f"{count} events before it were appended." if count else None)
                raise _lined(error, numbers) from None
            first = at if first < 0 else first
            count += len(events)
        size = max(size, into.finish())
    if as_json:
        print_json({"log": str(log), "appended": count, "first": first if count else None, "size": size})
    elif not quiet:
        tell(f"{count:,} events appended; the log has {size:,}.", stderr())


@audit.command("info")
def info(log: Log, as_json: Json = False) -> None:
    """What a ledger holds: size, root, key, who writes it, what was pruned, who witnessed it."""
    from ridgeline.audit.ledger import layout as homes
    from ridgeline.audit.ledger import parse_checkpoint, read_checkpoint, read_history, show_moment
    from ridgeline.store import explained, owner

    home = homes.find(log)
    private = home.settings.exists()
    with explained(home.checkpoint):
        data = home.checkpoint.read_bytes()
    known = homes.read_settings(home)[0] if private else None
    what = str(home.checkpoint)
    checkpoint = read_checkpoint(data, known, what) if known is not None else parse_checkpoint(data, what)
    holder = owner(home.lock) if private else None
    names = [s.name for s in checkpoint.note.signatures] if checkpoint.note else []
    answer: dict[str, Any] = {
        "log": str(log),
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
        "signed_ns": home.checkpoint.stat().st_mtime_ns,
        "key": str(known) if known is not None else None,
        "signatures": names,
        "witness_files": sorted(p.name for p in home.witnesses.iterdir()) if home.witnesses.is_dir() else [],
        "writer": str(holder) if holder else None,
        "pruned": read_history(home) if private else None,
    }
    if as_json:
        print_json(answer)
        return
    signed = show_moment(answer["signed_ns"])[:19]
    tell(f"{checkpoint.origin}: {checkpoint.size:,} entries, checkpoint of {signed}Z")
    tell(f"root      {answer['root']}")
    tell(f"key       {answer['key'] or 'not known here, so no signature was checked; see audit verify --key'}")
    tell(f"signed by {', '.join(names)}")
    tell(f"writer    {answer['writer'] or 'none'}")
    for row in answer["pruned"] or ():
        when = show_moment(int(row["at"]))[:19]
        tell(f"pruned    entries {row['from']} to {row['to'] - 1}, by {row['by']}, {when}Z (entry {row['entry']})")


def _foreign(event: dict[str, Any], number: int) -> dict[str, Any]:
    """An event from outside; nobody else speaks in our name."""
    if str(event.get("action", "")).startswith("ridgeline."):
        raise InputError(
            f"line {number} of stdin has the action '{event['action']}'; ridgeline.… is what we write ourselves."
        )
    return event


def _lined(error: RidgelineError, numbers: list[int]) -> RidgelineError:
    """An event is named by its place in what was sent; whoever wrote it knows its line."""
    place = re.match(r"event (\d+) ", str(error))
    if not isinstance(error, InputError) or place is None:
        return error
    rest = str(error)[place.end() :]
    return InputError(f"line {numbers[int(place[1])]} of stdin{' ' if rest.startswith('has ') else ': '}{rest}")


def _origin(log: Path) -> str:
    """A name for a log that was given none: this host and the folder, in the signs a name may have."""
    words = f"{socket.gethostname() or 'localhost'}/{log.absolute().name}"
    return re.sub(r"[^A-Za-z0-9._/-]+", "-", words).strip("-") or "log"


def _lines() -> Iterator[list[bytes]]:
    """What stdin has, in whole lines, as it comes: a slow pipe is not waited for, a fast one comes in large pieces."""
    fd, rest = sys.stdin.fileno(), b""
    while data := os.read(fd, _CHUNK):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


def _register() -> None:
    from ridgeline.cli import (
        audit_ask,
        audit_capacity,
        audit_evaluate,
        audit_keep,
        audit_report,
        audit_serve,
        audit_verify,
        audit_watch,
    )

    parts = (
        audit_verify,
        audit_keep,
        audit_watch,
        audit_ask,
        audit_serve,
        audit_report,
        audit_capacity,
        audit_evaluate,
    )
    for part in parts:
        part.register(audit)


_register()
