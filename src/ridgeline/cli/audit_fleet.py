"""`ridgeline audit witness | collect | forward`: witnesses of a log, and the logs of many hosts in one place.

`verify`, `alerts` and `search` of a collector's folder are here too; the commands call them.
"""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.audit_options import Key, Log, Notify, QuietHoursOption, Repeat, make_notifier, parse_key
from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note, status, stderr
from ridgeline.errors import Exit, InputError, Unverified

if TYPE_CHECKING:
    from ridgeline.audit.fleet import Collector
    from ridgeline.audit.ledger import Report

Trust = Annotated[
    list[str] | None,
    typer.Option("--trust", metavar="VKEY,…", help="Public keys, or files with one per line; may be repeated."),
]


def witness(
    log: Annotated[Path | None, typer.Argument(metavar="[LOG]", help="Folder of the ledger; not with --serve.")] = None,
    state: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the witness's key and memory; not in the log.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of a new witness; needed once.")
    ] = None,
    key: Key = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the co-signed checkpoint here, not into the log.")
    ] = None,
    serve: Annotated[
        str | None, typer.Option("--serve", metavar="HOST:PORT", help="Co-sign over HTTP (C2SP tlog-witness).")
    ] = None,
    ask: Annotated[
        list[str] | None, typer.Option("--ask", metavar="URL", help="Ask a witness over HTTP; may be repeated.")
    ] = None,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Co-sign the newest checkpoint, if the log continues the last one this witness saw; exit 1 if not.

    [dim]Examples:[/]

      ridgeline audit witness /mnt/log --state ~/witness --name witness.example/w1

      ridgeline audit witness --serve :8400 --state ~/witness --name witness.example/w1 --trust VKEY

      ridgeline audit witness LOG --ask https://witness.example --trust WKEY

    With --serve, --trust has the keys of the logs (ORIGIN=VKEY if a key has another name than its log). With --ask, it
    has the keys of the witnesses, and their co-signatures are stored in the log.
    """
    from ridgeline.audit.ledger import Witness
    from ridgeline.store import publish

    if serve is not None:
        _serve_witness(serve, log, state, name, trust)
        return
    if log is None:
        raise InputError("name the ledger to co-sign, or give --serve HOST:PORT.")
    if ask:
        _ask_witnesses(log, ask, trust, key, as_json)
        return
    if trust:
        raise InputError("--trust goes with --serve or --ask; the key of the log itself is --key.")
    if state is None:
        raise InputError("--state is missing; give a folder for the witness's key and memory, outside the log.")
    cosigner = Witness(state, name)
    try:
        cosigned = cosigner.cosign(log, parse_key(key) if key is not None else None)
    except Unverified as error:
        if as_json:
            print_json({"ok": False, "kind": error.kind, "finding": str(error)})
        raise
    if out is not None:
        with publish(out) as tmp:
            tmp.write_text(str(cosigned), encoding="utf-8")
    else:
        cosigner.deliver(log, cosigned)
    if as_json:
        print_json({"ok": True, "size": cosigned.size, "root": cosigned.root.hex(), "key": str(cosigner.verifier)})
    else:
        print_line(
            f"{cosigner.verifier.name} co-signed {cosigned.origin} at {cosigned.size:,} entries; its key:\n"
            f"{cosigner.verifier}"
        )


def _serve_witness(
    address: str, log: Path | None, state: Path | None, name: str | None, trust: list[str] | None
) -> None:
    from ridgeline import web
    from ridgeline.audit.fleet import make_witness_app, parse_address, read_trusted
    from ridgeline.audit.ledger import Witness

    if log is not None:
        raise InputError("--serve takes no ledger: logs send their checkpoints; name their keys with --trust.")
    if state is None:
        raise InputError("--state is missing; give a folder for the witness's key and memory.")
    host, port = parse_address(address, "--serve")
    trusted = read_trusted(_split_keys(trust))
    if not trusted:
        raise InputError("--trust is missing; give the public keys of the logs that this witness co-signs.")
    cosigner = Witness(state, name)
    app = make_witness_app(cosigner, trusted)
    known = "1 log" if len(trusted) == 1 else f"{len(trusted)} logs"

    def announce(line: str) -> None:
        print_line(f"{line}\n{cosigner.verifier.name} co-signs {known}; its key:\n{cosigner.verifier}")

    web.serve(app, host=host, port=port, announce=announce)


def _ask_witnesses(log: Path, urls: list[str], trust: list[str] | None, key: str | None, as_json: bool) -> None:
    from ridgeline.audit import Ledger, parse_verifier
    from ridgeline.audit.fleet import ask_witness

    keys = [parse_verifier(word) for word in _split_keys(trust)]
    answers = []
    with Ledger.open(log, verifier=parse_key(key) if key is not None else None) as ledger:
        for url in urls:
            cosigned = ask_witness(ledger, url, keys)
            answers.append({"url": url, "size": cosigned.size, "root": cosigned.root.hex()})
            if not as_json:
                print_line(f"{url} co-signed {cosigned.origin} at {cosigned.size:,} entries.")
    if as_json:
        print_json({"ok": True, "witnesses": answers})


def collect(
    fleet: Annotated[Path, typer.Argument(metavar="FLEET", help="Folder of the copies; created if it is not there.")],
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address for the forwarders.")],
    trust: Trust = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of a new collector, like example.com/fleet (default: host/folder)."
        ),
    ] = None,
    silent_after: Annotated[
        float, typer.Option(metavar="S", help="Alert when a host has sent nothing for S seconds; 0: never.")
    ] = 300.0,
    notify: Notify = None,
    quiet_hours: QuietHoursOption = None,
    repeat_after: Repeat = 3600.0,
    quiet: Quiet = False,
) -> None:
    """Collect the logs of many hosts: a copy per origin, byte for byte, co-signed by this collector.

    [dim]Example:[/]

      ridgeline audit collect FLEET --listen 0.0.0.0:7070 --trust HOST1_VKEY,HOST2_VKEY

    It prints its key, which the forwarders need. A log is FLEET/ORIGIN, with / as +. A host that rewrites its past,
    uses another key, replays, or is silent is an alert: see `audit alerts FLEET`. `audit search FLEET` and
    `audit verify FLEET` work over all logs. Ctrl-C brings everything to the disk and exits with 0.
    """
    from ridgeline.audit import parse_verifier
    from ridgeline.audit.fleet import collect as run
    from ridgeline.audit.fleet import parse_address

    keys = [parse_verifier(word) for word in _split_keys(trust)]
    if not keys:
        raise InputError("--trust is missing; give the public keys of the logs to collect (`audit info` shows them).")
    if not 0 <= silent_after < float("inf"):
        raise InputError(f"--silent-after is {silent_after}; give seconds, or 0 for never.")
    host, port = parse_address(listen, "--listen")
    waiting = fleet.with_name(f"{fleet.name}.private") / "notices.json"
    make = make_notifier(notify, quiet_hours, repeat_after, waiting)
    notifier = (
        make(lambda alert, why: print_note(f"{alert['receiver']} did not take a notice: {why}"))
        if make is not None
        else None
    )

    def announce(collector: Collector, where: str) -> None:
        logs = "1 log" if len(keys) == 1 else f"{len(keys)} logs"
        print_line(f"collecting {logs} at {where} (Ctrl-C stops it); the collector's key:\n{collector.key}")

    named = name or re.sub(r"[^A-Za-z0-9._/-]+", "-", f"{socket.gethostname() or 'localhost'}/{fleet.absolute().name}")
    outlets = [notifier] if notifier is not None else []
    try:
        done = run(fleet, keys, named, host, port, silent_after=silent_after, announce=announce, outlets=outlets)
    finally:
        if notifier is not None:
            notifier.close()
    if not quiet:
        print_line(f"{done.taken:,} entries collected.", stderr())


def forward(
    log: Log,
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="Address of the collector.")],
    collector: Annotated[
        str, typer.Option(metavar="VKEY", help="Public key that the collector printed, or a file with it.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Send what there is, then stop (default: wait for more).")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Send a log to a collector, from the entry on that it does not have; exit 1 if the collector refuses.

    [dim]Example:[/]

      ridgeline audit forward LOG --to collector.example:7070 --collector VKEY

    The log itself is the queue. The log's key proves which log this is, the collector's key which collector takes it.
    The connection is TLS. The co-signatures of the collector are stored in the log: `audit verify LOG --witness VKEY`.
    """
    from ridgeline.audit.fleet import Forwarder, parse_address

    host, port = parse_address(to, "--to")
    if port == 0:
        raise InputError(f"--to {to} has no port; give the address where the collector listens.")
    forwarder = Forwarder(log, host, port, parse_key(collector), notify=print_note)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: forwarder.stop())
    try:
        forwarder.run(once=once)
    finally:
        forwarder.close()
    if not quiet:
        print_line(f"{forwarder.sent:,} entries sent; the collector has {forwarder.size:,}.", stderr())


def verify_fleet(
    fleet: Path, full: bool, as_json: bool, quiet: bool, to_json: Callable[[Report, float], dict[str, Any]]
) -> None:
    """Verify the copies of a fleet and the collector's own ledger; exit 1 with every finding."""
    import time

    from ridgeline.audit.fleet import examine_fleet

    start_s = time.perf_counter()
    with status("verifying") as update:
        reports = examine_fleet(fleet, full=full, progress=update)
    seconds = time.perf_counter() - start_s
    ok = all(report.ok for _, report in reports)
    if as_json:
        print_json({"ok": ok, "seconds": seconds, "origins": [to_json(report, 0.0) for _, report in reports]})
    else:
        for origin, report in reports:
            for finding in report.findings:
                print_line(f"{origin}: {finding.kind}: {finding.sentence}")
            for sentence in report.notes:
                print_note(f"{origin}: {sentence}")
            if report.ok and report.checkpoint is not None and not quiet:
                print_line(f"{origin}: {report.checkpoint.size:,} entries verify.")
        if not quiet:
            print_line(f"{sum(report.ok for _, report in reports)} of {len(reports)} ledgers verify ({seconds:.2f} s).")
    if not ok:
        raise typer.Exit(Exit.FINDINGS)


def _split_keys(words: list[str] | None) -> list[str]:
    """Split lists of keys at their commas; read those that are files, which have a key per line."""
    keys = list[str]()
    for key in (key.strip() for word in words or () for key in word.split(",")):
        if "+" not in key and key and Path(key).is_file():
            keys += Path(key).read_text(encoding="utf-8", errors="replace").splitlines()
        else:
            keys.append(key)
    return [key.strip() for key in keys if key.strip()]
