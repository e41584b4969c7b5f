"""Recordings with cameras as one MCAP file, and as a Parquet table with a folder of images."""

from __future__ import annotations

import shutil
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as parquet
import pytest
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import DEPTH, FRONT, JOINTS, WRIST, draw, read_number
from tests.trajectory.recordings import EPOCH, NS

from ridgeline.errors import InputError, StoreError
from ridgeline.trajectory import ConversionSettings, convert, convert_many, readers
from ridgeline.trajectory.media import PictureDecoder
from ridgeline.trajectory.videos import to_rgb

SETTINGS = ConversionSettings(
    hz=30, cameras={"front": FRONT, "wrist": WRIST, "depth": DEPTH}, state=(f"{JOINTS}/position",)
)
COLORS, DEEP = "observation.images.", "observation.depth.depth"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cams.mcap(tmp_path_factory.mktemp("log") / "run.mcap", cams.messages(1.0, gap=(0.5, 0.7)))


def read_image(path: Path, layout: str) -> np.ndarray:
    with av.open(str(path)) as file:
        return next(file.decode(video=0)).to_ndarray(format=layout)


def test_a_table_names_the_image_of_each_row(log: Path, tmp_path: Path):
    result = convert(log, tmp_path / "run.parquet", "parquet", SETTINGS)
    assert (result.rows, result.lost) == (30, {})
    rows = parquet.read_table(tmp_path / "run.parquet").to_pylist()
    for row in rows:
        stamp = row["time_ns"]
        assert row["position.a"] == pytest.approx((stamp - EPOCH) / NS, abs=1e-6)
        shown = read_number(read_image(tmp_path / row[f"{COLORS}front"], "rgb24"))
        away = abs(EPOCH + NS // 100 + shown * NS / 30 - stamp)
        assert (away <= 0.5 * NS / 30 + 1) == row[f"{COLORS}front.valid"]
        depth = read_image(tmp_path / row[DEEP], "gray16le")
        assert (depth - depth[0, 0] == np.arange(48).reshape(6, 8)).all()
    assert not all(row[f"{COLORS}front.valid"] for row in rows)
    kept = (tmp_path / rows[0][f"{COLORS}front"]).read_bytes()
    assert kept == cams.encode(draw(0))  # a JPEG image is the recorded one, byte for byte
    assert convert(log, tmp_path / "run.parquet", "parquet", SETTINGS).skipped


def test_an_mcap_file_has_every_stream_and_camera_on_one_clock(log: Path, tmp_path: Path):
    out = tmp_path / "out.mcap"
    assert convert(log, out, "mcap", SETTINGS).rows == 30
    assert [p.name for p in tmp_path.iterdir()] == ["out.mcap"]
    streams, cameras = readers.read_recording(out)
    (state,) = streams
    assert (state.name, len(state)) == ("/observation.state/value", 30)
    assert state.columns == ("/observation.state/value.position.a", "/observation.state/value.position.b")
    assert np.diff(state.times).tolist() == pytest.approx([NS / 30] * 29, abs=1)
    assert state.values[:, 0] == pytest.approx((state.times - EPOCH) / NS, abs=1e-6)
    by_name = {c.name: c for c in cameras}
    assert set(by_name) == {"/observation/images/front", "/observation/images/wrist", "/observation/depth/depth"}
    front = by_name["/observation/images/front"]
    assert set(front.times.tolist()) < set(state.times.tolist())  # what is held in the gap has no message
    decoder, convert_colors = PictureDecoder(front), av.video.reformatter.VideoReformatter()
    for _, number, picture in front.take([front.name]):
        shown = read_number(to_rgb(decoder.decode(number, picture)[0][1], convert_colors))
        assert abs(EPOCH + NS // 100 + shown * NS / 30 - front.times[number]) <= 0.5 * NS / 30 + 1
    assert convert(log, out, "mcap", SETTINGS).skipped


def test_numbers_alone_become_an_mcap_file_without_unknown_rows(tmp_path: Path):
    table = tmp_path / "a.csv"
    table.write_text("time_s,speed,torque\n0,1,\n1,2,5\n2,3,6\n3,4,7\n4,5,8\n")
    convert(table, tmp_path / "a.mcap", "mcap", ConversionSettings(hz=1, span="union"))
    streams = {s.name: s for s in readers.read(tmp_path / "a.mcap")}
    assert streams["/speed/value"].values.ravel().tolist() == [1, 2, 3, 4, 5]
    assert streams["/torque/value"].values.ravel().tolist() == [5, 6, 7, 8]


@pytest.mark.parametrize("form", ["parquet", "mcap"])
def test_float_depth_is_exact(tmp_path: Path, form: str):
    values = np.random.default_rng(0).random((6, 20, 16)).astype(np.float32)
    items = [
        (t, t, DEPTH, "sensor_msgs/msg/Image", cams.image(t, v, "32FC1"))
        for t, v in zip(cams.ticks(10, 0.6), values, strict=True)
    ]
    log = cams.mcap(tmp_path / "run.mcap", sorted([*items, *cams.joints(0.6)], key=lambda m: m[0]))
    out = tmp_path / f"out.{form}"
    convert(log, out, form, ConversionSettings(hz=10, cameras={"depth": DEPTH}, state=(f"{JOINTS}/position",)))
    if form == "parquet":
        got = [np.load(tmp_path / p) for p in parquet.read_table(out)[DEEP].to_pylist()]
    else:
        (camera,) = readers.read_recording(out)[1]
        decoder = PictureDecoder(camera)
        got = [decoder.decode(n, p)[0][1] for _, n, p in camera.take([camera.name])]
    assert all(np.array_equal(a, b) for a, b in zip(got, values, strict=False))
    assert len(got) >= 5


def test_bad_frames_are_counted_and_a_full_disk_leaves_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bad = cams.change(cams.messages(0.5, gap=(9, 9)), FRONT, lambda i, f: {**f, "data": b""} if i == 4 else f)
    run = cams.mcap(tmp_path / "bad.mcap", bad)
    (result,) = convert_many([run], tmp_path / "many", "parquet", SETTINGS)
    assert (result.error, result.lost) == (None, {FRONT: 1})
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    before = set(tmp_path.iterdir())
    for form in ("parquet", "mcap"):
        with pytest.raises(StoreError, match="the disk is full"):
            convert(log, tmp_path / f"full.{form}", form, SETTINGS)
    assert set(tmp_path.iterdir()) == before
    shutil.rmtree(tmp_path / "many")


def test_formats_without_images_are_told(log: Path, tmp_path: Path):
    with pytest.raises(InputError, match="lerobot, parquet or mcap"):
        convert(log, tmp_path / "a.csv", "csv", SETTINGS)
