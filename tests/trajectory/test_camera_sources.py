"""Cameras of HDF5 files, RLDS folders, folders of images, and LeRobot datasets that store images; depth in RVL."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path

import h5py
import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bulk import rlds_made
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import SIZE, draw, encode, read_number
from tests.trajectory.recordings import EPOCH, NS

from ridgeline.errors import InputError
from ridgeline.trajectory import Camera, ConversionSettings, convert_many, readers
from ridgeline.trajectory.media import PictureDecoder
from ridgeline.trajectory.pictures import Picture, inspect, unpack_rvl
from ridgeline.trajectory.readers import ReadOptions
from ridgeline.trajectory.videos import to_rgb

COUNT = 6
COLOR = [np.repeat(draw(i)[..., None], 3, 2) for i in range(COUNT)]


def read_numbers(camera: Camera) -> list[int]:
    """The numbers of all pictures of a camera, in the order in which it gives them."""
    import av

    decoder, convert = PictureDecoder(camera), av.video.reformatter.VideoReformatter()
    out = []
    for source, number, picture in camera.take([camera.source]):
        assert source == camera.source
        for shown, frame in decoder.decode(number, picture):
            assert shown == number == len(out)
            out.append(read_number(to_rgb(frame, convert)))
    return out


def read_cameras(path: Path, **options) -> dict[str, Camera]:
    return {c.name: c for c in readers.read_recording(path, None, ReadOptions(**options))[1]}


def pad(files: list[bytes]) -> np.ndarray:
    """Image files as the rows of one array, padded with zeros, as ALOHA stores them."""
    out = np.zeros((len(files), max(map(len, files))), np.uint8)
    for row, data in zip(out, files, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return out


# --- HDF5 ---


@pytest.fixture(scope="module")
def aloha(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("aloha") / "episode_0.hdf5"
    jpegs = [encode(draw(i)) for i in range(COUNT)]
    with h5py.File(path, "w") as file:
        file["observations/qpos"] = np.arange(COUNT * 14.0).reshape(COUNT, 14)
        file["action"] = np.ones((COUNT, 14))
        images = file.create_group("observations/images")
        images["padded"] = pad(jpegs)
        images["own_length"] = np.array([np.frombuffer(j, np.uint8) for j in jpegs], h5py.vlen_dtype(np.uint8))
        images["opaque"] = np.array([np.void(j.ljust(4096, b"\0")) for j in jpegs])
        images["pixels"] = np.stack(COLOR)
        images["planes"] = np.stack(COLOR).transpose(0, 3, 1, 2)
        images["depth"] = np.arange(COUNT * 320, dtype=np.uint16).reshape(COUNT, 16, 20)
        file["compress_len"] = np.ones((5, COUNT))
    return path


@pytest.mark.parametrize("name", ["padded", "own_length", "opaque", "pixels", "planes"])
def test_images_in_hdf5_are_cameras(aloha: Path, name: str):
    camera = read_cameras(aloha, fps=50)[f"observations/images/{name}"]
    assert (camera.width, camera.height, camera.faults) == (*SIZE, {})
    assert camera.times.tolist() == [i * NS // 50 for i in range(COUNT)]
    assert read_numbers(camera) == list(range(COUNT))


def test_depth_in_hdf5_is_exact(aloha: Path):
    camera = read_cameras(aloha, fps=50)["observations/images/depth"]
    assert (camera.depth, camera.codec) == (True, "16UC1")
    decoder = PictureDecoder(camera)
    values = [decoder.decode(n, picture)[0][1] for _, n, picture in camera.take([camera.source])]
    assert np.array_equal(np.stack(values).ravel(), np.arange(COUNT * 320))


def test_a_robomimic_file_becomes_a_dataset_of_its_demos(tmp_path: Path):
    path = tmp_path / "demos.hdf5"
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 20}})
        for demo in range(2):
            file[f"data/demo_{demo}/actions"] = np.ones((COUNT, 7), np.float32)
            file[f"data/demo_{demo}/obs/agentview_image"] = np.stack([p + 0 for p in COLOR])[:: 1 - 2 * demo]
    settings = ConversionSettings(hz=20, cameras={"front": "obs/agentview_image"}, action=("actions",))
    (result,) = convert_many([path], tmp_path / "set", "lerobot", settings)
    assert (result.error, result.episodes) == (None, 2)
    (video,) = (tmp_path / "set/videos").rglob("*.mp4")
    assert [read_number(p) for _, p in cams.decode(video)] == [*range(COUNT), *reversed(range(COUNT))]


def test_a_damaged_image_in_hdf5_costs_itself(tmp_path: Path):
    path = tmp_path / "a.hdf5"
    jpegs = [encode(draw(i)) for i in range(COUNT)]
    with h5py.File(path, "w") as file:
        file["qpos"] = np.arange(COUNT * 1.0)
        file["images/a"] = pad([*jpegs[:2], jpegs[2][:100], b"", *jpegs[4:]])
    assert set(read_cameras(path, fps=10)["images/a"].faults) == {2, 3}


def test_numbers_without_a_wish_for_cameras_name_the_images_that_are_left_out(aloha: Path):
    left_out = []
    streams = readers.read(aloha, options=ReadOptions(fps=50, leave_out=left_out.append))
    assert {s.name for s in streams} == {"observations/qpos", "action"}
    assert "--camera" in next(x.reason for x in left_out if x.name == "observations/images/padded")


# --- RLDS ---


def test_images_of_an_rlds_dataset_are_cameras(tmp_path: Path):
    folder = tmp_path / "robot"
    rlds_made.make_rlds(folder, (3, 2), shards=1)
    episodes = rlds_made.make_image_episodes((3, 2), lambda e, i: encode(draw(10 * e + i)))
    shard = next(folder.glob("*.tfrecord*"))
    shard.write_bytes(b"".join(rlds_made.record(steps) for steps in episodes))
    cameras = readers.read_recording(folder, None, ReadOptions(fps=5))[1]
    assert [(c.name, c.episode, read_numbers(c)) for c in cameras] == [
        ("observation/image", "0", [0, 1, 2]),
        ("observation/image", "1", [10, 11]),
    ]


# --- folders of images ---

STAMPS = [EPOCH + i * NS // 10 for i in range(COUNT)]


def write_images(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True)
    for i, name in enumerate(names):
        (folder / name).write_bytes(encode(draw(i), "png", "rgb24"))


def make_euroc(root: Path) -> None:
    write_images(root / "cam0/data", [f"{t}.png" for t in STAMPS])
    rows = "".join(f"{t},{t}.png\n" for t in STAMPS)
    (root / "cam0/data.csv").write_text(f"#timestamp [ns],filename\n{rows}")
    (root / "imu0").mkdir()
    rows = "".join(f"{t},{i},{-i}\n" for i, t in enumerate(STAMPS))
    (root / "imu0/data.csv").write_text(f"#timestamp [ns],w_RS_S_x [rad s^-1],w_RS_S_y [rad s^-1]\n{rows}")


def make_tum(root: Path) -> None:
    names = [f"{t / NS:.6f}.png" for t in STAMPS]
    write_images(root / "cam0", names)
    rows = "".join(f"{t // NS}.{t % NS:09d} cam0/{n}\n" for t, n in zip(STAMPS, names, strict=True))
    (root / "cam0.txt").write_text(f"# color images\n# timestamp filename\n{rows}")


def make_kitti(root: Path) -> None:
    write_images(root / "cam0/data", [f"{i:010d}.png" for i in range(COUNT)])
    rows = [f"2023-11-14 22:13:{20 + (t - EPOCH) // NS:02d}.{(t - EPOCH) % NS:09d}\n" for t in STAMPS]
    (root / "cam0/timestamps.txt").write_text("".join(rows))


def make_names(root: Path) -> None:
    write_images(root / "cam0", [f"frame_{t // NS}.{t % NS:09d}.png" for t in STAMPS])


@pytest.mark.parametrize("make", [make_euroc, make_tum, make_kitti, make_names])
def test_a_folder_of_images_with_stamps_is_a_camera(tmp_path: Path, make):
    make(tmp_path / "log")
    camera = read_cameras(tmp_path / "log")["cam0"]
    assert camera.times.tolist() == [1_700_000_000 * NS + (t - EPOCH) if make is make_kitti else t for t in STAMPS]
    assert (camera.codec, read_numbers(camera)) == ("png", list(range(COUNT)))


def test_tables_beside_images_are_streams(tmp_path: Path):
    make_euroc(tmp_path / "log")
    streams = readers.read(tmp_path / "log")
    assert [s.name for s in streams] == ["imu0/w_RS_S"]
    assert streams[0].times.tolist() == STAMPS


def test_images_that_are_only_counted_need_a_rate(tmp_path: Path):
    write_images(tmp_path / "log", [f"frame_{i}.png" for i in range(11)])
    with pytest.raises(InputError, match="--fps"):
        readers.read_recording(tmp_path / "log")
    camera = read_cameras(tmp_path / "log", fps=20)["images"]
    assert len(camera) == 11
    assert read_numbers(camera) == list(range(11))  # frame_10 comes after frame_9


# --- LeRobot datasets that store images ---


def test_stored_images_of_a_lerobot_dataset_are_cameras(tmp_path: Path):
    root = tmp_path / "set"
    (root / "meta").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": [1], "names": None},
        "observation.image": {"dtype": "image", "shape": [*SIZE[::-1], 3], "names": ["height", "width", "channel"]},
    }
    about = {"codebase_version": "v3.0", "fps": 10, "features": features, "total_frames": 2 * COUNT}
    (root / "meta/info.json").write_text(json.dumps(about))
    frame = np.tile(np.arange(COUNT), 2)
    rows = {
        "observation.state": frame.astype(np.float32),
        "observation.image": [{"bytes": encode(draw(i), "png", "rgb24"), "path": None} for i in range(2 * COUNT)],
        "timestamp": (frame / 10).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.repeat([0, 1], COUNT),
        "index": np.arange(2 * COUNT),
        "task_index": np.zeros(2 * COUNT, np.int64),
    }
    parquet.write_table(arrow.table(rows), root / "data/chunk-000/file-000.parquet")
    cameras = readers.read_recording(root)[1]
    assert [read_numbers(c) for c in cameras] == [list(range(COUNT)), list(range(COUNT, 2 * COUNT))]


# --- depth in RVL ---


def pack_rvl(values: np.ndarray) -> bytes:
    """A compressedDepth image in RVL, pixel by pixel."""
    nibbles: list[int] = []

    def put(number: int) -> None:
        while True:
            part, number = number & 7, number >> 3
            nibbles.append(part | (8 if number else 0))
            if not number:
                return

    flat, at, last = values.ravel().tolist(), 0, 0
    while at < len(flat):
        zeros = next((i for i, v in enumerate(flat[at:]) if v), len(flat) - at)
        put(zeros)
        at += zeros
        known = next((i for i, v in enumerate(flat[at:]) if not v), len(flat) - at)
        put(known)
        for value in flat[at : at + known]:
            step = value - last
            put(2 * step if step >= 0 else -2 * step - 1)
            last = value
        at += known
    nibbles += [0] * (-len(nibbles) % 8)
    words = [sum(n << (28 - 4 * i) for i, n in enumerate(nibbles[k : k + 8])) for k in range(0, len(nibbles), 8)]
    head = struct.pack("<iffii", 0, 0.0, 0.0, values.shape[1], values.shape[0])
    return head + np.array(words, "<u4").tobytes()


@given(st.integers(1, 9), st.integers(1, 9), st.randoms(use_true_random=False))
def test_depth_in_rvl_is_exact(height: int, width: int, rng):
    values = np.array([rng.choice((0, 0, 1, 700, 701, 65535)) for _ in range(height * width)], np.uint16)
    values = values.reshape(height, width)
    packed = pack_rvl(values)
    look = inspect(Picture("compressedDepth rvl", packed))
    assert (look.width, look.height, look.depth, look.fault) == (width, height, True, "")
    assert np.array_equal(unpack_rvl(packed), values)


@given(st.binary(max_size=40))
def test_damaged_rvl_gives_an_image_or_a_value_error(tail: bytes):
    data = struct.pack("<iffii", 0, 0.0, 0.0, 5, 4) + tail
    with contextlib.suppress(ValueError):
        assert unpack_rvl(data).shape == (4, 5)


# --- what a recording says about its cameras ---

_MATRIX = [100.0, 0.0, 48.0, 0.0, 100.0, 32.0, 0.0, 0.0, 1.0]


def said_about_cameras() -> list[cams.Message]:
    fields = {"header": cams.header(EPOCH), "height": SIZE[1], "width": SIZE[0], "distortion_model": "plumb_bob"}
    info = {**fields, "d": [0.1, 0.0, 0.0, 0.0, 0.0], "k": _MATRIX, "r": [1.0, 0, 0, 0, 1, 0, 0, 0, 1], "p": [0.0] * 12}
    place = {"translation": {"x": 0.5, "y": 0.0, "z": 1.0}, "rotation": {"x": 0.0, "y": 0.0, "z": 0.0, "w": 1.0}}
    transform = {"header": cams.header(EPOCH), "child_frame_id": "lens", "transform": place}
    return [
        (EPOCH, EPOCH, "/front/camera_info", "sensor_msgs/msg/CameraInfo", info),
        (EPOCH, EPOCH, "/tf_static", "tf2_msgs/msg/TFMessage", {"transforms": [transform]}),
    ]


def test_camera_infos_and_static_transforms_are_kept_with_the_dataset(tmp_path: Path):
    path = cams.mcap(tmp_path / "run.mcap", [*said_about_cameras(), *cams.messages(0.4, gap=(9, 9))])
    cameras = {"front": cams.FRONT, "wrist": cams.WRIST}
    settings = ConversionSettings(hz=30, cameras=cameras, state=(f"{cams.JOINTS}/position",))
    assert convert_many([path], tmp_path / "set", "lerobot", settings)[0].error is None
    again = cams.mcap(tmp_path / "again.mcap", [*said_about_cameras(), *cams.messages(0.3, gap=(9, 9))])
    assert convert_many([again], tmp_path / "set", "lerobot", settings, append=True)[0].error is None
    (said,) = json.loads((tmp_path / "set/meta/calibration.json").read_text())
    assert said["episodes"] == [0, 1]
    assert set(said["cameras"]) == {"observation.images.front"}
    front = said["cameras"]["observation.images.front"]
    assert (front["topic"], front["k"], front["frame_id"]) == ("/front/camera_info", _MATRIX, "camera")
    assert said["transforms"] == [
        {"parent": "camera", "child": "lens", "translation": [0.5, 0.0, 1.0], "rotation": [0.0, 0.0, 0.0, 1.0]}
    ]


# --- MCAP in ROS 1 and Protobuf, whose decoders are packages of their own ---


def write_mcap(path: Path, schema: tuple[str, str, bytes], encoding: str, bodies: list[bytes]) -> Path:
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        camera = writer.register_channel("/front/image", encoding, writer.register_schema(*schema))
        numbers = writer.register_schema("Joints", "jsonschema", b'{"type": "object"}')
        arm = writer.register_channel("/arm", "json", numbers)
        for i, (t, body) in enumerate(zip(STAMPS, bodies, strict=True)):
            writer.add_message(camera, log_time=t, publish_time=t, data=body)
            writer.add_message(arm, log_time=t, publish_time=t, data=json.dumps({"x": i}).encode())
        writer.finish()
    return path


def test_images_of_ros_1_in_mcap_are_cameras(tmp_path: Path):
    pytest.importorskip("mcap_ros1", reason="needs mcap-ros1-support")
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    kind = "sensor_msgs/msg/CompressedImage"
    text, _ = store.generate_msgdef(kind)
    bodies = []
    for i, t in enumerate(STAMPS):
        time = store.types["builtin_interfaces/msg/Time"](sec=t // NS, nanosec=t % NS)
        header = store.types["std_msgs/msg/Header"](stamp=time, frame_id="camera", seq=i)
        data = np.frombuffer(encode(draw(i)), np.uint8)
        message = store.types[kind](header=header, format="jpeg", data=data)
        bodies.append(bytes(store.serialize_ros1(message, kind)))
    schema = ("sensor_msgs/CompressedImage", "ros1msg", text.encode())
    camera = read_cameras(write_mcap(tmp_path / "a.mcap", schema, "ros1", bodies))["/front/image"]
    assert (camera.times.tolist(), read_numbers(camera)) == (STAMPS, list(range(COUNT)))


@pytest.mark.parametrize("name", ["CompressedImage", "RawImage"])
def test_images_of_foxglove_in_protobuf_are_cameras(tmp_path: Path, name: str):
    pytest.importorskip("mcap_protobuf", reason="needs mcap-protobuf-support")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

    kinds = {"string": 9, "bytes": 12, "fixed32": 7}
    fields = {"timestamp": ".google.protobuf.Timestamp", "frame_id": "string", "data": "bytes"}
    if name == "CompressedImage":
        fields["format"] = "string"
    else:
        fields |= {"encoding": "string", "width": "fixed32", "height": "fixed32", "step": "fixed32"}
    file = descriptor_pb2.FileDescriptorProto(name="image.proto", package="foxglove", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message = file.message_type.add(name=name)
    for number, (field, kind) in enumerate(fields.items(), 1):
        plain = {"type": kinds[kind]} if kind in kinds else {"type": 11, "type_name": kind}
        message.field.add(name=field, number=number, label=1, **plain)
    pool = descriptor_pool.DescriptorPool()
    stamps = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(stamps)
    pool.Add(file)
    build = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"foxglove.{name}"))
    bodies = []
    for i, t in enumerate(STAMPS):
        own = {"data": encode(draw(i)), "format": "jpeg"}
        if name == "RawImage":
            own = {"data": COLOR[i].tobytes(), "encoding": "rgb8", "step": 3 * SIZE[0]}
            own |= {"width": SIZE[0], "height": SIZE[1]}
        made = build(frame_id="camera", **own)
        made.timestamp.seconds, made.timestamp.nanos = t // NS, t % NS
        bodies.append(made.SerializeToString())
    everything = descriptor_pb2.FileDescriptorSet(file=[stamps, file]).SerializeToString()
    schema = (f"foxglove.{name}", "protobuf", everything)
    camera = read_cameras(write_mcap(tmp_path / "a.mcap", schema, "protobuf", bodies))["/front/image"]
    assert (camera.times.tolist(), read_numbers(camera)) == (STAMPS, list(range(COUNT)))
