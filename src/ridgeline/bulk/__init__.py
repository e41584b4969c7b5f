"""Jobs over datasets larger than a machine: chunks, exactly once, resumable, on this machine or a Ray cluster.

import ridgeline.bulk

ridgeline.bulk.embed("s3://bucket/titles", "s3://bucket/vectors", column="title", key="id")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.bulk.embed_job import CHUNK_ROWS as CHUNK_ROWS
    from ridgeline.bulk.embed_job import DEFAULT_MODEL as DEFAULT_MODEL
    from ridgeline.bulk.embed_job import embed as embed
    from ridgeline.bulk.index_job import index as index
    from ridgeline.bulk.job import ENGINES as ENGINES
    from ridgeline.bulk.progress import Progress as Progress
    from ridgeline.bulk.progress import describe_progress as describe_progress
    from ridgeline.bulk.progress import describe_run as describe_run
    from ridgeline.bulk.recommend_job import recommend as recommend
    from ridgeline.bulk.registry import Job as Job
    from ridgeline.bulk.registry import clean as clean
    from ridgeline.bulk.registry import list_jobs as list_jobs
    from ridgeline.bulk.registry import show_job as show_job
    from ridgeline.bulk.resample_job import resample as resample
    from ridgeline.bulk.resumption import resume as resume
    from ridgeline.bulk.row_job import FORMATS as FORMATS

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "embed_job": ["CHUNK_ROWS", "DEFAULT_MODEL", "embed"],
        "index_job": ["index"],
        "job": ["ENGINES"],
        "progress": ["Progress", "describe_progress", "describe_run"],
        "recommend_job": ["recommend"],
        "registry": ["Job", "clean", "list_jobs", "show_job"],
        "resample_job": ["resample"],
        "resumption": ["resume"],
        "row_job": ["FORMATS"],
    },
)
