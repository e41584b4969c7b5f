"""Write the cameras of an episode: one pass over the recording, one thread for each camera.

The reader hands pictures to the threads through short queues, so memory does not grow with the recording. A picture
that cannot be decoded costs itself: the last good one is held, its ticks are not valid, and it is counted.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.errors import InputError
from ridgeline.trajectory.cameras import Camera, Picks
from ridgeline.trajectory.image_files import SUFFIXES, ImageWriter
from ridgeline.trajectory.pictures import (
    DECODED,
    DEPTH_PNG,
    DEPTH_RVL,
    DEPTHS,
    RAW,
    VIDEO_CODECS,
    Picture,
    build_depth,
    build_frame,
    check_codec,
    create_decoder,
    import_av,
    unpack_depth,
    unpack_rvl,
)
from ridgeline.trajectory.readers.streams import describe_error
from ridgeline.trajectory.stream import Array
from ridgeline.trajectory.videos import DepthWriter, JpegWriter, Recorded, RemuxWriter, VideoSettings, VideoWriter

QUEUE = 4  # pictures that wait for a camera's thread
_BETWEEN_CHECKS_S = 0.2
_ANOTHER_EPISODE = "another episode cannot be copied"
_MOST_THREADS = 4  # of one encoder


@dataclass(frozen=True)
class Media:
    """One camera of one episode, as written."""

    feature: str  # observation.images.NAME or observation.depth.NAME
    file: str  # relative to the folder of the media
    kind: str  # video or depth
    frames: int
    width: int
    height: int
    codec: str  # of the video, or the type of the depth values
    pixels: str
    statistics: Mapping[str, Any]
    remuxed: bool = False
    names: Sequence[str] = ()  # of the image file of each tick, in the folder `file`


@dataclass(frozen=True)
class Request:
    """A camera to write: which picture for each tick, under which name."""

    name: str
    camera: Camera
    picks: Picks
    episode: int
    pictures: int  # of the camera in the time of the episode
    faulty: int  # of these, how many cannot be decoded by what their headers say

    @property
    def feature(self) -> str:
        return f"observation.{'depth' if self.camera.depth else 'images'}.{self.name}"


@dataclass(frozen=True)
class EpisodeMedia:
    """The cameras of one episode: the folder of their files, and what is in it."""

    folder: Path
    media: Sequence[Media] = ()
    calibration: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Written:
    """What `write_media` returns: the media, the valid ticks, and the pictures that were lost."""

    media: list[Media] = field(default_factory=list)
    valid: dict[str, Array] = field(default_factory=dict)  # feature -> [T]
    lost: dict[str, int] = field(default_factory=dict)  # topic -> pictures that cannot be decoded
    reasons: dict[str, str] = field(default_factory=dict)  # topic -> why the first one cannot
    notes: list[str] = field(default_factory=list)


def write_media(
    episodes: Sequence[Sequence[Request]],
    folder: Path,
    hz: float,
    settings: VideoSettings,
    *,
    choose_codec: bool = False,
    as_files: bool = False,
    advance: Callable[[float], None] = lambda _: None,
) -> list[Written]:
    """Write the cameras of all episodes into `folder`; raise InputError for one without a sound picture.

    With `as_files`, each image becomes a file. A recording is read once, however many episodes it is cut into.

    With `choose_codec`, packets of another codec than `settings.codec` are encoded; without, they are copied, too.
    """
    fps = Fraction(str(hz))
    cameras = {request.camera.source for requests in episodes for request in requests}
    threads = max(1, min(_MOST_THREADS, 2 * len(os.sched_getaffinity(0)) // max(1, len(cameras))))
    by_reader: dict[int, list[_Worker]] = {}
    for request in (request for requests in episodes for request in requests):
        if not request.camera.decoded:
            check_codec(request.camera.codec, request.camera.name)
        worker = _Worker(request, folder, fps, settings, choose_codec, as_files, threads)
        by_reader.setdefault(id(request.camera.take), []).append(worker)
    workers = [worker for group in by_reader.values() for worker in group]
    _copy_all_or_none(workers)
    total = max(1, sum({w.request.camera.source: len(w.request.camera) for w in workers}.values()))
    done = 0

    def count() -> None:
        nonlocal done
        done += 1
        advance(min(1.0, done / total))

    try:
        for group in by_reader.values():
            _feed(group, count)
        workers = _encode_spoiled(workers)
    finally:
        for worker in workers:
            worker.stop()
    by_episode: dict[int, list[_Worker]] = {}
    for worker in workers:
        by_episode.setdefault(worker.request.episode, []).append(worker)
    numbers = [next((r.episode for r in requests), -1) for requests in episodes]
    return [_collect(by_episode.get(number, [])) for number in numbers]


def _copy_all_or_none(workers: Sequence[_Worker]) -> None:
    """Encode all episodes of a camera if one of them must be: a feature of a dataset has one codec."""
    encoded = {w.request.camera.source for w in workers if not w.copies and w.request.camera.is_video}
    for worker in workers:
        camera = worker.request.camera
        if worker.copies and camera.source in encoded and camera.codec != worker.settings.codec:
            worker.copies, worker.note = False, _say_encoded(camera, worker.settings, _ANOTHER_EPISODE)


def _encode_spoiled(workers: Sequence[_Worker]) -> list[_Worker]:
    """Return the workers; cameras with damage in packets that were copied are read and encoded again."""
    spoiled = {w.request.camera.source for w in workers if w.is_spoiled}
    out: list[_Worker] = []
    by_camera: dict[str, list[_Worker]] = {}
    for worker in workers:
        camera = worker.request.camera
        if worker.is_spoiled or (worker.copies and camera.source in spoiled and camera.codec != worker.settings.codec):
            worker = worker.encode_instead("packets are damaged" if worker.is_spoiled else _ANOTHER_EPISODE)
            by_camera.setdefault(camera.source, []).append(worker)
        out.append(worker)
    try:
        for group in by_camera.values():
            _feed(group, lambda: None)
    finally:
        for worker in out:
            worker.stop()
    return out


def _feed(workers: Sequence[_Worker], count: Callable[[], None]) -> None:
    """Read the recording once and hand each picture to the episodes that want it, one after the other."""
    waiting: dict[str, deque[_Worker]] = {}
    active: dict[str, list[_Worker]] = {}
    for worker in sorted(workers, key=lambda w: w.first):
        waiting.setdefault(worker.request.camera.source, deque()).append(worker)
    for source, number, picture in workers[0].request.camera.take(list(waiting)):
        queued, current = waiting[source], active.setdefault(source, [])
        while queued and queued[0].first <= number:
            current.append(queued.popleft())
        for worker in list(current):
            worker.put(number, picture)
            if number >= worker.last:
                worker.close()
                current.remove(worker)
        count()
    for worker in workers:
        worker.close()
    for worker in workers:
        worker.join()


def _collect(workers: Sequence[_Worker]) -> Written:
    out = Written()
    for worker in workers:
        request, camera = worker.request, worker.request.camera
        out.media.append(worker.describe())
        out.valid[request.feature] = worker.valid
        lost = request.faulty + worker.lost
        if lost:
            out.lost[camera.name] = max(lost, out.lost.get(camera.name, 0))
            out.reasons.setdefault(camera.name, next(iter(camera.faults.values()), worker.reason))
        if worker.note:
            out.notes.append(worker.note)
    return out


def save_media(path: Path, written: Sequence[Written]) -> None:
    """Store what was written for each episode, without the masks."""
    episodes = [
        {"media": [asdict(m) for m in w.media], "lost": w.lost, "reasons": w.reasons, "notes": w.notes} for w in written
    ]
    path.write_text(json.dumps(episodes))


def load_media(path: Path) -> list[Written]:
    return [
        Written([Media(**m) for m in e["media"]], {}, e["lost"], e["reasons"], e["notes"])
        for e in json.loads(path.read_text())
    ]


class PictureDecoder:
    """Decodes the pictures of one camera: frames of PyAV, or arrays of depth."""

    def __init__(self, camera: Camera) -> None:
        self.camera = camera
        self._decoder: Any = None
        self._last = -1  # the frame of a video that came out last
        self._fed: int | None = None  # the packet of a video that went in last
        self._waits = False  # for a packet that needs none before, because a packet is missing or damaged
        self.unsound: set[int] = set()  # frames of a video that were predicted from others than they should be

    def decode(self, number: int, picture: Picture) -> list[tuple[int, Any]]:
        """Return the pictures that come out of the decoder, with their numbers."""
        if picture.codec not in VIDEO_CODECS:
            return self._decode(number, picture)
        self._check_packets(number)
        try:
            return self._keep_sound(self._decode(number, picture))
        except Exception:
            self._waits = True
            raise

    def _check_packets(self, number: int) -> None:
        """Note whether the frame of a packet is predicted from frames that are missing."""
        camera = self.camera
        is_missing = self._fed is not None and number != self._fed + 1
        if camera.fresh[number]:
            self._waits = False
        elif is_missing or (self._fed is not None and len(camera.breaks) and camera.breaks[number]):
            self._waits = True
        self._fed = number
        if self._waits:
            self.unsound.add(number)

    def _keep_sound(self, frames: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
        return [(number, frame) for number, frame in frames if number not in self.unsound]

    def _decode(self, number: int, picture: Picture) -> list[tuple[int, Any]]:
        camera = self.camera
        if picture.codec != camera.codec and picture.codec != DECODED:
            raise ValueError(f"its codec is {picture.codec}, and that of the others {camera.codec}")
        if picture.codec == DECODED:
            array = isinstance(picture.data, np.ndarray)  # depth
            return [(number, picture.data if array else self._check(picture.data))]
        if picture.codec in DEPTHS:
            return [(number, build_depth(picture))]
        if picture.codec == DEPTH_RVL:
            values = unpack_rvl(bytes(picture.data))
            return [(number, unpack_depth(bytes(picture.data[:12]), values) if picture.inverse else values)]
        if picture.codec in RAW:
            return [(number, build_frame(picture))]
        av = import_av("decoding cameras")
        if self._decoder is None or camera.codec not in ("jpeg", *VIDEO_CODECS):
            # FFmpeg's PNG decoder keeps a part of the picture before, so each one gets a new decoder.
            self._decoder = create_decoder(camera.codec if camera.codec != DEPTH_PNG else "png", camera.name)
        data = picture.data[12:] if picture.codec == DEPTH_PNG else picture.data
        packet = av.Packet(data)
        packet.pts = number
        frames = self._decoder.decode(packet)
        if picture.codec in VIDEO_CODECS:
            return [(self._check_order(int(f.pts)), self._check(f)) for f in frames if f.pts is not None]
        if not frames:
            raise ValueError("no picture comes out of it")
        frame = self._check(frames[0])
        if not camera.depth:
            return [(number, frame)]
        values = frame.to_ndarray(format="gray16le")
        is_inverse = picture.codec == DEPTH_PNG and picture.inverse
        return [(number, unpack_depth(bytes(picture.data[:12]), values) if is_inverse else values)]

    def _check(self, frame: Any) -> Any:
        """Refuse a frame that the decoder had to guess, or that has another size."""
        camera = self.camera
        if frame.is_corrupt:
            raise ValueError("its data are damaged")
        if (camera.width, camera.height) not in ((0, 0), (frame.width, frame.height)):
            raise ValueError(f"its size is {frame.width} × {frame.height}, not {camera.width} × {camera.height}")
        return frame

    def flush(self) -> list[tuple[int, Any]]:
        """Return the frames of a video that are still in the decoder."""
        if self._decoder is None or not self.camera.is_video:
            return []
        frames = [(self._check_order(int(f.pts)), f) for f in self._decoder.decode(None) if f.pts is not None]
        return self._keep_sound(frames)

    def _check_order(self, number: int) -> int:
        """Refuse frames that a decoder gives in another order than their stamps: B-frames with stamps of sending."""
        times, last = self.camera.times, self._last
        self._last = number
        if number < last and times[number] < times[last]:
            raise InputError(
                f"{self.camera.name}: its video has B-frames, and the stamps of its packets are not in the order of "
                "its pictures; record without B-frames, or with the stamps of the pictures."
            )
        return number


class _Worker:
    """The thread of one camera: decodes what its ticks need, in order, and writes it."""

    def __init__(
        self,
        request: Request,
        folder: Path,
        fps: Fraction,
        settings: VideoSettings,
        choose_codec: bool,
        as_files: bool = False,
        threads: int = 1,
    ) -> None:
        self._as_files, self._threads = as_files, threads
        self._arguments = (request, folder, fps, settings, choose_codec, as_files, threads)
        self.is_spoiled = False  # packets that were copied are damaged
        self.request, self._folder, self._fps, self.settings = request, folder, fps, settings
        numbers = request.picks.numbers
        starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1)) if len(numbers) else np.zeros(0, int)
        ends = [*starts[1:].tolist(), len(numbers)]
        self._runs = [(int(numbers[a]), int(a), int(b)) for a, b in zip(starts.tolist(), ends, strict=True)]
        self._requested = {number for number, _, _ in self._runs}
        self.first, self.last = _find_range(request.camera, self._requested)
        ordered = np.asarray([n for n, _, _ in self._runs])
        self._in_order = bool((np.diff(ordered) >= 0).all())
        self._at = 0  # the run that is written next
        self._ready: dict[int, Any] = {}  # decoded pictures that wait for their turn
        self._failed: set[int] = set()
        self._copied: set[int] = set()  # pictures whose packets were copied, and that came out of the decoder
        self._owed = 0  # ticks before the first good picture
        self.valid = request.picks.valid.copy()
        self.lost, self.reason = 0, ""
        self._queue: queue.Queue[tuple[int, Picture] | None] = queue.Queue(QUEUE)
        self._stopped = threading.Event()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"camera {request.name}", daemon=True)
        self._writer: Any = None
        self._decoder = PictureDecoder(request.camera)
        self.copies, self.note = (
            (False, "") if as_files else _plan_copy(request, self._runs, fps, settings, choose_codec)
        )
        self._copies_jpeg = settings.copy_jpeg and request.camera.codec == "jpeg" and not as_files
        self.file = f"{request.episode}-{request.feature}.{'parquet' if request.camera.depth else 'mp4'}"
        if as_files:
            self.file = f"{request.episode}/{request.name}"

    def encode_instead(self, why: str) -> _Worker:
        """Return a worker that encodes the pictures whose packets this one copied."""
        out = _Worker(*self._arguments)
        out.copies, out.note = False, _say_encoded(self.request.camera, self.settings, why)
        return out

    def put(self, number: int, picture: Picture) -> None:
        """Hand over a picture; raise the error of the thread if it has one."""
        if (self.copies or picture.codec in VIDEO_CODECS) or number in self._requested:
            self._send((number, picture))

    def close(self) -> None:
        """Say that no more pictures come; does nothing the second time."""
        if not self._closed:
            self._closed = True
            self._send(None)

    def join(self) -> None:
        """Wait until everything is written; raise the error of the thread if it has one."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _send(self, item: tuple[int, Picture] | None) -> None:
        if self._thread.ident is None:
            self._thread.start()
        while True:
            if self._error is not None:
                raise self._error
            try:
                self._queue.put(item, timeout=_BETWEEN_CHECKS_S)
                return
            except queue.Full:
                continue

    def stop(self) -> None:
        """End the thread; does nothing after `join`."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def describe(self) -> Media:
        request, writer = self.request, self._writer
        depth = isinstance(writer, DepthWriter)
        if isinstance(writer, ImageWriter):
            kind = "depth" if request.camera.depth else "image"
            return Media(
                request.feature, self.file, kind, writer.frames, *self._size, writer.codec, "", {}, names=writer.names
            )
        return Media(
            feature=request.feature,
            file=self.file,
            kind="depth" if depth else "video",
            frames=writer.frames,
            width=self._size[0],
            height=self._size[1],
            codec=writer.dtype if depth else writer.codec,
            pixels="" if depth else writer.pixels,
            statistics=writer.statistics.summarize(),
            remuxed=isinstance(writer, RemuxWriter),
        )

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    item = self._queue.get(timeout=_BETWEEN_CHECKS_S)
                except queue.Empty:
                    continue
                if item is None:
                    self._end()
                    break
                self._take(*item)
        except BaseException as error:  # raised in the thread that reads
            self._error = error
        finally:
            if self._writer is not None and (self._error is not None or self._stopped.is_set()):
                self._writer.abort()

    def _take(self, number: int, picture: Picture) -> None:
        faulty = number in self.request.camera.faults
        if faulty and (picture.codec not in VIDEO_CODECS or not len(picture.data)):  # an empty packet ends a decoder
            return
        try:
            decoded = self._decoder.decode(number, picture)
        except InputError:
            raise
        except MemoryError:
            raise
        except Exception as error:  # each decoder has its own errors for damaged data
            self._lose(number, describe_error(error))
            decoded = []
        if number in self._decoder.unsound:
            self._lose(number, "a packet before it is missing or damaged")
        if self.copies:
            self._copy(number, picture, decoded)
            return
        keeps_file = picture.codec in SUFFIXES if self._as_files else self._copies_jpeg
        if keeps_file and decoded and not self.request.camera.depth:
            decoded = [(number, Recorded(decoded[0][1], picture.codec, bytes(picture.data)))]
        for decoded_number, value in decoded:
            if decoded_number in self._requested and decoded_number not in self._failed:
                self._ready[decoded_number] = value
                self._write_ready(decoded_number)
        if picture.codec not in VIDEO_CODECS:
            self._write_ready(number)

    def _write_ready(self, latest: int) -> None:
        """Write the runs whose picture is there; a run that was passed by is lost."""
        while self._at < len(self._runs):
            number = self._runs[self._at][0]
            if number in self._ready:
                self._emit(self._ready.pop(number))
            elif number in self._failed or (self._in_order and number < latest):
                self._lose(number, "no picture comes out of it")
                self._emit(None)
            else:
                return

    def _emit(self, value: Any) -> None:
        """Write the picture of the next run, or hold the one before it."""
        _, first, end = self._runs[self._at]
        self._at += 1
        count = end - first
        if value is None:
            self.valid[first:end] = False
            if self._writer is None:
                self._owed += count
            else:
                self._writer.repeat(count)
            return
        if self._writer is None:
            self._open(value)
        self._writer.write(value, count + self._owed)
        self._owed = 0

    def _open(self, value: Any) -> None:
        path, frames = self._folder / self.file, len(self.valid)
        if self._as_files:
            frame = value.frame if isinstance(value, Recorded) else value
            is_array = isinstance(frame, np.ndarray)
            self._size = (frame.shape[1], frame.shape[0]) if is_array else (frame.width, frame.height)
            self._writer = ImageWriter(path, *self._size, self.request.camera.codec)
        elif isinstance(value, np.ndarray):
            self._size = (value.shape[1], value.shape[0])
            self._writer = DepthWriter(path, *self._size)
        elif isinstance(value, Recorded):
            self._size = (value.frame.width, value.frame.height)
            self._writer = JpegWriter(path, *self._size, self._fps, value, frames)
        else:
            self._size = (value.width, value.height)
            self._writer = VideoWriter(path, *self._size, self._fps, self.settings, frames, self._threads)

    def _copy(self, number: int, picture: Picture, decoded: list[tuple[int, Any]]) -> None:
        """Copy the packet of the next tick; its decoded picture only counts for the statistics."""
        first = self._runs[0][0]
        if number < first or self._at >= len(self._runs) or self.is_spoiled:
            return
        if number in self._failed:
            self.is_spoiled = True
            return
        data = bytes(picture.data)
        path, frames = self._folder / self.file, len(self.valid)
        if self._writer is None:
            size = (self.request.camera.width, self.request.camera.height)
            if decoded:
                size = (decoded[0][1].width, decoded[0][1].height)
            self._size = size
        try:
            if self._writer is None:
                self._writer = RemuxWriter(path, picture.codec, *self._size, self._fps, data, frames)
            self._writer.write_packet(data, bool(self.request.camera.keys[number]))
        except import_av("writing videos").error.InvalidDataError:
            self.is_spoiled = True
            return
        self._add_copied(decoded)
        self._at += 1

    def _add_copied(self, decoded: list[tuple[int, Any]]) -> None:
        """Take the frames of copied packets into account; a decoder may give them some packets later."""
        for number, frame in decoded:
            self._copied.add(number)
            self._writer.pixels = frame.format.name
            self._writer.statistics.add(frame)

    def _end_copy(self) -> None:
        """Count the copied packets that gave no frame."""
        self._add_copied(self._decoder.flush())
        self.is_spoiled |= any(number not in self._copied for number, _, _ in self._runs)

    def _lose(self, number: int, reason: str) -> None:
        if number in self._failed or number not in self._requested:
            return
        self._failed.add(number)
        self.lost += number not in self.request.camera.faults
        self.reason = self.reason or reason

    def _end(self) -> None:
        if self.copies and self._writer is not None:
            self._end_copy()
        if self.is_spoiled:
            if self._writer is not None:
                self._writer.abort()
            return
        for number, frame in [] if self.copies else self._decoder.flush():
            if number in self._requested:
                self._ready[number] = frame
                self._write_ready(number)
        while self._at < len(self._runs) and not self.copies:
            number = self._runs[self._at][0]
            value = self._ready.pop(number, None)
            if value is None:
                self._lose(number, "no picture comes out of it")
            self._emit(value)
        if self._writer is None:
            name = self.request.camera.name
            raise InputError(f"{name}: no picture can be decoded ({self.reason}); leave this camera out.")
        self._writer.close()


def _find_range(camera: Camera, numbers: Collection[int]) -> tuple[int, int]:
    """Return the first and the last picture that an episode needs; a video is decoded from a key frame on."""
    if not numbers:
        return 0, 0
    first, last = min(numbers), max(numbers)
    if camera.is_video:
        keys = np.flatnonzero(camera.starts[: first + 1])
        first = int(keys[-1]) if keys.size else 0
    return first, last


def _plan_copy(
    request: Request, runs: Sequence[tuple[int, int, int]], fps: Fraction, settings: VideoSettings, choose_codec: bool
) -> tuple[bool, str]:
    """Return whether packets can be copied, and a note about what happens to a video topic."""
    camera = request.camera
    if not camera.is_video:
        return False, ""
    numbers = [number for number, _, _ in runs]
    why = ""
    if camera.codec == "vp9":
        why = "VP9 is not a codec of these datasets"
    elif choose_codec and camera.codec != settings.codec:
        why = f"--codec {settings.codec} is not {camera.codec}"
    elif any(end - first != 1 for _, first, end in runs) or any(np.diff(numbers) != 1):
        why = f"its pictures do not come at {float(fps):g} Hz without a gap"
    elif not camera.starts[numbers[0]]:
        why = "the episode does not begin on a key frame with its parameter sets"
    elif any(number in camera.faults for number in range(numbers[0], numbers[-1] + 1)):
        why = "pictures are damaged"
    elif camera.breaks[numbers[0] + 1 : numbers[-1] + 1].any():
        why = "packets are missing"
    if why:
        return False, _say_encoded(camera, settings, why)
    return True, f"{camera.name}: {camera.codec} copied without encoding it again."


def _say_encoded(camera: Camera, settings: VideoSettings, why: str) -> str:
    return f"{camera.name}: encoded again as {settings.codec}, because {why}."
