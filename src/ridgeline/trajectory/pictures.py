"""Single pictures of a camera: what a message holds, how large it is, whether it is complete, and its pixels.

A picture is raw pixels (with an encoding of ROS: rgb8, bayer_rggb8, 16UC1), a compressed image (jpeg, png), or one
access unit of a video (h264, h265, av1). `inspect` looks at its headers only, so that a recording of any size can be
indexed; `build_frame` and `build_depth` give the pixels.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory.stream import Array

VIDEO_CODECS = ("h264", "h265", "av1", "vp9")
IMAGE_CODECS = ("jpeg", "png", "webp", "bmp", "tiff")
DEPTH_PNG = "compressedDepth"
DEPTH_RVL = "compressedDepth rvl"
DEPTH_FILES = (DEPTH_PNG, DEPTH_RVL)
DEPTHS = {"16UC1": np.uint16, "mono16": np.uint16, "16SC1": np.int16, "32FC1": np.float32}
DECODED = "decoded"  # `data` is a frame that a video reader decoded already
MOST_PIXELS = 1 << 28  # more is a damaged header
FFMPEG_NAMES = {"jpeg": "mjpeg", "h265": "hevc", "av1": "libdav1d"}  # where FFmpeg has another name
_PNG = b"\x89PNG\r\n\x1a\n"
_ALIASES = {"jpg": "jpeg", "hevc": "h265", "avc": "h264", "libx264": "h264", "h.264": "h264", "h.265": "h265"}
# encoding -> (bytes per pixel, FFmpeg's pixel format)
_PACKED = {
    "rgb8": (3, "rgb24"), "bgr8": (3, "bgr24"), "rgba8": (4, "rgba"), "bgra8": (4, "bgra"),
    "8UC3": (3, "bgr24"), "8UC4": (4, "bgra"), "mono8": (1, "gray"), "8UC1": (1, "gray"),
    "rgb16": (6, "rgb48le"), "bgr16": (6, "bgr48le"), "rgba16": (8, "rgba64le"), "bgra16": (8, "bgra64le"),
    "16UC3": (6, "bgr48le"),
    "yuv422": (2, "uyvy422"), "uyvy": (2, "uyvy422"), "yuv422_yuy2": (2, "yuyv422"), "yuyv": (2, "yuyv422"),
    **{f"bayer_{order}8": (1, f"bayer_{order}8") for order in ("rggb", "bggr", "gbrg", "grbg")},
    **{f"bayer_{order}16": (2, f"bayer_{order}16le") for order in ("rggb", "bggr", "gbrg", "grbg")},
}  # fmt: skip
_PLANAR = {"nv12": ("nv12", 1.5), "nv21": ("nv21", 1.5), "nv24": ("nv24", 3.0)}  # bytes per pixel over all planes
RAW = (*_PACKED, *_PLANAR, *DEPTHS)


@dataclass(frozen=True, eq=False)
class Picture:
    """One picture of a camera as a recording holds it."""

    codec: str  # one of RAW, IMAGE_CODECS, VIDEO_CODECS, compressedDepth, or the unknown name of the recording
    data: Any  # bytes, a uint8 array, or a decoded frame
    width: int = 0  # of raw pixels; other codecs say it in their own headers
    height: int = 0
    step: int = 0  # bytes of a row of raw pixels
    big_endian: bool = False
    inverse: bool = True  # values of compressedDepth may be quantised inverse depth, as the head of `data` says


@dataclass(frozen=True)
class Look:
    """What the headers of a picture say."""

    width: int = 0  # 0: not known before it is decoded
    height: int = 0
    fault: str = ""  # why the picture cannot be decoded; "" if nothing is wrong
    key: bool = True  # a key frame
    parameters: bool = True  # with the parameter sets that a decoder needs to start
    depth: bool = False


def name_codec(text: str, data: Any = b"") -> str:
    """Return the codec that a message names, or that the first bytes show.

    >>> name_codec("rgb8; jpeg compressed bgr8"), name_codec("16UC1; compressedDepth png"), name_codec("H264")
    ('jpeg', 'compressedDepth', 'h264')
    """
    low = text.lower()
    if "compresseddepth" in low:
        return DEPTH_RVL if "rvl" in low else DEPTH_PNG
    head = bytes(data[:12])
    if head.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if head.startswith(_PNG):
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    for name in (*_ALIASES, *IMAGE_CODECS, *VIDEO_CODECS):
        if name in low:
            return _ALIASES.get(name, name)
    return text.strip() or "unknown"


def inspect(picture: Picture) -> Look:
    """Read the headers of a picture; what they say can still be wrong, but not by cutting or emptying it."""
    codec, data = picture.codec, picture.data
    if codec == DECODED:
        return Look(data.width, data.height)
    if codec in RAW:
        return _inspect_raw(picture)
    if not len(data):
        return Look(fault="it is empty")
    if codec == "jpeg":
        return _inspect_jpeg(bytes(data))
    if codec == "png":
        return _inspect_png(bytes(data))
    if codec == DEPTH_PNG:
        return _inspect_png(bytes(data[12:]))
    if codec == DEPTH_RVL:
        if len(data) < 20:
            return Look(fault="it was cut off before its header ends", depth=True)
        width, height = struct.unpack("<ii", bytes(data[12:20]))
        if width <= 0 or height <= 0 or width * height > MOST_PIXELS:
            return Look(fault=f"its size of {width} × {height} pixels is none", depth=True)
        return Look(width, height, depth=True)
    if codec in ("h264", "h265"):
        units = find_units(bytes(data), codec)
        if not units:
            return Look(fault="it holds no unit of a video", key=False)
        kinds = {kind for kind, _, _ in units}
        return Look(key=not kinds.isdisjoint(_KEY_UNITS[codec]), parameters=kinds.issuperset(_PARAMETER_UNITS[codec]))
    if codec == "vp9":
        return Look(key=_is_vp9_key(bytes(data[:1])[0]))
    if codec == "av1":
        return Look(key=any(kind == _AV1_SEQUENCE for kind, _, _ in find_units(bytes(data), codec)))
    return Look()


def is_known(codec: str) -> bool:
    return codec in (*RAW, *IMAGE_CODECS, *VIDEO_CODECS, *DEPTH_FILES, DECODED)


def _inspect_raw(picture: Picture) -> Look:
    width, height, size = picture.width, picture.height, len(picture.data)
    is_depth = picture.codec in DEPTHS
    if width <= 0 or height <= 0 or width * height > MOST_PIXELS:
        return Look(fault=f"its size of {width} × {height} pixels is none", depth=is_depth)
    row = width * (1 if picture.codec in _PLANAR else _bytes_per_pixel(picture.codec))
    if picture.step and picture.step < row:
        return Look(width, height, f"its rows of {picture.step} bytes do not hold {width} pixels", depth=is_depth)
    if picture.codec in _PLANAR:
        needed = int((picture.step or width) * height * _PLANAR[picture.codec][1])
    else:
        needed = (picture.step or row) * (height - 1) + row
    fault = f"it has {size} of {needed} bytes" if size < needed else ""
    return Look(width, height, "it is empty" if not size else fault, depth=is_depth)


def _bytes_per_pixel(codec: str) -> int:
    return np.dtype(DEPTHS[codec]).itemsize if codec in DEPTHS else _PACKED[codec][0]


def _inspect_jpeg(data: bytes) -> Look:
    """Follow the segments to the frame header, and look for the end marker."""
    if data[:2] != b"\xff\xd8":
        return Look(fault="it does not begin as a JPEG image")
    at = 2
    while at + 9 <= len(data):
        if data[at] != 0xFF:
            break
        marker = data[at + 1]
        if marker == 0xFF:  # padding
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            if not width or not height or width * height > MOST_PIXELS:
                return Look(fault=f"its size of {width} × {height} pixels is none")
            if data[at + 4] != 8 and marker != _LOSSLESS_JPEG:
                return Look(width, height, f"its values have {data[at + 4]} bits, and JPEG is read with 8")
            if marker >= _ARITHMETIC_JPEG:
                return Look(width, height, "its arithmetic coding is not read")
            ended = data.rfind(b"\xff\xd9") > at
            return Look(width, height, "" if ended else "it was cut off before its end")
        at += 2 + max(length, 2)
    return Look(fault="it has no frame header")


def _inspect_png(data: bytes) -> Look:
    if not data.startswith(_PNG) or len(data) < 33:
        return Look(fault="it does not begin as a PNG image")
    width, height, bits, kind = struct.unpack(">IIBB", data[16:26])
    if not width or not height or width * height > MOST_PIXELS:
        return Look(fault=f"its size of {width} × {height} pixels is none")
    fault = "" if data.rfind(b"IEND") > 0 else "it was cut off before its end"
    return Look(width, height, fault, depth=bits == 16 and kind == 0)


_LOSSLESS_JPEG, _ARITHMETIC_JPEG = 0xC3, 0xC9  # markers of frame headers; from the second on
_PARAMETER_UNITS = {"h264": (7, 8), "h265": (32, 33, 34)}
_KEY_UNITS = {"h264": (5,), "h265": (16, 17, 18, 19, 20, 21)}
_AV1_SEQUENCE = 1


def find_units(data: bytes, codec: str) -> list[tuple[int, int, int]]:
    """Return (type, start, end) of the NAL units (with their start codes) or of AV1's OBUs in one access unit."""
    if codec == "av1":
        return _find_obus(data)
    starts: list[int] = []
    at = data.find(b"\0\0\1")
    while at >= 0:
        starts.append(at)
        at = data.find(b"\0\0\1", at + 3)
    out = []
    for start, end in pairwise([*starts, len(data)]):
        if start + 3 < len(data):
            first = data[start + 3]
            out.append((first & 31 if codec == "h264" else first >> 1 & 63, start, end))
    return out


def _is_vp9_key(byte: int) -> bool:
    """Read the first byte of a frame: its profile, whether it shows another frame again, and its type."""
    shift = 1 if byte >> 4 & 3 == 3 else 0
    return byte >> 6 == 2 and not byte >> (3 - shift) & 1 and not byte >> (2 - shift) & 1


def _find_obus(data: bytes) -> list[tuple[int, int, int]]:
    out, at = [], 0
    while at < len(data):
        start, header = at, data[at]
        at += 2 if header & 4 else 1
        if not header & 2:  # without a size it reaches to the end
            out.append((header >> 3 & 15, start, len(data)))
            break
        size = shift = 0
        while at < len(data) and shift < 56:
            byte = data[at]
            size, shift, at = size | (byte & 127) << shift, shift + 7, at + 1
            if not byte & 128:
                break
        at += size
        out.append((header >> 3 & 15, start, min(at, len(data))))
    return out


def import_av(what: str) -> Any:
    """Return PyAV; its messages go nowhere, because faults are errors or counts here."""
    try:
        import av
    except ImportError:
        raise MissingExtra(what, "robot") from None
    av.logging.set_level(None)
    return av


def create_decoder(codec: str, topic: str) -> Any:
    """Return a decoder that gives a picture for each packet, without a delay."""
    av = import_av("decoding cameras")
    name = FFMPEG_NAMES.get(codec, codec)
    try:
        decoder = av.CodecContext.create(name, "r")
    except (av.error.FFmpegError, ValueError) as error:
        raise InputError(
            f"{topic}: its codec '{codec}' cannot be decoded here; install a package av whose FFmpeg has it."
        ) from error
    decoder.thread_count = 1
    decoder.options = {"err_detect": "explode", "max_pixels": str(MOST_PIXELS), "flags": "low_delay"}
    return decoder


@dataclass(frozen=True)
class Opening:
    """What the first packet of a video says about all of it."""

    width: int = 0
    height: int = 0
    reorders: bool = True  # pictures are shown in another order than sent


def open_video_topic(first: Picture, topic: str) -> Opening:
    """Decode the first key frame of a video; a damaged one tells nothing."""
    av = import_av("decoding cameras")
    decoder = create_decoder(first.codec, topic)
    try:
        decoder.decode(av.Packet(first.data))
    except (av.error.FFmpegError, ValueError):
        return Opening()
    return Opening(decoder.width, decoder.height, bool(decoder.has_b_frames))


def check_codec(codec: str, topic: str) -> None:
    """Refuse a codec that nothing here decodes."""
    if not is_known(codec):
        known = ", ".join((*IMAGE_CODECS, *VIDEO_CODECS, *DEPTH_FILES, *RAW))
        raise InputError(f"{topic}: its codec '{codec}' cannot be decoded here (known: {known}); convert it first.")


def build_frame(picture: Picture) -> Any:
    """Return raw pixels as a frame of PyAV."""
    av = import_av("decoding cameras")
    codec, width, height = picture.codec, picture.width, picture.height
    data = np.frombuffer(picture.data, np.uint8)
    if codec in _PLANAR:
        frame = av.VideoFrame(width, height, _PLANAR[codec][0])
        step, share = picture.step or width, 2 if codec == "nv24" else 1  # rows of chroma in a row of `data`
        luma, chroma = np.split(data[: int(step * height * _PLANAR[codec][1])], [step * height])
        _fill_plane(frame.planes[0], luma.reshape(height, step)[:, :width])
        _fill_plane(frame.planes[1], chroma.reshape(-1, share * step)[:, : share * width])
        return frame
    size, layout = _PACKED[codec]
    rows = _cut_rows(picture, data, size)
    if size > 1 and layout.endswith("le") and picture.big_endian:
        rows = rows.view(">u2").astype("<u2").view(np.uint8)
    frame = av.VideoFrame(width, height, layout)
    _fill_plane(frame.planes[0], rows)
    return frame


def build_depth(picture: Picture) -> Array:
    """Return the values of a raw depth image, exactly: [H, W] uint16, int16 or float32."""
    kind = np.dtype(DEPTHS[picture.codec])
    rows = _cut_rows(picture, np.frombuffer(picture.data, np.uint8), kind.itemsize)
    values = rows.view(kind.newbyteorder(">" if picture.big_endian else "<"))
    return np.asarray(values, kind)


def unpack_depth(config: bytes, values: Array) -> Array:
    """Return the depth of a compressedDepth image: its values as they are, or meters from quantised inverse depth."""
    _, a, b = struct.unpack("<iff", config[:12])
    if not a:
        return values
    with np.errstate(divide="ignore"):
        meters = a / (values.astype(np.float32) - np.float32(b))
    return np.where(values == 0, np.float32(np.nan), meters).astype(np.float32)


def unpack_rvl(data: bytes) -> Array:
    """Return the values [H, W] of a compressedDepth image in RVL: runs of zeros, and runs of differences.

    RVL (Wilson, 2017) writes numbers in nibbles: 3 bits of the number each, lowest first, and a bit that says whether
    more follow. Runs of zeros and of other pixels take turns; each of the latter is a zigzag difference to the one
    before it. Words of 32 bits are filled from their highest nibble.
    """
    width, height = struct.unpack("<ii", data[12:20])
    words = np.frombuffer(data, "<u4", (len(data) - 20) // 4, offset=20)
    nibbles = ((words[:, None] >> np.arange(28, -1, -4, dtype=np.uint32)) & 15).astype(np.int64).reshape(-1)
    ends = np.flatnonzero(nibbles < 8)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    places = np.arange(ends[-1] + 1 if len(ends) else 0) - np.repeat(starts, ends - starts + 1)
    if places.max(initial=0) > 10:
        raise ValueError("a number of its depth is too long")
    numbers = np.add.reduceat((nibbles[: len(places)] & 7) << (3 * places), starts) if len(ends) else ends
    steps = numbers >> 1 ^ -(numbers & 1)
    out = np.zeros(width * height, np.int64)
    filled, at, last, size = 0, 0, 0, len(out)
    while filled < size:
        if at + 1 >= len(numbers):
            raise ValueError("it was cut off before its end")
        filled += int(numbers[at])
        count = int(numbers[at + 1])
        at += 2
        if filled + count > size or at + count > len(numbers):
            raise ValueError("its runs do not fit its size")
        if count:
            values = last + np.cumsum(steps[at : at + count])
            out[filled : filled + count] = values
            last, filled, at = int(values[-1]), filled + count, at + count
    if out.min(initial=0) < 0 or out.max(initial=0) > 65535:
        raise ValueError("its depth does not fit into 16 bits")
    return out.astype(np.uint16).reshape(height, width)


def _cut_rows(picture: Picture, data: Array, size: int) -> Array:
    """Return the rows [H, W · size] of raw pixels without what pads them."""
    row, step = picture.width * size, picture.step or picture.width * size
    if step == row:
        return np.ascontiguousarray(data[: row * picture.height].reshape(picture.height, row))
    padded = np.zeros(step * picture.height, np.uint8)  # the last row may lack its padding
    padded[: min(len(data), len(padded))] = data[: len(padded)]
    return np.ascontiguousarray(padded.reshape(picture.height, step)[:, :row])


def _fill_plane(plane: Any, rows: Array) -> None:
    target = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    target[: len(rows), : rows.shape[1]] = rows
