"""`ridgeline audit backup | restore | tier | doctor`: keep a ledger, and see whether it is in order."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.audit_options import Key, Log, parse_key
from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note
from ridgeline.errors import Exit, InputError


def backup(
    log: Log,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="Backup to write, like log.tar.gz.")],
    keys: Annotated[
        bool,
        typer.Option("--keys", help="Add the private keys: with them the file can sign, and open personal fields."),
    ] = False,
    key: Key = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify a ledger and write it into one file; a watcher may be running.

    [dim]Example:[/]

      ridgeline audit backup LOG -o log.tar.gz

    Exit 1 if the ledger does not verify. A restored ledger can be read without its private key, and continued only
    with it: keep LOG.private/key somewhere else, or use --keys and keep the file as secret as the key.
    """
    from ridgeline.audit.fleet import is_fleet, list_copies
    from ridgeline.audit.ledger import back_up

    left_out = sum(1 for _ in list_copies(log)) if is_fleet(log) else 0
    done = back_up(log, output, key=parse_key(key) if key else None, keys=keys)
    if as_json:
        print_json({"file": str(output), **vars(done), **({"copies_left_out": left_out} if left_out else {})})
        return
    if not quiet:
        print_line(f"{output} holds {done.origin} at {done.size:,} entries ({done.bytes:,} bytes), verified.")
    if left_out:
        print_note(
            f"this is the collector's own ledger without the copies of hosts ({left_out:,}). To keep those too, stop "
            f"the collector and copy the folders {log} and {log}.private."
        )
    elif not done.positions:
        print_note(
            "it does not hold how far the sources were read, because another process writes the log (or there "
            "was no source); a restored watcher reads its files from their beginning."
        )


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A backup.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="LOG", help="Folder to create.")],
    key: Key = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Restore a backup into a new folder, if every entry of it verifies; else exit 1 and leave nothing.

    [dim]Example:[/]

      ridgeline audit restore log.tar.gz -o LOG --key VKEY
    """
    from ridgeline.audit.ledger import restore as restore_backup

    report = restore_backup(file, output, key=parse_key(key) if key else None)
    size = report.checkpoint.size if report.checkpoint is not None else 0
    if as_json:
        print_json({"log": str(output), "origin": report.origin, "size": size})
        return
    if not quiet:
        print_line(f"{output} holds {report.origin} at {size:,} entries, verified.")
        if key is None:
            print_note("it was verified with the key in the backup; give --key to be sure that it is your log.")


def tier(
    log: Log,
    older_than: Annotated[str, typer.Option(metavar="TIME", help="Age or time: 90d, 24h, 2026-01-01, ns.")],
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the payloads, on other storage.")],
    origin: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of a collector's folder: only this log; may be repeated.")
    ] = None,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Move the payloads of old entries to other storage, in bundles of 256; the log reads them there.

    [dim]Examples:[/]

      ridgeline audit tier LOG --older-than 30d --to /mnt/archive

      ridgeline audit tier FLEET --older-than 7d --to /mnt/archive --origin host1.example/audit
    """
    from ridgeline.audit.fleet import is_fleet, list_copies
    from ridgeline.audit.ledger import move_payloads, parse_moment

    before = parse_moment(older_than)
    if is_fleet(log) and key is None:
        copies = {name: (path, verifier) for name, path, verifier in list_copies(log)}
        for name in origin or ():
            if name not in copies:
                raise InputError(f"{log} has no log of '{name}'; it has: {', '.join(sorted(copies)) or 'none'}.")
        chosen = {name: copies[name] for name in origin or copies}
        moved = {name: move_payloads(path, to, before, verifier=known) for name, (path, known) in chosen.items()}
    else:
        if origin:
            raise InputError("--origin chooses logs of a collector's folder; leave it out.")
        moved = {str(log): move_payloads(log, to, before, verifier=parse_key(key) if key else None)}
    if as_json:
        print_json({"to": str(to), "moved": moved})
        return
    for name, count in moved.items():
        print_line(
            f"{name}: {count:,} payloads moved to {to}." if count else f"{name}: no complete bundle is that old."
        )


def doctor(
    log: Annotated[Path | None, typer.Argument(metavar="[LOG]", help="Folder of a ledger or of a collector.")] = None,
    as_json: Json = False,
) -> None:
    """Say whether this machine, and a ledger on it, are in order, and what to do if not; exit 1 if not."""
    from ridgeline.audit.fleet import diagnose_copies, is_fleet
    from ridgeline.audit.watch import examine_log, examine_machine

    findings = examine_machine() + (examine_log(log) if log is not None else [])
    if log is not None and is_fleet(log):
        findings += diagnose_copies(log)
    if as_json:
        print_json([vars(finding) for finding in findings])
    else:
        for finding in findings:
            word = {True: "ok", False: "WRONG", None: "-"}[finding.ok]
            print_line(f"{word:6}{finding.check:14}{finding.sentence}")
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(Exit.FINDINGS)
