"""MCAP: the order of messages, and images read without a copy.

python -m pytest tests/trajectory/test_mcap.py
"""

from __future__ import annotations

from pathlib import Path

import mcap.reader
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.writer import CompressionType, Writer
from mcap_ros2.decoder import DecoderFactory
from tests.trajectory import camera_recordings as cams

from ridgeline.trajectory.readers.mcap import _read_in_order, decode_ros2_image


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 12), st.binary(max_size=40)), min_size=1, max_size=40
    ),
    topics=st.sets(st.integers(0, 2), min_size=1),
    compression=st.sampled_from([CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD]),
    chunk=st.sampled_from([1, 100, 10_000]),
)
def test_messages_come_in_the_order_of_the_library(tmp_path: Path, messages, topics, compression, chunk):
    path = tmp_path / "run.mcap"
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=chunk, compression=compression)
        writer.start()
        channels = [writer.register_channel(f"/{i}", "json", 0) for i in range(3)]
        for channel, time, data in messages:
            writer.add_message(channels[channel], time, data, time)
        writer.finish()
    names = {f"/{i}" for i in topics}
    with path.open("rb") as file:
        reader = mcap.reader.make_reader(file)
        expected = [(c.topic, m.log_time, m.data) for _, c, m in reader.iter_messages(topics=sorted(names))]
        read = [(c.topic, t, bytes(d)) for _, c, t, d in _read_in_order(file, reader.get_summary(), names)]
    assert read == expected


@pytest.mark.parametrize("encoding", ["bgr8", "bayer_rggb16", ""])
@pytest.mark.parametrize("frame", ["", "a", "camera_optical_frame"])
def test_an_image_has_the_fields_that_the_library_decodes(tmp_path: Path, encoding: str, frame: str):
    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    header = {"stamp": {"sec": 7, "nanosec": 9}, "frame_id": frame}
    size = {"height": 3, "width": 4, "encoding": encoding, "is_bigendian": 1, "step": 12}
    fields = {
        "sensor_msgs/msg/Image": {"header": header, **size, "data": pixels.tobytes()},
        "sensor_msgs/msg/CompressedImage": {"header": header, "format": encoding, "data": b"\xff\xd8\xff"},
    }
    for kind, message in fields.items():
        cams.mcap(tmp_path / "run.mcap", [(5, 5, "/image", kind, message)])
        with (tmp_path / "run.mcap").open("rb") as file:
            [(schema, _, stored)] = mcap.reader.make_reader(file).iter_messages()
        decoder = DecoderFactory().decoder_for("cdr", schema)
        assert decoder is not None
        expected = decoder(stored.data)
        read = decode_ros2_image(memoryview(stored.data), "Compressed" in kind)
        stamp = expected.header.stamp
        assert read.pop("header") == {"stamp": {"sec": stamp.sec, "nanosec": stamp.nanosec}}
        assert bytes(read["data"]) == bytes(expected.data)
        for name, value in read.items():
            assert name == "data" or getattr(expected, name) == value
