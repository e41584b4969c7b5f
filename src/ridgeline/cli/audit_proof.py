"""`ridgeline audit verify | prove | check-proof`: verify a log, and prove its entries to others."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.audit_fleet import verify_fleet
from ridgeline.cli.audit_options import Key, Log, parse_key
from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note
from ridgeline.errors import Exit, InputError, RidgelineError

if TYPE_CHECKING:
    from ridgeline.audit.ledger import Report, Verifier

WitnessKeys = Annotated[
    list[str] | None, typer.Option("--witness", metavar="VKEY", help="Public key of a witness; may be repeated.")
]
Require = Annotated[
    int | None,
    typer.Option("--require", metavar="N", help="Number of witnesses that must have co-signed (default: all)."),
]


def verify(
    log: Log,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Read every entry, or only the newest edge of the tree.")
    ] = True,
    key: Key = None,
    witness: WitnessKeys = None,
    require: Require = None,
    fresh: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Count only co-signatures younger than this, like 24h.")
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A checkpoint saved elsewhere, which the log must continue."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify a ledger against its signature; exit 1 with every finding if it is not what was signed.

    Of a collector's folder, verify all its logs.
    """
    from ridgeline.audit.fleet import is_fleet
    from ridgeline.audit.ledger import examine, find_ledger, parse_moment, read_settings

    if is_fleet(log) and not (key or witness or checkpoint or fresh or require is not None):
        verify_fleet(log, full, as_json, quiet, _to_json)
        return
    paths = find_ledger(log)
    verifier = parse_key(key) if key is not None else read_settings(paths)[0]
    witnesses = [parse_key(w) for w in witness or ()]
    if fresh is not None and not witnesses:
        raise InputError("--fresh limits the age of co-signatures; give the witnesses with --witness VKEY.")
    since = parse_moment(fresh) if fresh is not None else None
    for path in checkpoint or ():
        if not path.is_file():
            raise InputError(f"there is no checkpoint '{path}'; give the file that was saved.")
    _recover_journal(log)
    start_s = time.perf_counter()
    needed = _count_required(require, witnesses)
    report = examine(
        log, verifier, full=full, checkpoints=checkpoint or (), witnesses=witnesses, require=needed, since=since
    )
    seconds = time.perf_counter() - start_s
    if as_json:
        print_json(_to_json(report, seconds))
    else:
        _print_report(report, seconds, quiet)
    if not report.ok:
        raise typer.Exit(Exit.FINDINGS)


def prove(
    log: Log,
    index: Annotated[int, typer.Argument(metavar="INDEX", help="Index of the entry.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Output file, like x.tlog-proof.")],
    key: Key = None,
) -> None:
    """Write a proof that an entry is in the log; anyone can check it without the log."""
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import prove as make_proof
    from ridgeline.store import publish

    with Ledger.open(log, verifier=parse_key(key) if key is not None else None) as ledger:
        proof = make_proof(ledger, index)
    with publish(out) as tmp:
        tmp.write_text(str(proof), encoding="utf-8")
    print_note(
        None if proof.extra is not None else "the payload was pruned; the check needs the entry (check-proof --entry)."
    )
    print_line(f"entry {index} of {proof.checkpoint.size:,} → {out}")


def check_proof(
    file: Annotated[Path, typer.Argument(metavar="PROOF", help="A .tlog-proof file.")],
    key: Annotated[str, typer.Option(metavar="VKEY", help="Public key of the log, or a file with it.")],
    entry: Annotated[Path | None, typer.Option(metavar="FILE", help="File with the bytes of the entry.")] = None,
    leaf: Annotated[str | None, typer.Option(metavar="HASH", help="Leaf hash of the entry, in hexadecimal.")] = None,
    witness: WitnessKeys = None,
    require: Require = None,
    as_json: Json = False,
) -> None:
    """Check a proof offline; exit 1 if it does not hold."""
    from ridgeline.audit.ledger import check_proof as check
    from ridgeline.audit.ledger import parse_leaf_hash, show_moment

    for path in (file, entry):
        if path is not None and not path.is_file():
            raise InputError(f"there is no file '{path}'; check the name.")
    witnesses = [parse_key(w) for w in witness or ()]
    proved = check(
        file.read_bytes(),
        parse_key(key),
        str(file),
        entry=entry.read_bytes() if entry else None,
        leaf=parse_leaf_hash(leaf) if leaf is not None else None,
        witnesses=witnesses,
        require=_count_required(require, witnesses),
    )
    answer: dict[str, Any] = {
        "ok": True,
        "origin": proved.checkpoint.origin,
        "index": proved.index,
        "size": proved.checkpoint.size,
        "leaf_hash": proved.leaf_hash.hex(),
        "event": proved.event,
        "witnesses": [{"name": w.name, "seconds": w.seconds} for w in proved.witnesses],
    }
    if as_json:
        print_json(answer)
        return
    print_line(f"{file} holds: entry {proved.index} of {proved.checkpoint.size:,} in {proved.checkpoint.origin}.")
    for name, value in (proved.event or {}).items():
        print_line(f"  {name:10} {show_moment(value) if name == 'time' else value}")
    for w in proved.witnesses:
        print_line(f"  co-signed by {w.name}, {show_moment(w.seconds * 10**9)[:19]}Z")


def _recover_journal(log: Path) -> None:
    """Move the journal of a killed writer into the log first, if this user may do that."""
    from ridgeline.audit import Ledger

    with suppress(RidgelineError):  # the verification reports every fault
        Ledger.open(log).close()


def _to_json(report: Report, seconds: float) -> dict[str, Any]:
    checkpoint = report.checkpoint
    return {
        "ok": report.ok,
        "origin": report.origin,
        "full": report.full,
        "size": checkpoint.size if checkpoint else None,
        "root": checkpoint.root.hex() if checkpoint else None,
        "entries": report.entries,
        "pruned": [vars(p) for p in report.pruned],
        "witnesses": [vars(w) for w in report.witnesses],
        "findings": [{"kind": f.kind, "finding": f.sentence} for f in report.findings],
        "notes": report.notes,
        "seconds": seconds,
    }


def _print_report(report: Report, seconds: float, quiet: bool) -> None:
    from ridgeline.audit.ledger import show_moment

    for finding in report.findings:
        print_line(f"{finding.kind}: {finding.sentence}")
    for sentence in report.notes:
        print_note(sentence)
    if quiet:
        return
    for p in report.pruned:
        why = f" ({p.reason})" if p.reason else ""
        when = show_moment(p.time)[:19]
        print_line(f"pruned: entries {p.start} to {p.end - 1} by {p.by}, {when}Z{why}; entry {p.index} records it.")
    for w in report.witnesses:
        print_line(f"witnessed: {w.name} saw the first {w.size:,} entries, {show_moment(w.seconds * 10**9)[:19]}Z.")
    if report.ok and report.checkpoint is not None:
        what = f"{report.entries:,} payloads read" if report.full else "newest edge only"
        print_line(f"{report.origin}: {report.checkpoint.size:,} entries verify ({what}, {seconds:.2f} s).")


def _count_required(require: int | None, witnesses: list[Verifier]) -> int:
    if require is not None and require < 0:
        raise InputError(f"--require is {require}; give 0 or more, or leave it out for all of them.")
    return len(witnesses) if require is None else require
