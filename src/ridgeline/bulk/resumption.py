"""Resume a job by its id: the call that started it, once more."""

from __future__ import annotations

from typing import Any

from ridgeline.bulk.embed_job import embed
from ridgeline.bulk.job import Report
from ridgeline.bulk.registry import get_call


def resume(job: str, *, report: Report = lambda _: None) -> dict[str, Any]:
    """Resume a job of this user; return what its function returns."""
    kind, call = get_call(job)
    function = {"embed": embed}[kind]
    sources, out = call.pop("sources"), call.pop("out")
    return function(sources, out, **call, report=report)
