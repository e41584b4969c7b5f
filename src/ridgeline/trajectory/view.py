"""One page for a recording: its cameras beside its curves, on one time axis, with gaps and masks.

The page is one file. It holds some pictures of each camera, as small JPEG images, and curves that are thinned to the
lowest and highest value of each part.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import unknown
from ridgeline.trajectory import readers
from ridgeline.trajectory.cameras import Camera
from ridgeline.trajectory.media import PictureDecoder
from ridgeline.trajectory.pictures import VIDEO_CODECS, check_codec, import_av
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.stream import GAP, Array, Stream
from ridgeline.trajectory.videos import find_matrix, find_range
from ridgeline.web import build_page, read_asset, render_template

PICTURES = 60  # of each camera
WIDTH = 240  # pixels of a picture
CURVES = 60  # charts on the page
_COLUMNS = 7  # curves in a chart, as many as there are hues
_PARTS = 500  # of a curve
_X, _Y = 1000, 100  # size of a chart in its own units


@dataclass(frozen=True)
class Chart:
    """One stream as lines in a box of _X × _Y."""

    name: str
    labels: tuple[str, ...]
    paths: tuple[str, ...]
    gaps: tuple[tuple[float, float], ...]  # (x, width)
    low: float
    high: float
    more: int = 0  # columns that are not drawn


@dataclass(frozen=True)
class Strip:
    """One camera: pictures with their times, and where it has no real frames."""

    name: str
    caption: str
    times: tuple[float, ...]  # seconds from the start
    pictures: tuple[str, ...]  # data: URLs
    gaps: tuple[tuple[float, float], ...]
    faults: tuple[float, ...] = ()  # x


@dataclass(frozen=True)
class View:
    """What the page shows."""

    name: str
    seconds: float
    strips: tuple[Strip, ...]
    charts: tuple[Chart, ...]
    episode: str = ""
    episodes: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def build_view(
    path: str | Path,
    *,
    topics: Sequence[str] | None = None,
    options: ReadOptions | None = None,
    episode: str | None = None,
    pictures: int = PICTURES,
    width: int = WIDTH,
) -> str:
    """Return the page of a recording or dataset as HTML; `episode` chooses one of several (default: the first)."""
    view = read_view(Path(path), topics, options, episode, pictures, width)
    body = render_template("view.html", templates="ridgeline.trajectory", view=view, width=_X, height=_Y)
    data = {
        "seconds": view.seconds,
        "cameras": [{"times": s.times, "pictures": s.pictures} for s in view.strips],
        "width": _X,
    }
    package = "ridgeline.trajectory"
    return build_page(
        view.name,
        body,
        data=data,
        styles=[read_asset("view.css", package)],
        scripts=[read_asset("view.js", package)],
    )


def read_view(
    path: Path,
    topics: Sequence[str] | None,
    options: ReadOptions | None,
    episode: str | None,
    pictures: int,
    width: int,
) -> View:
    streams, cameras = readers.read_recording(path, topics, options)
    episodes = list(dict.fromkeys([*(s.episode for s in streams), *(c.episode for c in cameras)]))
    if episode is not None and episode not in episodes:
        raise unknown(f"episode in '{path}'", episode, episodes)
    chosen = episodes[0] if episode is None else episode
    streams = [s for s in streams if s.episode == chosen and len(s)]
    cameras = [c for c in cameras if c.episode == chosen and len(c)]
    clocks = [_seconds(t) for t in (*(s.times for s in streams), *(c.times for c in cameras))]
    spans = [(float(t.min()), float(t.max())) for t in clocks]
    start, end = min(a for a, _ in spans), max(b for _, b in spans)
    seconds = max(end - start, 1e-9)
    masks = {s.name.removesuffix(".valid"): s for s in streams if s.name.endswith(".valid")}
    notes: list[str] = []
    strips = []
    for camera in cameras:
        strips.append(_build_strip(camera, masks.get(camera.name), start, seconds, pictures, width))
        if camera.faults:
            notes.append(f"{camera.name}: {len(camera.faults)} of {len(camera)} images cannot be decoded.")
    curves = [s for s in streams if s.name.removesuffix(".valid") not in {c.name for c in cameras}]
    if len(curves) > CURVES:
        notes.append(f"{len(curves) - CURVES} of {len(curves)} streams are not drawn; choose others with --topics.")
    charts = [_build_chart(s, start, seconds) for s in curves[:CURVES]]
    return View(path.name, float(seconds), tuple(strips), tuple(charts), chosen, tuple(episodes), tuple(notes))


def _seconds(times: Array) -> Array:
    return times / 1e9 if times.dtype == np.int64 else times


def _find_gaps(times: Array, start: float, seconds: float) -> tuple[tuple[float, float], ...]:
    """Return (x, width) of the steps longer than three median steps."""
    steps = np.diff(times)
    positive = steps[steps > 0]
    if not positive.size:
        return ()
    at = np.flatnonzero(steps > GAP * np.median(positive))
    scale = _X / seconds
    return tuple((_round((times[i] - start) * scale), _round(steps[i] * scale)) for i in at.tolist())


def _build_chart(stream: Stream, start: float, seconds: float) -> Chart:
    times = _seconds(stream.times)
    order = np.argsort(times, kind="stable")
    times = times[order]
    values = stream.values if stream.values.ndim == 2 else stream.values[:, None]
    values = values[order, :_COLUMNS].astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    spread = high - low or 1.0
    gaps = _find_gaps(times, start, seconds)
    steps = np.diff(times)
    limit = GAP * float(np.median(steps[steps > 0])) if (steps > 0).any() else np.inf
    paths = []
    for column in values.T:
        x = (times - start) * (_X / seconds)
        y = _Y - (column - low) / spread * _Y
        paths.append(_draw_path(*_thin(x, y, steps > limit)))
    return Chart(
        stream.name,
        tuple(label.rpartition("/")[2] for label in stream.columns[:_COLUMNS]),
        tuple(paths),
        gaps,
        low,
        high,
        max(0, len(stream.columns) - _COLUMNS),
    )


def _thin(x: Array, y: Array, breaks: Array) -> tuple[Array, Array, Array]:
    """Keep the lowest and the highest point of each part of a long curve; `breaks` [S - 1] are its gaps."""
    piece = np.concatenate([[0], np.cumsum(breaks)]) if len(x) else np.zeros(0, int)
    known = np.isfinite(y)
    x, y, piece = x[known], y[known], piece[known] + np.cumsum(~known)[known]  # NaN breaks a curve, too
    if len(x) <= 2 * _PARTS:
        return x, y, piece
    part = np.minimum((np.arange(len(x)) * _PARTS) // len(x), _PARTS - 1)
    edges = np.flatnonzero(np.diff(part, prepend=-1))
    chosen = set()
    for a, b in zip(edges.tolist(), [*edges[1:].tolist(), len(x)], strict=True):
        chosen |= {a, a + int(np.argmin(y[a:b])), a + int(np.argmax(y[a:b]))}
    rows = np.array(sorted(chosen))
    return x[rows], y[rows], piece[rows]


def _draw_path(x: Array, y: Array, piece: Array) -> str:
    out = []
    for i in range(len(x)):
        begins = i == 0 or piece[i] != piece[i - 1]
        out.append(f"{'M' if begins else 'L'}{_round(x[i])} {_round(y[i])}")
    return " ".join(out)


def _round(value: float) -> float:
    return round(float(value), 2)


def _build_strip(camera: Camera, mask: Stream | None, start: float, seconds: float, pictures: int, width: int) -> Strip:
    if not camera.decoded:
        check_codec(camera.codec, camera.name)
    times = _seconds(camera.times)
    thumbnails = [(float(times[number] - start), url) for number, url in _take_thumbnails(camera, pictures, width)]
    gaps = _find_gaps(np.sort(times), start, seconds)
    if mask is not None:
        gaps = _find_false(_seconds(mask.times), mask.values.astype(bool).reshape(-1), start, seconds)
    size = f"{camera.width} × {camera.height}" if camera.width else "size unknown"
    return Strip(
        camera.name,
        f"{camera.codec}, {size}, {len(camera)} images",
        tuple(round(t, 4) for t, _ in thumbnails),
        tuple(url for _, url in thumbnails),
        gaps,
        tuple(_round((times[number] - start) * _X / seconds) for number in camera.faults),
    )


def _find_false(times: Array, mask: Array, start: float, seconds: float) -> tuple[tuple[float, float], ...]:
    """Return (x, width) of the parts where a mask is False."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], mask, [True]]).astype(int)))
    ends = np.append(times, times[-1] + (times[-1] - times[0]) / max(len(times) - 1, 1))
    scale = _X / seconds
    return tuple(
        (_round((times[a] - start) * scale), _round((min(ends[b], start + seconds) - times[a]) * scale))
        for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    )


def _take_thumbnails(camera: Camera, count: int, width: int) -> list[tuple[int, str]]:
    """Return (number, data: URL) of pictures at even distances, those that can be decoded."""
    sound = [n for n in range(len(camera)) if n not in camera.faults]
    requested = {sound[i] for i in np.linspace(0, len(sound) - 1, min(count, len(sound))).round().astype(int).tolist()}
    if not requested:
        return []
    decoder = PictureDecoder(camera)
    encoder = _Thumbnails(width)
    out: dict[int, str] = {}
    for _, number, picture in camera.take([camera.source]):
        if number not in requested and picture.codec not in VIDEO_CODECS:
            continue
        if picture.codec in VIDEO_CODECS and not len(picture.data):
            continue
        try:
            decoded = decoder.decode(number, picture)
        except MemoryError:
            raise
        except Exception:  # noqa: S112 (damaged data; each decoder has its own errors)
            continue
        out |= {n: encoder.encode(value) for n, value in decoded if n in requested}
        if number >= max(requested) and not camera.is_video:
            break
    out |= {n: encoder.encode(value) for n, value in decoder.flush() if n in requested}
    return sorted(out.items())


class _Thumbnails:
    """Encodes small JPEG images; depth becomes grey, from the 2nd to the 98th percentile of the first image."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._av = import_av("showing cameras")
        self._limits: tuple[float, float] | None = None

    def encode(self, value: Any) -> str:
        frame = self._build_gray(value) if isinstance(value, np.ndarray) else value
        width = min(self._width, frame.width)
        size = (max(2, width - width % 2), max(2, round(frame.height * width / frame.width / 2) * 2))
        small = frame.reformat(
            *size,
            format="yuv420p",
            src_color_range=find_range(frame),
            src_colorspace=find_matrix(frame),
            dst_color_range=2,
            dst_colorspace=5,
        )
        encoder = self._av.CodecContext.create("mjpeg", "w")
        encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = *size, "yuv420p", 1
        encoder.color_range = 2
        encoder.options = {"strict": "unofficial", "qmin": "3", "qmax": "8"}
        small.pts = 0
        data = b"".join(bytes(p) for p in [*encoder.encode(small), *encoder.encode(None)])
        return "data:image/jpeg;base64," + base64.b64encode(data).decode()

    def _build_gray(self, values: Array) -> Any:
        known = values[np.isfinite(values) & (values > 0)]
        if self._limits is None and known.size:
            self._limits = (float(np.quantile(known, 0.02)), float(np.quantile(known, 0.98)))
        low, high = self._limits or (0.0, 1.0)
        scaled = (values.astype(np.float64) - low) / (high - low or 1.0) * 255
        gray = np.nan_to_num(scaled, nan=0.0).clip(0, 255).astype(np.uint8)
        return self._av.VideoFrame.from_ndarray(np.ascontiguousarray(gray), format="gray")
