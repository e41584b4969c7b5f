"""Cameras of a recording: their index, their statistics, and which picture belongs to which tick of a clock.

A `Camera` knows the stamps of all its pictures and how to read them again, but holds no pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.arguments import to_limit_ns
from ridgeline.trajectory.pictures import VIDEO_CODECS, Picture
from ridgeline.trajectory.stream import GAP, Array, StreamStats, Track

# Reads the pictures of some cameras again, in the order of the recording: (topic, number of the picture, picture).
Take = Callable[[Collection[str]], Iterator[tuple[str, int, Picture]]]


def _take_nothing(_: Collection[str]) -> Iterator[tuple[str, int, Picture]]:
    return iter(())


_MISSING = 1.5  # periods between two pictures with none missing between them, at most


@dataclass(frozen=True, eq=False)
class Camera:
    """The index of one camera: stamps [S] and what the headers of its pictures say."""

    name: str
    times: Array  # int64 nanoseconds or float64 seconds
    codec: str
    width: int
    height: int
    depth: bool = False
    faults: Mapping[int, str] = field(default_factory=dict)  # number of a picture that cannot be decoded -> why
    keys: Array = field(default_factory=lambda: np.ones(0, bool))  # [S] key frames
    starts: Array = field(default_factory=lambda: np.ones(0, bool))  # [S] key frames with parameter sets
    breaks: Array = field(default_factory=lambda: np.zeros(0, bool))  # [S] packets before which one is missing
    filled: Array = field(default_factory=lambda: np.zeros(0, bool))  # [S] repeats a picture where there was none
    fresh: Array = field(default_factory=lambda: np.zeros(0, bool))  # [S] packets that need none before, as key frames
    moved: int = 0  # packets that were recorded in another order than they were sent
    repeated: int = 0  # packets that were recorded once more, and are left out
    bytes: int = 0
    changes_to: tuple[int, int] | None = None  # a second size of its pictures
    episode: str = ""
    take: Take = _take_nothing
    decoded: bool = False  # `take` gives decoded frames, not packets of the codec
    key: str = ""  # the name by which `take` knows it; "" if that is `name`

    @property
    def source(self) -> str:
        return self.key or self.name

    @property
    def is_video(self) -> bool:
        return self.codec in VIDEO_CODECS and not self.decoded

    def __len__(self) -> int:
        return len(self.times)


def describe_camera(camera: Camera) -> StreamStats:
    """Measure the rate, jitter, gaps and lost pictures of a camera."""
    scale = 1e-9 if camera.times.dtype == np.int64 else 1.0
    times = camera.times
    raw = np.diff(times)
    steps = np.diff(np.unique(times)).astype(np.float64) * scale
    median = float(np.median(steps)) if steps.size else None
    low, high = np.quantile(steps, [0.05, 0.95]) if steps.size else (0.0, 0.0)
    gaps = steps[steps > GAP * median] if median else steps[:0]
    drops = int(np.maximum(np.rint(steps / median) - 1, 0).sum()) if median else 0
    return StreamStats(
        name=camera.name,
        columns=1,
        samples=len(times),
        dtype="image",
        kind="nearest",
        start_s=float(times.min()) * scale if len(times) else 0.0,
        end_s=float(times.max()) * scale if len(times) else 0.0,
        rate_hz=1 / median if median else None,
        jitter_s=float(high - low) / 2 if median else None,
        gaps=int(gaps.size),
        longest_gap_s=float(gaps.max()) if gaps.size else 0.0,
        duplicates=int(np.count_nonzero(raw == 0)),
        backward=int(np.count_nonzero(raw < 0)),
        episode=camera.episode,
        type="image",
        codec=camera.codec,
        width=camera.width or None,
        height=camera.height or None,
        drops=drops,
        faults=len(camera.faults),
    )


@dataclass(frozen=True, eq=False)
class Picks:
    """The picture of each tick [T]: its number in the recording, and whether it belongs to that moment."""

    numbers: Array  # int64 [T]
    valid: Array  # bool [T]


def pick_pictures(
    camera: Camera,
    track: Track,
    ticks: Array,
    *,
    kind: str = "nearest",
    tolerance: float | None = None,
) -> Picks:
    """Choose a picture for each tick: the nearest one, or the one before it (`previous`).

    In a gap (no picture within one period of the camera) the last picture before it is held. A pick is valid if the
    picture lies within half a period (`previous`: a whole one), or no picture is missing between those before and after
    the tick, which jitter puts farther apart; and within `tolerance` seconds.
    """
    order = np.arange(len(camera)) if track.order is None else track.order
    sound = np.array([number not in camera.faults for number in order.tolist()], bool)
    real = sound & ~camera.filled[order] if len(camera.filled) else sound
    is_empty = bool(sound.any()) and not real.any()
    sound = sound if is_empty else real
    times, order = track.times[sound], order[sound]
    if not len(times):
        reason = next(iter(camera.faults.values()), "it has no pictures")
        raise InputError(f"{camera.name}: no picture can be decoded ({reason}); leave this camera out.")
    steps = np.diff(track.times)
    steps = steps[steps > 0]
    period = float(np.median(steps)) if steps.size else 0.0
    after = np.searchsorted(times, ticks, "right").clip(0, len(times))
    before = (after - 1).clip(0)
    after = after.clip(0, len(times) - 1)
    is_between = (before != after) & (ticks >= times[before]) & (times[after] - times[before] <= _MISSING * period)
    behind = np.abs(ticks - times[before])
    ahead = np.abs(times[after] - ticks)
    nearest = np.where((ahead < behind) & (ahead <= period), after, before)
    chosen = nearest if kind == "nearest" else before
    distance = np.abs(ticks - times[chosen])
    valid = is_between | (distance <= (period / 2 if kind == "nearest" else period))
    if kind == "previous":
        valid &= times[chosen] <= ticks
    if tolerance is not None:
        valid &= distance <= (to_limit_ns(tolerance) if ticks.dtype.kind == "i" else tolerance)
    return Picks(order[chosen].astype(np.int64), valid & (not is_empty))


def describe_faults(counts: Mapping[str, int], totals: Mapping[str, int], reasons: Mapping[str, str]) -> list[str]:
    """Return a sentence for each camera that lost pictures."""
    return [
        f"{name}: {count} of {totals[name]} frames cannot be decoded ({reasons[name]})."
        for name, count in counts.items()
        if count
    ]
