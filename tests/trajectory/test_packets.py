"""The numbers of H.264 pictures: read from what an encoder writes, and complete unless a packet is missing."""

from __future__ import annotations

import contextlib
import io
import random
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import draw

from ridgeline.trajectory import readers
from ridgeline.trajectory.media import PictureDecoder
from ridgeline.trajectory.packets import (
    NumberReader,
    are_regular,
    find_breaks,
    find_gaps,
    find_missing,
    sort_packets,
)
from ridgeline.trajectory.videos import to_rgb


def encode(parameters: str, layout: str = "yuv420p", count: int = 40, scene: int = 1000) -> list[bytes]:
    """Return the packets of a video in which everything changes after `scene` frames, each time."""
    with av.open(io.BytesIO(), "w", format="h264") as out:
        stream = out.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = 96, 64, layout
        stream.options = {"preset": "medium", "x264-params": f"repeat-headers=1:keyint=25:scenecut=0:{parameters}"}
        packets = []
        for i in range(count):
            noise = np.random.default_rng(i // scene).integers(-20, 20, (64, 96)).astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(np.repeat((draw(i) + noise)[..., None], 3, 2), format="rgb24")
            frame.pts, frame.time_base = i, Fraction(1, 30)
            packets += stream.encode(frame)
        return [bytes(p) for p in [*packets, *stream.encode(None)]]


@pytest.mark.parametrize(
    ("parameters", "layout"),
    [
        ("bframes=0", "yuv420p"),
        ("bframes=3:b-pyramid=normal", "yuv420p"),
        ("bframes=0:cqm=jvt", "yuv420p"),  # scaling lists
        ("bframes=0:slices=4", "yuv420p"),
        ("bframes=2:interlaced=1", "yuv420p"),
        ("bframes=0:ref=1", "yuv444p"),
        ("bframes=0", "yuv422p10le"),
        ("bframes=0:keyint=400", "yuv420p"),
    ],
)
def test_numbers_are_complete_and_show_a_missing_packet(parameters: str, layout: str):
    units = encode(parameters, layout)
    reader = NumberReader()
    numbers = [reader.read(unit) for unit in units]
    assert all(len(pictures) == 1 for pictures in numbers)
    assert not find_breaks(numbers).any()
    references = [i for i, (picture,) in enumerate(numbers) if picture.is_reference]
    for lost in references[1:-1]:
        rest = [*numbers[:lost], *numbers[lost + 1 :]]
        if not numbers[lost][0].is_key and not numbers[lost + 1][0].is_key:
            assert find_breaks(rest)[lost : lost + 2].any()


@pytest.mark.parametrize(("references", "lost"), [(1, 5), (2, 35)])
def test_frames_are_sound_again_from_one_that_needs_none_before(tmp_path: Path, references: int, lost: int):
    """Encoders on robots often write key frames rarely, and frames without prediction between them."""
    units = encode(f"bframes=0:keyint=400:min-keyint=200:scenecut=40:ref={references}", scene=10)
    items = cams.video_messages(units)
    del items[4]
    [camera] = readers.read_recording(cams.mcap(tmp_path / "v.mcap", items))[1]
    assert np.flatnonzero(camera.keys).tolist() == [0]
    decoder = PictureDecoder(camera)
    out = [n for _, i, picture in camera.take([camera.source]) for n, _ in decoder.decode(i, picture)]
    out += [n for n, _ in decoder.flush()]
    assert len(out) == 39 - lost


def test_as_many_missing_packets_as_there_are_numbers_are_a_gap_of_stamps():
    reader = NumberReader()
    numbers = [reader.read(unit) for unit in encode("bframes=0:keyint=400", count=80)]
    limit = numbers[0][0].limit
    times = np.arange(80) * 33
    rest = [*range(10), *range(10 + limit, 80)]
    shown = find_missing("h264", [numbers[i] for i in rest], times[rest])
    assert np.flatnonzero(shown).tolist() == [10]
    assert not find_missing("h264", numbers, times).any()


@given(st.binary(max_size=200))
def test_damaged_packets_give_numbers_or_none(data: bytes):
    reader = NumberReader()
    for head in (b"\0\0\1\x67", b"\0\0\1\x65", b"\0\0\1\x41"):
        for picture in reader.read(head + data):
            assert 0 <= picture.number < picture.limit


def spoil(items: list[cams.Message], rng: random.Random) -> list[cams.Message]:
    """Drop packets, exchange two, record one twice, or cut one off."""
    out = list(items)
    for _ in range(rng.randrange(1, 4)):
        how, i = rng.randrange(4), rng.randrange(len(out) - 6)
        if how == 0:
            del out[i : i + rng.randrange(1, 4)]
        elif how == 1:
            a, b = out[i], out[j := i + rng.randrange(1, 4)]
            out[i], out[j] = (a[0], *b[1:]), (b[0], *a[1:])
        elif how == 2:
            out.insert(i + 1, (out[i][0] + 1000, *out[i][1:]))
        else:
            fields = out[i][4]
            out[i] = (*out[i][:4], {**fields, "data": fields["data"][: len(fields["data"]) // 2]})
    return out


@pytest.mark.parametrize(
    ("encoder", "codec", "form"),
    [("libx264", "h264", "h264"), ("libx265", "h265", "hevc"), ("libsvtav1", "av1", "obu")],
)
def test_no_frame_of_a_spoilt_video_is_wrong(tmp_path: Path, encoder: str, codec: str, form: str):
    """Each frame that comes out has the pixels of the frame that was sent with its stamp."""
    convert = av.video.reformatter.VideoReformatter()
    units = cams.encode_video(40, encoder, gop=10)
    with av.open(io.BytesIO(b"".join(units)), format=form) as source:
        sent = [to_rgb(frame, convert).copy() for frame in source.decode(video=0)]
    items = cams.video_messages(units, codec)
    numbers = {stamp: number for number, (_, stamp, *_) in enumerate(items)}
    frames = 0
    for seed in range(12):
        spoilt = spoil(items, random.Random(seed))
        path = cams.mcap(tmp_path / "v.mcap", sorted(spoilt, key=lambda m: m[0]))
        [camera] = readers.read_recording(path)[1]
        decoder, out = PictureDecoder(camera), []
        for _, number, picture in camera.take([camera.source]):
            with contextlib.suppress(av.error.FFmpegError):
                out += decoder.decode(number, picture)
        for number, frame in [*out, *decoder.flush()]:
            frames += 1
            assert np.array_equal(to_rgb(frame, convert), sent[numbers[int(camera.times[number])]]), f"seed {seed}"
    assert frames > 12 * 20


def test_packets_that_were_recorded_twice_are_read_once(tmp_path: Path):
    items = cams.video_messages(encode("bframes=0"))
    twice = sorted([*items, *((log + 1000, *rest) for log, *rest in items[10:20])], key=lambda m: m[0])
    notes: list[str] = []
    options = readers.ReadOptions(report=notes.append)
    [camera] = readers.read_recording(cams.mcap(tmp_path / "v.mcap", twice), None, options)[1]
    assert notes == [f"{cams.VIDEO}: 10 of its packets were recorded twice; one of each is read."]
    assert camera.times.tolist() == [stamp for _, stamp, *_ in items]
    data = [bytes(picture.data) for _, _, picture in camera.take([camera.source])]
    assert data == [fields["data"] for *_, fields in items]
    assert not camera.breaks.any()


def test_stamps_give_an_order_only_if_they_are_near_to_it():
    stamps = np.arange(600) * 100
    assert sort_packets(stamps) is None
    swapped = stamps[[1, 0, *range(2, 600)]]
    order = sort_packets(swapped)
    assert order is not None
    assert order[:3].tolist() == [1, 0, 2]
    assert sort_packets(stamps[::-1]) is None
    assert are_regular(stamps)
    assert not are_regular(np.sort([*stamps, 130]))
    assert np.flatnonzero(find_gaps(np.delete(stamps, 7))).tolist() == [7]
