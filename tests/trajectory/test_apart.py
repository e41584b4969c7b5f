"""`out=` on memory that the same call reads: refused in one sentence on every way a call can take. Views that only take
turns in one memory are not.

python -m pytest tests/trajectory/test_apart.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import resample
from ridgeline.errors import InputError
from ridgeline.trajectory.apart import overlaps, refuse_shared

torch = pytest.importorskip("torch")


@st.composite
def views(draw):
    """A view of some of the 200 items that two such views share: slices, turned round or spread, of any dimensions."""
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
def test_overlapping_is_having_an_item_in_common(one, other):
    memory = np.arange(200.0)
    one, other = (
        np.lib.stride_tricks.as_strided(memory[int(v.flat[0]) :], v.shape, v.strides) if v.size else v.astype(float)
        for v in (one, other)
    )
    common = bool(set(one.ravel().tolist()) & set(other.ravel().tolist()))
    assert overlaps(one, other) == overlaps(other, one) == common
    if min((*one.strides, *other.strides)) > 0:  # tensors have no others
        assert overlaps(torch.from_numpy(one), torch.from_numpy(other)) == common


def shared(dtype="float32", clock="float64"):
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
def test_memory_that_is_read_is_not_written_to(name, how, library):
    values, times, at, outs = shared()
    before = values.base.copy()
    wanted = resample(values.copy(), times.copy(), at.copy(), **how)
    with pytest.raises(InputError, match=f"^out shares memory with {name}, which is read while"):
        resample(*map(library, (values, times, at)), out=library(outs[name]), **how)
    assert np.array_equal(values.base, before)
    assert np.array_equal(np.asarray(resample(*map(library, (values, times, at)), **how)), wanted, equal_nan=True)


@pytest.mark.parametrize("how", [{}, {"check": False}, {"kind": "cubic"}])
@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy])
def test_views_that_take_turns_in_one_memory_are_answered(how, library):
    rng = np.random.default_rng(4)
    both = rng.standard_normal((5, 30, 14)).astype(np.float32)
    values, out = both[..., :7], both[:, :20, 7:]
    times, at = np.tile(np.arange(30.0), (5, 1)), rng.uniform(0, 29, (5, 20))
    wanted = resample(values.copy(), times, at, **how)
    found = library(out)
    assert resample(*map(library, (values, times, at)), out=found, **how) is found
    assert np.array_equal(out, wanted)


def test_what_is_computed_elsewhere_and_copied_may_go_anywhere():
    values, times = np.random.default_rng(5).standard_normal((3, 10, 4)), np.tile(np.arange(10.0), (3, 1))
    at = times + 0.25
    wanted = resample(values, times, at).astype(np.float16)
    onto = values.view(np.float16)[..., :4]
    assert resample(values, times, at, out=onto) is onto
    assert np.array_equal(onto, wanted)


def test_items_of_the_answer_need_a_place_each():
    values, times, at = np.ones((3, 5, 4), np.float32), np.tile(np.arange(5.0), (3, 1)), np.ones((3, 2))
    once = torch.zeros(1, 2, 4)
    for how in ({}, {"check": False}, {"kind": "nearest"}):
        with pytest.raises(InputError, match="several items of out lie at one place in memory"):
            resample(*map(torch.from_numpy, (values, times, at)), out=once.expand(3, 2, 4), **how)
        spread = np.lib.stride_tricks.as_strided(np.zeros((2, 4), np.float32), (3, 2, 4), (0, 16, 4))
        with pytest.raises(InputError, match="several items of out lie at one place in memory"):
            resample(values, times, at, out=spread, **how)
        assert not spread.any()
    assert not once.any()


def test_on_a_gpu_it_is_the_same_question():
    pytest.importorskip("triton")
    from ridgeline.trajectory.on_torch import on_gpu

    values, times, at, outs = shared()
    how = dict.fromkeys(("max_gap", "lengths", "at_lengths", "offsets", "normalize"))
    how |= {"kind": "linear", "quaternion": "xyzw", "outside": "clamp", "sort": False, "check": False}
    for name, out in outs.items():
        with pytest.raises(InputError, match=f"^out shares memory with {name}"):
            on_gpu(
                *map(torch.from_numpy, (values, times, at)), wanted=torch.float32, out=torch.from_numpy(out),
                return_mask=False, **how,
            )  # fmt: skip


def test_nothing_overlaps_nothing_and_what_cannot_be_told_is_refused(monkeypatch):
    memory = torch.zeros(4, 6)
    assert not overlaps(memory[:0], memory)
    assert not overlaps(memory, memory[:, :0])
    monkeypatch.setattr("ridgeline.trajectory.apart.WORK", 1)
    tangled = np.zeros(10**6)
    one = np.lib.stride_tricks.as_strided(tangled, (9, 9, 9), (8 * 7919, 8 * 104, 8 * 33))
    other = np.lib.stride_tricks.as_strided(tangled[1:], (9, 9, 9), (8 * 7907, 8 * 111, 8 * 31))
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(one, other, max_work=1)
    with pytest.raises(InputError, match="shares memory with values"):
        refuse_shared(one, values=other)
