"""`ridgeline audit verify | prove | check-proof | witness`: is it true, and how can somebody else know?"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.audit_words import Key, Log, verifier_of
from ridgeline.cli.speak import Json, Quiet, note, print_json, tell
from ridgeline.errors import Exit, InputError, RidgelineError, Unverified

if TYPE_CHECKING:
    from ridgeline.audit.ledger import Report, Verifier

WitnessKeys = Annotated[
    list[str] | None, typer.Option("--witness", metavar="VKEY", help="A witness's public key; may be given often.")
]
Require = Annotated[
    int | None,
    typer.Option("--require", metavar="N", help="So many of the witnesses must have co-signed; default all."),
]


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)
    app.command("prove")(prove)
    app.command("check-proof")(check_proof)
    app.command("witness")(witness)


def verify(
    log: Log,
    full: Annotated[bool, typer.Option("--full/--quick", help="Every entry, or only the newest edge.")] = True,
    key: Key = None,
    witness: WitnessKeys = None,
    require: Require = None,
    fresh: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Count only co-signatures younger than this, like 24h.")
    ] = None,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A checkpoint kept elsewhere, which the log must continue."),
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Verify a ledger against its signature; exit 1 with every finding if it is not what was signed."""
    from ridgeline.audit.ledger import examine, parse_moment
    from ridgeline.audit.ledger import layout as homes

    home = homes.find(log)
    verifier = verifier_of(key) if key is not None else homes.read_settings(home)[0]
    witnesses = [verifier_of(w) for w in witness or ()]
    if fresh is not None and not witnesses:
        raise InputError("--fresh says how young a co-signature must be; give whose with --witness VKEY.")
    since = parse_moment(fresh) if fresh is not None else None
    for path in checkpoint or ():
        if not path.is_file():
            raise InputError(f"there is no checkpoint '{path}'; give the file that was kept.")
    _finish_for_the_dead(log)
    began = time.perf_counter()
    needed = _needed(require, witnesses)
    report = examine(log, verifier, full=full, kept=checkpoint or (), witnesses=witnesses, require=needed, since=since)
    seconds = time.perf_counter() - began
    if as_json:
        print_json(_answer(report, seconds))
    else:
        _tell(report, seconds, quiet)
    if not report.ok:
        raise typer.Exit(Exit.FINDINGS)


def prove(
    log: Log,
    index: Annotated[int, typer.Argument(metavar="INDEX", help="Which entry.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The proof, x.tlog-proof.")],
    key: Key = None,
) -> None:
    """Write a proof that an entry is in the log, which anyone can check without the log."""
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import prove as proof_of
    from ridgeline.store import publish

    with Ledger.open(log, verifier=verifier_of(key) if key is not None else None) as ledger:
        proof = proof_of(ledger, index)
    with publish(out) as tmp:
        tmp.write_text(str(proof), encoding="utf-8")
    note(None if proof.extra is not None else "the payload was pruned; whoever checks this must have the entry.")
    tell(f"entry {index} of {proof.checkpoint.size:,} → {out}")


def check_proof(
    file: Annotated[Path, typer.Argument(metavar="PROOF", help="A .tlog-proof file.")],
    key: Annotated[str, typer.Option(metavar="VKEY", help="The log's public key, or a file that holds it.")],
    entry: Annotated[Path | None, typer.Option(metavar="FILE", help="The entry, byte for byte.")] = None,
    leaf: Annotated[str | None, typer.Option(metavar="HASH", help="Its leaf hash, in hexadecimal.")] = None,
    witness: WitnessKeys = None,
    require: Require = None,
    as_json: Json = False,
) -> None:
    """Check a proof offline; exit 1 if it does not hold."""
    from ridgeline.audit.ledger import check_proof as check
    from ridgeline.audit.ledger import hex_hash, show_moment

    for path in (file, entry):
        if path is not None and not path.is_file():
            raise InputError(f"there is no file '{path}'; check the name.")
    witnesses = [verifier_of(w) for w in witness or ()]
    proved = check(
        file.read_bytes(),
        verifier_of(key),
        str(file),
        entry=entry.read_bytes() if entry else None,
        leaf=hex_hash(leaf) if leaf is not None else None,
        witnesses=witnesses,
        require=_needed(require, witnesses),
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
    tell(f"{file} holds: entry {proved.index} of {proved.checkpoint.size:,} in {proved.checkpoint.origin}.")
    for name, value in (proved.event or {}).items():
        tell(f"  {name:10} {show_moment(value) if name == 'time' else value}")
    for w in proved.witnesses:
        tell(f"  co-signed by {w.name}, {show_moment(w.seconds * 10**9)[:19]}Z")


def witness(
    log: Log,
    state: Annotated[Path, typer.Option(metavar="DIR", help="The witness's own key and memory; away from the log.")],
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="Its name, for the first time.")] = None,
    key: Key = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the co-signed checkpoint here, not into the log.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Co-sign the newest checkpoint, if the log continues the last one this witness saw; exit 1 if not.

    [dim]Example, from another machine's cron:[/]

      ridgeline audit witness /mnt/log --state ~/witness --name witness.example/w1
    """
    from ridgeline.audit.ledger import Witness
    from ridgeline.store import publish

    who = Witness(state, name)
    try:
        cosigned = who.cosign(log, verifier_of(key) if key is not None else None)
    except Unverified as error:
        if as_json:
            print_json({"ok": False, "kind": error.kind, "finding": str(error)})
        raise
    if out is not None:
        with publish(out) as tmp:
            tmp.write_text(str(cosigned), encoding="utf-8")
    else:
        who.deliver(log, cosigned)
    if as_json:
        print_json({"ok": True, "size": cosigned.size, "root": cosigned.root.hex(), "key": str(who.verifier)})
    else:
        tell(f"{who.verifier.name} co-signed {cosigned.origin} at {cosigned.size:,} entries; its key:\n{who.verifier}")


def _finish_for_the_dead(log: Path) -> None:
    """What a killed writer left in its journal goes into the log first, where that is ours to do."""
    from ridgeline.audit import Ledger

    with suppress(RidgelineError):  # what is wrong will be found, and told in full
        Ledger.open(log).close()


def _answer(report: Report, seconds: float) -> dict[str, Any]:
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


def _tell(report: Report, seconds: float, quiet: bool) -> None:
    from ridgeline.audit.ledger import show_moment

    for finding in report.findings:
        tell(f"{finding.kind}: {finding.sentence}")
    for sentence in report.notes:
        note(sentence)
    if quiet:
        return
    for p in report.pruned:
        why = f" ({p.reason})" if p.reason else ""
        when = show_moment(p.time)[:19]
        tell(f"pruned: entries {p.start} to {p.end - 1} by {p.by}, {when}Z{why}; entry {p.index} says so.")
    for w in report.witnesses:
        tell(f"witnessed: {w.name} saw the first {w.size:,} entries, {show_moment(w.seconds * 10**9)[:19]}Z.")
    if report.ok and report.checkpoint is not None:
        what = f"{report.entries:,} payloads read" if report.full else "newest edge only"
        tell(f"{report.origin}: {report.checkpoint.size:,} entries verify ({what}, {seconds:.2f} s).")


def _needed(require: int | None, witnesses: list[Verifier]) -> int:
    if require is not None and require < 0:
        raise InputError(f"--require is {require}; give 0 or more, or leave it out for all of them.")
    return len(witnesses) if require is None else require
