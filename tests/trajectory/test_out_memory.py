"""`out=` that shares memory with an input is an error in every engine; interleaved views are allowed.

python -m pytest tests/trajectory/test_out_memory.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import resample
from ridgeline.errors import InputError
from ridgeline.trajectory.isolated import memory_overlaps, refuse_shared

torch = pytest.importorskip("torch")


@st.composite
def views(draw):
    """A view of some of the 200 items that two such share: slices in steps, turned round, of one or two dimensions."""
    memory = np.arange(200)
    start, stop = sorted(draw(st.tuples(st.integers(0, 200), st.integers(0, 200))))
    view = memory[start : stop : draw(st.integers(1, 5))]
    if draw(st.booleans()) and view.size >= 4:
        rows = draw(st.integers(1, 4))
        view = view[: view.size // rows * rows].reshape(rows, -1)[:, :: draw(st.integers(1, 3))]
        if draw(st.booleans()):
            view = view.T
    return view[:: draw(st.sampled_from([1, 1, -1, -2]))]


@settings(max_examples=500, deadline=None)
@given(views(), views())
def test_arrays_overlap_if_they_share_an_item(one, other):
    memory = np.arange(200.0)
    one, other = (
        np.lib.stride_tricks.as_strided(memory[int(v.flat[0]) :], v.shape, v.strides) if v.size else v.astype(float)
        for v in (one, other)
    )
    common = bool(set(one.ravel().tolist()) & set(other.ravel().tolist()))
    assert memory_overlaps(one, other) == memory_overlaps(other, one) == common
    if min((*one.strides, *other.strides)) > 0:  # tensors have no others
        assert memory_overlaps(torch.from_numpy(one), torch.from_numpy(other)) == common


def make_views(dtype="float32", clock="float64"):
    """Arrays of one call, and for each of them an `out` that begins inside it."""
    rng = np.random.default_rng(3)
    memory = np.zeros(9000, np.uint8)
    values = memory[:3840].view(dtype).reshape(4, -1, 6)[:, :20]
    values[:] = rng.standard_normal(values.shape)
    times = memory[4000 : 4000 + 640].view(clock).reshape(4, -1)[:, :20]
    times[:] = np.arange(times.shape[1])
    at = memory[5000 : 5000 + 640].view(clock).reshape(4, -1)[:, :10]
    at[:] = rng.uniform(-1, 21, at.shape)
    size = 4 * 10 * 6 * np.dtype(dtype).itemsize
    outs = {"values": 1600, "times": 4600, "at": 4960}
    return values, times, at, {
        name: memory[start : start + size].view(dtype).reshape(4, 10, 6) for name, start in outs.items()
    }  # fmt: skip


@pytest.mark.parametrize("name", ["values", "times", "at"])
@pytest.mark.parametrize("how", [{}, {"check": False}, {"kind": "previous"}, {"outside": "nan"}])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_an_out_that_shares_memory_with_an_input_is_an_error(name, how, library):
    values, times, at, outs = make_views()
    before = values.base.copy()
    expected = resample(values.copy(), times.copy(), at.copy(), **how)
    with pytest.raises(InputError, match=f"^out shares memory with {name}, which is read while"):
        resample(*map(library, (values, times, at)), out=library(outs[name]), **how)
    assert np.array_equal(values.base, before)
    assert np.array_equal(np.asarray(resample(*map(library, (values, times, at)), **how)), expected, equal_nan=True)


@pytest.mark.parametrize("how", [{}, {"check": False}, {"kind": "cubic"}])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_interleaved_views_without_shared_items_are_allowed(how, library):
    rng = np.random.default_rng(4)
    both = rng.standard_normal((5, 30, 14)).astype(np.float32)
    values, out = both[..., :7], both[:, :20, 7:]
    times, at = np.tile(np.arange(30.0), (5, 1)), rng.uniform(0, 29, (5, 20))
    expected = resample(values.copy(), times, at, **how)
    result = library(out)
    assert resample(*map(library, (values, times, at)), out=result, **how) is result
    assert np.array_equal(out, expected)


def test_an_out_of_another_type_may_share_memory_with_an_input():
    values, times = np.random.default_rng(5).standard_normal((3, 10, 4)), np.tile(np.arange(10.0), (3, 1))
    at = times + 0.25
    expected = resample(values, times, at).astype(np.float16)
    onto = values.view(np.float16)[..., :4]
    assert resample(values, times, at, out=onto) is onto
    assert np.array_equal(onto, expected)


def test_an_expanded_out_is_an_error():
    values, times, at = np.ones((3, 5, 4), np.float32), np.tile(np.arange(5.0), (3, 1)), np.ones((3, 2))
    once = torch.zeros(1, 2, 4)
    for dtype, how in (("f4", {}), ("f4", {"check": False}), ("f4", {"kind": "nearest"}), ("f8", {})):
        values = values.astype(dtype)  # float64 is computed elsewhere and copied
        with pytest.raises(InputError, match="several items of out share one address"):
            resample(*map(torch.from_numpy, (values, times, at)), out=once.expand(3, 2, 4), **how)
        spread = np.lib.stride_tricks.as_strided(np.zeros((2, 4), np.float32), (3, 2, 4), (0, 16, 4))
        with pytest.raises(InputError, match="several items of out share one address"):
            resample(values, times, at, out=spread, **how)
        assert not spread.any()
    assert not once.any()


def test_the_gpu_engine_checks_the_same_overlaps():
    pytest.importorskip("triton")
    from ridgeline.trajectory.on_torch import on_gpu

    values, times, at, outs = make_views()
    how = dict.fromkeys(("max_gap", "lengths", "at_lengths", "offsets", "normalize"))
    how |= {"kind": "linear", "outside": "clamp", "sort": False, "check": False}
    for name, out in outs.items():
        with pytest.raises(InputError, match=f"^out shares memory with {name}"):
            on_gpu(
                *map(torch.from_numpy, (values, times, at)), result_dtype=torch.float32, out=torch.from_numpy(out),
                return_mask=False, **how,
            )  # fmt: skip


@pytest.mark.parametrize("name", ["lengths", "at_lengths", "offsets"])
def test_an_out_that_shares_memory_with_counts_is_an_error(name):
    memory = np.zeros(64)
    counts = memory[8:].view(np.int64)[: 3 if name == "offsets" else 2]
    counts[:] = [0, 3, 6] if name == "offsets" else 2
    values, times = -np.ones((2, 3, 2)), np.tile(np.arange(3.0), (2, 1))
    if name == "offsets":
        values, times = values.reshape(6, 2), times.reshape(6)
    with pytest.raises(InputError, match=f"out shares memory with {name}"):
        resample(values, times, np.ones((2, 3)), out=memory[:12].reshape(2, 3, 2), **{name: counts})
    assert not memory[:8].any()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_fast_path_of_a_gpu_also_checks_overlaps():
    memory = torch.ones(4, 30, 8, device="cuda")
    times, at = torch.arange(30.0, device="cuda").repeat(4, 1), torch.ones(4, 20, device="cuda")
    for _ in range(3):
        with pytest.raises(InputError, match=r"^out shares memory with values"):
            resample(memory, times, at, out=memory[:, :20], check=False)
        out = torch.empty(4, 20, 8, device="cuda")
        assert resample(memory, times, at, out=out, check=False) is out
        resample(memory, times, at[:, :0], out=out[:, :0], check=False)


def test_empty_arrays_never_overlap_and_undecided_overlaps_are_errors(monkeypatch):
    memory = torch.zeros(4, 6)
    assert not memory_overlaps(memory[:0], memory)
    assert not memory_overlaps(memory, memory[:, :0])
    monkeypatch.setattr("ridgeline.trajectory.isolated.MAX_WORK", 1)
    tangled = np.zeros(10**6)
    one = np.lib.stride_tricks.as_strided(tangled, (9, 9, 9), (8 * 7919, 8 * 104, 8 * 33))
    other = np.lib.stride_tricks.as_strided(tangled[1:], (9, 9, 9), (8 * 7907, 8 * 111, 8 * 31))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(one, other, max_work=1)
    with pytest.raises(InputError, match="shares memory with values"):
        refuse_shared(one, values=other)
