"""`ridgeline audit`: a ledger of events that cannot be rewritten, and a watcher that scores them.

audit_ledger.py    init, append, info, export, prune
audit_proof.py     verify, prove, check-proof
audit_fleet.py     witness, collect, forward
audit_keep.py      backup, restore, tier, doctor
audit_subject.py   subject export, subject forget
audit_watch.py     watch, search, alerts, label, serve
audit_report.py    report, check-report
audit_measure.py   capacity, evaluate
audit_options.py   the arguments that several of them share
"""

from __future__ import annotations

from collections.abc import Callable

import typer

from ridgeline.cli.audit_fleet import collect, forward, witness
from ridgeline.cli.audit_keep import backup, doctor, restore, tier
from ridgeline.cli.audit_ledger import append, export, info, init, prune
from ridgeline.cli.audit_measure import capacity, evaluate
from ridgeline.cli.audit_proof import check_proof, prove, verify
from ridgeline.cli.audit_report import check_report, report
from ridgeline.cli.audit_subject import subject
from ridgeline.cli.audit_watch import alerts, label, search, serve, watch

audit = typer.Typer(no_args_is_help=True, help="Events that cannot be rewritten: a ledger on plain files.")

_COMMANDS: dict[str, Callable[..., None]] = {
    "init": init,
    "append": append,
    "info": info,
    "verify": verify,
    "prove": prove,
    "check-proof": check_proof,
    "witness": witness,
    "forward": forward,
    "collect": collect,
    "export": export,
    "prune": prune,
    "backup": backup,
    "restore": restore,
    "tier": tier,
    "doctor": doctor,
    "watch": watch,
    "search": search,
    "alerts": alerts,
    "label": label,
    "serve": serve,
    "report": report,
    "check-report": check_report,
    "capacity": capacity,
    "evaluate": evaluate,
}
for _name, _command in _COMMANDS.items():
    audit.command(_name)(_command)
audit.add_typer(subject, name="subject")
