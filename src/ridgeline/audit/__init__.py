"""Events that cannot be rewritten: a ledger on plain files that any tlog client can verify.

    from ridgeline.audit import Ledger
    with Ledger.create("log", origin="example.test/log") as ledger:
        ledger.append([{"source": "dbus", "action": "network.ovs.bridge.create", "subject": "br0"}])

docs/audit.md says what it holds against and what it does not.
"""

from __future__ import annotations

from ridgeline.audit.checkpoint import Checkpoint
from ridgeline.audit.ledger import Ledger
from ridgeline.audit.note import Signer, Verifier, new_signer, parse_verifier
from ridgeline.audit.receipts import Receipt, Receipts

__all__ = ["Checkpoint", "Ledger", "Receipt", "Receipts", "Signer", "Verifier", "new_signer", "parse_verifier"]
