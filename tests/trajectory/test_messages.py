"""Messages of MCAP and ROS bags: missing fields, joints by name, transforms, constants, and the choice of stamps."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectory.recordings import EPOCH, NS

from ridgeline.errors import InputError
from ridgeline.trajectory import Stream, align, readers
from ridgeline.trajectory.readers import LeftOut, ReadOptions
from ridgeline.trajectory.readers.messages import MessageColumns, Topic, build_message_streams

STEP = NS // 100


def write_json(path: Path, bodies: Iterable[Any], topic: str = "/state") -> Path:
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        schema = writer.register_schema("s", "jsonschema", b"{}")
        channel = writer.register_channel(topic, "json", schema)
        for i, body in enumerate(bodies):
            writer.add_message(channel, EPOCH + i * STEP, json.dumps(body).encode(), EPOCH + i * STEP)
        writer.finish()
    return path


def write_bag(path: Path, messages: Iterable[tuple[str, str, int, Callable[[dict[str, Any]], Any]]]) -> Path:
    """`messages`: (topic, type, log time, a function that builds the message from the types)."""
    from rosbags import rosbag2
    from rosbags.typesys import Stores, get_typestore

    types = get_typestore(Stores.ROS2_HUMBLE)
    with rosbag2.Writer(path, version=9) as out:
        connections: dict[str, Any] = {}
        for topic, kind, logged, build in messages:
            if topic not in connections:
                connections[topic] = out.add_connection(topic, kind, typestore=types)
            out.write(connections[topic], logged, bytes(types.serialize_cdr(build(types.types), kind)))
    return path


def header(types: dict[str, Any], stamp_ns: int, frame: str = "map") -> Any:
    clock = types["builtin_interfaces/msg/Time"](sec=stamp_ns // NS, nanosec=stamp_ns % NS)
    return types["std_msgs/msg/Header"](stamp=clock, frame_id=frame)


def joint_state(stamp_ns: int, names: list[str], position: list[float]) -> Callable[[dict[str, Any]], Any]:
    def build(types: dict[str, Any]) -> Any:
        values = np.array(position, np.float64)
        return types["sensor_msgs/msg/JointState"](
            header=header(types, stamp_ns), name=names, position=values, velocity=values * 2, effort=np.zeros(0)
        )

    return build


def point(stamp_ns: int, x: float) -> Callable[[dict[str, Any]], Any]:
    def build(types: dict[str, Any]) -> Any:
        where = types["geometry_msgs/msg/Point"](x=x, y=0.0, z=0.0)
        return types["geometry_msgs/msg/PointStamped"](header=header(types, stamp_ns), point=where)

    return build


def read_by_name(path: Path, **options: Any) -> tuple[dict[str, Stream], list[str], list[LeftOut]]:
    notes: list[str] = []
    left_out: list[LeftOut] = []
    settings = ReadOptions(report=notes.append, leave_out=left_out.append, **options)
    return {s.name: s for s in readers.read(path, options=settings)}, notes, left_out


# --- missing fields ---


def test_a_field_that_one_message_lacks_keeps_its_type_and_has_one_sample_less(tmp_path: Path):
    bodies: list[dict[str, Any]] = [{"flag": i >= 50, "x": i / 2, "arr": [i, i + 1, i + 2.5]} for i in range(100)]
    del bodies[20]["flag"]
    bodies[30]["arr"] = [1]
    bodies[40]["x"] = "broken"
    bodies[45]["x"] = None
    streams, notes, left_out = read_by_name(write_json(tmp_path / "a.mcap", bodies))
    assert {n: (str(s.values.dtype), s.kind, len(s)) for n, s in streams.items()} == {
        "/state/flag": ("bool", "previous", 99),
        "/state/x": ("float64", "linear", 98),
        "/state/arr": ("float64", "linear", 99),
    }
    assert EPOCH + 20 * STEP not in streams["/state/flag"].times
    assert not left_out
    assert notes == ["/state: missing, or of another type or length, of 100 messages: flag in 1, x in 2, arr in 1."]
    on_clock = align([streams["/state/flag"], streams["/state/x"]], hz=77)
    assert set(on_clock.columns["/state/flag"].tolist()) == {False, True}


def test_a_field_that_the_first_messages_lack_is_read(tmp_path: Path):
    bodies: list[dict[str, Any]] = [{"x": i, "pose": None} for i in range(3)]
    bodies += [{"x": i, "pose": {"x": 1.0 * i, "y": 2.0}, "late.name": i} for i in range(3, 8)]
    streams, _, _ = read_by_name(write_json(tmp_path / "a.mcap", bodies))
    assert {n: len(s) for n, s in streams.items()} == {"/state/x": 8, "/state/pose": 5, "/state/late.name": 5}
    assert streams["/state/pose"].times[0] == EPOCH + 3 * STEP
    assert streams["/state/pose"].values[:, 0].tolist() == [3, 4, 5, 6, 7]


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["a", ["a", "b"], ["b", "a"], [[1], []]])
)
FIELDS = st.sampled_from(["x", "name", "position", "transforms", "child_frame_id", "header", "stamp", "sec"])
BODIES = st.dictionaries(
    FIELDS,
    st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3)),
    max_size=4,
)


@settings(max_examples=40, deadline=None)
@given(bodies=st.lists(BODIES, min_size=1, max_size=6), stamps=st.sampled_from(readers.STAMPS))
def test_any_json_gives_streams_with_one_stamp_per_sample_or_one_sentence(bodies: list[Any], stamps: str):
    topic = Topic("/any")
    for i, body in enumerate(bodies):
        topic.add(body, i * STEP)
    try:
        streams = build_message_streams([topic], ReadOptions(stamps=stamps), "a.mcap")
    except InputError:
        return
    assert all(len(s.values) == len(s.times) <= len(bodies) * 3 for s in streams)
    assert len({s.name for s in streams}) == len(streams)


def test_what_is_left_out_has_its_reason(tmp_path: Path):
    bodies = [
        {"text": "a", "many": [0.0] * 300, "ragged": [1.0] * (i % 5), "inner": [{"a": 1}], "x": i} for i in range(20)
    ]
    streams, _, left_out = read_by_name(write_json(tmp_path / "a.mcap", bodies))
    assert list(streams) == ["/state/x"]
    reasons = {item.name: item.reason for item in left_out}
    assert "text" in reasons["/state/text"]
    assert "too wide: 300" in reasons["/state/many"]
    assert "length changes" in reasons["/state/ragged"]
    assert "list of messages" in reasons["/state/inner"]


def test_images_do_not_fill_the_memory():
    images = MessageColumns()
    tracemalloc.start()
    for i in range(200):
        images.add({"x": i, "data": np.zeros(100_000, np.uint8), "raw": bytes(100_000)}, i)
    assert tracemalloc.get_traced_memory()[0] < 2_000_000
    tracemalloc.stop()
    left_out: list[LeftOut] = []
    assert list(images.build_columns("/camera", ReadOptions(leave_out=left_out.append))) == ["x"]
    assert {x.reason for x in left_out} == {"too wide: 100000 columns, and at most 256 are read"}


# --- joints, constants, transforms ---


def test_joints_of_two_publishers_are_two_streams_with_joint_names(tmp_path: Path):
    left, right = ["left_1", "left_2"], ["right_1", "right_2"]
    messages = []
    for i in range(20):
        stamp = EPOCH + i * STEP
        names, values = (left, [1.0, 2.0]) if i % 2 else (right, [11.0, 12.0])
        if i % 4 == 3:  # the same joints in another order
            names, values = names[::-1], values[::-1]
        messages.append(("/joint_states", "sensor_msgs/msg/JointState", stamp, joint_state(stamp, names, values)))
    streams, _, left_out = read_by_name(write_bag(tmp_path / "bag", messages))
    assert set(streams) == {f"/joint_states/{side}/{f}" for side in ("left", "right") for f in ("position", "velocity")}
    arm = streams["/joint_states/left/position"]
    assert arm.columns == ("/joint_states/left/position.left_1", "/joint_states/left/position.left_2")
    assert (arm.values == [1.0, 2.0]).all()
    assert (streams["/joint_states/right/velocity"].values == [22.0, 24.0]).all()
    assert {x.name: x.reason for x in left_out}["/joint_states/left/effort"] == "empty in every sample"
    chosen = readers.read(tmp_path / "bag", ["/joint_states"])
    on_clock = align(chosen, hz=333)
    assert set(on_clock.columns["/joint_states/right/position"][:, 0].tolist()) == {11.0}


def test_the_joints_of_one_publisher_keep_the_topic_name(tmp_path: Path):
    bodies = [{"name": ["a", "b"], "position": [i, 2.5 * i]} for i in range(5)]
    streams, _, _ = read_by_name(write_json(tmp_path / "a.mcap", bodies, "/joint_states"))
    assert streams["/joint_states/position"].columns == ("/joint_states/position.a", "/joint_states/position.b")


def test_messages_without_usable_names_are_kept_apart_and_changing_names_are_left_out(tmp_path: Path):
    bodies: list[dict[str, Any]] = [{"name": ["a", "b"], "position": [1.0, 2.0 + i]} for i in range(5)]
    bodies += [{"name": "ab", "position": [7.0, 8.5]}, {"position": [7.0, 8.5]}, {"name": [], "position": [7.0, 8.5]}]
    streams, _, _ = read_by_name(write_json(tmp_path / "a.mcap", bodies))
    assert {n: len(s) for n, s in streams.items()} == {"/state/a+b/position": 5, "/state/unnamed/position": 3}
    seen = [{"name": [f"object {i}"], "score": [i / 200]} for i in range(200)]
    with pytest.raises(InputError, match=r"its names change all the time \(200 sets\)"):
        readers.read(write_json(tmp_path / "b.mcap", seen))


def test_constants_of_a_ros_message_are_no_columns(tmp_path: Path):
    def battery(stamp: int) -> Callable[[dict[str, Any]], Any]:
        def build(types: dict[str, Any]) -> Any:
            numbers = dict.fromkeys(
                ("voltage", "temperature", "current", "charge", "capacity", "design_capacity", "percentage"), 1.0
            )
            states = dict.fromkeys(("power_supply_status", "power_supply_health", "power_supply_technology"), 1)
            cells = dict.fromkeys(("cell_voltage", "cell_temperature"), np.zeros(2, np.float32))
            texts = {"location": "", "serial_number": ""}
            rest: dict[str, Any] = {**numbers, **states, **cells, **texts}
            return types["sensor_msgs/msg/BatteryState"](header=header(types, stamp), present=True, **rest)

        return build

    messages = [
        ("/battery", "sensor_msgs/msg/BatteryState", EPOCH + i * STEP, battery(EPOCH + i * STEP)) for i in range(3)
    ]
    streams, _, _ = read_by_name(write_bag(tmp_path / "bag", messages))
    assert "/battery/voltage" in streams
    assert not [name for name in streams if "POWER_SUPPLY" in name]


def test_transforms_are_streams_by_pair_of_frames(tmp_path: Path):
    def transforms(stamp: int, i: int) -> Callable[[dict[str, Any]], Any]:
        def build(types: dict[str, Any]) -> Any:
            def one(parent: str, child: str, x: float) -> Any:
                move = types["geometry_msgs/msg/Transform"](
                    translation=types["geometry_msgs/msg/Vector3"](x=x, y=0.0, z=0.0),
                    rotation=types["geometry_msgs/msg/Quaternion"](x=0.0, y=0.0, z=0.0, w=1.0),
                )
                return types["geometry_msgs/msg/TransformStamped"](
                    header=header(types, stamp, parent), child_frame_id=child, transform=move
                )

            pairs = [one("odom", "base", 1.0 * i)] + ([one("base", "arm", -1.0)] if i % 2 else [])
            return types["tf2_msgs/msg/TFMessage"](transforms=pairs)

        return build

    messages = [
        ("/tf", "tf2_msgs/msg/TFMessage", EPOCH + i * STEP, transforms(EPOCH + i * STEP - 5, i)) for i in range(6)
    ]
    streams, _, _ = read_by_name(write_bag(tmp_path / "bag", messages))
    moved, arm = streams["/tf/odom/base/transform.translation"], streams["/tf/base/arm/transform.translation"]
    assert moved.values[:, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert moved.times[0] == EPOCH - 5
    assert len(arm) == 3
    assert streams["/tf/odom/base/transform.rotation"].kind == "slerp"
    assert {s.name for s in readers.read(tmp_path / "bag", ["/tf/odom/base"])} == {
        "/tf/odom/base/transform.translation",
        "/tf/odom/base/transform.rotation",
    }


# --- stamps ---


def build_simulation(with_plain: bool = False) -> list[tuple[str, str, int, Callable[[dict[str, Any]], Any]]]:
    """Two topics with simulated time, logged in bursts; with a third one without a header if `with_plain`."""
    kind = "geometry_msgs/msg/PointStamped"
    messages: list[Any] = []
    for i in range(10):
        logged = EPOCH + i // 2 * NS
        messages += [("/a", kind, logged, point(i * NS, i)), ("/b", kind, logged + 2 * NS, point(i * NS, -i))]
        if with_plain:
            messages.append(
                ("/c", "geometry_msgs/msg/Point", logged, lambda t: t["geometry_msgs/msg/Point"](x=1.0, y=0.0, z=0.0))
            )
    return messages


def test_header_stamps_are_used_if_all_topics_share_their_clock(tmp_path: Path):
    path = write_bag(tmp_path / "bag", build_simulation())
    streams, notes, _ = read_by_name(path)
    assert streams["/a/point"].times.tolist() == streams["/b/point"].times.tolist() == [i * NS for i in range(10)]
    assert any("share the clock of their headers" in n for n in notes)
    logged = read_by_name(path, stamps="log")[0]
    assert logged["/a/point"].times[0] == EPOCH
    assert logged["/b/point"].times[0] == EPOCH + 2 * NS


def test_a_topic_of_text_does_not_decide_about_stamps(tmp_path: Path):
    words = [
        ("/words", "std_msgs/msg/String", EPOCH + i * NS, lambda t: t["std_msgs/msg/String"](data="a"))
        for i in range(5)
    ]
    streams, _, _ = read_by_name(write_bag(tmp_path / "bag", [*build_simulation(), *words]))
    assert streams["/a/point"].times[1] == NS


def test_a_topic_without_a_header_keeps_all_topics_on_the_log_clock(tmp_path: Path):
    path = write_bag(tmp_path / "bag", build_simulation(with_plain=True))
    streams, notes, _ = read_by_name(path)
    assert {int(s.times[0]) for s in streams.values()} == {EPOCH, EPOCH + 2 * NS}
    assert any("/a: its stamps are of another clock" in n and "--stamps header" in n for n in notes)
    streams, _, left_out = read_by_name(path, stamps="header")
    assert set(streams) == {"/a/point", "/b/point"}
    assert streams["/b/point"].times[1] == NS
    assert [x.name for x in left_out] == ["/c"]


def test_stamps_that_are_not_there_are_an_error_with_its_cure(tmp_path: Path):
    path = write_json(tmp_path / "a.mcap", [{"x": 1}, {"x": 2}])
    with pytest.raises(InputError, match=r"no topic in .* has header stamps; --stamps log"):
        readers.read(path, options=ReadOptions(stamps="header"))
    with pytest.raises(InputError, match="no choice of stamps 'sent'"):
        ReadOptions(stamps="sent")
