"""`ridgeline audit subject export | forget`: the data of one person in a ledger."""

from __future__ import annotations

import getpass
import json
import socket
from typing import Annotated

import typer

from ridgeline.cli.audit_options import Log, describe_event
from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note, status
from ridgeline.errors import Exit, InputError, Unverified

subject = typer.Typer(no_args_is_help=True, help="The data of one person: give a copy, or erase it.")

Person = Annotated[str, typer.Argument(metavar="SUBJECT", help="The person, as the field of --subject names him.")]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Your name for the log (default: user@host).")]


@subject.command("export")
def export(log: Log, person: Person, by: By = None, as_json: Json = False, quiet: Quiet = False) -> None:
    """Write all events of a person with the personal values decrypted; the log records who asked.

    [dim]Example:[/]

      ridgeline audit subject export LOG ann --json > ann.json

    Exit 1 if values were erased, or cannot be read because their key is lost.
    """
    from ridgeline.audit.ledger import export_person, show_moment

    with status("reading the log") as update:
        done = export_person(log, person, by=by or _name_caller(), progress=update)
    if as_json:
        print_json({"subject": person, **{k: v for k, v in vars(done).items() if k != "person"}})
    else:
        for event in done.events:
            print_line(f"{event['index']:>8}  {show_moment(event['time'])[:19]}Z  {describe_event(event)}")
            print_line(f"          {json.dumps(event['attributes'], ensure_ascii=False)}")
        if not quiet:
            print_note(f"{len(done.events):,} events of '{person}'; entry {done.entry} records this export.")
    for erasure in done.erasures:
        reason = f" ({erasure['reason']})" if erasure["reason"] else ""
        print_note(
            f"personal values of '{person}' were erased on {show_moment(erasure['time'])[:19]}Z by "
            f"{erasure['by']}{reason}."
        )
    for key_id in done.lost:
        print_note(f"the key {key_id} is lost, though no one destroyed it: its values cannot be read any more.")
    if done.pruned:
        print_note(f"{done.pruned:,} entries were pruned and are not in it.")
    if done.erased or done.erasures or done.lost:
        raise typer.Exit(Exit.FINDINGS)


@subject.command("forget")
def forget(
    log: Log,
    person: Person,
    by: By = None,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="The reason; the log keeps it.")] = "",
    as_json: Json = False,
) -> None:
    """Erase the personal values of a person by destroying the key; every proof still holds.

    [dim]Example:[/]

      ridgeline audit subject forget LOG ann --by dpo --reason "request of 3 May, GDPR article 17"

    It cannot be undone. Backups made with --keys and snapshots of LOG.private still have the key: destroy them too.
    """
    from ridgeline.audit.ledger import forget_person

    if not person.strip():
        raise InputError("the name of the person is empty; give the value of the field of --subject.")
    try:
        ids, entry = forget_person(log, person, by=by or _name_caller(), reason=reason)
    except Unverified as error:
        if as_json:
            print_json({"subject": person, "keys": [], "entry": None, "why": str(error)})
        raise
    if as_json:
        print_json({"subject": person, "keys": ids, "entry": entry})
        return
    print_line(f"the personal values of '{person}' are erased; entry {entry} records it.")
    print_note("backups made with --keys, and snapshots of the private folder, still have the key: destroy them too.")


def _name_caller() -> str:
    return f"{getpass.getuser()}@{socket.gethostname()}"
