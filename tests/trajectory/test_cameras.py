"""Recordings with cameras: their index, LeRobot datasets with videos and depth, and what damage costs."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import DEPTH, FRONT, JOINTS, SIZE, VIDEO, WRIST, draw, read_number
from tests.trajectory.recordings import EPOCH, NS

from ridgeline.errors import InputError, StoreError
from ridgeline.trajectory import (
    ConversionSettings,
    TrajectoryDataset,
    convert,
    convert_many,
    describe_camera,
    readers,
    videos,
)
from ridgeline.trajectory.cameras import Camera, pick_pictures
from ridgeline.trajectory.media import PictureDecoder
from ridgeline.trajectory.pictures import (
    Picture,
    build_depth,
    build_frame,
    find_units,
    inspect,
    name_codec,
    unpack_depth,
)
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.readers.images import read_picture
from ridgeline.trajectory.stream import build_track
from ridgeline.trajectory.videos import to_rgb
from ridgeline.trajectory.writers.lerobot import compute_stats, merge_stats

CAMERAS = {"front": FRONT, "wrist": WRIST, "depth": DEPTH}
IMAGES = "observation.images."


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cams.mcap(tmp_path_factory.mktemp("log") / "run.mcap", cams.messages())


def settings(**changes) -> ConversionSettings:
    plain = {"hz": 30, "cameras": CAMERAS, "state": (f"{JOINTS}/position",), "task": "pick the cube"}
    return ConversionSettings(**{**plain, **changes})


def write(paths: Path | list[Path], out: Path, **changes):
    options = {k: changes.pop(k) for k in ("append", "force", "advance") if k in changes}
    return convert_many(paths if isinstance(paths, list) else [paths], out, "lerobot", settings(**changes), **options)


def read_rows(root: Path) -> dict[str, np.ndarray]:
    files = sorted((root / "data").rglob("*.parquet"))
    tables = [parquet.read_table(f) for f in files]
    return {n: np.concatenate([np.array(t[n].to_pylist()) for t in tables]) for n in tables[0].column_names}


def read_video(root: Path, name: str) -> list[tuple[float, np.ndarray]]:
    return [frame for f in sorted((root / "videos" / f"{IMAGES}{name}").rglob("*.mp4")) for frame in cams.decode(f)]


# --- the index ---


def test_cameras_have_size_codec_rate_and_drops(log: Path):
    streams, cameras = readers.read_recording(log)
    stats = {c.name: describe_camera(c) for c in cameras}
    assert {s.name for s in streams} == {f"{JOINTS}/position"}
    front = stats[FRONT]
    assert (front.type, front.codec, front.width, front.height, front.faults) == ("image", "jpeg", *SIZE, 0)
    assert (front.gaps, front.drops, front.samples) == (1, 15, 45)
    assert front.rate_hz == pytest.approx(30, rel=1e-3)
    assert (stats[WRIST].codec, stats[DEPTH].codec, stats[DEPTH].width) == ("bgr8", "16UC1", 8)


def test_without_a_wish_for_cameras_their_topics_are_left_out_with_the_cure(log: Path):
    left_out = []
    readers.read(log, options=ReadOptions(leave_out=left_out.append))
    assert {x.name for x in left_out} >= {FRONT, WRIST, DEPTH}
    assert all("--camera" in x.reason for x in left_out if x.name in (FRONT, WRIST, DEPTH))


def test_a_recording_without_chunks_is_read_in_its_own_order(tmp_path: Path):
    path = cams.unchunk(cams.mcap(tmp_path / "chunks.mcap", cams.messages(0.5)), tmp_path / "plain.mcap")
    _, cameras = readers.read_recording(path)
    (front,) = [c for c in cameras if c.name == FRONT]
    assert [n for _, n, _ in front.take([FRONT])] == list(range(15))


@pytest.mark.parametrize("name", ["a.bag", "b"])
def test_ros_bags_of_both_generations_have_cameras(tmp_path: Path, name: str):
    path = cams.rosbag(tmp_path / name)
    (result,) = write(path, tmp_path / "set", hz=10, cameras={"front": FRONT}, state=("/x",))
    assert (result.error, result.lost) == (None, {})
    assert [read_number(p) for _, p in read_video(tmp_path / "set", "front")] == list(range(10))


def test_foxgloves_images_in_json_are_cameras(tmp_path: Path):
    path = cams.foxglove_json(tmp_path / "a.mcap")
    (result,) = write(path, tmp_path / "set", hz=10, cameras={"a": "/png", "b": "/raw"}, state=("/arm",))
    assert result.error is None
    for name in "ab":
        assert [read_number(p) for _, p in read_video(tmp_path / "set", name)] == list(range(10))


# --- one picture ---

COLOR = np.array([[(210, 60, 40), (30, 180, 70)], [(40, 70, 200), (128, 128, 128)]], np.uint8).repeat(8, 0).repeat(8, 1)


def pack(encoding: str) -> bytes:
    """COLOR in a raw encoding, written from its definition."""
    order = {"r": 0, "g": 1, "b": 2}
    if encoding.startswith("bayer"):
        pattern = encoding.partition("_")[2][:4]
        out = np.empty(COLOR.shape[:2], np.uint8)
        for i, letter in enumerate(pattern):
            out[i // 2 :: 2, i % 2 :: 2] = COLOR[i // 2 :: 2, i % 2 :: 2, order[letter]]
        return (out.astype("<u2") * 257).tobytes() if encoding.endswith("16") else out.tobytes()
    if encoding in ("mono8", "8UC1"):
        return COLOR[..., 1].tobytes()
    swapped = encoding.startswith(("bgr", "8UC"))
    pixels = COLOR[..., ::-1] if swapped else COLOR
    if encoding.startswith(("rgba", "bgra")) or encoding == "8UC4":
        pixels = np.concatenate([pixels, np.full((*pixels.shape[:2], 1), 255, np.uint8)], 2)
    if encoding.endswith("16"):
        return (pixels.astype("<u2") * 257).tobytes()
    return np.ascontiguousarray(pixels).tobytes()


@pytest.mark.parametrize(
    "encoding",
    ["rgb8", "bgr8", "rgba8", "bgra8", "8UC3", "8UC4", "mono8", "8UC1", "rgb16", "bgr16"]
    + [f"bayer_{p}{b}" for p in ("rggb", "bggr", "gbrg", "grbg") for b in (8, 16)],
)
def test_every_raw_encoding_gives_its_colours(encoding: str):
    picture = Picture(encoding, pack(encoding), 16, 16)
    assert inspect(picture).fault == ""
    rgb = to_rgb(build_frame(picture), av.video.reformatter.VideoReformatter())
    want = COLOR if encoding not in ("mono8", "8UC1") else COLOR[..., 1:2].repeat(3, 2)
    centre = np.s_[2:6, 2:6], np.s_[2:6, 10:14], np.s_[10:14, 2:6], np.s_[10:14, 10:14]  # away from the edges
    for part in centre:
        np.testing.assert_allclose(rgb[part], want[part], atol=3)


@pytest.mark.parametrize("encoding", ["yuv422", "yuv422_yuy2", "nv12"])
def test_yuv_encodings_have_videos_range(encoding: str):
    luma, chroma = np.full(256, 235, np.uint8), np.full(256, 128, np.uint8)
    pairs = {"yuv422": (chroma, luma), "yuv422_yuy2": (luma, chroma)}
    data = np.stack(pairs[encoding], 1).tobytes() if encoding in pairs else luma.tobytes() + chroma[:128].tobytes()
    rgb = to_rgb(build_frame(Picture(encoding, data, 16, 16)), av.video.reformatter.VideoReformatter())
    assert rgb.min() >= 253


@pytest.mark.parametrize(("encoding", "chroma"), [("nv12", 1), ("nv21", 1), ("nv24", 2)])
def test_padded_rows_of_planar_images_are_left_out(encoding: str, chroma: int):
    rng = np.random.default_rng(0)
    luma, pairs = (
        rng.integers(16, 235, (8, 6), np.uint8),
        rng.integers(16, 240, (8 // (3 - chroma), 6 * chroma), np.uint8),
    )
    plain = Picture(encoding, luma.tobytes() + pairs.tobytes(), 6, 8, 6)
    wide = np.pad(luma, ((0, 0), (0, 4))).tobytes() + np.pad(pairs, ((0, 0), (0, 4 * chroma))).tobytes()
    padded = Picture(encoding, wide, 6, 8, 10)
    convert = av.video.reformatter.VideoReformatter()
    assert inspect(padded).fault == ""
    np.testing.assert_array_equal(to_rgb(build_frame(padded), convert), to_rgb(build_frame(plain), convert))
    assert "of 120 bytes" in inspect(Picture(encoding, wide[:100], 6, 8, 10)).fault or chroma == 2
    assert "do not hold 6 pixels" in inspect(Picture(encoding, wide, 6, 8, 5)).fault


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("pad", [0, 6])
def test_depth_is_exact_in_any_byte_order_and_with_padded_rows(kind: type, big_endian: bool, pad: int):
    values = (np.arange(35).reshape(5, 7) * 1.5 + 300).astype(kind)
    fields = cams.image(0, values, "16UC1" if kind is np.uint16 else "32FC1", pad=pad, big_endian=big_endian)
    picture = Picture(fields["encoding"], fields["data"], 7, 5, fields["step"], big_endian)
    assert inspect(picture).fault == ""
    np.testing.assert_array_equal(build_depth(picture), values)


def test_compressed_depth_is_exact_or_turns_back_into_meters():
    values = np.array([[0, 1000, 2000]], np.uint16)
    assert unpack_depth(struct.pack("<iff", 0, 0, 0), values) is values
    meters = unpack_depth(struct.pack("<iff", 0, 100.0, -1.0), values)
    np.testing.assert_allclose(meters, [[np.nan, 100 / 1001, 100 / 2001]], rtol=1e-6)


@pytest.mark.parametrize(("text", "exact"), [("16UC1; compressedDepth png", True), ("32FC1; compressedDepth", False)])
def test_the_head_of_compressed_depth_counts_for_floats_only(text: str, exact: bool):
    """image_transport leaves the head of 16UC1 as it was in memory."""
    values = np.arange(48, dtype=np.uint16).reshape(6, 8) * 100
    data = struct.pack("<iff", 0, 100.0, -1.0) + cams.encode(values, "png", "gray16be")
    picture = read_picture({"format": text, "data": data})
    camera = Camera("/depth", np.zeros(1), picture.codec, 8, 6, depth=True)
    [(_, got)] = PictureDecoder(camera).decode(0, picture)
    if exact:
        np.testing.assert_array_equal(got, values)
    else:
        np.testing.assert_allclose(got[0, 1:], 100 / (values[0, 1:].astype(float) + 1), rtol=1e-6)


def test_jpeg_of_12_bits_and_with_arithmetic_coding_is_refused_by_name():
    image = bytearray(cams.encode(draw(3)))
    frame = image.index(b"\xff\xc0")
    assert inspect(Picture("jpeg", bytes(image))).fault == ""
    image[frame + 4] = 12
    assert "12 bits" in inspect(Picture("jpeg", bytes(image))).fault
    image[frame + 4], image[frame + 1] = 8, 0xC9
    assert "arithmetic" in inspect(Picture("jpeg", bytes(image))).fault


@pytest.mark.parametrize(
    ("text", "data", "codec"),
    [
        ("rgb8; jpeg compressed bgr8", b"", "jpeg"),
        ("png", b"\xff\xd8\xff\xe0", "jpeg"),
        ("", b"\x89PNG\r\n\x1a\n", "png"),
        ("16UC1; compressedDepth", b"", "compressedDepth"),
        ("16UC1; compressedDepth rvl", b"", "compressedDepth rvl"),
        ("H265", b"", "h265"),
        ("theora", b"", "theora"),
    ],
)
def test_the_first_bytes_count_more_than_the_name_of_a_format(text: str, data: bytes, codec: str):
    assert name_codec(text, data) == codec


def test_headers_show_what_is_cut_empty_or_too_small():
    jpeg, png = cams.encode(draw(1)), cams.encode(draw(1), "png", "gray")
    assert (inspect(Picture("jpeg", jpeg)).width, inspect(Picture("png", png)).height) == SIZE
    faults = {
        "empty": Picture("jpeg", b""),
        "does not begin": Picture("jpeg", bytes(500)),
        "cut off": Picture("jpeg", jpeg[:-40]),
        "no frame header": Picture("jpeg", jpeg[:30]),
        "has 10 of 192 bytes": Picture("rgb8", bytes(10), 8, 8),
        "rows of 4 bytes": Picture("rgb8", bytes(999), 8, 8, 4),
        "is none": Picture("rgb8", bytes(10), 0, 8),
    }
    for why, picture in faults.items():
        assert why in inspect(picture).fault
    assert "cut off" in inspect(Picture("png", png[:-20])).fault


# --- the picture of a tick ---


def pick_slowly(times: list[int], faulty: set[int], ticks: list[int], period: float) -> tuple[list[int], list[bool]]:
    """From the definition: the nearest sound picture; beyond one period, the last one before the tick."""
    sound = [i for i in range(len(times)) if i not in faulty]
    numbers, valid = [], []
    for tick in ticks:
        nearest = min(sound, key=lambda i: (abs(times[i] - tick), i))
        before = [i for i in sound if times[i] <= tick]
        if abs(times[nearest] - tick) > period and before:
            nearest = before[-1]
        numbers.append(nearest)
        after = [i for i in sound if times[i] > tick]
        is_between = bool(before and after) and times[after[0]] - times[before[-1]] <= 1.5 * period
        valid.append(is_between or abs(times[nearest] - tick) <= period / 2)
    return numbers, valid


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=20),
    st.sets(st.integers(0, 8)),
    st.lists(st.integers(-60, 500), min_size=1, max_size=12).map(sorted),
)
def test_a_tick_gets_the_nearest_picture_and_holds_the_last_one_in_a_gap(
    steps: list[int], faulty: set[int], ticks: list[int]
):
    times = np.cumsum(steps)
    faults = {i: "bad" for i in faulty if i < len(times) - 1}  # one is sound
    camera = Camera("c", times.astype(np.int64), "jpeg", 4, 4, faults=faults)
    picks = pick_pictures(camera, build_track("c", camera.times, 0.0, True, False), np.asarray(ticks))
    period = float(np.median(np.diff(times)))
    numbers, valid = pick_slowly(times.tolist(), set(faults), ticks, period)
    same = np.abs(times[picks.numbers] - ticks) == np.abs(times[numbers] - ticks)  # two may be as near
    assert same.all()
    assert picks.valid.tolist() == valid


@pytest.mark.parametrize("kind", ["nearest", "previous"])
def test_jitter_makes_no_frame_invalid(kind: str):
    """A clock of the camera's rate whose ticks lie in the middle between its frames; frame 50 is missing."""
    period = NS // 30
    jitter = np.random.default_rng(0).uniform(-0.15, 0.15, 100) * period
    times = np.delete(np.arange(100) * period + jitter.astype(np.int64), 50)
    ticks = np.arange(99) * period + period // 2
    camera = Camera("c", times, "jpeg", 8, 8)
    picks = pick_pictures(camera, build_track("c", times, 0.0, True, False), ticks, kind=kind)
    assert set(np.flatnonzero(~picks.valid)) <= {49, 50}
    assert not picks.valid[50] or kind == "nearest"
    frozen = pick_pictures(camera, build_track("c", times, 0.0, True, False), ticks + 100 * period, kind=kind)
    assert not frozen.valid.any()


# --- datasets ---


def test_a_recording_becomes_a_dataset_with_videos_depth_and_valid_masks(log: Path, tmp_path: Path):
    (result,) = write(log, tmp_path / "set", action=(f"{JOINTS}/position",))
    assert (result.error, result.lost) == (None, {})
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    rows = read_rows(tmp_path / "set")
    count = info["total_frames"]
    feature = info["features"][f"{IMAGES}front"]
    assert (feature["dtype"], feature["shape"], feature["info"]["video.codec"]) == ("video", [64, 96, 3], "h264")
    assert info["video_path"].startswith("videos/{video_key}/")
    at = EPOCH + (rows["observation.state"][0, 0] + rows["timestamp"]) * NS
    for name, hz in (("front", 30), ("wrist", 15)):
        frames = read_video(tmp_path / "set", name)
        assert len(frames) == count
        np.testing.assert_allclose([t for t, _ in frames], np.arange(count) / 30, atol=1e-4)
        stamps = np.array(cams.ticks(hz, 2.0))
        numbers = np.array([read_number(p) for _, p in frames])
        near = rows[f"{IMAGES}{name}.valid"].reshape(-1)
        assert np.abs(stamps[numbers] - at)[near].max() <= 0.5 * NS / hz + 1e6
    valid = rows[f"{IMAGES}front.valid"].reshape(-1)
    assert 12 <= np.count_nonzero(~valid) <= 16
    held = [read_number(p) for _, p in read_video(tmp_path / "set", "front")]
    gap = np.flatnonzero(~valid)
    assert len({held[i] for i in gap[1:-1]}) == 1
    depth = rows["observation.depth.depth"].reshape(count, 6, 8)
    picked = depth[:, 0, 0].astype(int) - 1000
    assert (np.diff(depth.astype(int).reshape(count, -1), axis=1) == 1).all()
    near = rows["observation.depth.depth.valid"].reshape(-1)
    assert np.abs(np.array(cams.ticks(10, 2.0))[picked] - at)[near].max() <= 0.051 * NS


def test_blue_stays_blue_and_grey_stays_grey(log: Path, tmp_path: Path):
    write(log, tmp_path / "set", cameras={"wrist": WRIST})
    pixels = read_video(tmp_path / "set", "wrist")[3][1]
    red, _, blue = pixels[48:, 8:-8].reshape(-1, 3).mean(axis=0)
    assert (blue, red) == (pytest.approx(200, abs=6), pytest.approx(40, abs=6))
    squares = {round(float(pixels[r * 16 + 8, c * 16 + 8].mean())) for r in range(2) for c in range(6)}
    assert all(min(abs(s - 20), abs(s - 235)) <= 6 for s in squares)


def test_statistics_of_images_and_depth(tmp_path: Path):
    flat = [(t, t, WRIST, "sensor_msgs/msg/Image", cams.image(t, np.full((16, 16, 3), 51, np.uint8), "rgb8"))
            for t in cams.ticks(10, 1.0)]  # fmt: skip
    far = [(t, t, DEPTH, "sensor_msgs/msg/Image", cams.image(t, np.array([[1, 3]], np.float32) * (1 + i), "32FC1"))
           for i, t in enumerate(cams.ticks(10, 1.0))]  # fmt: skip
    path = cams.mcap(tmp_path / "a.mcap", sorted([*flat, *far, *cams.joints(1.0)], key=lambda m: m[0]))
    write(path, tmp_path / "set", hz=10, cameras={"wrist": WRIST, "depth": DEPTH})
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
    colour = stats[f"{IMAGES}wrist"]
    assert np.shape(colour["mean"]) == (3, 1, 1)
    np.testing.assert_allclose(colour["mean"], 0.2, atol=0.02)
    np.testing.assert_allclose(colour["std"], 0, atol=0.01)
    depth = stats["observation.depth.depth"]
    values = np.concatenate([[i, 3 * i] for i in range(1, 11)])
    assert (depth["min"], depth["max"], depth["count"]) == ([1.0], [30.0], [10])
    assert (depth["mean"], depth["std"]) == ([pytest.approx(values.mean())], [pytest.approx(values.std())])
    assert not any(name.endswith(".valid") for name in stats)
    info = json.loads((tmp_path / "set/meta/info.json").read_text())["features"]
    assert info["observation.depth.depth"]["dtype"] == "float32"


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=30), st.integers(1, 29))
def test_statistics_of_parts_combine_to_those_of_the_whole(values: list[float], at: int):
    whole = np.array(values)[:, None]
    at = min(at, len(values) - 1)
    merged = merge_stats([compute_stats(whole[:at]), compute_stats(whole[at:])])
    want = compute_stats(whole)
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(merged[name], want[name], atol=1e-9)


def test_log_time_and_shifts_choose_other_pictures(log: Path, tmp_path: Path):
    numbers = {}
    for name, changes in {
        "header": {"stamps": "header"},
        "log": {"stamps": "log"},
        "shift": {"shifts": {FRONT: 0.1}},
    }.items():
        write(log, tmp_path / name, cameras={"front": FRONT}, **changes)
        numbers[name] = [read_number(p) for _, p in read_video(tmp_path / name, "front")][20]
    assert numbers["header"] - numbers["log"] in (1, 2)
    assert numbers["header"] - numbers["shift"] == 3


def test_a_previous_camera_never_shows_the_future(log: Path, tmp_path: Path):
    write(log, tmp_path / "set", cameras={"wrist": WRIST}, kinds={"wrist": "previous"})
    rows = read_rows(tmp_path / "set")
    at = EPOCH + (rows["observation.state"][0, 0] + rows["timestamp"]) * NS
    numbers = [read_number(p) for _, p in read_video(tmp_path / "set", "wrist")]
    assert (np.array(cams.ticks(15, 2.0))[numbers] <= at + 1e5).all()


def test_a_second_recording_is_appended_and_the_same_one_only_once(log: Path, tmp_path: Path):
    out, more = tmp_path / "set", cams.mcap(tmp_path / "more.mcap", cams.messages(1.0, gap=(9, 9)))
    write(log, out)
    before = json.loads((out / "meta/info.json").read_text())
    (result,) = write(more, out, append=True)
    assert result.error is None
    info = json.loads((out / "meta/info.json").read_text())
    assert (info["total_episodes"], info["total_frames"]) == (2, before["total_frames"] + result.rows)
    rows = read_rows(out)
    assert rows["index"].tolist() == list(range(info["total_frames"]))
    assert rows["episode_index"][-1] == 1
    assert len(read_video(out, "front")) == info["total_frames"]
    stats = json.loads((out / "meta/stats.json").read_text())
    np.testing.assert_allclose(stats["observation.state"]["mean"], rows["observation.state"].mean(axis=0), rtol=1e-5)
    (again,) = write(more, out, append=True)
    assert again.skipped
    assert json.loads((out / "meta/info.json").read_text())["total_episodes"] == 2


def test_appending_refuses_other_rates_features_and_folders(log: Path, tmp_path: Path):
    write(log, tmp_path / "set", cameras={"front": FRONT})
    for changes, message in (
        ({"hz": 10, "cameras": {"front": FRONT}}, "30 Hz"),
        ({"cameras": {"left": FRONT}}, "lack"),
        ({"cameras": {"front": FRONT, "wrist": WRIST}}, "no feature"),
    ):
        with pytest.raises(InputError, match=message):
            write(log, tmp_path / "set", append=True, **changes)
    (tmp_path / "other").mkdir()
    with pytest.raises(InputError, match="no LeRobot dataset"):
        write(log, tmp_path / "other", append=True)


def test_a_dataset_of_another_program_can_be_appended_to(log: Path, tmp_path: Path):
    out = tmp_path / "set"
    write(log, out, cameras={"front": FRONT})
    (out / "manifest.json").unlink()
    write(cams.mcap(tmp_path / "b.mcap", cams.messages(1.0)), out, cameras={"front": FRONT}, append=True)
    assert json.loads((out / "meta/info.json").read_text())["total_episodes"] == 2


def test_several_recordings_share_a_video_file_and_know_their_place(tmp_path: Path):
    paths = [cams.mcap(tmp_path / f"{i}.mcap", cams.messages(0.5 + 0.2 * i, gap=(9, 9))) for i in range(3)]
    write(paths, tmp_path / "set", cameras={"front": FRONT})
    (file,) = (tmp_path / "set/videos").rglob("*.mp4")
    rows = parquet.read_table(next((tmp_path / "set/meta/episodes").rglob("*.parquet"))).to_pylist()
    frames = cams.decode(file)
    for row in rows:
        start = round(row[f"videos/{IMAGES}front/from_timestamp"] * 30)
        assert round(row[f"videos/{IMAGES}front/to_timestamp"] * 30) == start + row["length"]
        assert read_number(frames[start][1]) == 0
    assert len(frames) == sum(r["length"] for r in rows)
    np.testing.assert_allclose([t for t, _ in frames], np.arange(len(frames)) / 30, atol=1e-4)


def test_unknown_numbers_are_filled_on_request(tmp_path: Path):
    late = [m for m in cams.messages(2.0) if m[2] != JOINTS or not 0.5 < (m[1] - EPOCH) / NS < 1.0]
    path = cams.mcap(tmp_path / "a.mcap", late)
    for fill in (None, "hold", "0"):
        write(path, tmp_path / str(fill), cameras={"front": FRONT}, max_gap=0.1, fill=fill)
    states = {fill: read_rows(tmp_path / str(fill))["observation.state"][:, 0] for fill in (None, "hold", "0")}
    gap = np.isnan(states[None])
    assert 10 < gap.sum() < 20
    assert (states["0"][gap] == 0).all()
    assert (states["hold"][gap] == states[None][np.flatnonzero(gap)[0] - 1]).all()


def test_an_av1_dataset_has_the_same_pictures(tmp_path: Path):
    path = cams.mcap(tmp_path / "a.mcap", cams.messages(0.5, gap=(9, 9)))
    write(path, tmp_path / "set", cameras={"front": FRONT}, codec="av1", gop=5)
    assert [read_number(p) for _, p in read_video(tmp_path / "set", "front")] == list(range(15))


def test_odd_sizes_keep_every_pixel(tmp_path: Path):
    path = cams.mcap(tmp_path / "a.mcap", cams.messages(0.3, size=(97, 65)))
    write(path, tmp_path / "set", cameras={"wrist": WRIST})
    assert read_video(tmp_path / "set", "wrist")[0][1].shape == (65, 97, 3)
    (result,) = write(path, tmp_path / "av1", cameras={"wrist": WRIST}, codec="av1")
    assert "even width" in (result.error or "")


# --- damage ---


def test_bad_frames_cost_themselves_and_are_counted(tmp_path: Path):
    bad = {5: lambda b: b[:40], 9: lambda b: b"", 12: lambda b: bytes(len(b))}
    items = cams.change(cams.messages(1.0, gap=(9, 9)), FRONT, lambda i, f: {**f, "data": bad.get(i, bytes)(f["data"])})
    (result,) = write(cams.mcap(tmp_path / "a.mcap", items), tmp_path / "set")
    assert result.lost == {FRONT: 3}
    assert any(FRONT in note and "3 of 30" in note for note in result.notes)
    numbers = [read_number(p) for _, p in read_video(tmp_path / "set", "front")]
    assert set(numbers) == set(range(30)) - set(bad)
    assert np.count_nonzero(~read_rows(tmp_path / "set")[f"{IMAGES}front.valid"]) == 3


def test_a_picture_that_only_its_decoder_refuses_is_lost_too(tmp_path: Path):
    def spoil(i: int, fields: dict) -> dict:
        return {**fields, "format": "png", "data": spoilt if i == 4 else cams.encode(draw(i), "png", "gray")}

    png = cams.encode(draw(4), "png", "gray")
    at = png.index(b"IDAT") + 6
    spoilt = png[:at] + bytes(20) + png[at + 20 :]
    items = cams.change(cams.messages(0.5, gap=(9, 9)), FRONT, spoil)
    (result,) = write(cams.mcap(tmp_path / "a.mcap", items), tmp_path / "set", cameras={"front": FRONT})
    assert result.lost == {FRONT: 1}
    numbers = [read_number(p) for _, p in read_video(tmp_path / "set", "front")]
    assert numbers == [0, 1, 2, 3, 3, *range(5, 15)]


def test_a_size_that_changes_is_an_error_and_one_odd_picture_is_not(tmp_path: Path):
    def grow(i: int, fields: dict, first: int, last: int) -> dict:
        return {**fields, "data": cams.encode(draw(i, (160, 120)))} if first <= i < last else fields

    items = cams.messages(1.0, gap=(9, 9))
    changed = cams.mcap(tmp_path / "a.mcap", cams.change(items, FRONT, lambda i, f: grow(i, f, 15, 99)))
    (result,) = write(changed, tmp_path / "set")
    assert all(word in (result.error or "") for word in (FRONT, "96 × 64", "160 × 120"))
    assert not (tmp_path / "set").exists()
    odd = cams.mcap(tmp_path / "b.mcap", cams.change(items, FRONT, lambda i, f: grow(i, f, 15, 16)))
    (result,) = write(odd, tmp_path / "set")
    assert result.lost == {FRONT: 1}


def test_codecs_topics_and_names_that_cannot_be_are_told(log: Path, tmp_path: Path):
    unknown = cams.change(cams.messages(0.5), FRONT, lambda i, f: {**f, "format": "theora", "data": b"\x80theora"})
    path = cams.mcap(tmp_path / "a.mcap", unknown)
    for source, changes, message in (
        (path, {"cameras": {"front": FRONT}}, "codec 'theora'"),
        (log, {"cameras": {"x": "/no/such"}}, FRONT),
        (log, {"cameras": {"x": JOINTS}}, "holds no images"),
        (log, {"kinds": {"front": "cubic"}}, "no kind 'cubic'"),
    ):
        (result,) = write(source, tmp_path / "set", **changes)
        assert message in (result.error or "")
        assert not (tmp_path / "set").exists()
    with pytest.raises(InputError, match="no name of a feature"):
        write(log, tmp_path / "set", cameras={"a/b": FRONT})
    with pytest.raises(InputError, match="which csv does not hold"):
        convert(log, tmp_path / "a.csv", "csv", settings())


def test_a_camera_without_one_sound_picture_is_told(tmp_path: Path):
    items = cams.change(cams.messages(0.5), FRONT, lambda i, f: {**f, "data": b""})
    (result,) = write(cams.mcap(tmp_path / "a.mcap", items), tmp_path / "set")
    assert f"{FRONT}: no picture can be decoded" in (result.error or "")


def test_stamps_that_go_back_are_an_error_that_sort_mends(tmp_path: Path):
    def swap(i: int, fields: dict) -> dict:
        time = EPOCH + round((0.01 + {7: 8, 8: 7}.get(i, i) / 30) * NS)
        return {**fields, "header": cams.header(time)}

    path = cams.mcap(tmp_path / "a.mcap", cams.change(cams.messages(0.6, gap=(9, 9)), FRONT, swap))
    (result,) = write(path, tmp_path / "set", cameras={"front": FRONT})
    assert "--sort" in (result.error or "")
    write(path, tmp_path / "set", cameras={"front": FRONT}, sort=True)
    assert [read_number(p) for _, p in read_video(tmp_path / "set", "front")][6:10] == [6, 8, 7, 9]


def test_a_full_disk_publishes_nothing(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(self: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(videos.VideoWriter, "close", fail)
    with pytest.raises(StoreError, match="space"):
        write(log, tmp_path / "set")
    assert [p.name for p in tmp_path.iterdir()] == []


def test_ctrl_c_publishes_nothing_and_ends_the_threads(log: Path, tmp_path: Path):
    import threading

    def interrupt(share: float) -> None:
        if share > 0.3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(log, tmp_path / "set", advance=interrupt)
    assert not (tmp_path / "set").exists()
    assert not any(t.name.startswith("camera") for t in threading.enumerate())


@pytest.mark.parametrize("hz", [30, 10])
def test_frames_held_in_a_gap_are_not_valid_when_a_dataset_is_converted_again(log: Path, tmp_path: Path, hz: int):
    write(log, tmp_path / "first", cameras={"front": FRONT})
    (result,) = write(
        tmp_path / "first", tmp_path / "set", cameras={"f": f"{IMAGES}front"}, state=("observation.state",), hz=hz
    )
    assert (result.error, result.lost) == (None, {})
    before = read_rows(tmp_path / "first")[f"{IMAGES}front.valid"].reshape(-1)
    after = read_rows(tmp_path / "set")[f"{IMAGES}f.valid"].reshape(-1)
    assert 10 < np.count_nonzero(~before) < 20
    step = 30 // hz
    assert np.array_equal(after, before[::step][: len(after)])
    first, again = (read_video(tmp_path / folder, name) for folder, name in (("first", "front"), ("set", "f")))
    assert [read_number(p) for _, p in again] == [read_number(p) for _, p in first[::step]]


def test_a_camera_that_only_repeats_a_frame_is_never_valid():
    times = np.arange(5) * NS
    camera = Camera("c", times, "jpeg", 8, 8, filled=np.ones(5, bool))
    picks = pick_pictures(camera, build_track("c", times, 0.0, True, False), times)
    assert picks.numbers.tolist() == list(range(5))
    assert not picks.valid.any()


# --- videos as topics ---


def convert_video(tmp_path: Path, units: list[bytes], codec: str = "h264", **changes):
    items = sorted([*cams.video_messages(units, codec), *cams.joints(len(units) / 30)], key=lambda m: m[0])
    path = cams.mcap(tmp_path / "v.mcap", items)
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO}, **changes)
    return result


def test_an_encoder_leaves_no_real_time_thread(tmp_path: Path):
    """SVT-AV1 gives its threads, and ours, the highest priority of all if it runs as root."""
    before = os.sched_getscheduler(0), os.sched_getparam(0).sched_priority
    settings = videos.VideoSettings(codec="av1")
    writer = videos.VideoWriter(tmp_path / "a.mp4", 64, 64, Fraction(30), settings, 2)
    for shade in (0, 200):
        writer.write(av.VideoFrame.from_ndarray(np.full((64, 64, 3), shade, np.uint8), format="rgb24"), 1)
    tasks = [int(task) for task in os.listdir("/proc/self/task")]
    assert {(os.sched_getscheduler(t), os.sched_getparam(t).sched_priority) for t in tasks} == {before}
    writer.close()
    assert (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority) == before


@pytest.mark.parametrize(("encoder", "codec"), [("libx264", "h264"), ("libx265", "h265"), ("libsvtav1", "av1")])
def test_packets_that_fit_are_copied_pixel_for_pixel(tmp_path: Path, encoder: str, codec: str):
    units = cams.encode_video(30, encoder)
    result = convert_video(tmp_path, units, codec)
    assert (result.error, result.lost) == (None, {})
    assert any("copied" in note for note in result.notes)
    form = {"h264": "h264", "h265": "hevc", "av1": "obu"}[codec]
    with av.open(io.BytesIO(b"".join(units)), format=form) as source:
        want = [f.to_ndarray(format="rgb24") for f in source.decode(video=0)]
    got = [p for _, p in read_video(tmp_path / "set", "video")]
    assert len(got) >= 28
    for number, pixels in enumerate(got):
        np.testing.assert_array_equal(pixels, want[number])


@pytest.mark.parametrize(("encoder", "layout"), [("libx264", "yuv444p"), ("libx265", "yuv420p10le")])
def test_the_layout_of_copied_packets_is_in_the_index(tmp_path: Path, encoder: str, layout: str):
    result = convert_video(
        tmp_path, cams.encode_video(30, encoder, layout=layout), "h264" if encoder == "libx264" else "h265"
    )
    assert any("copied" in note for note in result.notes)
    about = json.loads((tmp_path / "set/meta/info.json").read_text())["features"][f"{IMAGES}video"]["info"]
    assert about["video.pix_fmt"] == layout


def test_parameter_sets_that_come_once_serve_every_episode(tmp_path: Path):
    first, *rest = cams.encode_video(60)
    bare = [b"".join(u[a:b] for kind, a, b in find_units(u, "h264") if kind not in (7, 8)) for u in rest]
    items = [*cams.video_messages([first, *bare]), *cams.joints(2.0)]
    gate = [(t, t, "/gate", "std_msgs/msg/String", {"data": ""}) for t in (EPOCH + NS // 100, EPOCH + 9 * NS // 10)]
    path = cams.mcap(tmp_path / "v.mcap", sorted([*items, *gate], key=lambda m: m[0]))
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO}, cuts=("marker=/gate",))
    assert (result.error, result.lost, result.episodes) == (None, {}, 2)
    dataset = TrajectoryDataset(tmp_path / "set", delta_timestamps={})
    numbers = [read_number(dataset[i][f"{IMAGES}video"].numpy()) for i in range(len(dataset))]
    assert numbers == sorted(numbers)
    assert set(numbers) >= set(range(1, 58))


@pytest.mark.parametrize(("encoder", "codec"), [("libx264", "h264"), ("libx265", "h265"), ("libsvtav1", "av1")])
def test_the_size_of_a_video_topic_is_known_and_holds(tmp_path: Path, encoder: str, codec: str):
    units = cams.encode_video(30, encoder)
    with av.open(io.BytesIO(), "w", format="h264") as other:
        stream = other.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.options = 32, 48, {"tune": "zerolatency"}
        large = av.VideoFrame.from_ndarray(np.zeros((48, 32, 3), np.uint8), format="rgb24")
        small = b"".join(bytes(p) for f in (large, None) for p in stream.encode(f))
    if codec == "h264":
        units[20] = small
    items = [*cams.video_messages(units, codec), *cams.joints(1.0)]
    path = cams.mcap(tmp_path / "v.mcap", sorted(items, key=lambda m: m[0]))
    [camera] = readers.read_recording(path)[1]
    assert (camera.width, camera.height) == cams.SIZE
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO})
    assert result.error is None
    assert result.lost == ({VIDEO: 10} if codec == "h264" else {})


def test_a_video_without_parameter_sets_is_told(tmp_path: Path):
    units = [
        b"".join(u[a:b] for kind, a, b in find_units(u, "h264") if kind not in (7, 8)) for u in cams.encode_video(30)
    ]
    result = convert_video(tmp_path, units)
    assert "no picture can be decoded" in (result.error or "")


def test_b_frames_need_the_stamps_of_their_pictures(tmp_path: Path):
    packets = cams.encode_reordered(30)
    assert [n for n, _ in packets] != list(range(30))
    result = convert_video(tmp_path, [data for _, data in packets])
    assert "B-frames" in (result.error or "")
    assert not (tmp_path / "set").exists()
    times = cams.ticks(30, 2.0)
    items = [
        (t, t, VIDEO, "foxglove_msgs/msg/CompressedVideo", {
            "timestamp": cams.stamp(times[number]), "frame_id": "", "data": data, "format": "h264"
        })
        for t, (number, data) in zip(times, packets, strict=False)
    ]  # fmt: skip
    path = cams.mcap(tmp_path / "b.mcap", sorted([*items, *cams.joints(1.0)], key=lambda m: m[0]))
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO}, sort=True)
    assert (result.error, result.lost) == (None, {})
    assert [read_number(p) for _, p in read_video(tmp_path / "set", "video")][:29] == list(range(29))


def test_a_feature_has_one_codec(log: Path, tmp_path: Path):
    """info.json names one codec for a feature."""
    other = cams.mcap(tmp_path / "other.mcap", cams.messages(0.5))
    write(log, tmp_path / "set", cameras={"front": FRONT}, codec="av1")
    (result,) = write(other, tmp_path / "set", cameras={"front": FRONT}, append=True)  # takes the codec of the dataset
    assert result.error is None
    files = sorted((tmp_path / "set/videos").rglob("*.mp4"))
    names = set()
    for file in files:
        with av.open(str(file)) as video:
            names.add(video.streams.video[0].codec_context.name)
    assert len(files) == 2
    assert all("av1" in name or "dav1d" in name for name in names)
    third = cams.mcap(tmp_path / "third.mcap", cams.messages(0.7))
    before = (tmp_path / "set/meta/info.json").read_bytes()
    with pytest.raises(InputError, match=r"is av1 in .* and h264 in the new episodes"):
        write(third, tmp_path / "set", cameras={"front": FRONT}, append=True, codec="h264")
    assert (tmp_path / "set/meta/info.json").read_bytes() == before
    (result,) = write(other, tmp_path / "set", cameras={"front": FRONT}, append=True)
    assert result.skipped


def test_packets_of_an_episode_are_encoded_again_if_those_of_another_must_be(tmp_path: Path):
    units = cams.encode_video(60, "libx265")
    items = [*cams.video_messages(units, "h265"), *cams.joints(2.0)]
    gate = [(t, t, "/gate", "std_msgs/msg/String", {"data": ""}) for t in (EPOCH + NS // 100, EPOCH + NS)]
    without = [m for m in items if m[2] != VIDEO or not 0.3 < (m[1] - EPOCH) / NS < 0.6]
    for part, codec in ((items, "hevc"), (without, "h264")):
        path = cams.mcap(tmp_path / f"{codec}.mcap", sorted([*part, *gate], key=lambda m: m[0]))
        (result,) = write(path, tmp_path / codec, cameras={"video": VIDEO}, cuts=("marker=/gate",))
        assert result.error is None
        about = json.loads((tmp_path / codec / "meta/info.json").read_text())["features"][f"{IMAGES}video"]["info"]
        assert about["video.codec"] == codec
        for file in (tmp_path / codec / "videos").rglob("*.mp4"):
            with av.open(str(file)) as video:
                assert video.streams.video[0].codec_context.name == codec


def test_packets_with_a_gap_another_rate_or_codec_are_encoded_again_and_that_is_said(tmp_path: Path):
    units = cams.encode_video(30)
    result = convert_video(tmp_path, units, hz=20)
    assert any("encoded again as h264" in note and "20 Hz" in note for note in result.notes)
    numbers = [read_number(p) for _, p in read_video(tmp_path / "set", "video")]
    assert numbers == sorted(numbers)
    assert len(numbers) == result.rows


def test_an_episode_that_begins_between_key_frames_is_encoded_again(tmp_path: Path):
    items = [*cams.video_messages(cams.encode_video(30)), *cams.joints(1.0)]
    late = [m for m in items if m[2] == VIDEO or (m[1] - EPOCH) / NS > 0.2]
    path = cams.mcap(tmp_path / "v.mcap", sorted(late, key=lambda m: m[0]))
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO})
    assert any("key frame" in note for note in result.notes)
    numbers = [read_number(p) for _, p in read_video(tmp_path / "set", "video")]
    assert numbers == list(range(numbers[0], 30))


@pytest.mark.parametrize(("encoder", "codec"), [("libx264", "h264"), ("libx265", "h265"), ("libsvtav1", "av1")])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_lost_packet_costs_the_frames_that_need_it(tmp_path: Path, encoder: str, codec: str, is_recorded: bool):
    """A packet that is empty, or that the recorder dropped: decoders of H.264 and AV1 give wrong frames after it."""
    items = cams.video_messages(cams.encode_video(30, encoder, gop=10), codec)
    if is_recorded:
        items = cams.change(items, VIDEO, lambda i, fields: {**fields, "data": b""} if i == 13 else fields)
    else:
        del items[13]
    path = cams.mcap(tmp_path / "v.mcap", sorted([*items, *cams.joints(1.0)], key=lambda m: m[0]))
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO})
    assert (result.error, result.lost) == (None, {VIDEO: 7 if is_recorded else 6})
    numbers = [read_number(p) for _, p in read_video(tmp_path / "set", "video")]
    assert numbers[:13] == list(range(13))
    assert numbers[20:29] == list(range(20, 29))
    valid = read_rows(tmp_path / "set")[f"{IMAGES}video.valid"].reshape(-1)
    assert np.flatnonzero(~valid[:29]).tolist() == list(range(13, 20))


@pytest.mark.parametrize(("encoder", "codec"), [("libx264", "h264"), ("libx265", "h265"), ("libsvtav1", "av1")])
def test_damage_in_packets_that_would_be_copied_costs_their_frames(tmp_path: Path, encoder: str, codec: str):
    """A video with a damaged packet cannot be loaded, so its frames are encoded again."""
    units = cams.encode_video(30, encoder, gop=10)
    units[13] = units[13][: len(units[13]) // 2]
    result = convert_video(tmp_path, units, codec)
    assert (result.error, result.lost) == (None, {VIDEO: 7})
    assert any("encoded again" in note and "packets are damaged" in note for note in result.notes)
    dataset = TrajectoryDataset(tmp_path / "set", delta_timestamps={})
    numbers = [read_number(dataset[i][f"{IMAGES}video"].numpy()) for i in range(29)]
    assert numbers == [*range(13), *[12] * 7, *range(20, 29)]
    valid = read_rows(tmp_path / "set")[f"{IMAGES}video.valid"].reshape(-1)
    assert np.flatnonzero(~valid[:29]).tolist() == list(range(13, 20))


def swap_messages(items: list[cams.Message], places: list[tuple[int, int]]) -> list[cams.Message]:
    """Exchange messages, but not the times of their logging: what a recorder with several threads does."""
    out = list(items)
    for a, b in places:
        out[a], out[b] = (items[a][0], *items[b][1:]), (items[b][0], *items[a][1:])
    return out


@pytest.mark.parametrize("stamps", ["auto", "log"])
@pytest.mark.parametrize("hz", [30, 20])  # packets are copied, or frames are encoded again
@pytest.mark.parametrize(("encoder", "codec"), [("libx264", "h264"), ("libx265", "h265"), ("libsvtav1", "av1")])
def test_packets_recorded_out_of_order_are_decoded_as_they_were_sent(
    tmp_path: Path, encoder: str, codec: str, hz: int, stamps: str
):
    units = cams.encode_video(30, encoder, gop=10)
    items = swap_messages(cams.video_messages(units, codec), [(3, 4), (12, 14), (19, 20)])
    path = cams.mcap(tmp_path / "v.mcap", sorted([*items, *cams.joints(1.0)], key=lambda m: m[0]))
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO}, hz=hz, stamps=stamps)
    assert (result.error, result.lost) == (None, {})
    assert any("6 of its packets were recorded in another order" in note for note in result.notes)
    assert any("copied" in note for note in result.notes) == (hz == 30)
    pictures = [p for _, p in read_video(tmp_path / "set", "video")]
    numbers = [read_number(p) for p in pictures]
    assert numbers == [min(29, round(i * 30 / hz)) for i in range(len(numbers))] or hz == 20
    assert numbers == sorted(numbers)
    form = {"h264": "h264", "h265": "hevc", "av1": "obu"}[codec]
    with av.open(io.BytesIO(b"".join(units)), format=form) as source:
        sent = [f.to_ndarray(format="rgb24") for f in source.decode(video=0)]
    for picture, number in zip(pictures, numbers, strict=True):
        if hz == 30:
            np.testing.assert_array_equal(picture, sent[number])
        else:
            assert np.abs(picture.astype(int) - sent[number]).mean() < 3


def test_a_clock_that_is_set_back_does_not_change_the_order_of_packets(tmp_path: Path):
    units = cams.encode_video(30, gop=10)
    late = [
        (t, s, topic, kind, {**f, "timestamp": cams.stamp(s - NS // 4)} if i >= 15 else f)
        for i, (t, s, topic, kind, f) in enumerate(cams.video_messages(units))
    ]
    path = cams.mcap(tmp_path / "v.mcap", sorted([*late, *cams.joints(1.0)], key=lambda m: m[0]))
    (result,) = write(path, tmp_path / "set", cameras={"video": VIDEO}, sort=True)
    assert (result.error, result.lost) == (None, {})
    assert not any("another order" in note for note in result.notes)


def test_jpeg_images_are_copied_on_request_and_held_in_a_gap(log: Path, tmp_path: Path):
    """--codec copy: the files of the recording lie in the video, and raw images are encoded as ever."""
    (result,) = write(log, tmp_path / "set", cameras={"front": FRONT, "wrist": WRIST}, codec="copy")
    assert (result.error, result.lost) == (None, {})
    info = json.loads((tmp_path / "set/meta/info.json").read_text())["features"]
    codecs = {name: info[f"{IMAGES}{name}"]["info"]["video.codec"] for name in ("front", "wrist")}
    assert codecs == {"front": "mjpeg", "wrist": "h264"}
    files = {bytes(fields["data"]) for _, _, topic, _, fields in cams.messages() if topic == FRONT}
    [path] = (tmp_path / "set/videos/observation.images.front").rglob("*.mp4")
    with av.open(str(path)) as video:
        packets = [bytes(p) for p in video.demux(video=0) if p.size]
    assert len(packets) == result.rows
    assert set(packets) <= files
    valid = read_rows(tmp_path / "set")[f"{IMAGES}front.valid"].reshape(-1)
    assert len({packets[i] for i in np.flatnonzero(~valid)[1:-1]}) == 1
    item = TrajectoryDataset(tmp_path / "set", delta_timestamps={f"{IMAGES}front": [0.0]}, decoder="pyav")[9]
    with av.open(io.BytesIO(packets[9])) as image:
        [frame] = image.decode(video=0)
    expected = to_rgb(frame, av.video.reformatter.VideoReformatter()).transpose(2, 0, 1)
    np.testing.assert_array_equal(np.rint(np.asarray(item[f"{IMAGES}front"]) * 255), expected)


@pytest.mark.parametrize("layout", ["yuvj420p", "yuvj422p", "yuvj444p", "gray", "rgb24", "bgr24", "rgba"])
def test_frames_reach_the_encoder_as_ffmpeg_would_convert_them(layout: str):
    rows, columns = np.mgrid[:64, :96]
    pixels = np.stack([rows * 4, columns * 2, 255 - rows - columns], 2).astype(np.uint8)
    frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=layout, dst_color_range=2)
    ours = videos._PlaneWriter("yuv420p").convert(frame)
    theirs = av.video.reformatter.VideoReformatter().reformat(
        frame, format="yuv420p", src_color_range=2, src_colorspace=5, dst_color_range=1, dst_colorspace=5
    )
    assert (ours.format.name, int(ours.color_range)) == ("yuv420p", 1)
    for plane, other in zip(ours.planes, theirs.planes, strict=True):
        a, b = (np.frombuffer(p, np.uint8).reshape(-1, p.line_size)[:, : p.width].astype(int) for p in (plane, other))
        assert np.abs(a - b).max() <= 2
