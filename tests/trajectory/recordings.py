"""Small recordings of every format, written with the libraries of the formats."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

NS = 1_000_000_000
EPOCH = 1_700_000_000 * NS

IMU = """std_msgs/Header header
geometry_msgs/Vector3 gyro
geometry_msgs/Quaternion orientation
string label
float32[3] accel
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
================================================================================
MSG: geometry_msgs/Vector3
float64 x
float64 y
float64 z
================================================================================
MSG: geometry_msgs/Quaternion
float64 x
float64 y
float64 z
float64 w
"""


def turning(count: int, *, flips: bool = False) -> np.ndarray:
    """Unit quaternions, w first, turning about z; with `flips` every third has its sign turned."""
    half = np.linspace(0, 1.2, count)
    q = np.stack([np.cos(half), np.zeros(count), np.zeros(count), np.sin(half)], axis=1)
    if flips:
        q[::3] *= -1
    return q


def ulog(path: Path, topics: dict[str, tuple[str, list[tuple]]], stamps: dict[str, list[int]]) -> Path:
    """`topics`: name -> (fields as in ULog, one tuple of values per message); stamps in µs."""
    codes = {"float": "f", "double": "d", "uint8_t": "B", "bool": "?", "uint64_t": "Q", "int32_t": "i", "char": "c"}
    out = bytearray(b"ULog\x01\x12\x35\x01" + struct.pack("<Q", 0))

    def message(kind: str, body: bytes) -> None:
        out.extend(struct.pack("<HB", len(body), ord(kind)) + body)

    for name, (fields, _) in topics.items():
        message("F", f"{name}:uint64_t timestamp;{fields}".encode())
    for number, name in enumerate(topics):
        message("A", struct.pack("<BH", 0, number) + name.encode())
    for number, (name, (fields, rows)) in enumerate(topics.items()):
        layout = "<"
        for field in filter(None, fields.split(";")):
            kind = field.split()[0]
            base, _, count = kind.partition("[")
            layout += (count.rstrip("]") or "1") + codes[base]
        for stamp, row in zip(stamps[name], rows, strict=True):
            message("D", struct.pack("<HQ", number, stamp) + struct.pack(layout, *row))
    path.write_bytes(bytes(out))
    return path


def flight(path: Path, seconds: int = 4) -> Path:
    """Attitude at 100 Hz, a mode at 4 Hz, and a topic whose stamps are all alike."""
    fast, slow = seconds * 100 + 1, seconds * 4 + 1
    q = turning(fast, flips=True)
    return ulog(
        path,
        {
            "attitude": (
                "float[4] q;float yaw;",
                [(*row, a) for row, a in zip(q, np.linspace(-3, 3, fast), strict=True)],
            ),
            "status": ("uint8_t mode;bool armed;char[4] tag;", [(i % 3, i > 4, *[b"a"] * 4) for i in range(slow)]),
            "stuck": ("float x;", [(1.0,)] * 20),
        },
        {
            "attitude": [10_000_000 + 10_000 * i for i in range(fast)],
            "status": [10_000_000 + 250_000 * i for i in range(slow)],
            "stuck": [2_000_000] * 20,
        },
    )


def mcap_ros2(path: Path, count: int = 50, *, header: bool = True) -> Path:
    from mcap_ros2.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        schema = writer.register_msgdef("test_msgs/msg/Imu", IMU)
        q = turning(count)
        for i in range(count):
            stamp = EPOCH + i * NS // 100
            sec, nanosec = divmod(stamp if header else 0, NS)
            writer.write_message(
                "/imu/data",
                schema,
                {
                    "header": {"stamp": {"sec": sec, "nanosec": nanosec}, "frame_id": "base"},
                    "gyro": {"x": 0.1 * i, "y": 0.0, "z": 1.0},
                    "orientation": {"x": q[i, 1], "y": q[i, 2], "z": q[i, 3], "w": q[i, 0]},
                    "label": "text",
                    "accel": [1.0, 2.0, 3.0 + i],
                },
                log_time=stamp + 5_000_000,
            )
        writer.finish()
    return path


def mcap_json(path: Path, count: int = 30) -> Path:
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("joint", "jsonschema", b"{}")
        channel = writer.register_channel("joints", "json", schema)
        strange = writer.register_channel("blob", "flatbuffer", schema)
        writer.add_message(strange, EPOCH, b"\0\0", EPOCH)
        for i in range(count):
            body = {"position": {"x": i / 10, "y": 1.0, "z": 2.0}, "gripper": i % 2 == 0, "note": "n", "n": i}
            writer.add_message(channel, EPOCH + i * NS // 30, json.dumps(body).encode(), EPOCH + i * NS // 30)
        writer.finish()
    return path


def bag(path: Path, count: int = 40, *, cut: Sequence[int] = ()) -> Path:
    """ROS 1 if the path ends in .bag, else a ROS 2 folder; of the messages `cut` half is missing."""
    from rosbags import rosbag1, rosbag2
    from rosbags.typesys import Stores, get_typestore

    one = path.suffix == ".bag"
    types = get_typestore(Stores.ROS1_NOETIC if one else Stores.ROS2_HUMBLE)
    known = types.types
    q = turning(count)
    writer = rosbag1.Writer(path) if one else rosbag2.Writer(path, version=9)
    with writer as out:
        line = out.add_connection("/pose", "geometry_msgs/msg/PoseStamped", typestore=types)
        words = out.add_connection("/words", "std_msgs/msg/String", typestore=types)
        for i in range(count):
            stamp = EPOCH + i * NS // 20
            clock = known["builtin_interfaces/msg/Time"](sec=stamp // NS, nanosec=stamp % NS)
            ask = {"stamp": clock, "frame_id": "map", **({"seq": i} if one else {})}
            pose = known["geometry_msgs/msg/PoseStamped"](
                header=known["std_msgs/msg/Header"](**ask),
                pose=known["geometry_msgs/msg/Pose"](
                    position=known["geometry_msgs/msg/Point"](x=0.1 * i, y=0.0, z=1.0),
                    orientation=known["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=q[i, 3], w=q[i, 0]),
                ),
            )
            raw = types.serialize_ros1 if one else types.serialize_cdr
            body = bytes(raw(pose, "geometry_msgs/msg/PoseStamped"))
            out.write(line, stamp, body[: len(body) // 2] if i in cut else body)
        text = known["std_msgs/msg/String"](data="hello")
        out.write(words, EPOCH, raw(text, "std_msgs/msg/String"))
    return path


def robomimic(path: Path, *, env: bool = True, stamps: bool = False, demos: int = 2) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if env:
            data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 20}})
        for i in range(demos):
            demo, n = data.create_group(f"demo_{i}"), 20 + i
            demo["actions"] = np.arange(n * 7, dtype=np.float32).reshape(n, 7)
            demo["obs/eef_pos"] = np.ones((n, 3)) * i
            demo["obs/eef_quat"] = turning(n)
            demo["obs/agentview_image"] = np.zeros((n, 8, 8, 3), np.uint8)
            demo["dones"] = np.arange(n) == n - 1
            if stamps:
                demo["timestamps"] = EPOCH / NS + np.arange(n) / 10
    return path


def lerobot_v2(root: Path, episodes: int = 2, frames: int = 15, fps: int = 30) -> Path:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["shoulder", "elbow"]},
        "observation.images.top": {"dtype": "video", "shape": [8, 8, 3]},
    }
    (root / "meta/info.json").write_text(json.dumps({"codebase_version": "v2.1", "fps": fps, "features": features}))
    for e in range(episodes):
        frame = np.arange(frames)
        table = arrow.table(
            {
                "observation.state": [[float(i), float(e)] for i in frame],
                "action": [float(i) for i in frame],
                "timestamp": (frame / fps).astype(np.float32),
                "frame_index": frame,
                "episode_index": np.full(frames, e),
                "index": frame + e * frames,
                "task_index": np.zeros(frames, np.int64),
            }
        )
        parquet.write_table(table, root / f"data/chunk-000/episode_{e:06d}.parquet")
    return root
