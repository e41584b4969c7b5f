"""Writers: what goes out comes back, with pyarrow and with our own readers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from tests.trajectory.recordings import EPOCH, NS, turning

from ridgeline.errors import InputError, RidgelineError
from ridgeline.store import verify
from ridgeline.trajectory import readers, writers
from ridgeline.trajectory.stream import Aligned, Stream, align
from ridgeline.trajectory.writers import npz
from ridgeline.trajectory.writers.lerobot import stats_of


@pytest.fixture
def made() -> Aligned:
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


def test_parquet_holds_time_columns_and_nulls_where_nothing_is_known(tmp_path: Path, made: Aligned):
    writers.write(tmp_path / "a.parquet", [made], "parquet")
    table = parquet.read_table(tmp_path / "a.parquet")
    quaternion = [f"arm/q[{i}]" for i in range(4)]
    assert table.column_names == ["time_ns", "arm/pos", *quaternion, "mode", "/on"]
    assert table["time_ns"].to_pylist() == made.times.tolist()
    masked = int((~made.masks["arm/pos"]).sum())
    assert masked > 40
    assert table["arm/pos"].null_count == table["mode"].null_count == table["arm/q[2]"].null_count == masked
    assert table["/on"].null_count == 0
    assert str(table["mode"].type) == "uint8"
    assert str(table["arm/pos"].type) == "float"


def test_parquet_comes_back_through_our_reader(tmp_path: Path, made: Aligned):
    writers.write(tmp_path / "a.parquet", [made], "parquet")
    found = {s.name: s for s in readers.read(tmp_path / "a.parquet")}
    assert {n: s.kind for n, s in found.items()} == dict(made.kinds)
    for name, stream in found.items():
        known = made.masks[name]
        np.testing.assert_array_equal(stream.times, made.times[known])
        np.testing.assert_array_equal(stream.values, made.columns[name][known])


def test_npz_comes_back_whole(tmp_path: Path, made: Aligned):
    writers.write(tmp_path / "a.npz", [made], "npz")
    with np.load(tmp_path / "a.npz") as file:
        np.testing.assert_array_equal(file["time_ns"], made.times)
        np.testing.assert_array_equal(file["/on"], made.columns["/on"])
        np.testing.assert_array_equal(file["mask/mode"], made.masks["mode"])
    (back,) = npz.load(tmp_path / "a.npz")
    for name in made.columns:
        np.testing.assert_array_equal(back.columns[name], made.columns[name])
        np.testing.assert_array_equal(back.masks[name], made.masks[name])
    assert back.labels == dict(made.labels)


@pytest.mark.parametrize("form", ["parquet", "npz"])
def test_several_episodes_lie_in_one_file_told_apart(tmp_path: Path, made: Aligned, form: str):
    other = align([Stream("mode", np.arange(5) * NS, np.arange(5))], hz=1)
    path = tmp_path / f"a{writers.FORMATS[form]}"
    writers.write(path, [made, other], form)
    if form == "npz":
        assert [len(e.times) for e in npz.load(path)] == [len(made.times), 5]
        assert not npz.load(path)[1].masks["arm/pos"].any()
    else:
        found = readers.episodes(readers.read(path))
        assert list(found) == ["0", "1"]
        assert {s.name: len(s) for s in found["1"]}["mode"] == 5


def test_a_lerobot_folder_is_whole_and_reads_back(tmp_path: Path, made: Aligned):
    writers.write(tmp_path / "set", [made, made], "lerobot", {"from": "test"})
    verify(tmp_path / "set")
    info = json.loads((tmp_path / "set/meta/info.json").read_text())
    assert (info["codebase_version"], info["fps"], info["total_episodes"]) == ("v3.0", 50, 2)
    assert info["total_frames"] == 2 * len(made.times)
    assert info["features"]["observation.arm.q"] == {
        "dtype": "float32",
        "shape": [4],
        "names": ["q[0]", "q[1]", "q[2]", "q[3]"],
    }
    data = parquet.read_table(tmp_path / "set" / info["data_path"].format(chunk_index=0, file_index=0))
    assert set(data.column_names) == set(info["features"])
    n = len(made.times)
    assert data["frame_index"].to_pylist() == [*range(n), *range(n)]
    stamps = np.asarray(data["timestamp"])[:n]
    np.testing.assert_allclose(stamps, np.arange(n) / 50, atol=1e-6)  # LeRobot checks 1e-4
    episodes = parquet.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [(e["length"], e["dataset_from_index"], e["dataset_to_index"]) for e in episodes] == [
        (n, 0, n),
        (n, n, 2 * n),
    ]
    stats = json.loads((tmp_path / "set/meta/stats.json").read_text())
    known = made.columns["arm/pos"][made.masks["arm/pos"]]
    assert stats["observation.arm.pos"]["q99"] == pytest.approx([np.quantile(np.tile(known, 2), 0.99)], rel=1e-5)
    assert {"mean", "std", "min", "max", "q01", "q99", "count"} <= set(stats["observation.arm.q"])
    found = readers.episodes(readers.read(tmp_path / "set"))
    back = {s.name: s for s in found["1"]}
    assert list(found) == ["0", "1"]
    np.testing.assert_allclose(back["observation.arm.q"].values, made.columns["arm/q"], atol=1e-6)
    assert back["observation.arm.pos"].times[1] == 20_000_000


def test_a_lerobot_folders_tasks_are_read_through_pandas_as_its_loader_does(tmp_path: Path, made: Aligned):
    """LeRobot's own loader (0.4.4) looks a task up by the index of this table; found by trying it."""
    import pandas

    writers.write(tmp_path / "set", [made], "lerobot", {"from": "test"})
    tasks = pandas.read_parquet(tmp_path / "set/meta/tasks.parquet")
    assert list(tasks.columns) == ["task_index"]
    assert tasks.iloc[0].name == "resampled"
    assert tasks.loc["resampled", "task_index"] == 0


def test_the_statistics_of_a_channel_without_a_value_are_null():
    assert stats_of(np.array([np.nan, np.nan]))["mean"] == [None]


def test_episodes_that_do_not_fit_together_are_refused(tmp_path: Path):
    wide = align([Stream("x", np.arange(3) * NS, np.zeros((3, 2)))], hz=1)
    flat = align([Stream("x", np.arange(3) * NS, np.zeros((3, 3)))], hz=1)
    with pytest.raises(InputError, match="'x' has 2 and 3 columns"):
        writers.write(tmp_path / "a.parquet", [wide, flat], "parquet")
    assert list(tmp_path.iterdir()) == []


def test_meta_comes_back_and_a_strangers_file_has_none(tmp_path: Path, made: Aligned):
    for form, suffix in writers.FORMATS.items():
        writers.write(tmp_path / f"a{suffix}", [made], form, {"key": [1, "b"]})
        assert writers.meta(tmp_path / f"a{suffix}", form) == {"key": [1, "b"]}
    (tmp_path / "b.parquet").write_bytes(b"PAR1 broken")
    assert writers.meta(tmp_path / "b.parquet", "parquet") is None


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, made: Aligned):
    (tmp_path / "file").touch()
    for form in ("parquet", "npz", "lerobot"):
        with pytest.raises(RidgelineError):
            writers.write(tmp_path / "file" / "below", [made], form)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_what_is_unknown_stays_so_where_whole_numbers_meet_others(tmp_path: Path, order: tuple[int, ...]):
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
    back = npz.load(tmp_path / "a.npz")
    assert all(np.isnan(e.columns["x"][~e.masks["x"]]).all() for e in back)


def test_a_mask_and_a_stream_that_is_called_like_it_are_apart(tmp_path: Path):
    t = np.arange(6) * NS
    one = align(
        [Stream("x", t[2:], np.arange(4)), Stream("mask/x", t, np.arange(6.0)), Stream("data/time", t, np.ones(6)),
         Stream("time", t, np.zeros(6))],
        hz=1, span="union",
    )  # fmt: skip
    writers.write(tmp_path / "a.npz", [one], "npz")
    (back,) = npz.load(tmp_path / "a.npz")
    for name in one.columns:
        assert np.array_equal(back.columns[name], one.columns[name])
        assert np.array_equal(back.masks[name], one.masks[name])
