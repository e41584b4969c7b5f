"""`bulk resample`: RLDS folders without TensorFlow, recordings, and LeRobot datasets."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as arrow
import pyarrow.compute as compute
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.bulk.rlds_made import checksum, make_rlds
from tests.bulk.sources_made import InlineEngine, read_parts

import ridgeline.bulk.job as job
from ridgeline import bulk
from ridgeline.errors import InputError
from ridgeline.trajectory.readers import read
from ridgeline.trajectory.readers.rlds import compute_crc32c, mask_checksum


@pytest.fixture
def inline(monkeypatch):
    engine = type("Engine", (InlineEngine,), {"stop_after": None})
    monkeypatch.setattr(job, "LocalEngine", engine)
    return engine


def read_frames(target):
    return arrow.concat_tables([parquet.read_table(file) for file in sorted(target.glob("part-*.parquet"))])


def test_every_episode_of_an_rlds_folder_keeps_its_values_and_task(tmp_path, inline):
    episodes = make_rlds(tmp_path / "robot/1.0.0")
    answer = bulk.resample(tmp_path / "robot", tmp_path / "out", hz=10, fps=10, chunk_episodes=2)
    assert (answer["rows"], answer["episodes"], answer["rejects"], answer["chunks"]) == (80, 3, 0, 2)
    frames = read_frames(tmp_path / "out")
    for number, episode in enumerate(episodes):
        rows = frames.filter(compute.equal(frames["episode_index"], number))
        assert set(rows["task"].to_pylist()) == {f"task {number}"}
        np.testing.assert_allclose(np.array(rows["action"].to_pylist()), episode["action"], atol=1e-6)
        state = np.array(rows["observation/state"].to_pylist())
        np.testing.assert_allclose(state, episode["observation/state"].reshape(len(state), 4), atol=1e-6)
        assert np.array(rows["count"].to_pylist())[:, 0].tolist() == episode["count"].tolist()
    assert "observation/image" not in frames.column_names


def test_an_interrupted_resampling_goes_on_to_the_same_bytes(tmp_path, inline):
    make_rlds(tmp_path / "robot", lengths=(5, 6, 7, 8, 9, 10))
    bulk.resample(tmp_path / "robot", tmp_path / "whole", hz=5, fps=10, chunk_episodes=1)
    inline.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        bulk.resample(tmp_path / "robot", tmp_path / "out", hz=5, fps=10, chunk_episodes=1)
    inline.stop_after = None
    [job] = [job for job in bulk.list_jobs() if job.state == "stopped"]
    assert bulk.resume(job.job)["computed"] == 4
    assert read_parts(tmp_path / "out") == read_parts(tmp_path / "whole")


def test_a_flipped_bit_rejects_its_episode_and_names_the_shard(tmp_path, inline):
    make_rlds(tmp_path / "robot", shards=1)
    shard = tmp_path / "robot/robot-train.tfrecord-00000-of-00001"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    answer = bulk.resample(tmp_path / "robot", tmp_path / "out", hz=10, fps=10)
    assert (answer["episodes"], answer["rejects"]) == (2, 1)
    [file] = (tmp_path / "out/rejects").glob("*.jsonl")
    reject = json.loads(file.read_text())
    assert reject["row"] == 1
    assert shard.name in reject["reason"]
    assert "checksum" in reject["reason"]


def test_a_lerobot_target_is_a_dataset_of_all_episodes(tmp_path, inline):
    episodes = make_rlds(tmp_path / "robot")
    bulk.resample(tmp_path / "robot", tmp_path / "out", hz=10, fps=10, format="lerobot", chunk_episodes=1)
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    assert (info["codebase_version"], info["total_episodes"], info["total_frames"], info["fps"]) == ("v3.0", 3, 80, 10)
    streams = {s.episode: s for s in read(tmp_path / "out") if s.name == "action"}
    for number, episode in enumerate(episodes):
        np.testing.assert_allclose(streams[str(number)].values, episode["action"], atol=1e-6)
    assert not list((tmp_path / "out/_ridgeline").glob("parts/*"))


def test_tables_of_a_folder_are_numbered_through_and_a_broken_one_is_rejected(tmp_path, inline):
    (tmp_path / "in").mkdir()
    for number, name in enumerate(("a", "b", "c")):
        rows = "".join(f"{i / 10},{number * 100 + i}.25\n" for i in range(11))
        (tmp_path / f"in/{name}.csv").write_text("time,x\n" + (rows if name != "b" else "0.0,one\n"))
    answer = bulk.resample(tmp_path / "in", tmp_path / "out", hz=20)
    assert (answer["episodes"], answer["rejects"]) == (2, 1)
    frames = read_frames(tmp_path / "out")
    assert sorted(set(frames["episode_index"].to_pylist())) == [0, 2]
    rows = frames.filter(compute.equal(frames["episode_index"], 2))
    assert np.array(rows["x"].to_pylist())[:, 0].tolist() == [200.25 + i / 2 for i in range(21)]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"fps": None}, "--fps"),
        ({"hz": 0}, "--hz 0"),
        ({"format": "mp4"}, "There are: parquet, lerobot"),
        ({"span": "all"}, "no span 'all'"),
        ({"chunk_episodes": 0}, "--chunk-episodes is 0"),
    ],
)
def test_bad_options_are_one_sentence(tmp_path, inline, more, message):
    make_rlds(tmp_path / "robot", lengths=(3,))
    with pytest.raises(InputError, match=message):
        bulk.resample(tmp_path / "robot", tmp_path / "out", **({"hz": 10, "fps": 10} | more))
    assert not (tmp_path / "out").exists()


def write_log(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("time,x\n" + "".join(f"{i / 10},{value}\n" for i, value in enumerate(values)))


@pytest.mark.parametrize(
    ("source", "episodes"), [("logs/*.csv", 2), ("logs/*", 3), ("logs/**", 3), ("logs/**/c.csv", 1), ("logs", 3)]
)
@pytest.mark.parametrize("remote", [False, True])
def test_globs_and_folders_give_each_recording_once(tmp_path, inline, monkeypatch, source, episodes, remote):
    for number, name in enumerate(("a.csv", "b.csv", "deep/c.csv")):
        write_log(tmp_path / "logs" / name, [number] * 5)
    if remote:
        pytest.importorskip("fsspec")
    url = f"local://{tmp_path}" if remote else str(tmp_path)
    if remote and source == "logs/*.csv":
        episodes = 3  # in an object store * also matches /
    answer = bulk.resample(f"{url}/{source}", tmp_path / "out", hz=10)
    assert (answer["episodes"], answer["rejects"]) == (episodes, 0)
    assert read_frames(tmp_path / "out").num_rows == 5 * episodes


def test_a_recording_that_is_a_folder_is_one_in_an_object_store_too(tmp_path, inline):
    pytest.importorskip("fsspec")
    make_rlds(tmp_path / "oxe/robot/1.0.0", lengths=(3, 4))
    write_log(tmp_path / "oxe/logs/a.csv", range(5))
    lists = {name: bulk.resample(url, tmp_path / name, hz=10, fps=10, chunk_episodes=1)
             for name, url in (("here", tmp_path / "oxe"), ("there", f"local://{tmp_path}/oxe"))}  # fmt: skip
    assert lists["here"]["episodes"] == lists["there"]["episodes"] == 3
    assert read_frames_of_all(tmp_path / "here") == read_frames_of_all(tmp_path / "there")


def read_frames_of_all(target):
    return [row for file in sorted(target.glob("part-*.parquet")) for row in parquet.read_table(file).to_pylist()]


@pytest.mark.parametrize(("source", "out"), [("logs", "logs/out"), ("logs", "logs"), ("logs/*", "logs/out")])
def test_a_target_among_the_recordings_is_refused(tmp_path, inline, source, out):
    write_log(tmp_path / "logs/a.csv", range(5))
    if source.endswith("*"):  # a glob matches the target when it is there
        bulk.resample(tmp_path / source, tmp_path / out, hz=10)
    with pytest.raises(InputError, match="overlap; choose a target outside"):
        bulk.resample(tmp_path / source, tmp_path / out, hz=10)


def test_a_source_that_changed_is_refused_with_a_cure_that_resample_has(tmp_path, inline):
    write_log(tmp_path / "logs/a.csv", range(5))
    bulk.resample(tmp_path / "logs", tmp_path / "out", hz=10)
    write_log(tmp_path / "logs/b.csv", range(5))
    with pytest.raises(InputError, match="changed since its job started; choose another target"):
        bulk.resample(tmp_path / "logs", tmp_path / "out", hz=10)


@settings(max_examples=30)
@given(st.binary(max_size=300), st.sampled_from([0, 1, 63]))
def test_the_checksum_equals_the_bitwise_one(data, extra):
    assert mask_checksum(compute_crc32c(data)) == checksum(data)
    long = (data or b"x") * (20_000 // max(1, len(data))) + bytes(extra)
    if extra == 63:  # the slow reference takes 10 ms here
        assert mask_checksum(compute_crc32c(long)) == checksum(long)
