"""TrajectoryDataset: items from files and from memory, as episodes and as windows; and the shares of ranks.

python -m pytest tests/trajectory/test_dataset.py
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectory import recordings

from ridgeline import TrajectoryDataset
from ridgeline.errors import InputError
from ridgeline.trajectory import Share, Stream, readers
from ridgeline.trajectory.dataset import find_recordings
from ridgeline.trajectory.sample import find_window_starts
from ridgeline.trajectory.turns import undo_sign_flips

NS = 1_000_000_000


def runs(count: int = 3, width: int = 2) -> list[tuple[np.ndarray, np.ndarray]]:
    """Trajectory i lasts i + 1 seconds and holds i everywhere."""
    return [(np.linspace(0, i + 1, 11 + i), np.full((11 + i, width), float(i))) for i in range(count)]


# --- what an item is ---


def test_trajectories_from_memory_are_items_as_they_are():
    dataset = TrajectoryDataset(runs())
    assert len(dataset) == 3
    assert dataset.names == ("values[0]", "values[1]")
    for i in range(3):
        times, values = dataset[i]["values"]
        assert times.tolist() == np.rint(np.linspace(0, i + 1, 11 + i) * NS).tolist()
        assert (values == i).all()
        assert (dataset[i].origin.index, dataset[i].origin.end_ns) == (i, (i + 1) * NS)
    assert dataset[-1].origin.index == 2
    with pytest.raises(IndexError):
        dataset[3]


def test_streams_of_several_rates_are_one_item_with_their_kinds():
    clock = np.arange(50) * 20_000_000
    one = [
        Stream("imu/q", clock, recordings.turning(50)),
        Stream("imu/yaw", clock, np.linspace(-3, 3, 50)),
        Stream("gear", np.array([0, NS]), np.array([1, 2])),
    ]
    dataset = TrajectoryDataset([one, one])
    assert dataset.kinds == {
        **dict.fromkeys([f"imu/q[{i}]" for i in range(4)], "slerp"),
        "imu/yaw": "angle",
        "gear": "previous",
    }
    assert dataset[0].times[0] is dataset[0].times[1]  # which is how they are resampled together
    assert TrajectoryDataset([one], topics="imu").names[-1] == "imu/yaw"
    assert TrajectoryDataset([one], kind={"imu/yaw": "linear"}).kinds["imu/yaw"] == "linear"
    assert set(TrajectoryDataset([one], kind="nearest").kinds.values()) == {"nearest"}
    assert TrajectoryDataset([one], kind=[(slice(0, 4), "slerp")]).kinds["gear"] == "linear"


def test_every_episode_of_a_file_is_an_item(tmp_path: Path):
    for path, items, columns in (
        (recordings.robomimic(tmp_path / "demo.hdf5", demos=3), 3, 15),
        (recordings.lerobot_v2(tmp_path / "lerobot", episodes=4), 4, 3),
        (recordings.flight(tmp_path / "flight.ulg"), 1, 7),
    ):
        dataset = TrajectoryDataset(path)
        assert (len(dataset), len(dataset.names)) == (items, columns)
        streams = readers.group_episodes(readers.read(path))
        for i, (label, episode_streams) in enumerate(streams.items()):
            assert (dataset[i].origin.episode, dataset[i].origin.file) == (label, str(path))
            for stream in episode_streams:
                if stream.name != "stuck/x":  # 20 samples with one stamp
                    times, values = dataset[i][stream.name]
                    assert np.array_equal(times, stream.times)
                    expected = stream.values.reshape(len(stream), -1)
                    if stream.kind == "slerp":
                        expected = undo_sign_flips(expected)
                    assert np.array_equal(values, expected)
    assert dataset.warnings == ("left out for fewer than two different stamps: stuck/x.",)


def test_a_folder_is_all_recordings_in_it(tmp_path: Path):
    recordings.flight(tmp_path / "b.ulg")
    recordings.flight(tmp_path / "a.ulg", seconds=2)
    (tmp_path / "deep" / "more").mkdir(parents=True)
    recordings.flight(tmp_path / "deep" / "more" / "c.ulg")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.md").write_text("none")
    recordings.lerobot_v2(tmp_path / "lerobot")
    assert [p.relative_to(tmp_path).as_posix() for p in find_recordings(tmp_path)] == [
        "a.ulg", "b.ulg", "deep/more/c.ulg", "lerobot",
    ]  # fmt: skip
    dataset = TrajectoryDataset([tmp_path / "b.ulg", tmp_path / "deep"])
    assert [Path(dataset[i].origin.file).name for i in range(len(dataset))] == ["b.ulg", "c.ulg"]


def test_stamps_may_be_sorted_and_may_repeat():
    late = (np.array([0, 2, 1, 1, 3]) * NS, np.array([0.0, 2, 1, 9, 3]))
    with pytest.raises(InputError, match=r"trajectory 0: stream 'values': stamp 2 .* is earlier"):
        TrajectoryDataset([late])
    times, values = TrajectoryDataset([late], sort=True)[0]["values"]
    assert (times / NS).tolist() == [0, 1, 1, 2, 3]
    assert values[:, 0].tolist() == [0, 1, 9, 2, 3]


# --- windows ---


@settings(max_examples=200, deadline=None)
@given(st.integers(-50, 50), st.integers(0, 60), st.integers(1, 20), st.integers(1, 20), st.booleans())
def test_windows_cover_the_episode_and_are_full_but_for_the_last(start, length, window, stride, partial):
    begins = find_window_starts(start, start + length, window, stride, partial).tolist()
    full = [b for b in begins if b + window <= start + length]
    assert full == [b for b in range(start, start + length + 1, stride) if b + window <= start + length]
    assert len(begins) - len(full) <= partial
    assert all(b == start or b < start + length for b in begins)
    if partial and stride <= window:  # nothing is lost
        assert begins
        assert begins[-1] + window >= start + length


def test_a_window_has_its_neighbours_and_its_origin(tmp_path: Path):
    path = recordings.flight(tmp_path / "flight.ulg", seconds=4)
    dataset = TrajectoryDataset(path, window=1.5, stride=1.0, topics=["attitude", "status"])
    assert [(s.origin.start_ns - 10 * NS, s.origin.end_ns - 10 * NS) for s in map(dataset.__getitem__, range(4))] == [
        (0, NS * 3 // 2), (NS, NS * 5 // 2), (2 * NS, NS * 7 // 2), (3 * NS, 4 * NS),
    ]  # fmt: skip
    times, _ = dataset[1]["attitude/q"]
    assert ((times[0], times[-1]) - np.int64(10 * NS)).tolist() == [NS - 10_000_000, NS * 5 // 2 + 10_000_000]
    assert len(TrajectoryDataset(path, window=1.5, stride=1.0, partial=False)) == 3


# --- laziness, workers ---


def test_a_log_is_read_on_first_access(tmp_path: Path):
    good = recordings.flight(tmp_path / "a.ulg")
    broken = tmp_path / "b.ulg"
    broken.write_bytes(good.read_bytes()[:40])
    dataset = TrajectoryDataset([good, broken])
    assert len(dataset) == 2
    assert dataset[0].origin.file == str(good)
    with pytest.raises(InputError, match=r"b\.ulg"):
        dataset[1]


def test_the_cache_of_a_process_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    paths = [recordings.flight(tmp_path / f"{i}.ulg") for i in range(3)]
    read_names: list[str] = []
    real = readers.read
    monkeypatch.setattr(readers, "read", lambda path, *rest: read_names.append(path.name) or real(path, *rest))
    size = TrajectoryDataset(paths[0])[0].nbytes
    read_names.clear()
    roomy = TrajectoryDataset(paths)
    for i in (0, 1, 2, 0, 1, 2):
        roomy[i]
    assert read_names == ["0.ulg", "1.ulg", "2.ulg"]
    read_names.clear()
    tight = TrajectoryDataset(paths, memory=2 * size)
    for i in (0, 1, 2, 2, 1, 0):
        tight[i]
    assert read_names == ["0.ulg", "1.ulg", "2.ulg", "0.ulg"]


def test_a_pickled_dataset_is_small_and_gives_the_same_items(tmp_path: Path):
    dataset = TrajectoryDataset(recordings.flight(tmp_path / "a.ulg", seconds=20), window=1.0)
    raw = pickle.dumps(dataset)
    assert len(raw) < 5_000 < dataset[3].nbytes * 20
    again = pickle.loads(raw)
    assert len(again) == len(dataset)
    assert np.array_equal(again[3]["attitude/q"][1], dataset[3]["attitude/q"][1])
    assert again[3].origin == dataset[3].origin


def test_the_dataset_works_without_torch():
    code = "import sys, numpy as np, ridgeline; d = ridgeline.TrajectoryDataset([(np.arange(3.), np.eye(3))]); "
    code += "d[0]; list(d.share()); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


# --- what is refused ---

ONE = (np.array([0.0, 1.0]), np.array([1.0, 2.0]))


@pytest.mark.parametrize(
    ("source", "more", "message"),
    [
        ([], {}, "there is no trajectory"),
        (ONE, {}, "trajectory 0 is a ndarray; give \\(times, values\\)"),
        ([ONE, "a.csv"], {}, "trajectory 1 is a str"),
        ([ONE, (np.arange(2.0), np.zeros(3))], {}, "trajectory 1: stream 'values' has 2 stamps but values \\[3\\]"),
        ([ONE, (np.arange(2.0), np.zeros((2, 3)))], {}, "trajectory 1: it has 3 columns of 'values', .* has 1"),
        ([(np.array([]), np.array([]))], {}, "trajectory 0: it has no samples"),
        ([(np.array([0, 1e18]), np.zeros(2))], {}, "a stamp of 1e\\+18 s is no time"),
        ([(np.array([0, 1e-10]), np.zeros(2))], {}, "less than a nanosecond apart"),
        ([ONE], {"topics": ["nope"]}, "there is no topic 'nope'"),
        ([ONE], {"kind": "slerp"}, "stream 'values' gives it 1|four channels"),
        ([ONE], {"kind": {"values": "spline"}}, "there is no kind 'spline'"),
        ([ONE], {"kind": {"nope": "linear"}}, "there is no stream 'nope'"),
        ([ONE], {"span": "some"}, "there is no span 'some'"),
        ([ONE], {"stride": 1.0}, "stride=1.0 needs a window"),
        ([ONE], {"window": 0.0}, "window=0.0 is no length of time"),
        ([ONE], {"window": 5.0, "partial": False}, "no episode is as long as the window"),
        ("no/such.ulg", {}, "there is no file 'no/such.ulg'"),
    ],
)
def test_bad_input_is_one_sentence_with_its_cure(source, more, message: str):
    with pytest.raises(InputError, match=message) as raised:
        TrajectoryDataset(source, **more)
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith(".")


def test_a_recording_that_lacks_a_column_is_named(tmp_path: Path):
    (tmp_path / "a.csv").write_text("time_s,x,y\n0,1,1\n1,2,2\n")
    (tmp_path / "b.csv").write_text("time_s,x\n0,1\n1,2\n")
    with pytest.raises(InputError, match=r"b\.csv': it has no 'y', and the first recording has it"):
        TrajectoryDataset(tmp_path)
    assert TrajectoryDataset(tmp_path, topics=["x"]).names == ("x",)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="there is no recording in"):
        TrajectoryDataset(tmp_path / "empty")


# --- shares ---


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 40), st.integers(1, 7), st.sampled_from(["repeat", "drop", "keep"]), st.booleans(), st.integers(0, 3)
)
def test_shares_are_equal_and_cover_all_items(items, world, uneven, shuffle, epoch):
    if uneven == "drop" and items < world:
        with pytest.raises(InputError, match="too few"):
            Share(items, 0, world, uneven=uneven)
        return
    shares = [Share(items, rank, world, uneven=uneven, shuffle=shuffle) for rank in range(world)]
    for share in shares:
        share.set_epoch(epoch)
    lists = [list(share) for share in shares]
    assert [len(share) for share in shares] == [len(rank_items) for rank_items in lists]
    given = sorted(i for rank_items in lists for i in rank_items)
    sizes = {len(rank_items) for rank_items in lists}
    if uneven == "keep":
        assert given == list(range(items))
        assert max(sizes) - min(sizes) <= 1
    else:
        assert len(sizes) == 1
        assert len(given) - len(set(given)) == shares[0].repeated < world
        assert items - len(set(given)) == shares[0].dropped < world


def test_epochs_differ_and_can_be_repeated():
    share = Share(100, 1, 4)
    orders = []
    for epoch in (0, 1, 0):
        share.set_epoch(epoch)
        orders.append(list(share))
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]
    assert list(Share(100, 1, 4, seed=1)) != orders[0]
    assert repr(Share(9, 1, 2)) == "Share(rank 1 of 2: 5 of 9 items, 1 repeated, epoch 0)"


def test_rank_and_world_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    dataset = TrajectoryDataset(runs(4))
    assert sorted(dataset.share()) == [0, 1, 2, 3]
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InputError, match="RANK=1 and WORLD_SIZE=None"):
        dataset.share()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert list(dataset.share(shuffle=False)) == [1, 3]
    assert list(dataset.share(0, 4, shuffle=False)) == [0]
    assert len(dataset) == 4  # the dataset itself stays whole
    for place, message in (((4, 4), "rank 4 of 4 does not exist"), ((0, None), "go together")):
        with pytest.raises(InputError, match=message):
            dataset.share(*place)
    with pytest.raises(InputError, match="there is no way to share unevenly 'throw'"):
        dataset.share(uneven="throw")


def test_a_process_group_overrides_the_environment(monkeypatch: pytest.MonkeyPatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    for name, value in (("is_initialized", True), ("get_rank", 1), ("get_world_size", 2)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    assert list(TrajectoryDataset(runs(4)).share(shuffle=False)) == [1, 3]


RANKS = """
import json
import numpy as np, torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
import ridgeline

def epochs(dataset, sampler):
    for epoch in range(3):
        sampler.set_epoch(epoch)
        loader = DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=ridgeline.collate(hz=10, device="cpu"))
        batches = list(loader)
        total = torch.tensor(len(batches))
        dist.all_reduce(total)  # ranks with unequal batches would hang in training
        assert total == 2 * len(batches)
        values = [v for b in batches for v in b.values[:, 0, 0].tolist()]
        assert values == [w.index for b in batches for w in b.origins]  # trajectory i holds i
        yield values

runs = [(np.linspace(0, 1, 5 + i), np.full((5 + i, 1), float(i))) for i in range(21)]
odd, even = ridgeline.TrajectoryDataset(runs), ridgeline.TrajectoryDataset(runs[:16])
before = list(odd.share())  # by RANK and WORLD_SIZE
dist.init_process_group("gloo")
assert before == list(odd.share())
mine = {"rank": dist.get_rank(), "odd": list(epochs(odd, odd.share(uneven="drop")))}
mine["even"] = list(epochs(even, even.share()))
mine["torch"] = list(epochs(even, DistributedSampler(even)))
all_ranks = [None] * 2
dist.all_gather_object(all_ranks, mine)
if dist.get_rank() == 0:
    print("FOUND", json.dumps(all_ranks))
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.ranks
def test_two_ranks_of_torchrun_share_every_epoch(tmp_path: Path):
    pytest.importorskip("torch")
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-addr=127.0.0.1"]
    done = subprocess.run(
        [*launch, f"--master-port={port}", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("FOUND"))[6:])
    assert [r["rank"] for r in ranks] == [0, 1]
    for case, items in (("odd", 21), ("even", 16), ("torch", 16)):
        orders = [(ranks[0][case][epoch], ranks[1][case][epoch]) for epoch in range(3)]
        for one, two in orders:
            assert len(one) == len(two) == items // 2
            assert not set(one) & set(two)
            assert len(set(one) | set(two)) == items - items % 2
        assert orders[0] != orders[1] != orders[2] != orders[0]
    # torch's own sampler splits the whole dataset once, not a share of a share: that is the third case above
