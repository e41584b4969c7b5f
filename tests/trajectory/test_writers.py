"""Writers: outputs read back with pyarrow and with ridgeline's readers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from tests.trajectory import recordings
from tests.trajectory.recordings import EPOCH, NS, turning

from ridgeline.errors import InputError, RidgelineError
from ridgeline.store import verify
from ridgeline.trajectory import ConversionSettings, convert_many, readers, writers
from ridgeline.trajectory.stream import Aligned, Stream, align
from ridgeline.trajectory.writers import npz
from ridgeline.trajectory.writers.lerobot import compute_stats


@pytest.fixture
def aligned() -> Aligned:
    """Floats, a quaternion, integers and booleans, some of them masked by a gap."""
    t = EPOCH + np.concatenate([np.arange(20), np.arange(40, 60)]) * NS // 20
    return align(
        [
            Stream("arm/pos", t, np.linspace(0, 1, 40).astype("f4")),
            Stream("arm/q", t, turning(40)),
            Stream("mode", t, np.arange(40, dtype=np.uint8)),
            Stream("/on", EPOCH + np.arange(61) * NS // 20, np.arange(61) % 2 == 0),
        ],
        hz=50,
        max_gap=0.2,
    )


def test_parquet_has_time_columns_and_nulls_for_masked_values(tmp_path: Path, aligned: Aligned):
    writers.write(tmp_path / "a.parquet", [aligned], "parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    quaternion = [f"arm/q[{i}]" for i in range(4)]
    assert table.column_names == ["time_ns", "arm/pos", *quaternion, "mode", "/on"]
    assert table["time_ns"].to_pylist() == aligned.times.tolist()
    masked = int((~aligned.masks["arm/pos"]).sum())
    assert masked > 40
    assert table["arm/pos"].null_count == table["mode"].null_count == table["arm/q[2]"].null_count == masked
    assert table["/on"].null_count == 0
    assert str(table["mode"].type) == "uint8"
    assert str(table["arm/pos"].type) == "float"


def test_an_unknown_column_does_not_hide_the_columns_beside_it(tmp_path: Path):
    values = np.stack([np.arange(4.0), [np.nan, np.nan, 2.0, 3.0]], axis=1)
    one = align([Stream("p", np.arange(4) * NS, values)], hz=1)
    writers.write(tmp_path / "a.parquet", [one, one], "parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table["p[0]"].to_pylist() == [0, 1, 2, 3] * 2
    assert table["p[1]"].to_pylist() == [None, None, 2, 3] * 2


def test_the_reader_reads_back_parquet(tmp_path: Path, aligned: Aligned):
    writers.write(tmp_path / "a.parquet", [aligned], "parquet")
    streams = {s.name: s for s in readers.read(tmp_path / "a.parquet")}
    assert {n: s.kind for n, s in streams.items()} == dict(aligned.kinds)
    for name, stream in streams.items():
        known = aligned.masks[name]
        np.testing.assert_array_equal(stream.times, aligned.times[known])
        np.testing.assert_array_equal(stream.values, aligned.columns[name][known])


def test_npz_reads_back_completely(tmp_path: Path, aligned: Aligned):
    writers.write(tmp_path / "a.npz", [aligned], "npz")
    with np.load(tmp_path / "a.npz") as file:
        np.testing.assert_array_equal(file["time_ns"], aligned.times)
        np.testing.assert_array_equal(file["/on"], aligned.columns["/on"])
        np.testing.assert_array_equal(file["mask/mode"], aligned.masks["mode"])
    (back,) = npz.load_episodes(tmp_path / "a.npz")
    for name in aligned.columns:
        np.testing.assert_array_equal(back.columns[name], aligned.columns[name])
        np.testing.assert_array_equal(back.masks[name], aligned.masks[name])
    assert back.labels == dict(aligned.labels)


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_an_index_column_separates_the_episodes_of_one_file(tmp_path: Path, aligned: Aligned, form: str):
    other = align([Stream("mode", np.arange(5) * NS, np.arange(5))], hz=1)
    path = tmp_path / f"a{writers.FORMATS[form]}"
    writers.write(path, [aligned, other], form)
    if form == "npz":
        assert [len(e.times) for e in npz.load_episodes(path)] == [len(aligned.times), 5]
        assert not npz.load_episodes(path)[1].masks["arm/pos"].any()
    else:
        episodes_read = readers.group_episodes(readers.read(path))
        assert list(episodes_read) == ["0", "1"]
        assert {s.name: len(s) for s in episodes_read["1"]}["mode"] == 5


def test_a_lerobot_folder_is_complete_and_reads_back(tmp_path: Path, aligned: Aligned):
    writers.write(tmp_path / "set", [aligned, aligned], "lerobot", {"from": "test"})
    verify(tmp_path / "set")
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_episodes"]) == ("v3.0", 50, 2)
    assert info["total_frames"] == 2 * len(aligned.times)
    assert info["features"]["observation.arm.q"] == {
        "dtype": "float32",
        "shape": [4],
        "names": ["q[0]", "q[1]", "q[2]", "q[3]"],
    }
    data = parquet.read_table(tmp_path / "set" / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(data.column_names) == set(info["features"])
    n = len(aligned.times)
    assert data["frame_index"].to_pylist() == [*range(n), *range(n)]
    stamps = np.asarray(data["timestamp"])[:n]
    np.testing.assert_allclose(stamps, np.arange(n) / 50, atol=1e-6)  # LeRobot checks 1e-4
    episodes = parquet.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(e["length"], e["dataset_from_index"], e["dataset_to_index"]) for e in episodes] == [
        (n, 0, n),
        (n, n, 2 * n),
    ]
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
    known = aligned.columns["arm/pos"][aligned.masks["arm/pos"]]
    assert stats["observation.arm.pos"]["q99"] == pytest.approx([np.quantile(np.tile(known, 2), 0.99)], rel=1e-5)
    assert {"mean", "std", "min", "max", "q01", "q99", "count"} <= set(stats["observation.arm.q"])
    episodes_read = readers.group_episodes(readers.read(tmp_path / "set"))
    back = {s.name: s for s in episodes_read["1"]}
    assert list(episodes_read) == ["0", "1"]
    np.testing.assert_allclose(back["observation.arm.q"].values, aligned.columns["arm/q"], atol=1e-6)
    assert back["observation.arm.pos"].times[1] == 20_000_000


def test_a_lerobot_folders_tasks_are_read_through_pandas_as_its_loader_does(tmp_path: Path, aligned: Aligned):
    """LeRobot's own loader (0.4.4) looks a task up by the index of this table; found by trying it."""
    import pandas

    writers.write(tmp_path / "set", [aligned], "lerobot", {"from": "test"})
    tasks = pandas.read_parquet(tmp_path / "set/meta/tasks.parquet")
    assert list(tasks.columns) == ["task_index"]
    assert tasks.iloc[0].name == "resampled"
    assert tasks.loc["resampled", "task_index"] == 0


def test_a_lerobot_folder_keeps_tasks_robot_and_names(tmp_path: Path):
    """Episode 0 changes its task halfway; the dataset goes through the chunks of a conversion."""
    source = recordings.lerobot_v2(tmp_path / "in", episodes=3, frames=20, fps=10)
    info = json.loads((source / "meta/info.json").read_text())
    info["robot_type"] = "so100"
    info["features"]["action"] = {"dtype": "float32", "shape": [1], "names": ["gripper"]}
    info["features"]["score"] = {"dtype": "float32", "shape": [1], "names": None}
    (source / "meta/info.json").write_text(json.dumps(info))
    lines = [{"task_index": i, "task": text} for i, text in enumerate(("fold", "pick the cube", "wave"))]
    (source / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    for e, tasks in enumerate(([1] * 10 + [0] * 10, [1] * 20, [2] * 20)):
        file = source / f"data/chunk-000/episode_{e:06d}.parquet"
        table = parquet.read_table(file)
        at = table.column_names.index("task_index")
        table = table.set_column(at, "task_index", [tasks]).append_column("score", [[0.5] * 20])
        parquet.write_table(table, file)
    before = readers.read(source)
    for step in ("out", "again"):
        (result,) = convert_many([source], tmp_path / step, "lerobot", ConversionSettings(hz=20))
        assert result.error is None
        source = tmp_path / step
    info = json.loads((source / "meta/info.json").read_text())
    assert (info["robot_type"], info["total_tasks"]) == ("so100", 3)
    names = {n: f["names"] for n, f in info["features"].items() if n in ("observation.state", "action", "score")}
    assert names == {"observation.state": ["shoulder", "elbow"], "action": ["gripper"], "score": None}
    after = readers.read(source)
    assert [s.columns for s in after] == [s.columns for s in before]
    by_episode = {s.episode: s.info for s in after}
    assert [text for _, text in by_episode["0"].tasks] == ["pick the cube", "fold"]
    assert by_episode["0"].tasks[1][0] == NS
    assert [text for e in "12" for _, text in by_episode[e].tasks] == ["pick the cube", "wave"]
    episodes = parquet.read_table(source / "meta/episodes/chunk-000/file-000.parquet")["tasks"].to_pylist()
    assert episodes == [["pick the cube", "fold"], ["pick the cube"], ["wave"]]


def test_the_statistics_of_a_channel_without_a_value_are_null():
    assert compute_stats(np.array([np.nan, np.nan]))["mean"] == [None]


def test_episodes_with_different_columns_are_an_error(tmp_path: Path):
    wide = align([Stream("x", np.arange(3) * NS, np.zeros((3, 2)))], hz=1)
    flat = align([Stream("x", np.arange(3) * NS, np.zeros((3, 3)))], hz=1)
    with pytest.raises(InputError, match="'x' has 2 columns in episode 0 and 3 in episode 1"):
        writers.write(tmp_path / "a.parquet", [wide, flat], "parquet")
    assert list(tmp_path.iterdir()) == []


def test_meta_reads_back_and_a_foreign_file_has_no_meta(tmp_path: Path, aligned: Aligned):
    for form, suffix in writers.FORMATS.items():
        writers.write(tmp_path / f"a{suffix}", [aligned], form, {"key": [1, "b"]})
        expected = None if form == "csv" else {"key": [1, "b"]}  # a CSV file has no place for it
        assert writers.read_meta(tmp_path / f"a{suffix}", form) == expected
    (tmp_path / "b.parquet").write_bytes(b"PAR1 broken")
    assert writers.read_meta(tmp_path / "b.parquet", "parquet") is None


def test_a_failed_write_leaves_no_file(tmp_path: Path, aligned: Aligned):
    (tmp_path / "file").touch()
    for form in ("parquet", "npz", "lerobot"):
        with pytest.raises(RidgelineError):
            writers.write(tmp_path / "file" / "below", [aligned], form)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_masked_integers_stay_masked_in_a_float_column(tmp_path: Path, order: tuple[int, ...]):
    t = np.arange(6) * NS
    y = Stream("y", t, np.arange(6.0))
    parts = [
        align([y], hz=1),
        align([y, Stream("x", t[2:], np.arange(7, 11))], hz=1, span="union"),
        align([y, Stream("x", t, np.arange(6) + 0.5)], hz=1),
    ]
    parts = [parts[i] for i in order]
    writers.write(tmp_path / "set", parts, "lerobot")
    x = np.array(parquet.read_table(tmp_path / "set/data/chunk-000/file-000.parquet")["observation.x"].to_pylist())
    known = np.concatenate([p.masks.get("x", np.zeros(6, bool)) for p in parts])
    assert np.array_equal(np.isnan(x), ~known)
    assert known.sum() == 10
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())["observation.x"]
    assert stats["min"] == [0.5]
    writers.write(tmp_path / "a.npz", parts, "npz")
    back = npz.load_episodes(tmp_path / "a.npz")
    assert all(np.isnan(e.columns["x"][~e.masks["x"]]).all() for e in back)


def test_a_stream_with_the_name_of_a_mask_does_not_replace_it(tmp_path: Path):
    t = np.arange(6) * NS
    one = align(
        [Stream("x", t[2:], np.arange(4)), Stream("mask/x", t, np.arange(6.0)), Stream("data/time", t, np.ones(6)),
         Stream("time", t, np.zeros(6))],
        hz=1, span="union",
    )  # fmt: skip
    writers.write(tmp_path / "a.npz", [one], "npz")
    (back,) = npz.load_episodes(tmp_path / "a.npz")
    for name in one.columns:
        assert np.array_equal(back.columns[name], one.columns[name])
        assert np.array_equal(back.masks[name], one.masks[name])
