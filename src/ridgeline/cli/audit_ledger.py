"""`ridgeline audit init | append | info | export | prune`: the ledger itself."""

from __future__ import annotations

import getpass
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.audit_options import Key, Log, parse_key
from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note, stderr
from ridgeline.errors import Exit, InputError, RidgelineError, StoreError

_CHUNK = 1 << 20
_LONGEST = 64 << 20  # bytes of a line


def init(
    log: Log,
    origin: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the log, like example.com/audit (default: host/folder).")
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Key file; created if it does not exist (default: LOG.private/key)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Create a ledger and print its public key; its private key lies in LOG.private (mode 0600)."""
    from ridgeline.audit import Ledger, new_signer
    from ridgeline.audit.ledger import write_key

    origin = origin if origin is not None else _default_origin(log)
    if key is not None and not key.exists():
        if log.resolve() in key.resolve().parents:
            raise InputError(f"the key {key} would lie in the log, which may be public; choose another place.")
        write_key(key, new_signer(origin))
    with Ledger.create(log, origin, key) as ledger:
        verifier = ledger.verifier
    if as_json:
        print_json({"log": str(log), "origin": origin, "key": str(verifier)})
    else:
        print_line(f"{log} is ready; this key verifies it:\n{verifier}")


def append(
    log: Log,
    key: Annotated[
        str | None,
        typer.Option(
            "--key", metavar="KEY", help="Name of this input, like a UUID: appended again under it, it counts once."
        ),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Append events from stdin, one JSON object per line; they are on the disk when this ends.

    [dim]Example:[/]

      echo '{"source":"me","action":"bridge.create","subject":"br0"}' | ridgeline audit append LOG

    If another process writes the log, that process appends the events. With --key the same input may be appended again
    after any failure. Exit 1: the events are recorded, but no signed checkpoint covers them yet.
    """
    from ridgeline.audit.ledger import Appender, parse_line
    from ridgeline.audit.watch import KeyedAppend

    count, repeated, first, size, number = 0, 0, -1, 0, 0
    unsigned: RidgelineError | None = None
    into = Appender(log)
    try:
        once = KeyedAppend(log, into, key) if key is not None else None
        for lines in read_lines(KeyedAppend.PART if once is not None else None):
            events, numbers = [], []
            try:
                for line in lines:
                    number += 1
                    if line.strip():
                        events.append(_refuse_internal(parse_line(line, f"line {number} of stdin"), number))
                        numbers.append(number)
                known = False
                if once is not None and events:
                    at, size, known = once.append(lines, events)
                else:
                    at, size = into.append(events) if events else (-1, size)
            except RidgelineError as error:
                again = f"run it again with --key {key}" if key is not None else "leave them out when you run it again"
                print_note(f"{count:,} events before it are recorded; {again}." if count else None)
                raise _name_line(error, numbers) from None
            first = at if first < 0 else first
            count += len(events)
            repeated += len(events) * known
        try:
            size = max(size, into.finish())
        except StoreError as error:
            unsigned = error
    finally:
        with suppress(StoreError):  # what is recorded is in the journal; the next writer signs it
            into.close()
    if as_json:
        answer = {"log": str(log), "appended": count - repeated, "first": first if count else None, "size": size}
        print_json({**answer, "repeated": repeated, "signed": unsigned is None})
    elif not quiet and unsigned is None:
        again = f" ({repeated:,} were recorded before)" if repeated else ""
        print_line(f"{count - repeated:,} events appended{again}; the log has {size:,}.", stderr())
    if unsigned is not None:
        cause = unsigned.__cause__
        why = f"{cause.strerror}: {cause.filename or log}" if isinstance(cause, OSError) else str(unsigned).rstrip(".")
        print_note(
            f"{count:,} events are recorded from entry {first} on, and survive a crash, but their checkpoint could not "
            f"be signed ({why}). Do not append them again: the next writer signs them."
        )
        raise typer.Exit(Exit.FINDINGS)


def info(log: Log, as_json: Json = False) -> None:
    """Show the size, root, key, writer, prunings and witnesses of a ledger."""
    from ridgeline.audit.ledger import (
        find_ledger,
        parse_checkpoint,
        read_checkpoint,
        read_history,
        read_settings,
        show_moment,
    )
    from ridgeline.store import explain_errors, get_owner

    paths = find_ledger(log)
    private = paths.settings.exists()
    with explain_errors(paths.checkpoint):
        data = paths.checkpoint.read_bytes()
    known = read_settings(paths)[0] if private else None
    what = str(paths.checkpoint)
    checkpoint = read_checkpoint(data, known, what) if known is not None else parse_checkpoint(data, what)
    holder = get_owner(paths.lock) if private else None
    names = [s.name for s in checkpoint.note.signatures] if checkpoint.note else []
    answer: dict[str, Any] = {
        "log": str(log),
        "origin": checkpoint.origin,
        "size": checkpoint.size,
        "root": checkpoint.root.hex(),
        "signed_ns": paths.checkpoint.stat().st_mtime_ns,
        "key": str(known) if known is not None else None,
        "signatures": names,
        "witness_files": sorted(p.name for p in paths.witnesses.iterdir()) if paths.witnesses.is_dir() else [],
        "writer": str(holder) if holder else None,
        "pruned": read_history(paths) if private else None,
    }
    if as_json:
        print_json(answer)
        return
    signed = show_moment(answer["signed_ns"])[:19]
    print_line(f"{checkpoint.origin}: {checkpoint.size:,} entries, checkpoint of {signed}Z")
    print_line(f"root      {answer['root']}")
    print_line(
        f"key       {answer['key'] or 'unknown on this machine, so no signature was checked; see audit verify --key'}"
    )
    print_line(f"signed by {', '.join(names)}")
    print_line(f"writer    {answer['writer'] or 'none'}")
    for row in answer["pruned"] or ():
        when = show_moment(int(row["at"]))[:19]
        print_line(
            f"pruned    entries {row['from']} to {row['to'] - 1}, by {row['by']}, {when}Z (entry {row['entry']})"
        )


def _refuse_internal(event: dict[str, Any], number: int) -> dict[str, Any]:
    """Raise if an event of the user has an action that is reserved for internal events."""
    if str(event.get("action", "")).startswith("ridgeline."):
        raise InputError(
            f"line {number} of stdin has the action '{event['action']}'; ridgeline.… is reserved for internal events."
        )
    return event


def _name_line(error: RidgelineError, numbers: list[int]) -> RidgelineError:
    """Name an event in an error by its line of stdin, not by its number in the batch."""
    place = re.match(r"event (\d+) ", str(error))
    if not isinstance(error, InputError) or place is None:
        return error
    rest = str(error)[place.end() :]
    return InputError(f"line {numbers[int(place[1])]} of stdin{' ' if rest.startswith('has ') else ': '}{rest}")


def _default_origin(log: Path) -> str:
    """Return the default name of a log: host and folder, with the characters that a name may have."""
    words = f"{socket.gethostname() or 'localhost'}/{log.absolute().name}"
    return re.sub(r"[^A-Za-z0-9._/-]+", "-", words).strip("-") or "log"


def read_lines(part: int | None = None, fd: int | None = None) -> Iterator[list[bytes]]:
    """Yield the lines of stdin as they arrive: at once from a slow pipe, many together from a fast one.

    part  wait for this many lines each time, so that every run yields the same parts
    fd    read this descriptor instead of stdin

    Raises `InputError` for a line of more than 64 MiB.
    """
    fd = sys.stdin.fileno() if fd is None else fd
    start, size, ready, number = list[bytes](), 0, list[bytes](), 0  # `start`: pieces of a line without an end yet
    while data := os.read(fd, _CHUNK):
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*start, lines[0]])
            start, size = [], 0
            ready += lines
            number += len(lines)
        start.append(rest)
        size += len(rest)
        if size > _LONGEST:
            raise InputError(f"line {number + 1} of stdin has more than {_LONGEST:,} bytes; split it.")
        while ready and (part is None or len(ready) >= part):
            yield ready[:part]
            ready = ready[part:] if part is not None else []
    last = b"".join(start)
    ready += [last] if last else []
    while ready:
        yield ready[:part]
        ready = ready[part:] if part is not None else []


def export(
    log: Log,
    as_json: Annotated[bool, typer.Option("--json", help="Write a JSON list.")] = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="Write JSON lines.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV with a header.")] = False,
    as_parquet: Annotated[bool, typer.Option("--parquet", help="Write Parquet; needs --out.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file (default: stdout).")] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="First time: 2026-11-15T08:00Z, 24h ago as 24h, or ns.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the time, not included.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Only events like: source == 'dbus' and attributes.n > 2")
    ] = None,
    key: Key = None,
    quiet: Quiet = False,
) -> None:
    """Write events as JSON, JSON lines, CSV or Parquet; pruned entries are left out and counted."""
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import (
        Selection,
        compile_filter,
        parse_moment,
        write_csv,
        write_json,
        write_jsonl,
        write_parquet,
    )
    from ridgeline.store import publish

    if as_json + as_jsonl + as_csv + as_parquet != 1:
        raise InputError("choose one format: --json, --jsonl, --csv or --parquet.")
    if as_parquet and out is None:
        raise InputError("--parquet needs a file; give --out events.parquet.")
    with Ledger.open(log, verifier=parse_key(key) if key is not None else None) as ledger:
        chosen = Selection(
            ledger,
            parse_moment(start) if start else None,
            parse_moment(end) if end else None,
            compile_filter(where) if where is not None else None,
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
    print_note(f"{chosen.missing:,} entries were pruned and are not in it." if chosen.missing else None)
    if not quiet and out is not None:
        print_line(f"{chosen.rows:,} events → {out}", stderr())


def prune(
    log: Log,
    before: Annotated[str, typer.Option("--older-than", metavar="TIME", help="Age or time: 90d, 24h, 2026-01-01, ns.")],
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Your name for the log (default: user@host).")] = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason; the log keeps it.")] = "",
    origin: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of a collector's folder: only this log; may be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Remove the payloads of old entries, in bundles of 256; hashes stay, and an event records actor and time.

    Of a collector's folder: those of the copies; the logs of the hosts are not touched.
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.fleet import is_fleet, prune_copies
    from ridgeline.audit.ledger import parse_moment

    pruner = by or f"{getpass.getuser()}@{socket.gethostname()}"
    if is_fleet(log):
        pruned = prune_copies(log, parse_moment(before), by=pruner, reason=reason, origins=origin)
        if as_json:
            print_json({"fleet": str(log), "pruned": pruned, "by": pruner})
            return
        for name, number in pruned.items():
            print_line(f"{name}: {number:,} payloads pruned." if number else f"{name}: no complete bundle is that old.")
        return
    if origin:
        raise InputError("--origin chooses logs of a collector's folder; leave it out.")
    with Ledger.open(log) as ledger:
        count = ledger.prune(parse_moment(before), by=pruner, reason=reason)
        size = ledger.size
    if as_json:
        print_json({"log": str(log), "pruned": count, "by": pruner, "size": size})
    else:
        print_line(
            f"{count:,} payloads pruned; the log has {size:,} entries."
            if count
            else "no complete bundle is that old; nothing was pruned."
        )
