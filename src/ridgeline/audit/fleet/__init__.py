"""Many logs: witnesses over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.fleet.address import parse_address as parse_address
    from ridgeline.audit.fleet.witness_http import ask_witness as ask_witness
    from ridgeline.audit.fleet.witness_http import make_witness_app as make_witness_app
    from ridgeline.audit.fleet.witness_http import read_trusted as read_trusted

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "address": ["parse_address"],
        "witness_http": ["ask_witness", "make_witness_app", "read_trusted"],
    },
)
