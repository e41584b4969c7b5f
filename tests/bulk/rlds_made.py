"""RLDS folders as tensorflow-datasets writes them, made without it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

PREFIX = "tensorflow_datasets.core.features."


def checksum(data: bytes) -> int:
    """CRC-32C bit by bit, masked: the slow reference."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 & -(value & 1))
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(number: int) -> bytes:
    out = b""
    number &= (1 << 64) - 1
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(values: Any) -> bytes:
    if isinstance(values, list):
        return field(1, b"".join(field(1, v) for v in values))
    if values.dtype.kind == "f":
        return field(2, field(1, values.astype("<f4").tobytes()))
    return field(3, field(1, b"".join(varint(int(v)) for v in values.reshape(-1))))


def record(steps: dict[str, Any]) -> bytes:
    entries = b"".join(
        field(1, field(1, f"steps/{n}".encode()) + field(2, feature(v.reshape(-1) if hasattr(v, "reshape") else v)))
        for n, v in steps.items()
    )
    body = field(1, entries)
    head = struct.pack("<Q", len(body))
    return head + struct.pack("<I", checksum(head)) + body + struct.pack("<I", checksum(body))


def tensor(shape: list[int], dtype: str) -> dict[str, Any]:
    dimensions = {"dimensions": [str(size) for size in shape]}
    return {
        "pythonClassName": PREFIX + "tensor_feature.Tensor",
        "tensor": {"shape": dimensions, "dtype": dtype, "encoding": "none"},
    }


def group(features: dict[str, Any]) -> dict[str, Any]:
    return {"pythonClassName": PREFIX + "features_dict.FeaturesDict", "featuresDict": {"features": features}}


def make_rlds(folder: Path, lengths: tuple[int, ...] = (20, 33, 27), shards: int = 2) -> list[dict[str, Any]]:
    """Write episodes with an action, a nested state, an integer, a flag, an image and an instruction."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    episodes = []
    for number, length in enumerate(lengths):
        episodes.append(
            {
                "action": random.standard_normal((length, 7)).astype(np.float32),
                "observation/state": random.standard_normal((length, 2, 2)).astype(np.float32),
                "count": random.integers(-300, 300, length),
                "is_last": np.arange(length) == length - 1,
                "observation/image": [b"png"] * length,
                "language_instruction": [f"task {number}".encode()] * length,
            }
        )
    image = {"pythonClassName": PREFIX + "image_feature.Image", "image": {"shape": {"dimensions": ["8", "8", "3"]}}}
    text = {"pythonClassName": PREFIX + "text_feature.Text", "text": {}}
    observation = group({"state": tensor([2, 2], "float32"), "image": image})
    steps = group(
        {
            "action": tensor([7], "float32"),
            "observation": observation,
            "count": tensor([], "int64"),
            "is_last": tensor([], "bool"),
            "language_instruction": text,
        }
    )
    sequence = {"sequence": {"feature": steps, "length": "-1"}, "pythonClassName": PREFIX + "dataset_feature.Dataset"}
    (folder / "features.json").write_text(json.dumps(group({"steps": sequence})))
    size = -(-len(lengths) // shards)
    parts = [episodes[first : first + size] for first in range(0, len(lengths), size)]
    for number, part in enumerate(parts):
        name = f"robot-train.tfrecord-{number:05}-of-{len(parts):05}"
        (folder / name).write_bytes(b"".join(record(steps) for steps in part))
    split = {"name": "train", "shardLengths": [str(len(part)) for part in parts]}
    (folder / "dataset_info.json").write_text(json.dumps({"name": "robot", "version": "1.0.0", "splits": [split]}))
    return episodes


def make_image_episodes(lengths: tuple[int, ...], make_image: Callable[[int, int], bytes]) -> list[dict[str, Any]]:
    """Return the features of episodes whose images are `make_image(episode, step)`, for `record`."""
    return [
        {
            "action": np.ones((n, 7), np.float32),
            "observation/state": np.ones((n, 2, 2), np.float32),
            "count": np.arange(n),
            "is_last": np.arange(n) == n - 1,
            "observation/image": [make_image(e, i) for i in range(n)],
            "language_instruction": [f"task {e}".encode()] * n,
        }
        for e, n in enumerate(lengths)
    ]
