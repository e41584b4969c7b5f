"""Events that cannot be rewritten: a ledger on plain files that any tlog client can verify.

    from ridgeline.audit import Ledger
    with Ledger.create("log", origin="example.test/log") as ledger:
        ledger.append([{"source": "dbus", "action": "network.ovs.bridge.create", "subject": "br0"}])

docs/audit.md says what it holds against and what it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.ledger.checkpoint import Checkpoint as Checkpoint
    from ridgeline.audit.ledger.ledger import Ledger as Ledger
    from ridgeline.audit.ledger.note import (
        Signer as Signer,
    )
    from ridgeline.audit.ledger.note import (
        Verifier as Verifier,
    )
    from ridgeline.audit.ledger.note import (
        new_signer as new_signer,
    )
    from ridgeline.audit.ledger.note import (
        parse_verifier as parse_verifier,
    )
    from ridgeline.audit.ledger.receipts import Receipt as Receipt
    from ridgeline.audit.ledger.receipts import Receipts as Receipts

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ledger.checkpoint": ["Checkpoint"],
        "ledger.ledger": ["Ledger"],
        "ledger.note": ["Signer", "Verifier", "new_signer", "parse_verifier"],
        "ledger.receipts": ["Receipt", "Receipts"],
    },
)
