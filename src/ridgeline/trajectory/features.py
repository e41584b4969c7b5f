"""Name what a policy sees and does: cameras, `observation.state` and `action` out of the streams of a recording.

Cameras are sampled on the clock of the numbers, so that a camera that starts late does not cost rows; with a span of
`union` or `intersection` they count like any stream.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.cameras import Camera, pick_pictures
from ridgeline.trajectory.columns import match_names
from ridgeline.trajectory.episodes import Bounds, count_inside
from ridgeline.trajectory.media import Request
from ridgeline.trajectory.stream import Aligned, Array, Stream, align, build_track

IMAGE_KINDS = ("nearest", "previous")
STATE, ACTION = "observation.state", "action"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LATE_S = 1.0  # of rows without a frame at an end of the clock; more is worth a note


@dataclass(frozen=True)
class Mapped:
    """One episode: its numbers on the clock, and the cameras that belong to it."""

    aligned: Aligned
    requests: tuple[Request, ...]
    calibration: Mapping[str, Any] = field(default_factory=dict)  # of its cameras, as JSON


def check_camera_names(cameras: Mapping[str, str]) -> None:
    for name in cameras:
        if not _NAME.fullmatch(name):
            raise InputError(f"--camera: '{name}' is no name of a feature; use letters, digits, _, - and points.")


def choose_cameras(cameras: Sequence[Camera], names: Mapping[str, str], streams: Sequence[Stream]) -> dict[str, Camera]:
    """Return {name: camera} of one episode for {name: topic}."""
    by_topic = {c.name: c for c in cameras}
    out: dict[str, Camera] = {}
    for name, topic in names.items():
        if topic not in by_topic:
            if any(s.name == topic or s.name.startswith(f"{topic}/") for s in streams):
                raise InputError(
                    f"'{topic}' holds no images, so it is no camera; the cameras are {', '.join(by_topic) or 'none'}."
                )
            raise unknown("camera", topic, by_topic)
        camera = by_topic[topic]
        if camera.changes_to is not None:
            raise InputError(
                f"{topic}: the size of its images changes from {camera.width} × {camera.height} to "
                f"{camera.changes_to[0]} × {camera.changes_to[1]}; split the recording there."
            )
        out[name] = camera
    return out


def align_with_cameras(
    streams: Sequence[Stream],
    cameras: Mapping[str, Camera],
    *,
    kinds: Mapping[str, str],
    shifts: Mapping[str, float],
    episode: int,
    options: Mapping[str, Any],
    bounds: Bounds | None = None,
) -> Mapped:
    """Bring the numbers onto one clock, and choose the picture of each camera for each tick.

    `bounds` is the time of an episode that is a part of the recording.
    """
    span = options.get("span", "auto")
    known = [*(s.name for s in streams), *(c.name for c in cameras.values())]
    for word in shifts:
        match_names(known, word)
    number_shifts = {w: v for w, v in shifts.items() if _matches([s.name for s in streams], w)}
    topics = {c.name: c for c in cameras.values()}
    inside = {name: count_inside(c.times, bounds) for name, c in topics.items()}
    clocks = [
        Stream(name, c.times[inside[name]], np.zeros(np.count_nonzero(inside[name]), np.int8), kind="previous")
        for name, c in topics.items()
        if inside[name].any()
    ]
    together = [*streams, *clocks] if span != "auto" or not streams else list(streams)
    if together is not streams and len(together) > len(streams):
        number_shifts = dict(shifts)
    aligned = align(together, **{**options, "shifts": number_shifts})
    columns = {name: values for name, values in aligned.columns.items() if name not in topics}
    aligned = replace(
        aligned,
        columns=columns,
        masks={n: m for n, m in aligned.masks.items() if n in columns},
        labels={n: m for n, m in aligned.labels.items() if n in columns},
        kinds={n: m for n, m in aligned.kinds.items() if n in columns},
    )
    integer_clock = aligned.times.dtype == np.int64
    requests, notes = [], list(aligned.warnings)
    for name, camera in cameras.items():
        kind = next((k for word, k in kinds.items() if word == name or _matches([camera.name], word)), "nearest")
        if kind not in IMAGE_KINDS:
            raise InputError(f"camera '{name}': images have no kind '{kind}'; choose {' or '.join(IMAGE_KINDS)}.")
        shift = next((s for word, s in shifts.items() if word == name or _matches([camera.name], word)), 0.0)
        times = camera.times
        if not integer_clock and times.dtype == np.int64:
            times = times / 1e9
        track = build_track(camera.name, times, shift, integer_clock, bool(options.get("sort")))
        picks = pick_pictures(camera, track, aligned.times, kind=kind, tolerance=options.get("tolerance"))
        visible = inside[camera.name]
        faulty = sum(bool(visible[number]) for number in camera.faults)
        requests.append(Request(name, camera, picks, episode, int(np.count_nonzero(visible)), faulty))
        notes += _note_ends(name, picks.valid, options["hz"])
    return Mapped(replace(aligned, warnings=tuple(notes)), tuple(requests))


def _note_ends(name: str, valid: Array, hz: float) -> list[str]:
    """Return a note about a camera without frames at the start or the end of the clock."""
    real = np.flatnonzero(valid)
    if not real.size:
        return [f"camera {name} has no frame on this clock."]
    first, last = real[0] / hz, (len(valid) - 1 - real[-1]) / hz
    parts = [f"{s:.1f} s at the {end}" for s, end in ((first, "start"), (last, "end")) if s > _LATE_S]
    return (
        [f"camera {name} has no frame for {' and '.join(parts)}; --span intersection leaves that out."] if parts else []
    )


def _matches(names: Sequence[str], word: str) -> bool:
    try:
        return bool(match_names(names, word))
    except InputError:
        return False


def map_numbers(aligned: Aligned, state: Sequence[str], action: Sequence[str], others: Sequence[str]) -> Aligned:
    """Return `observation.state` and `action`, each the columns of its streams side by side.

    Without them all streams stay as they are; with them, only those that a word of `others` matches.
    """
    if not state and not action:
        return aligned
    columns: dict[str, Array] = {}
    masks: dict[str, Array] = {}
    labels: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, str] = {}
    used: set[str] = set()
    for feature, words, option in ((STATE, state, "--state"), (ACTION, action, "--action")):
        names = list(dict.fromkeys(n for w in words for n in match_names(aligned.columns, w, f"stream for {option}")))
        if not names:
            continue
        used.update(names)
        parts = [v if (v := aligned.columns[n]).ndim == 2 else v[:, None] for n in names]
        values = np.concatenate([p.astype(np.float64) for p in parts], axis=1)
        mask = np.logical_and.reduce([aligned.masks[n] for n in names])
        values[~mask & ~np.isnan(values).any(axis=1)] = np.nan  # a masked integer is 0
        columns[feature], masks[feature] = values, mask
        labels[feature] = _shorten([label for n in names for label in aligned.labels[n]])
        kinds[feature] = aligned.kinds.get(names[0], "linear")
    rest = [n for n in aligned.columns if n not in used and any(_matches([n], w) for w in others)]
    for name in rest:
        columns[name], masks[name], labels[name] = aligned.columns[name], aligned.masks[name], aligned.labels[name]
        kinds[name] = aligned.kinds.get(name, "linear")
    return replace(aligned, columns=columns, masks=masks, labels=labels, kinds=kinds)


def _shorten(labels: Sequence[str]) -> tuple[str, ...]:
    """Return labels without their topics, where they stay different.

    >>> _shorten(["/arm/position.a", "/arm/position.b"]), _shorten(["/left/x", "/right/x"])
    (('position.a', 'position.b'), ('/left/x', '/right/x'))
    """
    short = tuple(label.rpartition("/")[2] for label in labels)
    return short if len(set(short)) == len(short) else tuple(labels)


def fill_unknown(aligned: Aligned, fill: str | None) -> Aligned:
    """Replace unknown numbers: `hold` repeats the last known one (the first one before it), else a number."""
    if fill is None or fill == "nan":
        return aligned
    columns = dict(aligned.columns)
    for name, values in columns.items():
        valid = aligned.valid(name)
        if valid.all():
            continue
        wide, known = (a if a.ndim == 2 else a[:, None] for a in (values, valid))
        filled = _hold(wide, known) if fill == "hold" else np.where(known, wide, np.asarray(float(fill), wide.dtype))
        columns[name] = filled.reshape(values.shape)
    masks = {n: np.ones_like(m) if fill != "hold" or m.any() else m for n, m in aligned.masks.items()}
    return replace(aligned, columns=columns, masks=masks)


def parse_fill(text: str | None) -> str | None:
    if text in (None, "nan", "hold"):
        return text
    try:
        number = float(text or "")
    except ValueError:
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"--fill '{text}' is neither nan, hold nor a number.")
    return text


def _hold(values: Array, known: Array) -> Array:
    rows = np.where(known, np.arange(len(values))[:, None], -1)
    last = np.maximum.accumulate(rows, axis=0)
    first = np.where(known.any(axis=0), known.argmax(axis=0), 0)
    return np.take_along_axis(values, np.where(last < 0, first, last), axis=0)


def add_valid(aligned: Aligned, valid: Mapping[str, Array]) -> Aligned:
    """Add a column `FEATURE.valid` for each camera."""
    extra = {f"{feature}.valid": mask for feature, mask in valid.items()}
    return replace(
        aligned,
        columns={**aligned.columns, **extra},
        masks={**aligned.masks, **{n: np.ones(len(m), bool) for n, m in extra.items()}},
        labels={**aligned.labels, **{n: (n,) for n in extra}},
        kinds={**aligned.kinds, **dict.fromkeys(extra, "nearest")},
    )
