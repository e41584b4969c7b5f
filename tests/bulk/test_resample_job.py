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


@settings(max_examples=30)
@given(st.binary(max_size=300), st.sampled_from([0, 1, 63]))
def test_the_checksum_equals_the_bitwise_one(data, extra):
    assert mask_checksum(compute_crc32c(data)) == checksum(data)
    long = (data or b"x") * (20_000 // max(1, len(data))) + bytes(extra)
    if extra == 63:  # the slow reference takes 10 ms here
        assert mask_checksum(compute_crc32c(long)) == checksum(long)
