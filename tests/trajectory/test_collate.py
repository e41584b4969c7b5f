"""collate and on_device: batches compared with single trajectories, in workers, and on a GPU.

python -m pytest tests/trajectory/test_collate.py
"""

from __future__ import annotations

import gc
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectory import recordings
from tests.trajectory.reference import resample_one

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader  # noqa: E402

from ridgeline import TrajectoryDataset, collate, resample  # noqa: E402
from ridgeline.errors import InputError, MissingExtra  # noqa: E402
from ridgeline.trajectory import Stream, align, on_device, readers  # noqa: E402
from ridgeline.trajectory.batch import Batch, Packed, StreamGroup, pack  # noqa: E402
from ridgeline.trajectory.sample import Origin, Origins  # noqa: E402
from ridgeline.trajectory.turns import undo_sign_flips  # noqa: E402

NS = 1_000_000_000
EPOCH = 1_700_000_000 * NS
KINDS = ("linear", "previous", "nearest", "cubic", "slerp", "angle")
CUDA = torch.cuda.is_available()
gpu = pytest.mark.skipif(not CUDA, reason="no CUDA device here")


def on_cpu(**options):
    return collate(device="cpu", **options)


def collate_all(dataset: TrajectoryDataset, **options) -> Batch:
    return on_cpu(**options)([dataset[i] for i in range(len(dataset))])


def uneven(rng: np.random.Generator, count: int, end: int) -> np.ndarray:
    """Stamps from 0 to `end` with duplicates and gaps."""
    return np.sort(np.concatenate([[0, end], rng.integers(0, end // 10, max(count - 2, 0)) * 10])) + EPOCH


def episode(rng: np.random.Generator, end: int, counts: tuple[int, int] = (40, 9)) -> list[Stream]:
    """Two clocks; the streams of the first do not stand side by side."""
    fast, slow = (uneven(rng, n, end) for n in counts)
    turn = rng.standard_normal((len(fast), 4))
    return [
        Stream("arm/p", fast, rng.standard_normal((len(fast), 3)), kind="linear"),
        Stream("gear", slow, rng.integers(0, 9, len(slow))),
        Stream("arm/q", fast, turn, kind="slerp"),
        Stream("arm/yaw", fast, rng.uniform(-3, 3, len(fast)), kind="angle"),
        Stream("base/v", slow, rng.standard_normal((len(slow), 2)), kind="cubic"),
    ]


def check(batch: Batch, episodes: list[list[Stream]], *, outside: str = "nan", max_gap: int | None = None) -> None:
    """Each stream of each trajectory by itself, by the slow reference."""
    for b, streams in enumerate(episodes):
        n = int(batch.lengths[b])
        at = batch.times[b, :n].numpy()
        known = np.ones(n, bool)
        for stream in streams:
            values = stream.values.reshape(len(stream), -1)
            values = undo_sign_flips(values) if stream.kind == "slerp" else values
            expected, mask = resample_one(values, stream.times, at, stream.kind, outside, max_gap)
            known &= mask
            np.testing.assert_array_equal(batch.masks[stream.name][b, :n].numpy(), mask)
            actual = batch[stream.name][b, :n].double().numpy()
            if stream.kind == "angle":
                actual = expected + np.remainder(actual - expected + np.pi, 2 * np.pi) - np.pi
            np.testing.assert_allclose(actual, expected, atol=2e-5 if batch.values.dtype == torch.float32 else 1e-9)
        assert np.array_equal(batch.mask[b, :n].numpy(), known)
        assert not batch.mask[b, n:].any()


# --- what a batch holds ---


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_batch_equals_its_trajectories_resampled_one_by_one(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    ends = data.draw(st.lists(st.integers(100_000, 3 * NS), min_size=1, max_size=5))
    episodes = [episode(rng, end, (data.draw(st.integers(2, 40)), data.draw(st.integers(2, 9)))) for end in ends]
    gap = data.draw(st.sampled_from([None, 0.2]))
    outside = data.draw(st.sampled_from(["nan", "clamp"]))
    dtype = data.draw(st.sampled_from(["float32", "float64"]))
    clock = data.draw(st.sampled_from([{"hz": 30}, {"steps": 7}, {"hz": 59.94, "steps": 20}]))
    dataset = TrajectoryDataset(episodes, span="union")
    batch = collate_all(dataset, outside=outside, max_gap=gap, dtype=dtype, **clock)
    assert batch.values.dtype == getattr(torch, dtype)
    assert batch.values.shape == (len(ends), batch.times.shape[1], 11)
    check(batch, episodes, outside=outside, max_gap=None if gap is None else round(gap * 1e9))


@pytest.mark.parametrize("name", ["flight", "px4_sample.ulg", "px4_sample_log_small.ulg"])
def test_a_complete_log_equals_the_result_of_align(name: str, tmp_path: Path, request: pytest.FixtureRequest):
    if name == "flight":
        path = recordings.flight(tmp_path / "flight.ulg")
    else:
        path = request.getfixturevalue("data") / "robot" / name
    expected = align(readers.read(path), hz=50, span="auto", max_gap=0.5)
    batch = collate_all(TrajectoryDataset(path), hz=50, max_gap=0.5, dtype="float64")
    assert np.array_equal(batch.times[0].numpy(), expected.times)
    assert set(batch.masks) == set(expected.columns)
    for stream, values in expected.columns.items():
        mask = expected.masks[stream]
        assert np.array_equal(batch.masks[stream][0].numpy(), mask)
        actual = batch[stream][0].numpy()[mask]
        # align computes float32 columns in float32
        np.testing.assert_allclose(actual, values.reshape(len(mask), -1)[mask], rtol=3e-6, atol=1e-6 * _size(actual))


def _size(values: np.ndarray) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=1))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([1.0, 0.25, 0.333]), st.sampled_from([None, 0.1, 0.4]))
def test_joined_windows_equal_the_complete_trajectory(kind: str, seed: int, window: float, gap: float | None):
    rng = np.random.default_rng(seed)
    times = uneven(rng, int(rng.integers(3, 60)), 2 * NS)
    runs = [(times, rng.standard_normal((len(times), 4)))]
    hz = 120
    complete = collate_all(TrajectoryDataset(runs, kind=kind), hz=hz, max_gap=gap, dtype="float64")
    dataset = TrajectoryDataset(runs, kind=kind, window=window)
    parts = collate_all(dataset, hz=hz, max_gap=gap, dtype="float64")
    assert parts.values.shape == (len(dataset), -int(-window * hz // 1), 4)
    for b in range(len(dataset)):
        n = int(parts.lengths[b])
        at = parts.times[b, :n].numpy()
        values = undo_sign_flips(runs[0][1]) if kind == "slerp" else runs[0][1]
        expected, mask = resample(values, times, at, kind=kind, max_gap=gap and round(gap * NS), return_mask=True)
        assert np.array_equal(parts.mask[b, :n].numpy(), mask)
        np.testing.assert_allclose(parts.values[b, :n].numpy(), expected, atol=1e-12)
    if window != 0.333:  # there windows begin on ticks
        ticks = torch.cat([parts.times[b, : parts.lengths[b]] for b in range(len(dataset))])
        assert torch.equal(ticks, complete.times[0, : len(ticks)])
        assert len(ticks) >= complete.times.shape[1] - 1


def test_ticks_follow_hz_and_steps():
    runs = [(np.array([0.0, 1.0]), np.array([0.0, 1.0])), (np.array([5.0, 5.5, 7.0]), np.array([5.0, 5.5, 7.0]))]
    dataset = TrajectoryDataset(runs)
    by_rate = collate_all(dataset, hz=4)
    assert by_rate.lengths.tolist() == [5, 9]
    assert (5 + by_rate.seconds[1]).tolist() == [5, 5.25, 5.5, 5.75, 6, 6.25, 6.5, 6.75, 7]
    assert torch.isnan(by_rate.values[0, 5:]).all()
    assert by_rate.values[0, :5, 0].tolist() == [0, 0.25, 0.5, 0.75, 1]
    spread = collate_all(dataset, steps=5)
    assert (spread.times.numpy() / NS).tolist() == [[0, 0.25, 0.5, 0.75, 1], [5, 5.5, 6, 6.5, 7]]
    assert spread.mask.all()
    first = collate_all(dataset, hz=4, steps=7, fill=-1.0)
    assert first.lengths.tolist() == [5, 7]
    assert first.values[0, :, 0].tolist() == [0, 0.25, 0.5, 0.75, 1, -1, -1]
    windows = collate_all(TrajectoryDataset(runs, window=0.5), steps=2)
    assert (windows.times[:3].numpy() / NS).tolist() == [[0, 0.25], [0.5, 0.75], [5, 5.25]]
    year = 365 * 24 * 3600 * NS + 1
    long = collate_all(TrajectoryDataset([(np.array([0, year]), np.zeros(2))]), steps=100_004)
    assert long.times[0, ::999].tolist() == [(2 * k * year + 100_003) // 200_006 for k in range(0, 100_004, 999)]


def test_scaling_kind_type_and_names():
    runs = [(np.array([0.0, 1.0]), np.array([[0.0, 10.0, 1.0], [1.0, 30.0, 2.0]]))]
    dataset = TrajectoryDataset(runs, kind=[(slice(2, 3), "previous")])
    scaled = collate_all(dataset, hz=2, normalize={"mean": [0, 20, 0], "std": [1, 10, 1]}, dtype=torch.bfloat16)
    assert scaled.values.dtype == torch.bfloat16
    assert scaled.values[0].flatten().tolist() == pytest.approx([0, -1, 1, 0.5, 0, 1, 1, 1, 2], abs=1e-6)
    assert collate_all(dataset, hz=2, kind="linear").values[0, 1].tolist() == [0.5, 20, 1.5]
    assert collate_all(dataset, hz=2).names == ("values[0]", "values[1]", "values[2]")
    rng = np.random.default_rng(0)
    several = TrajectoryDataset([episode(rng, NS), episode(rng, NS)])
    stats = {"mean": np.arange(11.0), "std": np.arange(1.0, 12.0)}
    plain, again = (collate_all(several, hz=20, dtype="float64", **more) for more in ({}, {"normalize": stats}))
    torch.testing.assert_close(
        again.values, (plain.values - torch.arange(11.0)) / torch.arange(1.0, 12.0), equal_nan=True, check_dtype=False
    )


def test_streams_that_share_a_clock_in_one_sample_only_are_packed_separately():
    clock = np.arange(5) * NS
    other = np.array([0, 1, 3, 4]) * NS
    one = [Stream("a", clock, np.arange(5.0)), Stream("b", clock, np.arange(5.0) * 2)]
    two = [Stream("a", clock, np.arange(5.0)), Stream("b", other, other / NS)]
    dataset = TrajectoryDataset([one, two])
    packed = on_cpu(hz=1).pack([dataset[0], dataset[1]])
    assert [p.streams for p in packed.parts] == [("a",), ("b",)]
    assert [p.streams for p in on_cpu(hz=1).pack([dataset[0]]).parts] == [("a", "b")]
    check(packed.resample(), [one, two])


def test_a_stream_that_is_empty_or_late_is_masked():
    clock = np.arange(5) * NS
    some = [Stream("a", clock, np.arange(5.0)), Stream("b", clock[2:], np.arange(3.0))]
    none = [Stream("a", clock, np.arange(5.0)), Stream("b", clock[:0], np.zeros(0))]
    batch = collate_all(TrajectoryDataset([some, none], span="union"), hz=1)
    assert batch.masks["b"].tolist() == [[False, False, True, True, True], [False] * 5]
    assert torch.equal(batch.mask, batch.masks["b"])
    assert batch["a"][..., 0].tolist() == [[0, 1, 2, 3, 4]] * 2


def test_unknown_values_of_a_recording_are_masked_by_column_and_filled():
    times, values = np.arange(0, 4, 0.01), np.random.default_rng(0).standard_normal((400, 4))
    values[50:90, 1] = np.nan
    values[:200, 3] = np.nan
    dataset = TrajectoryDataset([(times, values)] * 2, window=2.0)
    batch = collate_all(dataset, hz=50)
    assert batch.valid.shape == batch.values.shape
    assert torch.equal(batch.valid, ~batch.values.isnan())
    assert torch.equal(batch.mask, batch.valid.all(dim=-1))
    assert torch.equal(batch.masks["values"], batch.mask)
    assert batch.valid[..., 0].all()
    assert not batch.valid[0, :, 3].any()
    assert not batch.valid[0, 26:44, 1].any()
    filled = collate_all(dataset, hz=50, fill=0.0)
    assert torch.equal(filled.valid, batch.valid)
    assert torch.equal(filled.values, batch.values.nan_to_num(0.0))


def test_headings_in_degrees_keep_their_unit_and_range_in_a_batch():
    times = np.arange(0, 5.0)
    heading, speed = np.array([300.0, 340, 20, 60, 100]), np.arange(5.0)
    dataset = TrajectoryDataset([[Stream("heading", times, heading), Stream("speed", times, speed)]])
    assert dataset.kinds == {"heading": "degrees_360", "speed": "linear"}
    batch = collate_all(dataset, hz=2)
    expected = [300, 320, 340, 0, 20, 40, 60, 80, 100]
    np.testing.assert_allclose((batch["heading"][0, :, 0].numpy() + 180) % 360, np.add(expected, 180) % 360, atol=1e-4)
    assert batch["heading"].min() >= 0
    scaled = collate_all(dataset, hz=2, normalize={"mean": [100, 0], "std": [50, 2]}, dtype="float16")
    np.testing.assert_allclose(scaled["heading"][0, 1:3, 0].numpy(), [4.4, 4.8], atol=5e-3)
    assert scaled["speed"][0, :3, 0].tolist() == [0, 0.25, 0.5]


def test_sign_flips_of_quaternions_are_undone_in_batches_too():
    values = recordings.turning(40, flips=True)
    for dataset_kind, kind in (("slerp", None), (None, "slerp")):
        dataset = TrajectoryDataset([(np.arange(40) / 10, values)], kind=dataset_kind)
        row = collate_all(dataset, hz=33, kind=kind).values[0]
        assert ((row[1:] * row[:-1]).sum(dim=-1) > 0.9).all()


# --- through the DataLoader ---


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> TrajectoryDataset:
    folder = tmp_path_factory.mktemp("logs")
    for i in range(3):
        recordings.flight(folder / f"{i}.ulg", seconds=2 + i)
    return TrajectoryDataset(folder, window=0.7)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (1, "spawn")])
def test_workers_give_the_same_batches(logs: TrajectoryDataset, workers: int, method: str | None):
    options = on_cpu(hz=40, dtype="float64")
    # The loops have threads of their own by now, which a fork leaves behind.
    resample(np.zeros((64, 400, 64)), np.tile(np.arange(400.0), (64, 1)), np.arange(400.0))
    loader = DataLoader(logs, 4, collate_fn=options, num_workers=workers, multiprocessing_context=method)
    seen = 0
    for batch in on_device(loader):
        expected = options([logs[i] for i in range(seen, seen + len(batch))])
        assert batch.origins == expected.origins
        assert [w.index for w in batch.origins] == list(range(seen, seen + len(batch)))
        for actual, true in (
            (batch.values, expected.values),
            (batch.mask, expected.mask),
            (batch.times, expected.times),
        ):
            torch.testing.assert_close(actual, true, rtol=0, atol=0, equal_nan=True)
        seen += len(batch)
    assert seen == len(logs)
    assert len(on_device(loader)) == -(-len(logs) // 4)


def test_for_a_gpu_a_worker_only_packs(logs: TrajectoryDataset):
    collate_cpu = on_cpu(hz=40)
    loader = DataLoader(
        logs, 4, collate_fn=replace(collate_cpu, options=replace(collate_cpu.options, device="cuda")), num_workers=1
    )
    first = next(iter(loader))
    assert isinstance(first, Packed)
    with pytest.raises(AttributeError, match=r"no 'values' yet; iterate over on_device\(loader\)"):
        first.values  # noqa: B018
    finished = replace(first, options=collate_cpu.options).resample()
    expected = collate_cpu([logs[i] for i in range(4)])
    torch.testing.assert_close(finished.values, expected.values, rtol=0, atol=0, equal_nan=True)
    assert all(p.values.dtype == torch.float32 and p.times.dtype == torch.int64 for p in first.parts)


def test_an_error_in_a_worker_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    good = recordings.flight(tmp_path / "a.ulg")
    (tmp_path / "b.ulg").write_bytes(good.read_bytes()[:40])
    loader = DataLoader(TrajectoryDataset(tmp_path), 2, collate_fn=on_cpu(hz=10), num_workers=1)
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)  # for which torch waits at the end
    message = ""
    try:
        list(loader)
    except InputError as error:
        message = str(error)
    gc.collect()
    assert "b.ulg" in message


def test_collate_can_be_pickled(logs: TrajectoryDataset):
    options = on_cpu(
        hz=29.97, normalize={"mean": 0.0, "std": 2.0}, kind={"attitude/yaw": "nearest"}, dtype=torch.float16
    )
    samples = [logs[0], logs[1]]
    again = pickle.loads(pickle.dumps(options))(samples)
    torch.testing.assert_close(again.values, options(samples).values, rtol=0, atol=0, equal_nan=True)


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give hz= or steps="),
        ({"hz": 0}, "hz=0 is no rate"),
        ({"hz": float("nan")}, "hz=nan is no rate"),
        ({"steps": 0}, "steps=0 is no number of ticks"),
        ({"hz": "fast"}, "hz=fast is no rate"),
        ({"hz": 5, "max_gap": -1}, "max_gap=-1 is no length of time"),
        ({"hz": 5, "fill": "nothing"}, "fill='nothing' is no number"),
        ({"hz": 5, "outside": "guess"}, "there is no policy for targets outside 'guess'"),
        ({"hz": 5, "dtype": "int32"}, "there is no dtype 'int32'"),
        ({"hz": 5, "device": "tpu"}, "there is no device 'tpu'"),
    ],
)
def test_bad_settings_are_refused_at_once(options: dict, message: str):
    with pytest.raises(InputError, match=message):
        collate(**options)


@pytest.mark.skipif(CUDA, reason="here is a GPU")
def test_a_missing_gpu_is_an_error():
    with pytest.raises(InputError, match="device cuda: this process sees no GPU"):
        collate(hz=5, device="cuda")
    assert collate(hz=5).options.device == "cpu"


def test_bad_samples_are_refused_by_name():
    clock = np.arange(5) * NS
    short = [Stream("a", clock, np.arange(5.0)), Stream("b", clock[1:], np.arange(4.0))]
    dataset = TrajectoryDataset([short], span="union")
    with pytest.raises(InputError, match=r"item 0 \(from memory\) .* stream 'b' has 1000000000 to 4000000000 ns"):
        collate_all(dataset, hz=1, outside="raise")
    assert collate_all(TrajectoryDataset([short], span="intersection"), hz=1, outside="raise").mask.all()
    with pytest.raises(InputError, match=r"normalize\['mean'\] has 3 numbers for 2 channels"):
        collate_all(dataset, hz=1, normalize={"mean": [0, 0, 0], "std": 1})
    with pytest.raises(InputError, match="different columns or windows"):
        on_cpu(hz=1)([dataset[0], TrajectoryDataset([short], window=1.0)[0]])
    with pytest.raises(InputError, match="there is no stream 'c'"):
        collate_all(dataset, hz=1)["c"]
    with pytest.raises(InputError, match="is too large"):
        collate_all(dataset, hz=1e9)
    with pytest.raises(InputError, match=r"collate_fn=ridgeline\.collate"):
        on_device(DataLoader([1, 2]))


def test_without_torch_collate_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"collate needs an optional part: pip install '\.\[torch\]'"):
        collate(hz=5)


# --- where there is a GPU ---


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize(("workers", "pin"), [(0, False), (2, True), (2, False)])
def test_on_a_gpu_batches_are_those_of_the_cpu(workers: int, pin: bool):
    rng = np.random.default_rng(5)
    episodes = [episode(rng, int(rng.integers(NS // 2, 3 * NS)), (60, 12)) for _ in range(23)]
    dataset = TrajectoryDataset(episodes, span="union")
    options = {"hz": 50, "max_gap": 0.3, "dtype": "float64", "normalize": {"mean": np.arange(11.0), "std": 2.0}}
    loader = DataLoader(dataset, 4, collate_fn=collate(device="cuda", **options), num_workers=workers, pin_memory=pin)
    slow = on_cpu(**options)
    for _ in range(2):
        seen = 0
        for batch in on_device(loader):
            expected = slow([dataset[i] for i in range(seen, seen + len(batch))])
            assert batch.values.is_cuda
            assert batch.origins == expected.origins
            assert torch.equal(batch.mask.cpu(), expected.mask)
            assert torch.equal(batch.times.cpu(), expected.times)
            torch.testing.assert_close(batch.values.cpu(), expected.values, rtol=0, atol=1e-7, equal_nan=True)
            seen += len(batch)
        assert seen == len(dataset)


@gpu
@pytest.mark.gpu
def test_on_a_gpu_prefetching_does_not_overwrite_the_current_batch():
    """The consumer's stream is kept busy, so a batch that is overwritten or read too early would show."""
    rng = np.random.default_rng(6)
    runs = [(np.sort(rng.uniform(0, 1, 200)), np.full((200, 32), float(i))) for i in range(96)]
    dataset = TrajectoryDataset(runs)
    loader = DataLoader(dataset, 8, collate_fn=collate(steps=64, device="cuda"), num_workers=2, pin_memory=True)
    sums = []
    for batch in on_device(loader):
        torch.cuda._sleep(20_000_000)
        sums.append(batch.values.mean(dim=(1, 2)))
        del batch
    assert torch.cat(sums).cpu().tolist() == pytest.approx(list(range(96)))


@gpu
@pytest.mark.gpu
def test_on_a_gpu_without_workers_collate_alone_is_enough():
    dataset = TrajectoryDataset([(np.arange(5.0), np.arange(5.0))] * 3)
    batch = next(iter(DataLoader(dataset, 3, collate_fn=collate(hz=2), pin_memory=True)))
    assert batch.values.is_cuda
    assert batch.values[1, :, 0].tolist() == [k / 2 for k in range(9)]


def test_origins_are_a_sequence_and_can_be_pickled():
    wheres = tuple(Origin(i, f"log{i // 2}", str(i % 2), 10 * i, 10 * i + 5) for i in range(5))
    places = pickle.loads(pickle.dumps(Origins(wheres)))
    assert places == wheres
    assert places == Origins(iter(wheres))
    assert places != wheres[:4]
    assert hash(places) == hash(wheres)
    assert places[1:3] == wheres[1:3]
    assert (places[-1], len(places), places.index(wheres[3])) == (wheres[-1], 5, 3)
    assert places.indices.tolist() == list(range(5))
    assert tuple(Origins(())) == ()


@settings(deadline=None)
@given(st.integers(1, 5), st.integers(0, 7), st.sampled_from(["float32", "float64"]))
def test_a_packed_buffer_gives_back_its_arrays(batch: int, ticks: int, dtype: str):
    rng = np.random.default_rng(ticks)
    values, times = rng.random((3 * batch, 2)).astype(dtype), rng.integers(0, 99, 3 * batch)
    part = StreamGroup((0, 1), ("a",), (), values[:, ::-1], times, np.arange(batch + 1) * 3)
    at, lengths = rng.integers(0, 99, (batch, ticks)), np.full(batch, ticks)
    packed = pack([part, part], at, lengths, None, Origins(()), None)
    for got in packed.parts:
        assert got.values.dtype == getattr(torch, dtype)
        np.testing.assert_array_equal(got.values.numpy(), values[:, ::-1])
        np.testing.assert_array_equal(got.times.numpy(), times)
        np.testing.assert_array_equal(got.offsets.numpy(), part.offsets)
    np.testing.assert_array_equal(packed.at.view(packed.buffer).numpy(), at)
    np.testing.assert_array_equal(packed.lengths.view(packed.buffer).numpy(), lengths)
