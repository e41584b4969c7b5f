"""Resume a job by its id: the call that started it, once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ridgeline.bulk.embed_job import embed
from ridgeline.bulk.index_job import index
from ridgeline.bulk.job import Report
from ridgeline.bulk.recommend_job import recommend
from ridgeline.bulk.registry import get_call
from ridgeline.bulk.resample_job import resample


def resume(job: str, *, report: Report = lambda _: None) -> dict[str, Any]:
    """Resume a job of this user; return what its function returns."""
    kind, call = get_call(job)
    functions: dict[str, Callable[..., dict[str, Any]]] = {
        "embed": embed,
        "index": index,
        "recommend": recommend,
        "resample": resample,
    }
    function = functions[kind]
    sources, out = call.pop("sources"), call.pop("out")
    return function(sources, out, **call, report=report)
