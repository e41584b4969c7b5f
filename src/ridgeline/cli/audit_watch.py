"""`ridgeline audit watch | search | alerts | label | serve`: record and score events, and query a watched ledger."""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.audit_options import (
    TOKEN,
    Key,
    Log,
    Notify,
    QuietHoursOption,
    Repeat,
    describe_event,
    find_token,
    make_notifier,
    parse_key,
)
from ridgeline.cli.output import Device, Json, Quiet, print_json, print_line, print_note, status, stderr
from ridgeline.cli.placement import Place, stay_near
from ridgeline.cli.tokens import refuse_token
from ridgeline.errors import Exit, InputError, unknown

if TYPE_CHECKING:
    from ridgeline.audit.ledger import Policy
    from ridgeline.audit.sources import Certificate, Http, LineReader, Source
    from ridgeline.audit.watch import Hit, Rule
Where = Annotated[
    str | None,
    typer.Option("--where", metavar="CONDITION", help="Only events like: source == 'dbus' and actor == 'root'"),
]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="First time: 24h ago as 24h, 2026-11-15T08:00Z, or ns.")
]


def watch(
    log: Log,
    dbus: Annotated[
        list[str] | None, typer.Option("--dbus", metavar="BUS", help="Watch a bus: system, session, or an address.")
    ] = None,
    dbus_match: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Only these messages, like type='signal',sender='…'.")
    ] = None,
    dbus_objects: Annotated[
        list[str] | None,
        typer.Option(metavar="SERVICE[/PATH]", help="Also record the objects of this service, and how they differ."),
    ] = None,
    journal: Annotated[
        bool, typer.Option("--journal", help="Watch the systemd journal, from the last position on.")
    ] = False,
    journal_match: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=VALUE", help="Only these entries, like _SYSTEMD_UNIT=ssh.service."),
    ] = None,
    journal_directory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with journals (default: this machine's).")
    ] = None,
    jsonl: Annotated[
        list[Path] | None,
        typer.Option("--jsonl", metavar="FILE", help="Read events, one JSON object per line; - is stdin."),
    ] = None,
    lines: Annotated[
        list[Path] | None,
        typer.Option(
            "--lines",
            metavar="FILE|DIR",
            help="Read plain log lines; each becomes an event. A folder or '*.log': all its files, also new ones.",
        ),
    ] = None,
    containers: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|DIR",
            help="Read the log files of containers (Docker, containerd), like /var/log/pods or '…/*-json.log'.",
        ),
    ] = None,
    k8s_audit: Annotated[
        list[Path] | None,
        typer.Option("--k8s-audit", metavar="FILE|DIR", help="Read the audit log of a Kubernetes API server."),
    ] = None,
    syslog: Annotated[
        list[str] | None,
        typer.Option(metavar="ADDRESS", help="Receive syslog at udp://, tcp:// or tls://HOST:PORT, or unix:PATH."),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE.pem", help="Certificate chain of this server, for --syslog tls://.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE.pem", help="Its private key.")] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(metavar="FILE.pem", help="Take only senders with a certificate of these authorities."),
    ] = None,
    auditd: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE|SOCKET",
            help="Read the Linux audit system: its audit.log, or the socket of its af_unix plugin.",
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="[HOST]:PORT", help="Receive events by POST /events with a bearer token."),
    ] = None,
    otlp: Annotated[
        str | None,
        typer.Option(metavar="[HOST]:PORT", help="Receive OpenTelemetry's logs by POST /v1/logs with a bearer token."),
    ] = None,
    http_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the token of --http and --otlp (default: RIDGELINE_AUDIT_TOKEN, "
            "else LOG.private/http-token).",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for more, or stop at the end of the files.")
    ] = True,
    batch: Annotated[
        int | None, typer.Option(metavar="N", help="Most events scored together (default: 128, with a GPU 512).")
    ] = None,
    wait: Annotated[
        float, typer.Option(metavar="MS", help="Milliseconds that the first of them waits for more.")
    ] = 50.0,
    alert_rate: Annotated[
        float | None, typer.Option(metavar="SHARE", help="Share of events that may be alerts (default: 0.001).")
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(metavar="CONDITION", help="Alert on every event like: action == 'FirewallDisabled'"),
    ] = None,
    severity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL", help="Severity of --rule: low, medium (default), high or critical; one for all, or each."
        ),
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option("--rules", metavar="FILE.toml", help="Rules as tables [[rule]] with name, where and severity."),
    ] = None,
    webhook: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="POST every alert to this URL, with retries.")
    ] = None,
    notify: Notify = None,
    quiet_hours: QuietHoursOption = None,
    repeat_after: Repeat = 3600.0,
    redact: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also hide values with this name.")] = None,
    personal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD,…",
            help="Encrypt these fields per person, like attributes.email,actor; the log remembers it. none: no field.",
        ),
    ] = None,
    find_personal: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND,…", help="Also encrypt these inside of texts: email, ip, phone, card, iban."),
    ] = None,
    subject: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="The field that names the person, like attributes.user, for --personal."),
    ] = None,
    keep_secrets: Annotated[
        bool, typer.Option("--no-redact", help="Hide nothing: passwords and tokens go into the log.")
    ] = False,
    score: Annotated[
        bool, typer.Option("--score/--no-score", help="Score events, or record only, without a model.")
    ] = True,
    encoder: Annotated[str, typer.Option(metavar="NAME", help="Encoder model.")] = "all-MiniLM-L6-v2",
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="auto, cpu, cuda, cuda:N; several, as cuda:0,cuda:1 or cuda:all, share batches of 64 events or more.",
        ),
    ] = "auto",
    place: Place = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Record events, index them by meaning, and report unusual ones.

    [dim]Examples:[/]

      ridgeline audit watch LOG --dbus system --journal

      ridgeline audit watch LOG --lines /var/log/auth.log --webhook https://hooks.example/ridgeline

      generate | ridgeline audit watch LOG --jsonl -

      ridgeline audit watch LOG --journal --rule 'action == "FirewallDisabled"' --severity high --rules rules.toml

    An event is on the disk before it is scored. Ctrl-C records and scores what has arrived, then exits with 0; a second
    Ctrl-C exits at once with 130, and the next start scores the rest. Alerts go to stdout, with --json as JSON lines.
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.ledger import finish_forgetting, set_policy
    from ridgeline.audit.sources import Auditd, Http, Otlp, Syslog, is_pattern
    from ridgeline.audit.watch import NAMES, Redaction, Settings, Watcher, format_metrics, read_request_keys
    from ridgeline.machine import parse_devices

    devices = parse_devices(device)  # raises for one that is not there
    settings = Settings(batch, wait, alert_rate, encoder, device, score=score)
    notifier = make_notifier(
        notify, quiet_hours, repeat_after, log.with_name(f"{log.name}.private") / "watch" / "notices.json"
    )
    policy = _make_policy(personal, find_personal, subject)
    redaction = Redaction(() if keep_secrets else NAMES, redact or ())
    conditions = _make_rules(rule or [], severity or [], rules or [])
    files: dict[str, Sequence[Path]] = {
        "jsonl": jsonl or (),
        "lines": lines or (),
        "containers": containers or (),
        "k8s-audit": k8s_audit or (),
    }
    sources = _make_files(log, files, follow)
    sources += _make_local(dbus, dbus_match, dbus_objects, journal, journal_match, journal_directory, follow)
    certificate = _make_certificate(tls_cert, tls_key, tls_ca)
    sources += [Syslog(address, certificate=certificate) for address in syslog or ()]
    sources += [Auditd(path, follow=follow) for path in auditd or ()]
    for path in (*chain.from_iterable(files.values()), *(auditd or ())) if follow else ():
        if str(path) != "-" and not path.exists() and not is_pattern(path):
            print_note(f"'{path}' does not exist yet; the watcher waits for it.")
    servers = [_make_http(kind, log, where, http_token_file) for kind, where in ((Http, http), (Otlp, otlp)) if where]
    sources += servers
    if not sources:
        raise InputError(
            "there is nothing to watch; give --dbus, --journal, --jsonl, --lines, --containers, --k8s-audit, --syslog, "
            "--auditd, --http or --otlp."
        )
    finish_forgetting(log)
    with stay_near(devices[0], place and score and len(devices) == 1, quiet), Ledger.open(log) as ledger:
        if policy is not None:
            set_policy(ledger, policy)
        outlets: list[Callable[[dict[str, Any]], None]] = [_print_alert_json if as_json else _print_alert]
        with status("watching") if not quiet else nullcontext(lambda _: None) as update:
            watcher = Watcher(
                ledger,
                sources,
                settings,
                redaction=redaction,
                outlets=outlets,
                webhooks=webhook or (),
                tick=lambda now: update(_format_status(now)),
                rules=conditions,
                retry=follow,
                notify=print_note,
                notifier=notifier,
            )
            for server in servers:
                server.metrics = lambda: format_metrics(watcher.status())
                if server.option == "--http":  # OTLP has no keys of requests
                    server.load_requests = lambda: read_request_keys(ledger)
                    server.digest = ledger.personal.digest
            done = watcher.run()
    _print_summary(done.to_json(), as_json, quiet)
    if done.left:
        raise typer.Exit(Exit.INTERRUPTED)
    if done.refused or done.troubles or done.undelivered:
        raise typer.Exit(Exit.FINDINGS)


def _make_policy(personal: list[str] | None, find: list[str] | None, subject: str | None) -> Policy | None:
    """Return what --personal, --find-personal and --subject say; None if they are not given."""
    from ridgeline.audit.ledger import Policy

    if personal is None and find is None:
        if subject is not None:
            raise InputError("--subject needs personal fields; give --personal or --find-personal too.")
        return None
    fields, kinds = (
        tuple(dict.fromkeys(word.strip() for words in given or () for word in words.split(",") if word.strip()))
        for given in (personal, find)
    )
    if fields == ("none",) and not kinds:
        return Policy()
    return Policy(fields, subject, kinds)


def _make_certificate(chain: Path | None, key: Path | None, authorities: Path | None) -> Certificate | None:
    from ridgeline.audit.sources import Certificate

    if chain is None and key is None and authorities is None:
        return None
    if chain is None or key is None:
        raise InputError(f"--tls-{'cert' if chain is None else 'key'} is missing; TLS needs --tls-cert and --tls-key.")
    return Certificate(chain, key, authorities)


def _make_files(log: Path, files: dict[str, Sequence[Path]], follow: bool) -> list[Source]:
    """Return the sources of files: of each kind the files, folders and patterns; - is stdin."""
    from ridgeline.audit.sources import (
        CompressedFile,
        LineFile,
        LineFolder,
        PipeSource,
        is_compressed,
        is_pattern,
        make_container_reader,
        parse_json_line,
        parse_kubernetes_line,
    )

    readers: dict[str, Callable[[Path], LineReader]] = {
        "jsonl": lambda path: parse_json_line,
        "lines": _read_log,
        "containers": lambda path: make_container_reader(path.absolute()),
        "k8s-audit": lambda path: parse_kubernetes_line,
    }
    log_folders = (log, log.with_name(f"{log.name}.private"))
    sources: list[Source] = []
    for kind, path in ((kind, path) for kind, paths in files.items() for path in paths):
        read = readers[kind]
        if str(path) == "-":
            sources.append(PipeSource(read(path)))
        elif kind != "jsonl" and (path.is_dir() or is_pattern(path)):
            sources.append(LineFolder(path, kind, read, follow=follow, exclude=log_folders, announce=print_note))
        elif is_compressed(path):
            sources.append(CompressedFile(path, kind, read(path)))
        else:
            sources.append(LineFile(path, kind, read(path), follow=follow))
    return sources


def _make_local(
    dbus: list[str] | None,
    dbus_match: list[str] | None,
    dbus_objects: list[str] | None,
    journal: bool,
    journal_match: list[str] | None,
    journal_directory: Path | None,
    follow: bool,
) -> list[Source]:
    from ridgeline.audit.sources import DBus, Journal

    if (dbus_match or dbus_objects) and not dbus:
        raise InputError(f"--dbus-{'match' if dbus_match else 'objects'} needs a bus; give --dbus too.")
    if (journal_match or journal_directory) and not journal:
        option = "--journal-match" if journal_match else "--journal-directory"
        raise InputError(f"{option} needs the journal; give --journal too.")
    sources: list[Source] = [DBus(where, dbus_match or (), objects=dbus_objects or ()) for where in dbus or ()]
    if journal:
        sources.append(Journal(journal_match or (), directory=journal_directory, follow=follow))
    return sources


def _read_log(path: Path) -> LineReader:
    from ridgeline.audit.sources import make_log_reader

    return make_log_reader("stdin" if str(path) == "-" else str(path.absolute()))


def _make_rules(conditions: list[str], severities: list[str], files: list[Path]) -> list[Rule]:
    from ridgeline.audit.watch import DEFAULT_SEVERITY, make_rule, read_rules

    if severities and not conditions:
        raise InputError("--severity needs a rule; give --rule too (a file of rules has its own severities).")
    if len(severities) > 1 and len(severities) != len(conditions):
        raise InputError(
            f"there are {len(severities)} --severity for {len(conditions)} --rule; give one for all, or one for each."
        )
    levels = severities if len(severities) > 1 else (severities or [DEFAULT_SEVERITY]) * len(conditions)
    rules = [make_rule(condition, level) for condition, level in zip(conditions, levels, strict=True)]
    return rules + [rule for path in files for rule in read_rules(path)]


def _make_http(kind: type[Http], log: Path, address: str, token_file: Path | None) -> Http:
    token, place = find_token(log, token_file, "http-token")
    return kind(address, token, announce=lambda line: print_line(f"{line}; the token is in {place}", stderr()))


def _format_status(now: dict[str, Any]) -> str:
    taken, dropped = (sum(now[name].values()) for name in ("taken", "dropped"))
    lost = f", {dropped:,} dropped" if dropped else ""
    ready = "" if now["ready"] else ", loading the model"
    return (
        f"{taken:,} recorded, {now['scored']:,} scored, {now['backlog']:,} to go, {now['alerts']:,} alerts{lost}{ready}"
    )


def _print_alert_json(alert: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(alert) + "\n")
    sys.stdout.flush()


def _print_alert(alert: dict[str, Any]) -> None:
    event = {"subject": None, "actor": None, "attributes": {}, **alert["event"]}
    place = f"entry {alert['entry']}, " if alert["entry"] is not None else ""
    score = f", score {alert['score']:.3f}" if alert["score"] is not None else ""
    print_line(f"alert: {place}{alert['severity']}{score}: {describe_event(event)}\n  {alert['reason']}")


def _print_summary(done: dict[str, Any], as_json: bool, quiet: bool) -> None:
    if as_json:
        print(json.dumps({"summary": done}))
    elif not quiet:
        taken = sum(done["taken"].values())
        print_line(
            f"{taken:,} events recorded, {done['scored']:,} scored, {done['alerts']:,} alerts "
            f"in {done['seconds']:.1f} s; the log has {done['size']:,} entries.",
            stderr(),
        )
    for what in ("dropped", "refused"):
        for source, count in done[what].items():
            print_note(f"{source}: {count:,} {what}; the log records it too.")
    if done["undelivered"]:
        print_note(f"{done['undelivered']:,} alerts or notices were not accepted by their receiver; the log says why.")
    if done["left"]:
        print_note(f"{done['left']:,} entries are not scored yet; the next start scores them.")


def search(
    log: Log,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to search for, in words.")],
    k: Annotated[int, typer.Option("-k", metavar="N", help="Number of events.")] = 10,
    since: Since = None,
    where: Where = None,
    key: Key = None,
    encoder: Annotated[str, typer.Option(metavar="NAME", help="Encoder model.")] = "all-MiniLM-L6-v2",
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Find events by meaning and words, most relevant first; of a collector's folder, in all its logs.

    [dim]Example:[/]

      ridgeline audit search LOG "someone opened the firewall" --since 24h --where "source == 'dbus'"

    The first column is the relevance, from 0 to 1: how well the meaning and the words of an event fit TEXT. An event
    that says the opposite (failed instead of successful) comes later. The search first builds or updates its index
    from the log; the answer tells up to which entry it is complete.
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.fleet import is_fleet, search_fleet
    from ridgeline.audit.ledger import compile_filter, parse_moment
    from ridgeline.audit.watch import open_meaning

    after, matches = parse_moment(since) if since else None, compile_filter(where) if where is not None else None
    if not text.strip():
        raise InputError("the text to search for is empty; give a few words.")
    if is_fleet(log) and key is None:
        with status("reading the logs") as update:
            fleet_hits = search_fleet(
                log, text, k, model=encoder, device=device, since=after, where=matches, progress=update
            )
        _print_hits([(f.origin, f.hit) for f in fleet_hits], as_json)
        return
    verifier = parse_key(key) if key is not None else None
    with Ledger.open(log, verifier=verifier) as ledger, status("reading the log"):
        meaning = open_meaning(ledger, encoder, device)
        hits = meaning.search(text, k, ledger, since=after, where=matches)
        size, complete = ledger.checkpoint().size, meaning.complete
    _print_hits([(None, hit) for hit in hits], as_json)
    if complete < size:
        print_note(f"the index is complete up to entry {complete:,} of {size:,}.")
    elif not quiet and not as_json:
        print_note(f"all {complete:,} entries were searched.")


def _print_hits(hits: list[tuple[str | None, Hit]], as_json: bool) -> None:
    """Print hits, each with its origin if it is known."""
    if as_json:
        print_json(
            [
                {
                    **({"origin": origin} if origin is not None else {}),
                    **hit.event,
                    "entry": hit.entry,
                    "relevance": hit.relevance,
                    "template": hit.template,
                }
                for origin, hit in hits
            ]
        )
        return
    for origin, hit in hits:
        place = f"{origin}  " if origin is not None else ""
        print_line(f"{hit.relevance:6.3f}  {place}{_format_event(hit.entry, hit.event)}")
    if not hits:
        print_line("nothing matches.")


def alerts(
    log: Log,
    k: Annotated[int | None, typer.Option("-k", metavar="N", help="Only the N worst.")] = None,
    since: Since = None,
    where: Where = None,
    unlabelled: Annotated[bool, typer.Option("--open", help="Only alerts without a label.")] = False,
    incidents: Annotated[
        bool, typer.Option("--incidents", help="Alerts of the same kind as one line, with first, last and count.")
    ] = False,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """List the alerts of the watcher, highest severity and score first, with reason and label.

    Of a collector's folder, list the alerts about its hosts and those of their watchers.
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.fleet import is_fleet, read_alerts_of_fleet
    from ridgeline.audit.ledger import compile_filter, parse_moment
    from ridgeline.audit.watch import read_alerts

    if k is not None and k < 1:
        raise InputError(f"-k is {k}; give 1 or more.")
    after, matches_where = parse_moment(since) if since else None, compile_filter(where) if where is not None else None
    if is_fleet(log) and key is None:
        matches = read_alerts_of_fleet(log, since=after, where=matches_where)
    else:
        with Ledger.open(log, verifier=parse_key(key) if key is not None else None) as ledger:
            matches = read_alerts(ledger, since=after, where=matches_where)
    matches = [alert for alert in matches if not unlabelled or alert["label"] is None]
    if incidents:
        _print_incidents(matches, k, as_json)
        return
    matches = matches[:k]
    if as_json:
        print_json(matches)
        return
    for alert in matches:
        verdict = f"  [{alert['label']['verdict']}, {alert['label']['by']}]" if alert["label"] else ""
        what = _format_event(alert["entry"], alert["event"]) if alert["event"] else f"{alert['entry']:>8}  (pruned)"
        score = f"{alert['score']:6.3f}" if alert["score"] is not None else "      "
        place = f"{alert['origin']}  " if "origin" in alert else ""
        print_line(f"{alert['severity']:8}  {score}  {place}{what}{verdict}\n        {alert['reason']}")
    if not matches:
        print_line("no alerts.")


def _print_incidents(alerts: list[dict[str, Any]], k: int | None, as_json: bool) -> None:
    from ridgeline.audit.ledger import show_moment
    from ridgeline.audit.watch import group_alerts

    groups = group_alerts(alerts)[:k]
    if as_json:
        print_json([group.to_json() for group in groups])
        return
    for group in groups:
        times = f"{show_moment(group.first)[:19]}Z to {show_moment(group.last)[:19]}Z"
        origin = f"{group.origin}  " if group.origin else ""
        what = describe_event({"subject": None, "actor": None, "attributes": {}, **group.event}) if group.event else ""
        print_line(f"{group.severity:8}  {group.count:>6}  {times}  {origin}{what}\n        {group.reason}")
    if not groups:
        print_line("no alerts.")


def label(
    log: Log,
    entry: Annotated[int, typer.Argument(metavar="ENTRY", help="Index of the entry.")],
    verdict: Annotated[str, typer.Argument(metavar="normal|bad", help="The label.")],
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Your name for the log (default: user@host).")] = None,
    why: Annotated[str, typer.Option("--note", metavar="TEXT", help="A comment, like what was done about it.")] = "",
    as_json: Json = False,
) -> None:
    """Label an entry: similar events score lower (normal) or higher (bad) from then on. The log records the label."""
    from ridgeline.audit.ledger import Appender
    from ridgeline.audit.watch import make_label_event

    if verdict not in ("normal", "bad"):
        raise unknown("verdict", verdict, ("normal", "bad"))
    labeller = by or f"{getpass.getuser()}@{socket.gethostname()}"
    with Appender(log) as into:
        into.finish()  # sign, so that the newest entries can be labelled too
        index, _ = into.append([make_label_event(log, entry, verdict, labeller, why)])
        into.finish()
    if as_json:
        print_json({"entry": entry, "verdict": verdict, "by": labeller, "index": index})
    else:
        print_line(f"entry {entry} is {verdict}, says {labeller}; entry {index} records it.")


def _format_event(entry: int, event: dict[str, Any]) -> str:
    from ridgeline.audit.ledger import show_moment

    return f"{entry:>8}  {show_moment(event['time'])[:19]}Z  {describe_event(event)}"


def serve(
    log: Log,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            metavar="auto",
            help="Ask clients for a token: RIDGELINE_AUDIT_TOKEN, else LOG.private/serve-token, which is created.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask for the token in this file. Needed unless on loopback.")
    ] = None,
    key: Key = None,
    encoder: Annotated[str, typer.Option(metavar="NAME", help="Encoder model.")] = "all-MiniLM-L6-v2",
    device: Device = "cpu",
) -> None:
    """Serve a page with new events, anomalies with reasons, search, and proofs that the browser verifies.

    It only reads the log; a watcher may run at the same time. /metrics is for Prometheus, /openapi.json describes the
    API.
    """
    from ridgeline import web
    from ridgeline.audit import Ledger
    from ridgeline.audit.serve import Live, make_service

    if token not in (None, "auto"):
        raise refuse_token(TOKEN)
    with Ledger.open(log, verifier=parse_key(key) if key is not None else None) as ledger:
        secret, place = (None, "")
        if token or token_file or os.environ.get(TOKEN):
            secret, place = find_token(log, token_file, "serve-token")
        note = f"; the token is in {place}, once as /?token=… in a browser" if secret is not None else ""
        app = make_service(Live(ledger, encoder, device), token=secret)
        web.serve(app, host=host, port=port, announce=lambda line: print_line(f"{line}{note}", stderr()))
