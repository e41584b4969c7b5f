"""The ledger: an append-only Merkle log of events on plain files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.ledger.appender import Appender as Appender
    from ridgeline.audit.ledger.backup import Backup as Backup
    from ridgeline.audit.ledger.backup import back_up as back_up
    from ridgeline.audit.ledger.backup import restore as restore
    from ridgeline.audit.ledger.checkpoint import Checkpoint as Checkpoint
    from ridgeline.audit.ledger.checkpoint import Signer as Signer
    from ridgeline.audit.ledger.checkpoint import Verifier as Verifier
    from ridgeline.audit.ledger.checkpoint import new_signer as new_signer
    from ridgeline.audit.ledger.checkpoint import parse_checkpoint as parse_checkpoint
    from ridgeline.audit.ledger.checkpoint import parse_verifier as parse_verifier
    from ridgeline.audit.ledger.checkpoint import read_checkpoint as read_checkpoint
    from ridgeline.audit.ledger.erasure import KeyUse as KeyUse
    from ridgeline.audit.ledger.erasure import PersonalExport as PersonalExport
    from ridgeline.audit.ledger.erasure import count_key_use as count_key_use
    from ridgeline.audit.ledger.erasure import export_person as export_person
    from ridgeline.audit.ledger.erasure import finish_forgetting as finish_forgetting
    from ridgeline.audit.ledger.erasure import forget_person as forget_person
    from ridgeline.audit.ledger.erasure import set_policy as set_policy
    from ridgeline.audit.ledger.event import FIELDS as FIELDS
    from ridgeline.audit.ledger.event import compile_filter as compile_filter
    from ridgeline.audit.ledger.event import decode as decode
    from ridgeline.audit.ledger.event import encode as encode
    from ridgeline.audit.ledger.event import parse_line as parse_line
    from ridgeline.audit.ledger.export import Selection as Selection
    from ridgeline.audit.ledger.export import write_csv as write_csv
    from ridgeline.audit.ledger.export import write_json as write_json
    from ridgeline.audit.ledger.export import write_jsonl as write_jsonl
    from ridgeline.audit.ledger.export import write_parquet as write_parquet
    from ridgeline.audit.ledger.layout import LedgerPaths as LedgerPaths
    from ridgeline.audit.ledger.layout import find_ledger as find_ledger
    from ridgeline.audit.ledger.layout import read_settings as read_settings
    from ridgeline.audit.ledger.layout import write_key as write_key
    from ridgeline.audit.ledger.ledger import Ledger as Ledger
    from ridgeline.audit.ledger.ledger import Receipt as Receipt
    from ridgeline.audit.ledger.ledger import Receipts as Receipts
    from ridgeline.audit.ledger.merkle import root_from_inclusion as root_from_inclusion
    from ridgeline.audit.ledger.moment import parse_moment as parse_moment
    from ridgeline.audit.ledger.moment import show_moment as show_moment
    from ridgeline.audit.ledger.personal import KINDS as KINDS
    from ridgeline.audit.ledger.personal import Personal as Personal
    from ridgeline.audit.ledger.personal import Policy as Policy
    from ridgeline.audit.ledger.personal import read_policy as read_policy
    from ridgeline.audit.ledger.personal import shorten_tokens as shorten_tokens
    from ridgeline.audit.ledger.persons import PersonKeys as PersonKeys
    from ridgeline.audit.ledger.proof import check_proof as check_proof
    from ridgeline.audit.ledger.proof import parse_leaf_hash as parse_leaf_hash
    from ridgeline.audit.ledger.proof import prove as prove
    from ridgeline.audit.ledger.retention import read_history as read_history
    from ridgeline.audit.ledger.tiers import move_payloads as move_payloads
    from ridgeline.audit.ledger.verify import Report as Report
    from ridgeline.audit.ledger.verify import examine as examine
    from ridgeline.audit.ledger.witness import NotCosigned as NotCosigned
    from ridgeline.audit.ledger.witness import Witness as Witness

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "appender": ["Appender"],
        "backup": ["Backup", "back_up", "restore"],
        "checkpoint": [
            "Checkpoint",
            "Signer",
            "Verifier",
            "new_signer",
            "parse_checkpoint",
            "parse_verifier",
            "read_checkpoint",
        ],
        "erasure": [
            "KeyUse",
            "PersonalExport",
            "count_key_use",
            "export_person",
            "finish_forgetting",
            "forget_person",
            "set_policy",
        ],
        "event": ["FIELDS", "compile_filter", "decode", "encode", "parse_line"],
        "export": ["Selection", "write_csv", "write_json", "write_jsonl", "write_parquet"],
        "layout": ["LedgerPaths", "find_ledger", "read_settings", "write_key"],
        "ledger": ["Ledger", "Receipt", "Receipts"],
        "merkle": ["root_from_inclusion"],
        "moment": ["parse_moment", "show_moment"],
        "personal": ["KINDS", "Personal", "Policy", "read_policy", "shorten_tokens"],
        "persons": ["PersonKeys"],
        "proof": ["check_proof", "parse_leaf_hash", "prove"],
        "retention": ["read_history"],
        "tiers": ["move_payloads"],
        "verify": ["Report", "examine"],
        "witness": ["NotCosigned", "Witness"],
    },
)
