"""What a stream is like before anything is done to it: rate, jitter, gaps, duplicates.

>>> import numpy as np
>>> survey(Stream("x", np.array([0, 10, 20, 20, 90]) * 1_000_000, np.zeros(5))).gaps
1
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.trajectory.stream import Stream

GAP = 3.0  # times the median step


@dataclass(frozen=True)
class Survey:
    """All times in seconds."""

    name: str
    columns: int
    samples: int
    dtype: str
    kind: str
    start_s: float
    end_s: float
    rate_hz: float | None  # of the median step; None with fewer than two different stamps
    jitter_s: float | None  # half of what the middle 90 % of the steps differ by
    gaps: int  # steps longer than three median steps
    longest_gap_s: float
    duplicates: int
    backward: int  # stamps earlier than the one before
    episode: str = ""


def survey(stream: Stream) -> Survey:
    scale = 1e-9 if stream.times.dtype == np.int64 else 1.0
    times = stream.times
    raw = np.diff(times)
    steps = np.diff(np.unique(times)).astype(np.float64) * scale
    median = float(np.median(steps)) if steps.size else None
    low, high = np.quantile(steps, [0.05, 0.95]) if steps.size else (0.0, 0.0)
    gaps = steps[steps > GAP * median] if median else steps[:0]
    return Survey(
        name=stream.name,
        columns=len(stream.columns),
        samples=len(times),
        dtype=stream.values.dtype.name,
        kind=stream.how,
        start_s=float(times.min()) * scale if len(times) else 0.0,
        end_s=float(times.max()) * scale if len(times) else 0.0,
        rate_hz=1 / median if median else None,
        jitter_s=float(high - low) / 2 if median else None,
        gaps=int(gaps.size),
        longest_gap_s=float(gaps.max()) if gaps.size else 0.0,
        duplicates=int(np.count_nonzero(raw == 0)),
        backward=int(np.count_nonzero(raw < 0)),
        episode=stream.episode,
    )
