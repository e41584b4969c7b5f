"""Recordings that are cut into episodes: at pauses, at messages, and by the values of a stream."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.trajectory import camera_recordings as cams
from tests.trajectory.camera_recordings import FRONT, JOINTS, read_number
from tests.trajectory.recordings import EPOCH, NS

from ridgeline.errors import InputError
from ridgeline.trajectory import ConversionSettings, Stream, convert_many
from ridgeline.trajectory.episodes import find_bounds, parse_cut, slice_streams


def find(rule: str, *streams: Stream, marks=None, main=()) -> list[list[int]]:
    """The stamps of the first stream in each episode."""
    bounds = find_bounds([parse_cut(rule)], streams, marks or {}, main)
    return [slice_streams(streams, b, "")[0].times.tolist() for b in bounds]


CLOCK = np.arange(10) * NS
NUMBERS = Stream("x", CLOCK, np.arange(10.0))


def test_each_rule_makes_its_episodes():
    half = NS // 2
    assert find("gap=2", Stream("x", np.array([0, 1, 2, 5, 6]) * NS, np.ones(5))) == [
        [0, NS, 2 * NS], [5 * NS, 6 * NS]
    ]  # fmt: skip
    assert find("gap=3", Stream("x", np.array([0, 1, 2, 5, 6]) * NS, np.ones(5))) == [[n * NS for n in (0, 1, 2, 5, 6)]]
    marks = {"/button": np.array([4 * NS, 7 * NS + half])}
    assert find("marker=/button", NUMBERS, marks=marks) == [
        [n * NS for n in part] for part in ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9))
    ]
    active = Stream("on", np.array([2, 4, 6, 8]) * NS + half, np.array([True, False, True, False]))
    assert find("while=on", NUMBERS, active) == [[3 * NS, 4 * NS], [7 * NS, 8 * NS]]
    number = Stream("episode", np.array([0, 3, 6]) * NS, np.array([7, 7, 8]))
    assert find("change=episode", NUMBERS, number) == [[n * NS for n in range(6)], [n * NS for n in range(6, 10)]]


def test_a_pause_of_one_main_stream_counts_and_that_of_another_does_not():
    rare = Stream("status", np.array([0, 9]) * NS, np.ones(2))
    assert len(find("gap=3", NUMBERS, rare)) == 1
    assert len(find("gap=3", NUMBERS, rare, main=("x",))) == 1
    assert find("gap=3", NUMBERS, rare, main=("x", "status")) == [[0], [9 * NS]]


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.lists(st.integers(-5, 55), max_size=6),
    st.integers(1, 9),
)
def test_markers_and_pauses_lose_and_double_no_sample(stamps: list[int], markers: list[int], limit: int):
    stream = Stream("x", np.sort(np.array(stamps)) * NS, np.ones(len(stamps)))
    marks = {"m": np.array(markers, np.int64) * NS}
    for rule in ("marker=m", f"gap={limit}"):
        parts = find(rule, stream, marks=marks)
        assert [t for part in parts for t in part] == stream.times.tolist()
    for part in find(f"gap={limit}", stream):
        assert np.diff(part, prepend=part[:1]).max() <= limit * NS


def test_a_value_that_holds_counts_from_the_start_of_its_episode_on():
    mode = Stream("mode", np.array([0, 8]) * NS, np.array([3, 4]))
    bounds = find_bounds([parse_cut("marker=m")], [NUMBERS, mode], {"m": np.array([5 * NS])}, ())
    second = slice_streams([NUMBERS, mode], bounds[1], "1")[1]
    assert (second.times.tolist(), second.values.tolist(), second.episode) == ([5 * NS, 8 * NS], [3, 4], "1")


@pytest.mark.parametrize(
    ("rule", "words"),
    [("gap", "RULE=VALUE"), ("gap=-1", "above 0"), ("gap=soon", "above 0"), ("pause=3", "gap, marker, while, change")],
)
def test_rules_that_are_none_are_told(rule: str, words: str):
    with pytest.raises(InputError, match=words):
        parse_cut(rule)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of a camera and joints, with a text message at 0.8 s."""
    at = EPOCH + 8 * NS // 10
    text = (at, at, "/button", "std_msgs/msg/String", {"data": "next"})
    items = [*cams.messages(2.0, gap=(9, 9)), text]
    return cams.mcap(tmp_path_factory.mktemp("log") / "run.mcap", sorted(items, key=lambda m: m[0]))


def test_one_pass_over_a_recording_writes_the_videos_of_all_its_episodes(log: Path, tmp_path: Path):
    settings = ConversionSettings(
        hz=30, cameras={"front": FRONT}, state=(f"{JOINTS}/position",), cuts=("marker=/button",)
    )
    (result,) = convert_many([log], tmp_path / "set", "lerobot", settings)
    assert (result.error, result.episodes, result.lost) == (None, 2, {})
    rows = parquet.read_table(tmp_path / "set/data/chunk-000/file-000.parquet")
    states = np.array(rows["observation.state"].to_pylist())[:, 0]  # the first joint is the time
    episodes = np.asarray(rows["episode_index"])
    assert states[episodes == 0].max() < 0.8 <= states[episodes == 1].min() + 1e-6
    assert np.asarray(rows["timestamp"])[episodes == 1][0] == 0
    (video,) = (tmp_path / "set/videos").rglob("*.mp4")
    shown = [read_number(p) for _, p in cams.decode(video)]
    assert len(shown) == len(states)
    assert all(abs((0.01 + n / 30) - s) <= 0.5 / 30 + 1e-6 for n, s in zip(shown, states, strict=True))


def test_bad_frames_count_once_and_in_their_own_episode(tmp_path: Path):
    at = EPOCH + 8 * NS // 10
    text = (at, at, "/button", "std_msgs/msg/String", {"data": "next"})
    bad = cams.change(cams.messages(2.0, gap=(9, 9)), FRONT, lambda i, f: {**f, "data": b""} if i == 40 else f)
    path = cams.mcap(tmp_path / "run.mcap", sorted([*bad, text], key=lambda m: m[0]))
    settings = ConversionSettings(
        hz=30, cameras={"front": FRONT}, state=(f"{JOINTS}/position",), cuts=("marker=/button",)
    )
    (result,) = convert_many([path], tmp_path / "set", "lerobot", settings)
    assert result.lost == {FRONT: 1}
    assert any("1 of 60 frames" in note for note in result.notes)


def test_a_video_topic_is_cut_between_its_key_frames(tmp_path: Path):
    at = EPOCH + 12 * NS // 10
    text = (at, at, "/button", "std_msgs/msg/String", {"data": "next"})
    units = cams.encode_video(60, gop=15)
    items = [*cams.joints(2.0), *cams.video_messages(units), text]
    path = cams.mcap(tmp_path / "run.mcap", sorted(items, key=lambda m: m[0]))
    settings = ConversionSettings(
        hz=30, cameras={"v": cams.VIDEO}, state=(f"{JOINTS}/position",), cuts=("marker=/button",)
    )
    (result,) = convert_many([path], tmp_path / "set", "lerobot", settings)
    assert result.error is None
    shown = [read_number(p) for v in sorted((tmp_path / "set/videos").rglob("*.mp4")) for _, p in cams.decode(v)]
    assert result.rows == len(shown)
    assert np.abs(np.diff(shown)).max() <= 2
    assert (shown[0], shown[-1]) == (0, 59)


@pytest.mark.parametrize(
    ("rule", "words"),
    [("marker=/buton", "/buton"), ("while=/joints/velocity", "velocity"), ("gap=0.001", "no episode")],
)
def test_cuts_that_leave_nothing_or_name_no_topic_are_told(log: Path, tmp_path: Path, rule: str, words: str):
    settings = ConversionSettings(hz=30, state=(f"{JOINTS}/position",), cuts=(rule,))
    (result,) = convert_many([log], tmp_path / "set", "lerobot", settings)
    assert words in str(result.error)
    assert not (tmp_path / "set").exists()
