"""The common clock: where each stream's stamps lie on it, where the grid runs, and its ticks.

>>> grid(0, 10**9, Fraction(3), whole=True).tolist()
[0, 333333333, 666666667, 1000000000]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.arguments import LONGEST, limit_ns

Array = np.ndarray[Any, Any]

LATEST_S = 9.2e9  # beyond it int64 nanoseconds end
SPANS = ("intersection", "union", "auto")
DENSE = 50  # samples; with fewer, the ragged edges of a stream cost more than 2 % of the log
COVER = 0.5  # of the longest dense stream
MOST_TICKS = 100_000_000  # a day at 1 kHz is 86 million
MOST_PER_SAMPLE = 1_000  # beyond FEW_TICKS: 1 Hz brought to 1 kHz
FEW_TICKS = 1_000_000


@dataclass(frozen=True, eq=False)
class Track:
    """The stamps of a stream on the common clock, in order."""

    name: str
    times: Array
    order: Array | None  # of the samples, where they had to be sorted
    distinct: int

    @property
    def length(self) -> float:
        return float(self.times[-1]) - float(self.times[0])  # damaged stamps may be farther apart than int64 holds


def track(name: str, stamps: Array, shift: float, whole: bool, sort: bool) -> Track:
    times = nanoseconds(f"stream '{name}'", stamps) if whole and stamps.dtype != np.int64 else stamps
    if shift:
        times = _shifted(name, times, shift) if whole else times + shift
    order: Array | None = None
    back = np.flatnonzero(times[1:] < times[:-1]) + 1
    if back.size:
        if not sort:
            raise InputError(
                f"stream '{name}': stamp {back[0]} ({_seconds(times[back[0]]):.6f} s) is earlier than the one "
                f"before it ({_seconds(times[back[0] - 1]):.6f} s); sort=True (--sort) puts them in order."
            )
        order = np.argsort(times, kind="stable")
        times = times[order]
    distinct = int(np.count_nonzero(times[1:] != times[:-1])) + 1 if len(times) else 0
    return Track(name, times, order, distinct)


def nanoseconds(what: str, seconds: Array) -> Array:
    if seconds.size and np.abs(seconds).max() > LATEST_S:
        worst = seconds[np.abs(seconds).argmax()]
        raise InputError(f"{what}: a stamp of {worst:g} s is no time; are those other units? Say unit=.")
    found: Array = np.rint(seconds * 1e9).astype(np.int64)
    return found


def _shifted(name: str, times: Array, shift: float) -> Array:
    by = round(shift * 1e9)
    ends = (int(times.min()) + by, int(times.max()) + by) if times.size else (by, by)
    if max(abs(end) for end in ends) > LONGEST:
        raise InputError(f"stream '{name}': a shift of {shift:g} s leads beyond a clock of nanoseconds; give seconds.")
    return times + np.int64(by) if times.size else times


def spanned(tracks: Iterable[Track], span: str) -> tuple[Any, Any]:
    """First and last stamp of the grid; the rules stand in `align`."""
    unique = list({id(t): t for t in tracks}.values())
    if span == "union":
        return min(t.times[0] for t in unique), max(t.times[-1] for t in unique)
    if span == "auto":
        dense = [t for t in unique if t.distinct >= DENSE] or unique
        longest = max(t.length for t in dense)
        unique = [t for t in dense if t.length >= longest * COVER]
    first = max(unique, key=lambda t: t.times[0])
    last = min(unique, key=lambda t: t.times[-1])
    if first.times[0] > last.times[-1]:
        raise InputError(
            f"streams '{last.name}' ({_shown(last)}) and '{first.name}' ({_shown(first)}) do not overlap; "
            "shift one of them, leave one out, or use span 'union'."
        )
    return first.times[0], last.times[-1]


def grid(start: Any, end: Any, hz: Fraction, whole: bool) -> Array:
    """Ticks of `hz` from `start` to `end`; each is rounded by itself, so nothing drifts, however long."""
    if not whole:
        count = int(np.floor((float(end) - float(start)) * float(hz) * (1 + 1e-12) + 1e-9)) + 1
        ticks: Array = float(start) + np.arange(count, dtype=np.float64) * hz.denominator / hz.numerator
        return np.minimum(ticks, float(end))
    period, rest = divmod(10**9 * hz.denominator, hz.numerator)
    count = int(Fraction(int(end) - int(start)) * hz / 10**9) + 1
    if count > 1 and period > LONGEST:
        raise InputError(f"hz={float(hz):g} has one tick in {period / 1e9:.3g} s; give a rate that a clock can tell.")
    k, period = np.arange(count, dtype=np.int64), min(period, LONGEST)
    if count * rest * 2 < 2**62:
        fine = (k * (rest * 2) + hz.numerator) // (2 * hz.numerator)
    else:  # a rate with many digits over a long log: beyond int64, so in Python's own integers
        fine = np.array([(i * rest * 2 + hz.numerator) // (2 * hz.numerator) for i in range(count)], np.int64)
    found: Array = np.int64(start) + k * np.int64(period) + fine
    return found


def near(track: Track, grid: Array, tolerance: float | None, whole: bool) -> Array:
    """Where the stream has something to say: inside its span, and close enough to a sample."""
    inside: Array = (grid >= track.times[0]) & (grid <= track.times[-1])
    if tolerance is None or not len(grid):
        return inside
    right = np.searchsorted(track.times, grid).clip(1, len(track.times) - 1)
    nearest = np.minimum(np.abs(grid - track.times[right - 1]), np.abs(track.times[right] - grid))
    # Half a nanosecond of slack: seconds in float64 are rarely what they were typed as.
    close: Array = nearest <= (limit_ns(tolerance) if whole else tolerance + 5e-10)
    return inside & close


def check_span(start: Any, end: Any, hz: float, whole: bool, tracks: Iterable[Track]) -> None:
    """Refuse a clock that one damaged stamp has stretched beyond all reason."""
    ticks = (float(end) - float(start)) * hz / (1e9 if whole else 1)
    longest = max(tracks, key=lambda t: t.length)
    if ticks > MOST_TICKS or (ticks > FEW_TICKS and ticks > MOST_PER_SAMPLE * len(longest.times)):
        raise InputError(
            f"that clock has {ticks:.3g} ticks: the stamps of '{longest.name}' reach from {_shown(longest)}; mend or "
            "leave out that stream (`ridgeline streams` shows its gaps)."
        )


def _seconds(stamp: Any) -> float:
    return float(stamp) / 1e9 if isinstance(stamp, np.integer) else float(stamp)


def _shown(track: Track) -> str:
    return f"{_seconds(track.times[0]):.3f} to {_seconds(track.times[-1]):.3f} s"
