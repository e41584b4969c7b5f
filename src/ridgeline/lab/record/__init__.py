"""Records: what a race measured, raw, one JSON object per case."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.record.folders import gather as gather
    from ridgeline.lab.record.folders import gather_all as gather_all
    from ridgeline.lab.record.record import FILE as FILE
    from ridgeline.lab.record.record import Record as Record
    from ridgeline.lab.record.record import Records as Records

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "folders": ["gather", "gather_all"],
        "record": ["FILE", "Record", "Records"],
    },
)
