"""Many logs: collectors and forwarders, witnesses over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.fleet.address import parse_address as parse_address
    from ridgeline.audit.fleet.collector import Collector as Collector
    from ridgeline.audit.fleet.collector import collect as collect
    from ridgeline.audit.fleet.copies import is_fleet as is_fleet
    from ridgeline.audit.fleet.forwarder import Forwarder as Forwarder
    from ridgeline.audit.fleet.queries import diagnose_copies as diagnose_copies
    from ridgeline.audit.fleet.queries import examine_fleet as examine_fleet
    from ridgeline.audit.fleet.queries import list_copies as list_copies
    from ridgeline.audit.fleet.queries import read_alerts_of_fleet as read_alerts_of_fleet
    from ridgeline.audit.fleet.queries import search_fleet as search_fleet
    from ridgeline.audit.fleet.retention import prune_copies as prune_copies
    from ridgeline.audit.fleet.witness_http import ask_witness as ask_witness
    from ridgeline.audit.fleet.witness_http import make_witness_app as make_witness_app
    from ridgeline.audit.fleet.witness_http import read_trusted as read_trusted

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "address": ["parse_address"],
        "collector": ["Collector", "collect"],
        "copies": ["is_fleet"],
        "forwarder": ["Forwarder"],
        "queries": ["diagnose_copies", "examine_fleet", "list_copies", "read_alerts_of_fleet", "search_fleet"],
        "retention": ["prune_copies"],
        "witness_http": ["ask_witness", "make_witness_app", "read_trusted"],
    },
)
