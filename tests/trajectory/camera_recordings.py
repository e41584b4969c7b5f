"""Recordings with cameras: pictures that show their number, in MCAP and ROS bags."""

from __future__ import annotations

import base64
import io
import json
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from tests.trajectory.recordings import EPOCH, NS

from ridgeline.trajectory.videos import keep_scheduling

FRONT, WRIST, DEPTH, JOINTS, VIDEO = "/front/compressed", "/wrist", "/depth", "/joints", "/video"
SIZE = (96, 64)  # width, height
_SEPARATOR = "\n" + "=" * 80 + "\n"
_TIME = f"{_SEPARATOR}MSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec"
_HEADER = f"{_SEPARATOR}MSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id{_TIME}"
_VECTOR = "float64 x\nfloat64 y\nfloat64 z"
_TRANSFORM = (
    f"geometry_msgs/Vector3 translation\ngeometry_msgs/Quaternion rotation{_SEPARATOR}MSG: geometry_msgs/Vector3\n"
    f"{_VECTOR}{_SEPARATOR}MSG: geometry_msgs/Quaternion\n{_VECTOR}\nfloat64 w"
)
SCHEMAS = {
    "sensor_msgs/msg/CameraInfo": "std_msgs/Header header\nuint32 height\nuint32 width\nstring distortion_model\n"
    f"float64[] d\nfloat64[9] k\nfloat64[9] r\nfloat64[12] p{_HEADER}",
    "tf2_msgs/msg/TFMessage": f"geometry_msgs/TransformStamped[] transforms{_SEPARATOR}"
    "MSG: geometry_msgs/TransformStamped\nstd_msgs/Header header\nstring child_frame_id\n"
    f"geometry_msgs/Transform transform{_SEPARATOR}MSG: geometry_msgs/Transform\n{_TRANSFORM}{_HEADER}",
    "std_msgs/msg/String": "string data",
    "sensor_msgs/msg/CompressedImage": f"std_msgs/Header header\nstring format\nuint8[] data{_HEADER}",
    "sensor_msgs/msg/Image": "std_msgs/Header header\nuint32 height\nuint32 width\nstring encoding\n"
    f"uint8 is_bigendian\nuint32 step\nuint8[] data{_HEADER}",
    "sensor_msgs/msg/JointState": "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\n"
    f"float64[] effort{_HEADER}",
    "foxglove_msgs/msg/CompressedVideo": f"builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\n"
    f"string format{_TIME}",
}
Message = tuple[int, int, str, str, dict[str, Any]]  # logged, stamp, topic, type, fields


def draw(number: int, size: tuple[int, int] = SIZE) -> np.ndarray:
    """A grey picture [H, W] that shows 12 bits as squares of 16 pixels."""
    width, height = size
    out = np.full((height, width), 128, np.uint8)
    for bit in range(12):
        row, column = divmod(bit, 6)
        out[row * 16 : row * 16 + 16, column * 16 : column * 16 + 16] = 235 if number >> bit & 1 else 20
    return out


def read_number(pixels: np.ndarray) -> int:
    """The number of a drawn picture [H, W, 3] (uint8) or [3, H, W] (0 … 1)."""
    grey = pixels.mean(axis=0) * 255 if pixels.shape[0] == 3 else pixels.mean(axis=2)
    return sum(
        int(grey[r * 16 + 4 : r * 16 + 12, c * 16 + 4 : c * 16 + 12].mean() > 128) << bit
        for bit in range(12)
        for r, c in [divmod(bit, 6)]
    )


def encode(pixels: np.ndarray, codec: str = "mjpeg", layout: str = "yuvj420p") -> bytes:
    """A JPEG or PNG image."""
    encoder = av.CodecContext.create(codec, "w")
    shape = pixels.shape
    encoder.width, encoder.height, encoder.pix_fmt, encoder.time_base = shape[1], shape[0], layout, 1
    source = {np.uint16: "gray16le"}.get(pixels.dtype.type, "gray" if pixels.ndim == 2 else "rgb24")
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format=source)
    if layout == "yuvj420p":
        frame = frame.reformat(format="yuv420p", dst_color_range=2)
        encoder.pix_fmt, encoder.color_range, encoder.options = "yuv420p", 2, {"strict": "unofficial"}
    else:
        frame = frame.reformat(format=layout)
    return b"".join(bytes(p) for p in [*encoder.encode(frame), *encoder.encode(None)])


def encode_video(
    count: int, codec: str = "libx264", gop: int = 15, first: int = 0, layout: str = "yuv420p"
) -> list[bytes]:
    """Access units of a video without reordering, a key frame each `gop` frames."""
    os.environ.setdefault("SVT_LOG", "1")
    form = {"libx264": "h264", "libx265": "hevc", "libsvtav1": "obu"}[codec]
    options = {"g": str(gop), "bf": "0", "preset": "ultrafast"}
    if codec == "libx264":
        options |= {"tune": "zerolatency", "x264-params": "repeat-headers=1"}
    elif codec == "libx265":
        options |= {"tune": "zerolatency", "x265-params": f"keyint={gop}:bframes=0:repeat-headers=1:log-level=none"}
    else:
        options = {"g": str(gop), "preset": "12", "svtav1-params": "pred-struct=1"}
    with av.open(io.BytesIO(), "w", format=form) as out:
        stream = out.add_stream(codec, rate=30)
        stream.width, stream.height, stream.pix_fmt = *SIZE, layout
        stream.options = options
        frames = [
            av.VideoFrame.from_ndarray(np.repeat(draw(first + i)[..., None], 3, 2), format="rgb24")
            for i in range(count)
        ]
        with keep_scheduling():
            return [bytes(p) for f in [*frames, None] for p in stream.encode(f)]


def encode_reordered(count: int) -> list[tuple[int, bytes]]:
    """(number of the picture, access unit) of an H.264 video with B-frames, in the order of sending."""
    with av.open(io.BytesIO(), "w", format="h264") as out:
        stream = out.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        stream.codec_context.max_b_frames = 2
        stream.options = {"g": "15", "bf": "2", "preset": "fast", "x264-params": "b-adapt=0:repeat-headers=1"}
        packets = []
        for i in range(count):
            frame = av.VideoFrame.from_ndarray(np.repeat(draw(i)[..., None], 3, 2), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 30)
            packets += stream.encode(frame)
        return [(int(p.pts), bytes(p)) for p in [*packets, *stream.encode(None)]]


def stamp(time: int) -> dict[str, int]:
    return {"sec": int(time // NS), "nanosec": int(time % NS)}


def header(time: int) -> dict[str, Any]:
    return {"stamp": stamp(time), "frame_id": "camera"}


def image(time: int, pixels: np.ndarray, encoding: str, *, pad: int = 0, big_endian: bool = False) -> dict[str, Any]:
    """A raw image; `pad` adds bytes to each row."""
    rows = pixels.reshape(len(pixels), -1)
    rows = (rows.astype(rows.dtype.newbyteorder(">")) if big_endian else rows).view(np.uint8)
    rows = np.pad(rows.reshape(len(pixels), -1), ((0, 0), (0, pad)))
    fields = {"height": len(pixels), "width": pixels.shape[1], "encoding": encoding, "is_bigendian": int(big_endian)}
    return {"header": header(time), **fields, "step": rows.shape[1], "data": rows.tobytes()}


def ticks(hz: float, seconds: float, late: float = 0.01) -> list[int]:
    return [EPOCH + round((late + i / hz) * NS) for i in range(int(hz * seconds))]


def messages(
    seconds: float = 2.0, gap: tuple[float, float] = (1.0, 1.5), size: tuple[int, int] = SIZE
) -> list[Message]:
    """A JPEG camera at 30 Hz with a gap (logged 40 ms late), bgr8 at 15 Hz, depth at 10 Hz, joints at 50 Hz."""
    out: list[Message] = []
    for i, t in enumerate(ticks(30, seconds)):
        if not gap[0] < (t - EPOCH) / NS < gap[1]:
            data = encode(draw(i, size))
            fields = {"header": header(t), "format": "jpeg", "data": data}
            out.append((t + 40_000_000, t, FRONT, "sensor_msgs/msg/CompressedImage", fields))
    for i, t in enumerate(ticks(15, seconds)):
        pixels = np.repeat(draw(i, size)[..., None], 3, 2)
        pixels[40:] = (200, 40, 40)
        out.append((t, t, WRIST, "sensor_msgs/msg/Image", image(t, pixels, "bgr8")))
    for i, t in enumerate(ticks(10, seconds)):
        values = np.arange(48, dtype=np.uint16).reshape(6, 8) + 1000 + i
        out.append((t, t, DEPTH, "sensor_msgs/msg/Image", image(t, values, "16UC1", pad=4)))
    return sorted([*out, *joints(seconds)], key=lambda m: m[0])


def joints(seconds: float) -> list[Message]:
    fields = [(t, [(t - EPOCH) / NS, 1.0]) for t in ticks(50, seconds)]
    extra: dict[str, Any] = {"velocity": [], "effort": []}
    return [
        (t, t, JOINTS, "sensor_msgs/msg/JointState", {"header": header(t), "name": ["a", "b"], "position": p, **extra})
        for t, p in fields
    ]


def video_messages(units: Sequence[bytes], codec: str = "h264", hz: float = 30.0) -> list[Message]:
    times = ticks(hz, len(units) / hz + 1)
    out: list[Message] = []
    for t, data in zip(times, units, strict=False):
        fields = {"timestamp": stamp(t), "frame_id": "camera", "data": data, "format": codec}
        out.append((t, t, VIDEO, "foxglove_msgs/msg/CompressedVideo", fields))
    return out


def mcap(path: Path, items: Sequence[Message]) -> Path:
    from mcap_ros2.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        schemas = {name: writer.register_msgdef(name, text) for name, text in SCHEMAS.items()}
        for logged, published, topic, kind, fields in items:
            writer.write_message(topic, schemas[kind], fields, log_time=logged, publish_time=published)
        writer.finish()
    return path


def unchunk(path: Path, out: Path) -> Path:
    """Copy a recording into a file without chunks."""
    from mcap.reader import make_reader
    from mcap.writer import Writer

    with path.open("rb") as source, out.open("wb") as file:
        writer = Writer(file, use_chunking=False)
        writer.start()
        channels: dict[int, int] = {}
        for schema, channel, message in make_reader(source).iter_messages():
            if channel.id not in channels:
                number = writer.register_schema(schema.name, schema.encoding, schema.data)
                channels[channel.id] = writer.register_channel(channel.topic, channel.message_encoding, number)
            writer.add_message(channels[channel.id], message.log_time, message.data, message.publish_time)
        writer.finish()
    return out


def change(
    items: Sequence[Message], topic: str, edit: Callable[[int, dict[str, Any]], dict[str, Any]]
) -> list[Message]:
    """Edit the fields of the messages of a topic: `edit(number, fields)`."""
    count = -1
    out: list[Message] = []
    for logged, published, name, kind, fields in items:
        if name == topic:
            count += 1
            fields = edit(count, dict(fields))
        out.append((logged, published, name, kind, fields))
    return out


def foxglove_json(path: Path, seconds: float = 1.0) -> Path:
    """`foxglove.CompressedImage` and `foxglove.RawImage` as JSON, with base64 data."""
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        names = ("foxglove.CompressedImage", "foxglove.RawImage", "Joints")
        schemas = [writer.register_schema(n, "jsonschema", b'{"type": "object"}') for n in names]
        topics = [writer.register_channel(t, "json", s) for t, s in zip(("/png", "/raw", "/arm"), schemas, strict=True)]
        for i, t in enumerate(ticks(10, seconds)):
            pixels = np.repeat(draw(i)[..., None], 3, 2)
            base = {"timestamp": {"sec": t // NS, "nsec": t % NS}, "frame_id": "camera"}
            data = {
                "format": "png", "data": base64.b64encode(encode(pixels, "png", "rgb24")).decode()
            }  # fmt: skip
            raw = {
                "encoding": "rgb8", "width": SIZE[0], "height": SIZE[1], "step": SIZE[0] * 3,
                "data": base64.b64encode(pixels.tobytes()).decode(),
            }  # fmt: skip
            for channel, fields in zip(
                topics, ({**base, **data}, {**base, **raw}, {**base, "x": float(i)}), strict=True
            ):
                writer.add_message(channel, log_time=t, publish_time=t, data=json.dumps(fields).encode())
        writer.finish()
    return path


def rosbag(path: Path, seconds: float = 1.0) -> Path:
    """A JPEG camera and a 10 Hz joint in a ROS 1 (.bag) or ROS 2 (folder) bag."""
    from rosbags.rosbag1 import Writer as Writer1
    from rosbags.rosbag2 import Writer as Writer2
    from rosbags.typesys import Stores, get_typestore

    first = path.suffix == ".bag"
    store = get_typestore(Stores.ROS1_NOETIC if first else Stores.ROS2_HUMBLE)
    types = store.types
    kinds = ("sensor_msgs/msg/CompressedImage", "std_msgs/msg/Float64")
    with Writer1(path) if first else Writer2(path, version=9) as bag:
        links = [bag.add_connection(t, k, typestore=store) for t, k in zip((FRONT, "/x"), kinds, strict=True)]
        for i, t in enumerate(ticks(10, seconds)):
            time = types["builtin_interfaces/msg/Time"](sec=t // NS, nanosec=t % NS)
            extra = {"seq": i} if first else {}
            top = types["std_msgs/msg/Header"](stamp=time, frame_id="camera", **extra)
            data = np.frombuffer(encode(draw(i)), np.uint8)
            for link, message in zip(
                links,
                (types[kinds[0]](header=top, format="jpeg", data=data), types[kinds[1]](data=float(i))),
                strict=True,
            ):
                raw = (
                    store.serialize_ros1(message, link.msgtype) if first else store.serialize_cdr(message, link.msgtype)
                )
                bag.write(link, t, raw)
    return path


def decode(path: Path) -> list[tuple[float, np.ndarray]]:
    """The stamps and pixels of a video, by PyAV alone."""
    with av.open(str(path)) as file:
        return [(float(f.pts * f.time_base), f.to_ndarray(format="rgb24")) for f in file.decode(video=0)]
