"""Write and join the files of camera features: H.264 or AV1 in MP4, depth in Parquet, each with its statistics.

Frame k of a video has the stamp k / fps. There are no B-frames, so that a reader decodes at most `gop` frames to reach
one. Video packets that fit are copied (`RemuxWriter`); everything else is encoded (`VideoWriter`).
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import native
from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.trajectory.pictures import import_av
from ridgeline.trajectory.stream import Array

CODECS = ("h264", "av1")
COPY = "copy"  # JPEG images go into the video as they are
DECODERS = ("auto", "torchcodec", "pyav")
IMAGES = ("float32", "uint8")  # types of decoded frames
GOP = 2  # as LeRobot's: random access costs two frames at most
_CRF = {"h264": 23, "av1": 30}
_HIGHEST_CRF = {"h264": 51, "av1": 63}
_ENCODERS = {"h264": "libx264", "av1": "libsvtav1"}
# Ultrafast has neither CABAC nor deblocking. With both, a frame of a photograph takes twice as long to encode and three
# times as long to decode, for a file that is 5 % smaller and as near to the original (trajectory_cameras.py encoder).
_SPEED = {
    "h264": {"preset": "ultrafast", "bf": "0"},
    "av1": {"preset": "10", "svtav1-params": "pred-struct=1"},
}
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_SAMPLED_FRAMES = 200  # of a video, for its statistics
_SAMPLED_WIDTH = 160
_DEPTH_SAMPLES = 256  # values of a depth image, for its quantiles
DEPTH_ROWS = 16  # depth images that are in memory at once
_RAW_FORMATS = {"h264": "h264", "h265": "hevc", "av1": "obu", "mjpeg": "mjpeg"}  # FFmpeg's names of bare packets
FULL_RANGE, VIDEO_RANGE, BT601, BT709, BT2020 = 2, 1, 5, 1, 9
# layout -> columns and rows of its chroma that share a chroma value of 4:2:0
_CHROMA_FOLDS = {
    **dict.fromkeys(("yuvj420p", "yuv420p"), (1, 1)),
    **dict.fromkeys(("yuvj422p", "yuv422p"), (1, 2)),
    **dict.fromkeys(("yuvj440p", "yuv440p"), (2, 1)),
    **dict.fromkeys(("yuvj444p", "yuv444p"), (2, 2)),
}
_RGB_LAYOUTS = {"rgb24": (3, True), "bgr24": (3, False), "rgba": (4, True), "bgra": (4, False)}  # bytes, red first


@dataclass(frozen=True)
class VideoSettings:
    """How frames are encoded."""

    codec: str = "h264"
    crf: int | None = None  # quality: lower is better and larger; None: 23 for h264, 30 for av1
    gop: int = GOP  # frames from key frame to key frame
    copy_jpeg: bool = False  # JPEG images are not encoded again

    def __post_init__(self) -> None:
        if self.codec not in CODECS:
            raise unknown("video codec", self.codec, (*CODECS, COPY))
        highest = _HIGHEST_CRF[self.codec]
        if self.crf is not None and not 0 <= self.crf <= highest:
            raise InputError(f"--crf {self.crf} is no quality of {self.codec}; give 0 (best) to {highest}.")
        if self.gop < 1:
            raise InputError(f"--gop {self.gop} is no number of frames; give 1 or more.")


@dataclass(frozen=True, eq=False)
class Recorded:
    """A decoded image with the file that the recording holds."""

    frame: Any
    codec: str
    data: bytes


class ColorStatistics:
    """Histograms of the three channels of sampled frames, from which all statistics follow exactly."""

    def __init__(self, frames: int) -> None:
        self._counts = np.zeros((3, 256), np.int64)
        self._every = max(1, -(-frames // _SAMPLED_FRAMES))
        self._seen = self._sampled = 0
        self._to_rgb: Any = None

    def add(self, frame: Any) -> None:
        """Take every n-th frame into account."""
        self._seen += 1
        if (self._seen - 1) % self._every:
            return
        self._sampled += 1
        if self._to_rgb is None:
            self._to_rgb = import_av("reading videos").video.reformatter.VideoReformatter()
        pixels = to_rgb(frame, self._to_rgb)
        step = max(1, pixels.shape[1] // _SAMPLED_WIDTH)
        for channel in range(3):
            self._counts[channel] += np.bincount(pixels[::step, ::step, channel].ravel(), minlength=256)

    def summarize(self) -> dict[str, Any]:
        """Return LeRobot's statistics of an image: [3, 1, 1] each, in 0 … 1."""
        levels = np.arange(256) / 255.0
        out: dict[str, list[list[list[float]]]] = {n: [] for n in ("min", "max", "mean", "std", *QUANTILES)}
        for counts in self._counts:
            total = max(1, int(counts.sum()))
            mean = float(counts @ levels) / total
            present = np.flatnonzero(counts)
            up_to = np.cumsum(counts)
            values = {
                "min": levels[present[0]] if present.size else 0.0,
                "max": levels[present[-1]] if present.size else 0.0,
                "mean": mean,
                "std": float(np.sqrt(max(0.0, float(counts @ levels**2) / total - mean**2))),
                **{n: levels[min(int(np.searchsorted(up_to, q * total)), 255)] for n, q in QUANTILES.items()},
            }
            for name, value in values.items():
                out[name].append([[float(value)]])
        return {**out, "count": [self._sampled]}


class DepthStatistics:
    """Minimum, maximum, mean and deviation of all finite values; quantiles of a sample."""

    def __init__(self) -> None:
        self._count, self._sum, self._squares = 0, 0.0, 0.0
        self._low, self._high = np.inf, -np.inf
        self._sample: list[Array] = []
        self._frames = 0

    def add(self, values: Array, times: int) -> None:
        known = values[np.isfinite(values)].astype(np.float64)
        self._frames += times
        if not known.size:
            return
        self._count += times * known.size
        self._sum += times * float(known.sum())
        self._squares += times * float((known**2).sum())
        self._low, self._high = min(self._low, float(known.min())), max(self._high, float(known.max()))
        if len(self._sample) < 4096:
            self._sample.append(known[:: max(1, known.size // _DEPTH_SAMPLES)][:_DEPTH_SAMPLES])

    def summarize(self) -> dict[str, Any]:
        if not self._count:
            return {**{n: [None] for n in ("min", "max", "mean", "std", *QUANTILES)}, "count": [self._frames]}
        mean = self._sum / self._count
        sample = np.concatenate(self._sample)
        return {
            "min": [self._low],
            "max": [self._high],
            "mean": [mean],
            "std": [float(np.sqrt(max(0.0, self._squares / self._count - mean**2)))],
            **{name: [float(v)] for name, v in zip(QUANTILES, np.quantile(sample, [*QUANTILES.values()]), strict=True)},
            "count": [self._frames],
        }


class VideoWriter:
    """Encodes frames of one size into an MP4 file."""

    def __init__(
        self,
        path: Path,
        width: int,
        height: int,
        fps: Fraction,
        settings: VideoSettings,
        frames: int,
        threads: int = 1,
    ) -> None:
        av = import_av("writing videos")
        odd = width % 2 or height % 2
        if odd and settings.codec != "h264":
            raise InputError(
                f"{settings.codec} wants an even width and height, and the frames have {width} × {height}; "
                "use --codec h264."
            )
        self.codec, self.pixels = settings.codec, "yuv444p" if odd else "yuv420p"
        self.statistics = ColorStatistics(frames)
        self.frames = 0
        self._rate = fps
        self._last: Any = None
        self._to_planes = _PlaneWriter(self.pixels)
        try:
            encoder = av.Codec(_ENCODERS[settings.codec], "w")
        except (av.error.FFmpegError, ValueError) as error:
            raise InputError(
                f"this FFmpeg has no encoder {_ENCODERS[settings.codec]}; install a package av with it, or choose "
                "another --codec."
            ) from error
        os.environ.setdefault("SVT_LOG", "1")  # SVT-AV1 writes its settings to stderr otherwise
        crf = _CRF[settings.codec] if settings.crf is None else settings.crf
        self._file = av.open(str(path), "w", format="mp4")
        try:
            stream = self._file.add_stream(encoder.name, rate=fps)
            stream.width, stream.height, stream.pix_fmt = width, height, self.pixels
            stream.time_base = 1 / fps
            stream.codec_context.time_base = 1 / fps
            stream.codec_context.gop_size = settings.gop
            stream.codec_context.max_b_frames = 0
            stream.codec_context.color_range, stream.codec_context.colorspace = VIDEO_RANGE, BT601
            stream.codec_context.thread_count = threads
            stream.codec_context.thread_type = "FRAME"  # slices would cost size and quality
            stream.options = {"crf": str(crf), "g": str(settings.gop), **_SPEED[settings.codec]}
        except BaseException:
            self._file.close()
            raise
        self._stream = stream

    def write(self, frame: Any, times: int) -> None:
        """Write a decoded frame `times` times."""
        self.statistics.add(frame)
        self._last = self._to_planes.convert(frame)
        self.repeat(times)

    def repeat(self, times: int) -> None:
        """Write the last frame again."""
        for _ in range(times):
            self._last.pts, self._last.time_base = self.frames, 1 / self._rate
            self._last.pict_type = 0
            with contextlib.nullcontext() if self.frames else keep_scheduling():  # the first frame opens the encoder
                packets = self._stream.encode(self._last)
            self._file.mux(packets)
            self.frames += 1

    def close(self) -> None:
        self._file.mux(self._stream.encode(None))
        self._file.close()

    def abort(self) -> None:
        """Close the file without finishing it."""
        with contextlib.suppress(OSError):
            self._file.close()


class _PlaneWriter:
    """Makes the frames that an encoder takes: planes in video's range.

    JPEG and RGB, which most cameras send, are converted by our own loops; FFmpeg converts everything else.
    """

    def __init__(self, pixels: str) -> None:
        self._av = import_av("writing videos")
        self._pixels = pixels
        self._reformatter = self._av.video.reformatter.VideoReformatter()

    def convert(self, frame: Any) -> Any:
        layout = frame.format.name
        if self._pixels == "yuv420p" and layout in _RGB_LAYOUTS:
            return self._convert_rgb(frame, *_RGB_LAYOUTS[layout])
        is_full = find_range(frame) == FULL_RANGE and find_matrix(frame) == BT601
        if self._pixels == "yuv420p" and layout in _CHROMA_FOLDS and is_full:
            return self._squeeze(frame, *_CHROMA_FOLDS[layout])
        return self._reformatter.reformat(
            frame,
            format=self._pixels,
            src_color_range=find_range(frame),
            src_colorspace=find_matrix(frame),
            dst_color_range=VIDEO_RANGE,
            dst_colorspace=BT601,
            threads=1,
        )

    def _create(self, width: int, height: int) -> Any:
        out = self._av.VideoFrame(width, height, self._pixels)
        out.color_range, out.colorspace = VIDEO_RANGE, BT601
        return out

    def _convert_rgb(self, frame: Any, size: int, red_first: bool) -> Any:
        out, plane = self._create(frame.width, frame.height), frame.planes[0]
        y, u, v = out.planes
        native.rgb_to_planes(
            _view(plane),
            plane.line_size,
            size,
            red_first,
            _view(y),
            y.line_size,
            _view(u),
            u.line_size,
            _view(v),
            v.line_size,
            frame.width,
            frame.height,
        )
        return out

    def _squeeze(self, frame: Any, fold_x: int, fold_y: int) -> Any:
        out = self._create(frame.width, frame.height)
        for number, (source, target) in enumerate(zip(frame.planes, out.planes, strict=True)):
            folds, shift = ((fold_x, fold_y), 1) if number else ((1, 1), 0)
            places = (_view(source), source.line_size, *folds, number > 0, _view(target), target.line_size)
            native.squeeze_plane(*places, frame.width >> shift, frame.height >> shift)
        return out


def _view(plane: Any) -> Array:
    """Return the bytes of a plane without a copy."""
    return np.frombuffer(plane, np.uint8)


@contextlib.contextmanager
def keep_scheduling() -> Iterator[None]:
    """Open an encoder inside a `with` block without becoming a real-time process.

    As root, SVT-AV1 gives the thread that opens it, and so all threads that this one starts, the highest real-time
    priority. Every other program on the machine would wait for them, and for all that this process starts later.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    before = {*os.listdir("/proc/self/task")} - {str(threading.get_native_id())}
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            for task in {*os.listdir("/proc/self/task")} - before:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.sched_setscheduler(int(task), policy, parameters)


class RemuxWriter:
    """Copies packets of a video into an MP4 file, one for each frame."""

    def __init__(
        self, path: Path, codec: str, width: int, height: int, fps: Fraction, first: bytes, frames: int
    ) -> None:
        av = import_av("writing videos")
        self.codec, self.pixels = codec, "yuv420p"  # until a decoded frame says another layout
        self.statistics = ColorStatistics(frames)
        self.frames = 0
        self._av, self._codec, self._fps = av, codec, fps
        # FFmpeg reads the parameter sets for the header of the file out of the first access unit.
        self._origin = av.open(io.BytesIO(first), format=_RAW_FORMATS[codec])
        self._file = av.open(str(path), "w", format="mp4")
        try:
            stream = self._file.add_stream_from_template(self._origin.streams.video[0], opaque=True)
            stream.time_base = 1 / fps
        except BaseException:
            self._file.close()
            raise
        self._stream = stream

    def write_packet(self, data: bytes, is_key: bool) -> None:
        packet = self._av.Packet(data)
        packet.stream = self._stream
        packet.pts = packet.dts = self.frames
        packet.duration = 1
        packet.time_base = 1 / self._fps
        packet.is_keyframe = is_key
        self._file.mux_one(packet)
        self.frames += 1

    def close(self) -> None:
        self._file.close()
        self._origin.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._file.close()


class JpegWriter(RemuxWriter):
    """Copies JPEG images into an MP4 file, one for each frame."""

    def __init__(self, path: Path, width: int, height: int, fps: Fraction, first: Recorded, frames: int) -> None:
        super().__init__(path, "mjpeg", width, height, fps, first.data, frames)
        self.pixels = first.frame.format.name
        self._last = b""

    def write(self, image: Recorded, times: int) -> None:
        """Write an image `times` times."""
        self.statistics.add(image.frame)
        self._last = image.data
        self.repeat(times)

    def repeat(self, times: int) -> None:
        """Write the last image again."""
        for _ in range(times):
            self.write_packet(self._last, True)


class DepthWriter:
    """Writes depth images of one size and type to a Parquet file, a few in memory at a time."""

    def __init__(self, path: Path, width: int, height: int) -> None:
        try:
            import pyarrow as arrow
            from pyarrow import parquet
        except ImportError:
            raise MissingExtra("writing depth", "robot") from None
        self._arrow, self._parquet, self._path = arrow, parquet, path
        self.width, self.height = width, height
        self.statistics = DepthStatistics()
        self.frames = 0
        self.dtype = ""
        self._rows: list[Array] = []
        self._file: Any = None

    def write(self, values: Array, times: int) -> None:
        if self.dtype and values.dtype.name != self.dtype:
            raise InputError(f"depth of type {values.dtype.name} follows depth of type {self.dtype}; split the log.")
        self.dtype = values.dtype.name
        self.statistics.add(values, times)
        self._last = values
        self.repeat(times)

    def repeat(self, times: int) -> None:
        for _ in range(times):
            self._rows.append(self._last)
            self.frames += 1
            if len(self._rows) == DEPTH_ROWS:
                self._flush()

    def close(self) -> None:
        self._flush()
        if self._file is not None:
            self._file.close()

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        column = build_depth_column(self._arrow, np.stack(self._rows))
        table = self._arrow.table({"depth": column})
        if self._file is None:
            self._file = self._parquet.ParquetWriter(self._path, table.schema, compression="zstd")
        self._file.write_table(table)
        self._rows = []


def build_depth_column(arrow: Any, images: Array) -> Any:
    """Return images [N, H, W] as an Arrow column of lists of lists, as LeRobot stores arrays."""
    count, height, width = images.shape
    flat = arrow.array(np.ascontiguousarray(images).reshape(-1))
    rows = arrow.ListArray.from_arrays(np.arange(count * height + 1, dtype=np.int32) * width, flat)
    return arrow.ListArray.from_arrays(np.arange(count + 1, dtype=np.int32) * height, rows)


def find_range(frame: Any) -> int:
    """Return whether the levels of a frame use all 8 bits (as JPEG's and RGB's do) or video's 16 to 235."""
    layout = frame.format.name
    if layout.startswith(("yuvj", "gray", "ya", "rgb", "bgr", "gbr", "argb", "abgr", "bayer", "pal", "mono")):
        return FULL_RANGE
    return FULL_RANGE if frame.color_range == FULL_RANGE else VIDEO_RANGE


def find_matrix(frame: Any) -> int:
    """Return the matrix between planes and RGB; BT.601 if the frame does not name one."""
    space = int(frame.colorspace)
    return space if space in (BT709, BT2020) else BT601


def to_rgb(frame: Any, reformatter: Any) -> Array:
    """Return the pixels [H, W, 3] of a frame, uint8."""
    return view_rgb(_to_rgb_frame(frame, reformatter))


def _to_rgb_frame(frame: Any, reformatter: Any) -> Any:
    return reformatter.reformat(
        frame,
        format="rgb24",
        src_color_range=find_range(frame),
        src_colorspace=find_matrix(frame),
        dst_color_range=FULL_RANGE,
        threads=1,
    )


def view_rgb(frame: Any) -> Array:
    """Return the pixels of an rgb24 frame without a copy; they live as long as the frame."""
    plane = frame.planes[0]
    rows = np.frombuffer(plane, np.uint8).reshape(frame.height, plane.line_size)
    return rows[:, : frame.width * 3].reshape(frame.height, frame.width, 3)


class VideoReader:
    """Random access to the frames of one video file whose frame k has the stamp k / fps."""

    def __init__(self, path: Path, fps: float) -> None:
        av = import_av("decoding videos")
        self.path, self._error = path, av.error.FFmpegError
        try:
            self._file = av.open(str(path))
            self._stream = self._file.streams.video[0]
        except (OSError, IndexError, ValueError, av.error.FFmpegError) as error:
            raise InputError(f"the video '{path}' cannot be read ({error}); copy the dataset again.") from error
        self._stream.codec_context.thread_count = 1
        self._stream.thread_type = "NONE"
        self._ticks = float(1 / (Fraction(str(fps)) * self._stream.time_base))  # of the file's clock in one frame
        stamps = [e.timestamp for e in self._stream.index_entries if e.is_keyframe]
        self._key_stamps = np.sort(np.array(stamps, np.int64))
        self._keys = np.rint(self._key_stamps / self._ticks).astype(np.int64)
        self._convert = av.video.reformatter.VideoReformatter()
        self._frames: Any = None
        self._last: tuple[int, Any] | None = None  # the frame decoded last

    def close(self) -> None:
        self._file.close()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return self._stream.codec_context.width, self._stream.codec_context.height

    def read(self, numbers: Sequence[int], out: Array, places: Sequence[int]) -> None:
        """Write frames by their numbers, which may repeat, to `out` [N, C, H, W] (uint8 or float32) at `places`."""
        for at in np.argsort(numbers, kind="stable").tolist():
            frame = self._decode(numbers[at])
            if (frame.height, frame.width) != out.shape[2:]:
                raise InputError(
                    f"the video '{self.path}', frame {numbers[at]}: its size is {frame.width} × {frame.height}, and "
                    f"{out.shape[3]} × {out.shape[2]} is expected; copy the dataset again."
                )
            self._write_channels(frame, out[places[at]])

    def _write_channels(self, frame: Any, out: Array) -> None:
        """Write the pixels of a frame to `out` [3, H, W]: by our own loop, or, for other layouts, by FFmpeg."""
        folds, matrix = _CHROMA_FOLDS.get(frame.format.name), find_matrix(frame)
        if folds is None or matrix == BT2020:
            rgb = _to_rgb_frame(frame, self._convert)
            native.split_channels(_view(rgb.planes[0]), rgb.planes[0].line_size, out)
            return
        y, u, v = frame.planes
        folds = 3 - folds[0], 3 - folds[1]
        is_full = find_range(frame) == FULL_RANGE
        places = (_view(y), y.line_size, _view(u), u.line_size, _view(v), v.line_size)
        native.planes_to_channels(*places, *folds, matrix == BT709, is_full, out)

    def iterate(self, first: int, count: int) -> Iterator[Any]:
        """Iterate over consecutive frames, as the decoder gives them."""
        for number in range(first, first + count):
            yield self._decode(number)

    def _decode(self, number: int) -> Any:
        """Return a frame: from where the decoder stands, or from the key frame before it."""
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        stands = -1 if self._last is None else self._last[0]
        place = max(0, int(np.searchsorted(self._keys, number, "right")) - 1)
        key, stamp = (int(self._keys[place]), int(self._key_stamps[place])) if len(self._keys) else (0, 0)
        try:
            if self._frames is None or stands >= number or key > stands + 1:
                self._file.seek(stamp, stream=self._stream, backward=True)
                self._frames = self._file.decode(self._stream)
            for frame in self._frames:
                decoded_number = self._to_number(frame.pts)
                if decoded_number >= number:
                    self._last = (decoded_number, frame)
                    if decoded_number == number:
                        return frame
                    break
        except (OSError, ValueError, self._error) as error:
            self._frames = self._last = None
            raise InputError(f"the video '{self.path}', frame {number}: {error}; copy the dataset again.") from error
        self._frames = self._last = None
        raise InputError(f"the video '{self.path}' has no frame {number}: it is shorter than its index; copy it again.")

    def _to_number(self, pts: int) -> int:
        return round(pts / self._ticks)


class TorchCodecReader:
    """`VideoReader` by TorchCodec, on a CPU or (device "cuda") by the decoder of the GPU; frames are tensors."""

    def __init__(self, path: Path, fps: float, device: str = "cpu") -> None:
        self.path, self._fps, self._device = path, fps, device
        self._decoder = self._open("approximate")
        self._is_exact = False

    def close(self) -> None:
        self._decoder = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        return int(self._decoder.metadata.width), int(self._decoder.metadata.height)

    def read(self, numbers: Sequence[int], out: Any, places: Sequence[int]) -> None:
        """Write frames by their numbers, which may repeat, to `out` [N, C, H, W], an array or a tensor, at `places`."""
        frames = self._decode(numbers)
        if frames.shape[1:] != out.shape[1:]:
            raise InputError(
                f"the video '{self.path}': its frames have the size {frames.shape[3]} × {frames.shape[2]}, and "
                f"{out.shape[3]} × {out.shape[2]} is expected; copy the dataset again."
            )
        if isinstance(out, np.ndarray):
            pixels = frames.permute(0, 2, 3, 1).contiguous().numpy()  # as TorchCodec has them: no copy
            for frame, place in zip(pixels, places, strict=True):
                native.split_channels(frame.reshape(-1), 3 * out.shape[3], out[place])
            return
        import torch

        scaled = frames if out.dtype == torch.uint8 else frames.float().div_(255)
        out[torch.as_tensor(places, device=out.device)] = scaled

    def _decode(self, numbers: Sequence[int]) -> Any:
        """Return frames [N, C, H, W], uint8."""
        try:
            if numbers and (last := max(numbers)) >= len(self._decoder):
                raise InputError(
                    f"the video '{self.path}' has no frame {last}: it is shorter than its index; copy it again."
                )
            batch = self._decoder.get_frames_at(indices=[int(n) for n in numbers])
            stamps = np.asarray(batch.pts_seconds)
            if np.abs(stamps * self._fps - np.asarray(numbers)).max(initial=0) > 0.5 and not self._is_exact:
                self._decoder, self._is_exact = self._open("exact"), True  # a file whose header counts otherwise
                return self._decode(numbers)
        except (RuntimeError, IndexError, ValueError) as error:
            raise InputError(
                f"the video '{self.path}', frames {min(numbers)} to {max(numbers)}: {_get_first_line(error)}; copy the "
                "dataset again."
            ) from error
        return batch.data

    def _open(self, mode: str) -> Any:
        from torchcodec.decoders import VideoDecoder

        try:
            threads = {"num_ffmpeg_threads": 1} if self._device == "cpu" else {}
            return VideoDecoder(str(self.path), seek_mode=mode, device=self._device, **threads)
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(
                f"the video '{self.path}' cannot be read ({_get_first_line(error)}); copy the dataset again."
            ) from error


def choose_decoder(name: str, device: str) -> str:
    """Return torchcodec or pyav: `auto` takes TorchCodec where it is installed and works."""
    if name not in DECODERS:
        raise unknown("video decoder", name, DECODERS)
    if name == "pyav":
        if device != "cpu":
            raise InputError(f"PyAV decodes on the CPU, and device is '{device}'; choose decoder='torchcodec'.")
        return name
    try:
        import torchcodec.decoders  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:  # without FFmpeg's libraries it cannot be loaded
        if name == "auto" and device == "cpu":
            return "pyav"
        why = _get_first_line(error).partition(". ")[0]
        raise InputError(
            f"TorchCodec cannot be loaded ({why}); install it with FFmpeg (pip install torchcodec), or choose "
            "decoder='pyav'."
        ) from error
    return "torchcodec"


def open_video(path: Path, fps: float, decoder: str = "pyav", device: str = "cpu") -> VideoReader | TorchCodecReader:
    """Return the reader of a video; `decoder` is what `choose_decoder` returns."""
    return VideoReader(path, fps) if decoder == "pyav" else TorchCodecReader(path, fps, device)


def _get_first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


@dataclass(frozen=True)
class JoinedVideo:
    """Where an episode lies in the joined files."""

    file: int
    start_s: float
    end_s: float


def join_videos(
    sources: Sequence[tuple[Path, int]], fps: Fraction, most_bytes: int, name_file: Any
) -> list[JoinedVideo]:
    """Join videos of episodes (path, frames) into files of at most `most_bytes` (one episode may be longer).

    `name_file(i)` gives the path of file i. Packets are copied, so pixels do not change. Videos of different codecs or
    headers never share a file.
    """
    out: list[JoinedVideo] = []
    for number, group in enumerate(_group_videos(sources, most_bytes)):
        path = name_file(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        if len(group) == 1:
            link_file(group[0][0], path)
        else:
            _concatenate([source for source, _ in group], path, fps)
        frames = 0
        for _, count in group:
            out.append(JoinedVideo(number, float(frames / fps), float((frames + count) / fps)))
            frames += count
    return out


def _group_videos(sources: Sequence[tuple[Path, int]], most_bytes: int) -> Iterator[list[tuple[Path, int]]]:
    av = import_av("writing videos")
    group: list[tuple[Path, int]] = []
    header: Any = None
    size = 0
    for path, frames in sources:
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            parameters = (stream.codec_context.name, bytes(stream.codec_context.extradata or b""), stream.time_base)
        bytes_here = path.stat().st_size
        if group and (parameters != header or size + bytes_here > most_bytes):
            yield group
            group, size = [], 0
        group.append((path, frames))
        header, size = parameters, size + bytes_here
    if group:
        yield group


def _concatenate(paths: Sequence[Path], out: Path, fps: Fraction) -> None:
    av = import_av("writing videos")
    with av.open(str(out), "w", format="mp4") as target:
        stream = None
        frames = 0
        for path in paths:
            with av.open(str(path)) as source:
                origin = source.streams.video[0]
                if stream is None:
                    stream = target.add_stream_from_template(origin, opaque=True)
                    stream.time_base = origin.time_base
                offset = round(Fraction(frames) / fps / origin.time_base)
                for packet in source.demux(origin):
                    if packet.size:
                        packet.pts, packet.dts = packet.pts + offset, packet.dts + offset
                        packet.stream = stream
                        target.mux_one(packet)
                        frames += 1


def link_file(source: Path, target: Path) -> None:
    """Give a file a second name; copy it where the filesystem has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
