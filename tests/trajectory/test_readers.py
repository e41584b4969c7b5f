"""Every format, complete and damaged, through `readers.read`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from tests.trajectory import recordings
from tests.trajectory.recordings import EPOCH, NS

from ridgeline.errors import InputError, MissingExtra
from ridgeline.trajectory import readers
from ridgeline.trajectory.readers import LeftOut, ReadOptions
from ridgeline.trajectory.stream import Stream


def by_name(streams: list[Stream]) -> dict[str, Stream]:
    return {s.name: s for s in streams}


def read_with_notes(path: Path, topics=None, **options) -> tuple[dict[str, Stream], list[str]]:
    notes: list[str] = []
    return by_name(readers.read(path, topics, ReadOptions(report=notes.append, **options))), notes


# --- ULog ---


def test_a_ulog_gives_a_stream_per_field_with_exact_stamps(tmp_path: Path):
    streams_by_name, notes = read_with_notes(recordings.flight(tmp_path / "a.ulg"))
    assert set(streams_by_name) == {"attitude/q", "attitude/yaw", "status/mode", "status/armed", "stuck/x"}
    assert streams_by_name["attitude/q"].columns == tuple(f"attitude/q[{i}]" for i in range(4))
    assert streams_by_name["attitude/q"].times[:2].tolist() == [10 * NS, 10 * NS + 10_000_000]
    kinds = {n: s.kind for n, s in streams_by_name.items()}
    assert kinds["attitude/q"] == "slerp"
    assert kinds["attitude/yaw"] == "angle"
    assert kinds["status/mode"] == kinds["status/armed"] == "previous"
    assert streams_by_name["status/armed"].values.dtype == bool
    assert any("status: left out" in n and "tag" in n for n in notes)


def test_a_truncated_ulog_gives_the_messages_before_the_cut(tmp_path: Path):
    complete_bytes = recordings.flight(tmp_path / "a.ulg").read_bytes()
    (tmp_path / "cut.ulg").write_bytes(complete_bytes[: len(complete_bytes) // 3])
    streams_by_name, _ = read_with_notes(tmp_path / "cut.ulg")
    assert 0 < len(streams_by_name["attitude/q"]) < 401


def test_a_ulog_with_only_a_header_has_no_message(tmp_path: Path):
    (tmp_path / "a.ulg").write_bytes(recordings.flight(tmp_path / "b.ulg").read_bytes()[:16])
    with pytest.raises(InputError, match="without one message"):
        readers.read(tmp_path / "a.ulg")


# --- MCAP ---


def test_ros2_messages_in_mcap_take_the_stamp_of_their_header(tmp_path: Path):
    streams_by_name, notes = read_with_notes(recordings.mcap_ros2(tmp_path / "a.mcap"))
    gyro, turned = streams_by_name["/imu/data/gyro"], streams_by_name["/imu/data/orientation"]
    assert gyro.columns == tuple(f"/imu/data/gyro.{c}" for c in "xyz")
    assert gyro.times[1] == EPOCH + NS // 100
    np.testing.assert_allclose(gyro.values[:, 0], 0.1 * np.arange(50))
    assert turned.kind == "slerp"
    assert streams_by_name["/imu/data/accel"].values.shape == (50, 3)
    assert any("label" in n for n in notes)


def test_messages_without_stamps_use_the_time_of_logging(tmp_path: Path):
    streams_by_name, _ = read_with_notes(recordings.mcap_ros2(tmp_path / "a.mcap", header=False))
    assert streams_by_name["/imu/data/gyro"].times[0] == EPOCH + 5_000_000


def test_json_messages_in_mcap_are_read_and_undecodable_topics_are_reported(tmp_path: Path):
    streams_by_name, notes = read_with_notes(recordings.mcap_json(tmp_path / "a.mcap"))
    assert set(streams_by_name) == {"joints/position", "joints/gripper", "joints/n"}
    assert streams_by_name["joints/gripper"].kind == "previous"
    assert any("blob: left out" in n and "flatbuffer" in n for n in notes)


def test_an_unreadable_schema_drops_only_its_topic(tmp_path: Path, capfd):
    from mcap.writer import Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        odd = writer.register_schema("pkg/msg/Odd", "ros2msg", b"float64 Not-A-Name\n")
        plain = writer.register_schema("joint", "jsonschema", b"{}")
        channels = writer.register_channel("/odd", "cdr", odd), writer.register_channel("joints", "json", plain)
        for i in range(5):
            for channel, body in zip(channels, (b"\0\1\0\0" + bytes(8), b'{"x": %d}' % i), strict=True):
                writer.add_message(channel, EPOCH + i * NS, body, EPOCH + i * NS)
        writer.finish()
    streams_by_name, notes = read_with_notes(tmp_path / "a.mcap")
    assert set(streams_by_name) == {"joints/x"}
    assert any("/odd: left out, its schema 'pkg/msg/Odd' cannot be read" in n for n in notes)
    assert capfd.readouterr() == ("", "")


def test_messages_that_cannot_be_decoded_are_counted_and_left_out(tmp_path: Path):
    from mcap.writer import Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file)
        writer.start()
        number = writer.register_schema("pkg/msg/Number", "ros2msg", b"float64 x\n")
        plain = writer.register_schema("joint", "jsonschema", b"{}")
        ros, some, none = (
            writer.register_channel("/number", "cdr", number),
            writer.register_channel("joints", "json", plain),
            writer.register_channel("noise", "json", plain),
        )
        for i in range(6):
            short = i in (0, 4)
            bodies = {
                ros: b"\0\1\0\0" + bytes(2 if short else 8),
                some: b"{" if i == 3 else b'{"x": %d}' % i,
                none: b"\xff",
            }
            for channel, body in bodies.items():
                writer.add_message(channel, EPOCH + i * NS, body, EPOCH + i * NS)
        writer.finish()
    streams_by_name, notes = read_with_notes(tmp_path / "a.mcap")
    assert {name: len(one) for name, one in streams_by_name.items()} == {"/number/x": 4, "joints/x": 5}
    assert streams_by_name["joints/x"].values.ravel().tolist() == [0, 1, 2, 4, 5]
    assert any("/number: 2 of 6 messages cannot be decoded" in n for n in notes)
    assert any("joints: 1 of 6 messages cannot be decoded" in n for n in notes)
    assert any("noise: left out, its messages cannot be decoded" in n for n in notes)
    assert set(read_with_notes(tmp_path / "a.mcap", ["joints"])[0]) == {"joints/x"}


def test_a_truncated_mcap_gives_the_messages_before_the_cut_with_a_note(tmp_path: Path):
    from mcap.writer import CompressionType, Writer

    with (tmp_path / "a.mcap").open("wb") as file:
        writer = Writer(file, chunk_size=200, compression=CompressionType.NONE)
        writer.start()
        channel = writer.register_channel("n", "json", writer.register_schema("n", "jsonschema", b"{}"))
        for i in range(100):
            writer.add_message(channel, EPOCH + i, b'{"v": %d}' % i, EPOCH + i)
        writer.finish()
    complete_bytes = (tmp_path / "a.mcap").read_bytes()
    (tmp_path / "a.mcap").write_bytes(complete_bytes[: len(complete_bytes) // 3])
    streams_by_name, notes = read_with_notes(tmp_path / "a.mcap")
    assert 5 < len(streams_by_name["n/v"]) < 100
    assert any("cut off" in n for n in notes)


# --- ROS bags ---


@pytest.mark.parametrize("name", ["a.bag", "folder"])
def test_messages_of_a_bag_that_cannot_be_decoded_are_counted_and_left_out(tmp_path: Path, name: str):
    streams_by_name, notes = read_with_notes(recordings.bag(tmp_path / name, cut=(0, 7)))
    assert len(streams_by_name["/pose/pose.position"]) == 38
    np.testing.assert_allclose(streams_by_name["/pose/pose.position"].values[:2, 0], [0.1, 0.2])
    assert any("/pose: 2 of 40 messages cannot be decoded" in n for n in notes)


@pytest.mark.parametrize("name", ["a.bag", "folder"])
def test_ros1_and_ros2_bags_give_the_same_streams(tmp_path: Path, name: str):
    streams_by_name, notes = read_with_notes(recordings.bag(tmp_path / name))
    where, turned = streams_by_name["/pose/pose.position"], streams_by_name["/pose/pose.orientation"]
    assert where.times[1] == EPOCH + NS // 20
    np.testing.assert_allclose(where.values[:, 0], 0.1 * np.arange(40))
    assert turned.kind == "slerp"
    assert turned.columns[-1].endswith(".w")
    assert any("/words" in n for n in notes)


def test_a_database_without_its_folder_is_refused_with_the_cure(tmp_path: Path):
    folder = recordings.bag(tmp_path / "folder")
    streams_by_name, _ = read_with_notes(next(folder.glob("*.db3")))
    assert "/pose/pose.position" in streams_by_name
    shutil.copy(next(folder.glob("*.db3")), tmp_path / "lone.db3")
    with pytest.raises(InputError, match="give the complete folder"):
        readers.read(tmp_path / "lone.db3")


def test_a_cut_bag_is_one_sentence(tmp_path: Path):
    complete_bytes = recordings.bag(tmp_path / "a.bag").read_bytes()
    (tmp_path / "cut.bag").write_bytes(complete_bytes[: len(complete_bytes) // 2])
    with pytest.raises(InputError, match=r"cut.bag' is a ROS bag that cannot be read.*damaged"):
        readers.read(tmp_path / "cut.bag")


# --- HDF5 ---


def test_robomimic_demos_are_episodes_at_the_rate_of_their_environment(tmp_path: Path):
    notes: list[str] = []
    streams_by_name = readers.group_episodes(
        readers.read(recordings.robomimic(tmp_path / "a.hdf5"), options=ReadOptions(report=notes.append))
    )
    assert list(streams_by_name) == ["demo_0", "demo_1"]
    demo = by_name(streams_by_name["demo_1"])
    assert demo["actions"].values.shape == (21, 7)
    assert demo["actions"].times[:3].tolist() == [0, 50_000_000, 100_000_000]
    assert demo["obs/eef_quat"].kind == "slerp"
    assert any("agentview_image" in n for n in notes)


def test_demos_without_a_rate_need_fps(tmp_path: Path):
    path = recordings.robomimic(tmp_path / "a.hdf5", env=False)
    with pytest.raises(InputError, match="--fps"):
        readers.read(path)
    assert readers.read(path, options=ReadOptions(fps=3))[0].times[:3].tolist() == [0, 333333333, 666666667]


def test_stamps_in_a_dataset_win_over_the_rate(tmp_path: Path):
    streams_by_name = readers.read(recordings.robomimic(tmp_path / "a.hdf5", stamps=True))
    assert streams_by_name[0].times[1] - streams_by_name[0].times[0] == pytest.approx(0.1, abs=1e-6)


def test_datasets_that_are_one_quantity_are_chosen_by_its_name(tmp_path: Path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name in ("pos_x", "pos_y", "pos_z", "gear"):
            file[f"data/demo_0/obs/{name}"] = np.arange(5.0)
    for words in (["obs/pos"], ["obs/pos_y"], ["obs/pos_x", "obs/pos_y", "obs/pos_z"], ["obs/p*"]):
        streams_by_name, _ = read_with_notes(tmp_path / "a.h5", words, fps=10)
        assert {n: s.values.shape for n, s in streams_by_name.items()} == {"obs/pos": (5, 3)}
    with pytest.raises(InputError, match=r"did you mean 'obs/pos'.* There are: obs/gear, obs/pos\.$"):
        readers.read(tmp_path / "a.h5", ["obs/poss"], ReadOptions(fps=10))


def test_a_group_of_hdf5_has_its_own_clock_and_what_is_left_out_has_its_reason(tmp_path: Path):
    import h5py

    fast, slow = np.arange(500) / 500, 0.05 + np.arange(20) / 20
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["imu/t"], file["imu/accel"] = fast, np.stack([fast, -fast], axis=1)
        file["ft/time"], file["ft/wrench"] = slow, slow * 2
        file["imu/odd"], file["imu/note"] = np.arange(7.0), np.array([b"x"] * 500)
        file["imu/wide"], file["imu/gps_time"] = np.zeros((500, 300)), fast + 9
        file["alone/x"] = np.arange(3.0)
        file["cam_stamp"], file["cam_exposure"] = np.arange(30) * 33_000_000, np.arange(30.0)
    left_out: list[LeftOut] = []
    options = ReadOptions(leave_out=left_out.append)
    streams_by_name = by_name(readers.read(tmp_path / "a.h5", options=options))
    assert set(streams_by_name) == {"imu/accel", "imu/gps_time", "ft/wrench", "cam_exposure"}
    np.testing.assert_array_equal(streams_by_name["imu/accel"].times, fast)
    np.testing.assert_array_equal(streams_by_name["ft/wrench"].times, slow)
    assert streams_by_name["cam_exposure"].times[1] == 33_000_000
    reasons = {item.name: item.reason for item in left_out}
    assert reasons["imu/odd"] == "its length is 7, and that of its clock imu/t is 500"
    assert "text" in reasons["imu/note"]
    assert "too wide" in reasons["imu/wide"]
    assert "length" in reasons["alone/x"]
    with pytest.raises(InputError, match=r"imu/odd is left out \(its length is 7"):
        readers.read(tmp_path / "a.h5", ["imu/odd"])
    named = by_name(readers.read(tmp_path / "a.h5", ["imu/accel"], ReadOptions(clock="imu/gps_time")))
    np.testing.assert_array_equal(named["imu/accel"].times, fast + 9)
    with pytest.raises(InputError, match=r"no time column in .* 'clock'"):
        readers.read(tmp_path / "a.h5", options=ReadOptions(clock="clock"))


@pytest.mark.parametrize("dtype", ["uint64", "float32"])
def test_a_column_of_hdf5_that_goes_back_is_no_clock(tmp_path: Path, dtype: str):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["time"] = np.arange(4) / 10
        file["imu/t"], file["imu/x"] = np.array([1, 5, 3, 9], dtype), np.arange(4.0)
    streams_by_name = by_name(readers.read(tmp_path / "a.h5"))
    assert streams_by_name["imu/x"].times.tolist() == pytest.approx([0, 0.1, 0.2, 0.3])
    assert set(streams_by_name) == {"imu/t", "imu/x"}


def test_groups_of_hdf5_without_a_clock_beside_groups_with_one_are_left_out_without_fps(tmp_path: Path):
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["imu/t"], file["imu/x"] = np.arange(10) / 10, np.arange(10.0)
        file["plain/y"] = np.arange(4.0)
    left_out: list[LeftOut] = []
    assert [s.name for s in readers.read(tmp_path / "a.h5", options=ReadOptions(leave_out=left_out.append))] == [
        "imu/x"
    ]
    assert "no time column" in left_out[0].reason
    even = by_name(readers.read(tmp_path / "a.h5", options=ReadOptions(fps=2)))
    assert even["plain/y"].times.tolist() == [0, NS // 2, NS, 3 * NS // 2]
    assert even["imu/x"].times[1] == pytest.approx(0.1)


# --- LeRobot ---


def test_a_lerobot_v2_folder_gives_its_episodes_on_exact_stamps(tmp_path: Path):
    notes: list[str] = []
    streams_by_name = readers.group_episodes(
        readers.read(recordings.lerobot_v2(tmp_path / "set"), options=ReadOptions(report=notes.append))
    )
    assert list(streams_by_name) == ["0", "1"]
    state = by_name(streams_by_name["1"])["observation.state"]
    assert state.columns == ("observation.state.shoulder", "observation.state.elbow")
    assert state.times[:3].tolist() == [0, 33333333, 66666667]
    assert any("observation.images.top" in n for n in notes)


# --- content and suffix ---


def test_the_content_decides_and_not_the_name(tmp_path: Path):
    recordings.flight(tmp_path / "really.csv")
    assert readers.detect_format(tmp_path / "really.csv") == "ulog"


@pytest.mark.parametrize("name", ["a.ulg", "a.mcap", "a.bag", "a.hdf5", "a.parquet", "a.csv", "a.tum"])
def test_a_file_with_a_wrong_suffix_is_one_sentence(tmp_path: Path, name: str):
    (tmp_path / name).write_bytes(b"\x00\x01\x02 nothing of the kind \xff" * 20)
    with pytest.raises(InputError, match=f"{name}' has the suffix of a .* but is none") as raised:
        readers.read(tmp_path / name)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["a.mcap", "a.hdf5", "a.parquet"])
def test_a_file_cut_in_its_first_kilobyte_is_one_sentence(tmp_path: Path, name: str):
    writers_by_name = {
        "a.mcap": lambda p: recordings.mcap_ros2(p, header=True),
        "a.hdf5": recordings.robomimic,
        "a.parquet": lambda p: parquet.write_table(arrow.table({"t": np.arange(999), "v": np.arange(999)}), p),
    }
    writers_by_name[name](tmp_path / name)
    complete_bytes = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(complete_bytes[:200])
    with pytest.raises(InputError, match=r"truncated or damaged|without one numeric value"):
        readers.read(tmp_path / name)


def test_missing_empty_and_unknown_inputs_have_different_errors(tmp_path: Path):
    (tmp_path / "empty.ulg").touch()
    (tmp_path / "code.py").write_text('"""Not a log."""\nimport sys, os\n')
    (tmp_path / "folder").mkdir()
    for name, message in {
        "gone.ulg": "there is no file",
        "empty.ulg": "is empty",
        "code.py": "no known recording",
        "folder": "is a folder",
    }.items():
        with pytest.raises(InputError, match=message):
            readers.read(tmp_path / name)


def test_topics_are_chosen_by_name_by_topic_and_by_pattern(tmp_path: Path):
    path = recordings.flight(tmp_path / "a.ulg")
    for words, names in {
        ("attitude",): {"attitude/q", "attitude/yaw"},
        ("attitude/q",): {"attitude/q"},
        ("attitude/q[2]",): {"attitude/q"},
        ("sta*",): {"status/mode", "status/armed"},
        ("*/mode", "stuck/x"): {"status/mode", "stuck/x"},
    }.items():
        assert {s.name for s in readers.read(path, words)} == names
    with pytest.raises(InputError, match="did you mean 'attitude'"):
        readers.read(path, ["atitude"])


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [("pyulog", "a.ulg", "ULog"), ("mcap.reader", "a.mcap", "MCAP"), ("h5py", "a.h5", "HDF5")],
)
def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch, module: str, name: str, message: str):
    makers = {"a.ulg": recordings.flight, "a.mcap": recordings.mcap_json, "a.h5": recordings.robomimic}
    makers[name](tmp_path / name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtra, match=rf"reading {message} files.*\.\[robot\]"):
        readers.read(tmp_path / name)


# --- real logs ---


@pytest.mark.parametrize("name", ["px4_sample.ulg", "px4_sample_log_small.ulg"])
def test_real_flight_logs_align(data: Path, name: str):
    from ridgeline.trajectory.stream import align

    streams = readers.read(data / "robot" / name)
    both = align(streams, hz=50, span="auto")
    assert both.kinds["vehicle_attitude/q"] == "slerp"
    assert both.kinds["vehicle_status/nav_state"] == "previous"
    np.testing.assert_allclose(np.linalg.norm(both.columns["vehicle_attitude/q"], axis=1), 1, atol=1e-5)
    assert len(both.times) > 300
    assert any("one stamp only" in w for w in both.warnings)
