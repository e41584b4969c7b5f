"""Records: the raw measurements of a race, one JSON object per case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.record.code import describe_code as describe_code
    from ridgeline.lab.record.code import find_own_checkout as find_own_checkout
    from ridgeline.lab.record.code import find_toplevel as find_toplevel
    from ridgeline.lab.record.code import find_user_repository as find_user_repository
    from ridgeline.lab.record.foreign import import_results as import_results
    from ridgeline.lab.record.foreign import merge_records as merge_records
    from ridgeline.lab.record.record import RECORDS_FILE as RECORDS_FILE
    from ridgeline.lab.record.record import ContenderResult as ContenderResult
    from ridgeline.lab.record.record import Record as Record
    from ridgeline.lab.record.record import RecordFile as RecordFile
    from ridgeline.lab.record.record import RecordFolder as RecordFolder
    from ridgeline.lab.record.record import append_record as append_record
    from ridgeline.lab.record.record import compute_key as compute_key
    from ridgeline.lab.record.record import gather_all_records as gather_all_records
    from ridgeline.lab.record.record import gather_records as gather_records
    from ridgeline.lab.record.record import read_records as read_records
    from ridgeline.lab.record.record import record_to_json as record_to_json
    from ridgeline.lab.record.schema import NO_CONTENDER_LEFT as NO_CONTENDER_LEFT
    from ridgeline.lab.record.schema import SCHEMA as SCHEMA
    from ridgeline.lab.record.schema import upgrade as upgrade

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "code": ["describe_code", "find_own_checkout", "find_toplevel", "find_user_repository"],
        "foreign": ["import_results", "merge_records"],
        "record": [
            "ContenderResult",
            "RECORDS_FILE",
            "Record",
            "RecordFile",
            "RecordFolder",
            "append_record",
            "compute_key",
            "gather_all_records",
            "gather_records",
            "read_records",
            "record_to_json",
        ],
        "schema": ["NO_CONTENDER_LEFT", "SCHEMA", "upgrade"],
    },
)
