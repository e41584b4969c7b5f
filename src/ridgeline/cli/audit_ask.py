"""`ridgeline audit search | alerts | label`: what a watched ledger can be asked, and told."""

from __future__ import annotations

import getpass
import socket
from typing import Annotated, Any

import typer

from ridgeline.cli.audit_words import Key, Log, in_words, verifier_of
from ridgeline.cli.speak import Device, Json, Quiet, note, print_json, status, tell
from ridgeline.errors import InputError, unknown

Where = Annotated[str | None, typer.Option("--where", metavar="CONDITION", help="source == 'dbus' and actor == 'root'")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="24h, 90d, 2026-11-15T08:00Z, ns.")]


def register(app: typer.Typer) -> None:
    app.command("search")(search)
    app.command("alerts")(alerts)
    app.command("label")(label)


def search(
    log: Log,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What happened, in words.")],
    k: Annotated[int, typer.Option("-k", metavar="N", help="How many.")] = 10,
    since: Since = None,
    where: Where = None,
    key: Key = None,
    encoder: Annotated[str, typer.Option(metavar="NAME", help="The model that reads events.")] = "all-MiniLM-L6-v2",
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find events by what they mean, nearest first.

    [dim]Example:[/]

      ridgeline audit search LOG "someone opened the firewall" --since 24h --where "source == 'dbus'"

    The index behind it is made from the log when it is missing, and brought up to date first; the answer says up to
    which entry it is complete.
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import parse_moment, parse_where
    from ridgeline.audit.watch import open_meaning

    after, matches = parse_moment(since) if since else None, parse_where(where) if where else None
    if not text.strip():
        raise InputError("what to look for is empty; give a few words.")
    verifier = verifier_of(key) if key is not None else None
    with Ledger.open(log, verifier=verifier) as ledger, status("reading the log"):
        meaning = open_meaning(ledger, encoder, device)
        hits = meaning.search(text, k, ledger, since=after, where=matches)
        size, complete = ledger.checkpoint().size, meaning.complete
    if as_json:
        print_json(
            [{**_shown(hit.event), "entry": hit.entry, "score": hit.score, "template": hit.template} for hit in hits]
        )
    else:
        for hit in hits:
            tell(f"{hit.score:6.3f}  {_line(hit.entry, hit.event)}")
        if not hits:
            tell("nothing matches.")
    if complete < size:
        note(f"the index is complete up to entry {complete:,} of {size:,}.")
    elif not quiet and not as_json:
        note(f"all {complete:,} entries were searched.")


def alerts(
    log: Log,
    k: Annotated[int | None, typer.Option("-k", metavar="N", help="Only the worst N.")] = None,
    since: Since = None,
    where: Where = None,
    unjudged: Annotated[bool, typer.Option("--open", help="Only those nobody has labelled.")] = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """What the watcher found odd, worst first, each with its reason and what was said about it since."""
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import parse_moment, parse_where
    from ridgeline.audit.watch import read_alerts

    if k is not None and k < 1:
        raise InputError(f"-k is {k}; ask for 1 or more.")
    after, matches = parse_moment(since) if since else None, parse_where(where) if where else None
    with Ledger.open(log, verifier=verifier_of(key) if key is not None else None) as ledger:
        found = read_alerts(ledger, since=after, where=matches)
    found = [alert for alert in found if not unjudged or alert["label"] is None][:k]
    if as_json:
        print_json([{**alert, "event": _shown(alert["event"]) if alert["event"] else None} for alert in found])
        return
    for alert in found:
        said = f"  [{alert['label']['verdict']}, {alert['label']['by']}]" if alert["label"] else ""
        what = _line(alert["entry"], alert["event"]) if alert["event"] else f"{alert['entry']:>8}  (pruned)"
        tell(f"{alert['score']:6.3f}  {what}{said}\n        {alert['reason']}")
    if not found:
        tell("no alerts.")


def label(
    log: Log,
    entry: Annotated[int, typer.Argument(metavar="ENTRY", help="Which entry.")],
    verdict: Annotated[str, typer.Argument(metavar="normal|bad", help="What it was.")],
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who says so; default you, at this host.")] = None,
    why: Annotated[str, typer.Option("--note", metavar="TEXT", help="What was done about it.")] = "",
    as_json: Json = False,
) -> None:
    """Say what an entry was: an event too, and alike ones score lower (normal) or higher (bad) from then on."""
    from ridgeline.audit.ledger import Appender
    from ridgeline.audit.watch import label_event

    if verdict not in ("normal", "bad"):
        raise unknown("verdict", verdict, ("normal", "bad"))
    who = by or f"{getpass.getuser()}@{socket.gethostname()}"
    with Appender(log) as into:
        into.finish()  # what was just written can be labelled too
        index, _ = into.append([label_event(log, entry, verdict, who, why)])
        into.finish()
    if as_json:
        print_json({"entry": entry, "verdict": verdict, "by": who, "index": index})
    else:
        tell(f"entry {entry} is {verdict}, says {who}; entry {index} keeps it.")


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "time": str(event["time"])}


def _line(entry: int, event: dict[str, Any]) -> str:
    from ridgeline.audit.ledger import show_moment

    return f"{entry:>8}  {show_moment(event['time'])[:19]}Z  {in_words(event)}"
