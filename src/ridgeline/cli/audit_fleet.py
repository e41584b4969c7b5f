"""`ridgeline audit witness`: witnesses that remember and co-sign logs, here and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.audit_options import Key, parse_key
from ridgeline.cli.output import Json, print_json, print_line
from ridgeline.errors import InputError, Unverified

Trust = Annotated[
    list[str] | None,
    typer.Option("--trust", metavar="VKEY,…", help="Public keys, or files that hold one each; may be repeated."),
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


def _split_keys(words: list[str] | None) -> list[str]:
    """Split lists of keys at their commas; read those that are files."""
    keys = [key.strip() for word in words or () for key in word.split(",") if key.strip()]
    return [
        Path(key).read_text(encoding="utf-8", errors="replace").strip()
        if "+" not in key and Path(key).is_file()
        else key
        for key in keys
    ]
