"""`ridgeline audit watch`: events from sources into the ledger, scored as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.audit_words import Log, in_words
from ridgeline.cli.speak import Device, Json, Quiet, note, status, stderr, tell
from ridgeline.errors import Exit, InputError

if TYPE_CHECKING:
    from ridgeline.audit.sources import Http, Source


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    log: Log,
    dbus: Annotated[
        list[str] | None, typer.Option("--dbus", metavar="BUS", help="system, session, or a bus's address.")
    ] = None,
    dbus_match: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Only such messages: type='signal',sender='…'.")
    ] = None,
    journal: Annotated[bool, typer.Option("--journal", help="The systemd journal, from where it was left.")] = False,
    journal_match: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="Only such entries: _SYSTEMD_UNIT=ssh.service.")
    ] = None,
    journal_directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Journals that lie there, of this machine or of others.")
    ] = None,
    jsonl: Annotated[
        list[Path] | None, typer.Option("--jsonl", metavar="FILE", help="Events, one JSON object per line; - is stdin.")
    ] = None,
    lines: Annotated[
        list[Path] | None, typer.Option("--lines", metavar="FILE", help="Plain log lines; each becomes an event.")
    ] = None,
    http: Annotated[
        str | None, typer.Option("--http", metavar="[HOST]:PORT", help="POST /events, with a bearer token.")
    ] = None,
    http_token: Annotated[
        str | None,
        typer.Option(envvar="RIDGELINE_AUDIT_TOKEN", metavar="TOKEN", help="For --http; one is made if none is given."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or end with the files.")] = True,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Events scored together, at most; 128, with a GPU 512.")
    ] = None,
    wait: Annotated[float, typer.Option(metavar="MS", help="How long the first of them waits for more.")] = 50.0,
    alert_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Of all events, how many may be alerts.")
    ] = None,
    webhook: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="POST every alert there, tried again until it is taken.")
    ] = None,
    redact: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Hide values of this name too.")] = None,
    keep_secrets: Annotated[
        bool, typer.Option("--no-redact", help="Hide nothing: passwords and tokens go into the log.")
    ] = False,
    score: Annotated[bool, typer.Option("--score/--no-score", help="Or only record; needs no model then.")] = True,
    encoder: Annotated[str, typer.Option(metavar="NAME", help="The model that reads events.")] = "all-MiniLM-L6-v2",
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Record what happens, find it by meaning, say what is odd.

    [dim]Examples:[/]

      ridgeline audit watch LOG --dbus system --journal

      ridgeline audit watch LOG --lines /var/log/auth.log --webhook https://hooks.example/ridgeline

      generate | ridgeline audit watch LOG --jsonl -

    An event is on the disk before it is scored. Ctrl-C takes and scores what is here, then ends with 0; a second one
    leaves at once, with 130, and the next start scores the rest. Alerts go to stdout, with --json as JSON lines.
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.watch import NAMES, Redaction, Settings, Watcher, known_keys, metrics

    settings = Settings(batch, wait, alert_rate, encoder, device, score=score)
    redaction = Redaction(() if keep_secrets else NAMES, redact or ())
    made = _sources(dbus, dbus_match, journal, journal_match, journal_directory, jsonl, lines, follow)
    door = _http(http, http_token) if http is not None else None
    if door is not None:
        made.append(door)
    if not made:
        raise InputError("there is nothing to watch; give --dbus, --journal, --jsonl, --lines or --http.")
    with Ledger.open(log) as ledger:
        outlets: list[Callable[[dict[str, Any]], None]] = [_as_line if as_json else _as_words]
        with status("watching") if not quiet else nullcontext(lambda _: None) as say:
            watcher = Watcher(
                ledger,
                made,
                settings,
                redaction=redaction,
                outlets=outlets,
                webhooks=webhook or (),
                tick=lambda now: say(_line(now)),
            )
            if door is not None:
                door.metrics = lambda: metrics(watcher.status())
                door.recall = lambda: known_keys(ledger)
            done = watcher.run()
    _tell(done.to_json(), as_json, quiet)
    for sentence in done.troubles:
        note(sentence)
    if done.left:
        raise typer.Exit(Exit.INTERRUPTED)
    if done.refused or done.troubles or done.undelivered:
        raise typer.Exit(Exit.FINDINGS)


def _sources(
    dbus: list[str] | None,
    dbus_match: list[str] | None,
    journal: bool,
    journal_match: list[str] | None,
    journal_directory: Path | None,
    jsonl: list[Path] | None,
    lines: list[Path] | None,
    follow: bool,
) -> list[Source]:
    from ridgeline.audit.sources import DBus, Journal, LineFile, Piped, Reader, json_line, log_line

    made: list[Source] = []
    files: list[tuple[str, Path, Reader]] = [("jsonl", path, json_line) for path in jsonl or ()]
    files += [("lines", path, log_line("stdin" if str(path) == "-" else str(path.absolute()))) for path in lines or ()]
    for kind, path, read in files:
        made.append(Piped(read) if str(path) == "-" else LineFile(path, kind, read, follow=follow))
    if dbus_match and not dbus:
        raise InputError("--dbus-match needs a bus; give --dbus too.")
    if (journal_match or journal_directory) and not journal:
        option = "--journal-match" if journal_match else "--journal-directory"
        raise InputError(f"{option} needs the journal; give --journal too.")
    made += [DBus(where, dbus_match or ()) for where in dbus or ()]
    if journal:
        made.append(Journal(journal_match or (), directory=journal_directory, follow=follow))
    return made


def _http(address: str, token: str | None) -> Http:
    from ridgeline.audit.sources import Http

    return Http(address, token or "auto", announce=lambda line: tell(line, stderr()))


def _line(now: dict[str, Any]) -> str:
    taken, dropped = (sum(now[name].values()) for name in ("taken", "dropped"))
    lost = f", {dropped:,} dropped" if dropped else ""
    ready = "" if now["ready"] else ", loading the model"
    return (
        f"{taken:,} recorded, {now['scored']:,} scored, {now['backlog']:,} to go, {now['alerts']:,} alerts{lost}{ready}"
    )


def _as_line(alert: dict[str, Any]) -> None:
    event = alert["event"]
    sys.stdout.write(json.dumps({**alert, "event": {**event, "time": str(event["time"])}}) + "\n")
    sys.stdout.flush()


def _as_words(alert: dict[str, Any]) -> None:
    event = {"subject": None, "actor": None, "attributes": {}, **alert["event"]}
    tell(f"alert: entry {alert['entry']}, score {alert['score']:.3f}: {in_words(event)}\n  {alert['reason']}")


def _tell(done: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps({"summary": done}))
    elif not quiet:
        taken = sum(done["taken"].values())
        tell(
            f"{taken:,} events recorded, {done['scored']:,} scored, {done['alerts']:,} alerts "
            f"in {done['seconds']:.1f} s; the log has {done['size']:,} entries.",
            stderr(),
        )
    for what in ("dropped", "refused"):
        for source, count in done[what].items():
            note(f"{source}: {count:,} {what}; the log says so too.")
    if done["undelivered"]:
        note(f"{done['undelivered']:,} alerts were not taken by their webhook; the log says why.")
    if done["left"]:
        note(f"{done['left']:,} entries are not scored yet; the next start does it.")
