"""Events that cannot be rewritten: a ledger on plain files, a watcher that scores them, reports that prove them.

    from ridgeline.audit import Ledger
    with Ledger.create("log", origin="example.test/log") as ledger:
        ledger.append([{"source": "dbus", "action": "network.ovs.bridge.create", "subject": "br0"}])

    ledger/      the append-only Merkle log: write, prove, verify, witness, export, prune
    sources/     where events come from: D-Bus, the systemd journal, files, standard input, HTTP
    watch/       sources → ledger → scores and alerts
    anomaly/     how unusual an event is, and why
    compliance/  reports that anyone can check without the log
    serve/       a web page and a REST API for one log
    fleet/       the logs of many hosts: collect, forward, witness over HTTP

docs/audit.md says which attacks the ledger withstands and which it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.ledger.checkpoint import Checkpoint as Checkpoint
    from ridgeline.audit.ledger.checkpoint import Signer as Signer
    from ridgeline.audit.ledger.checkpoint import Verifier as Verifier
    from ridgeline.audit.ledger.checkpoint import new_signer as new_signer
    from ridgeline.audit.ledger.checkpoint import parse_verifier as parse_verifier
    from ridgeline.audit.ledger.ledger import Ledger as Ledger
    from ridgeline.audit.ledger.ledger import Receipt as Receipt
    from ridgeline.audit.ledger.ledger import Receipts as Receipts

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ledger.checkpoint": ["Checkpoint", "Signer", "Verifier", "new_signer", "parse_verifier"],
        "ledger.ledger": ["Ledger", "Receipt", "Receipts"],
    },
)
