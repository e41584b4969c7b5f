"""`ridgeline audit report | check-report`: a span of a log for those who audit it, and its check without the log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.audit_words import Key, Log, verifier_of
from ridgeline.cli.speak import Json, Quiet, note, print_json, status, stderr, tell
from ridgeline.errors import Exit


def register(app: typer.Typer) -> None:
    app.command("report")(report)
    app.command("check-report")(check_report)


def report(
    log: Log,
    start: Annotated[str | None, typer.Option("--from", metavar="TIME", help="30d, 2026-11-01, ns.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Up to here, not included.")] = None,
    control_map: Annotated[
        str | None, typer.Option(metavar="MAP", help="Sort events by controls: soc2 or pci.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="A folder to write.")] = Path("audit-report"),
    key: Key = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write report.html, .csv and .json: changes, anomalies and what was done, completeness; every row proved.

    [dim]Example:[/]

      ridgeline audit report LOG --from 2026-10-01 --to 2026-11-01 --control-map soc2 -o october
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.compliance import checked_map, collect, tables, write
    from ridgeline.audit.ledger import parse_moment

    name = checked_map(control_map) if control_map else None
    begin, until = parse_moment(start) if start else None, parse_moment(end) if end else None
    with Ledger.open(log, verifier=verifier_of(key) if key is not None else None) as ledger, status("reading the log"):
        found = collect(ledger, begin, until, name)
        write(found, out)
    told = tables(found)
    if as_json:
        print_json({"out": str(out), "first": found["first"], "last": found["last"], **told})
    elif not quiet:
        tell(f"{told['events']:,} events, {told['alerts']:,} anomalies, {told['alerts_open']:,} open → {out}", stderr())
    if found["pruned_before"]:
        note(f"entries before {found['pruned_before']:,} were pruned and cannot be in it.")


def check_report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `audit report` wrote.")],
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Check a report without the log; exit 1, and what is wrong, if it is not what was signed."""
    from ridgeline.audit.compliance import check_report as check
    from ridgeline.audit.compliance import read_report

    verifier = verifier_of(key if key is not None else str(read_report(folder)["key"]))
    found, findings = check(folder, verifier)
    if as_json:
        told = [{"kind": f.kind, "finding": f.sentence} for f in findings]
        print_json({"ok": not findings, "origin": found["origin"], "rows": len(found["rows"]), "findings": told})
    else:
        for finding in findings:
            tell(f"{finding.kind}: {finding.sentence}")
        if not findings:
            tell(f"{folder} holds: {len(found['rows']):,} entries of {found['origin']}, each proved; {_whole(found)}")
    if key is None:
        note("the key is the report's own word; give the one its owner published with --key.")
    if findings:
        raise typer.Exit(Exit.FINDINGS)


def _whole(report: dict[str, Any]) -> str:
    """What is shown to be complete, and what is not."""
    later = sum(row["index"] > report["last"] for row in report["rows"])
    after = f" {later:,} later ones speak of them; that there are no more only the log can show." if later else ""
    return f"none of {report['first']:,} to {report['last']:,} is left out.{after}"
