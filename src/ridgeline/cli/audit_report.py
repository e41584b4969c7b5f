"""`ridgeline audit report | check-report`: a report on a span of a log for auditors, and its check without the log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.audit_options import Key, Log, parse_key
from ridgeline.cli.output import Json, Quiet, print_json, print_line, print_note, status, stderr
from ridgeline.errors import Exit


def report(
    log: Log,
    start: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="First time: 30d ago as 30d, 2026-11-01, or ns.")
    ] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the time, not included.")] = None,
    control_map: Annotated[
        str | None, typer.Option(metavar="MAP", help="Sort events by controls: soc2 or pci.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="Folder to write.")] = Path("audit-report"),
    key: Key = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write report.html, .csv and .json: events, anomalies with labels, completeness; every row has a proof.

    [dim]Example:[/]

      ridgeline audit report LOG --from 2026-10-01 --to 2026-11-01 --control-map soc2 -o october
    """
    from ridgeline.audit import Ledger
    from ridgeline.audit.compliance import check_map, collect, derive_tables, write
    from ridgeline.audit.ledger import parse_moment

    name = check_map(control_map) if control_map else None
    begin, until = parse_moment(start) if start else None, parse_moment(end) if end else None
    with Ledger.open(log, verifier=parse_key(key) if key is not None else None) as ledger, status("reading the log"):
        data = collect(ledger, begin, until, name)
        write(data, out)
    summary = derive_tables(data)
    if as_json:
        print_json({"out": str(out), "first": data["first"], "last": data["last"], **summary})
    elif not quiet:
        print_line(
            f"{summary['events']:,} events, {summary['alerts']:,} anomalies, {summary['alerts_open']:,} open → {out}",
            stderr(),
        )
    if data["pruned_before"]:
        print_note(f"entries before {data['pruned_before']:,} were pruned and cannot be in it.")


def check_report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder that `audit report` wrote.")],
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Check a report without the log; exit 1 and list the faults if it is not what was signed."""
    from ridgeline.audit.compliance import check_report as check
    from ridgeline.audit.compliance import read_report

    verifier = parse_key(key if key is not None else str(read_report(folder)["key"]))
    data, findings = check(folder, verifier)
    if as_json:
        rows = [{"kind": f.kind, "finding": f.sentence} for f in findings]
        print_json({"ok": not findings, "origin": data["origin"], "rows": len(data["rows"]), "findings": rows})
    else:
        for finding in findings:
            print_line(f"{finding.kind}: {finding.sentence}")
        if not findings:
            print_line(
                f"{folder} holds: {len(data['rows']):,} entries of {data['origin']}, each proved; "
                f"{_describe_completeness(data)}"
            )
    if key is None:
        print_note("the key comes from the report itself; give the published key with --key.")
    if findings:
        raise typer.Exit(Exit.FINDINGS)


def _describe_completeness(report: dict[str, Any]) -> str:
    """Tell which part of a report is proved to be complete."""
    later = sum(row["index"] > report["last"] for row in report["rows"])
    after = f" {later:,} later entries refer to them; only the log can show that there are no more." if later else ""
    return f"it has every entry from {report['first']:,} to {report['last']:,}.{after}"
