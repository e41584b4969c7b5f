"""Slerp computes many rotations at a time: every instruction set, type, angle and number of rotations against the
definition; and cubic and angle for frames of every width.

python -m pytest tests/trajectory/test_turning.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator
from tests.trajectory.reference import resample_one
from tests.trajectory.test_plain import ISAS

from ridgeline import native, resample

ROUNDING = {"float16": 1e-3, "float32": 5e-7, "float64": 1e-15}  # of unit quaternions


def directly(values, times, at, kind, isa, outside="clamp", gap=None, out=None, threads=1):
    """The answer and the mask, [T, D] and [T], of one trajectory."""
    groups = kind if isinstance(kind, list) else [(0, values.shape[1], kind)]
    out = np.empty((len(at), values.shape[1]), values.dtype) if out is None else out
    mask = np.full((1, len(at)), 9, np.uint8)
    done = native.resample(
        values[None], times[None], at[None], out[None], mask, None, None, None, groups, outside, gap, None, None, None,
        values.dtype.name, False, threads, True, isa,
    )  # fmt: skip
    assert done == -1
    return out, mask[0].astype(bool)


def slerp_reference(p, q, w):
    """slerp of rows [N, 4], by the tangent: exact for small angles and large."""
    p, q = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (p.astype(np.longdouble), q.astype(np.longdouble)))
    q = np.where((p * q).sum(1, keepdims=True) < 0, -q, q)
    theta = 2 * np.arctan2(np.linalg.norm(p - q, axis=1), np.linalg.norm(p + q, axis=1))[:, None]
    w = w.astype(np.longdouble)[:, None]
    with np.errstate(invalid="ignore"):
        mixed = np.where(theta > 0, (np.sin((1 - w) * theta) * p + np.sin(w * theta) * q) / np.sin(theta), p)
    return (mixed / np.linalg.norm(mixed, axis=1, keepdims=True)).astype(np.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("isa", ISAS)
def test_every_angle_and_share_is_right_to_the_last_digits(isa, dtype):
    rng = np.random.default_rng(1)
    angles = np.concatenate(
        [[0], np.logspace(-16, np.log10(np.pi / 2 - 1e-6), 400), np.linspace(0, np.pi / 2 - 1e-6, 400)]
    )
    p = rng.standard_normal((len(angles), 4))
    p /= np.linalg.norm(p, axis=1, keepdims=True)
    side = rng.standard_normal((len(angles), 4))
    side -= (side * p).sum(1, keepdims=True) * p
    side /= np.linalg.norm(side, axis=1, keepdims=True)
    q = (np.cos(angles)[:, None] * p + np.sin(angles)[:, None] * side) * np.where(rng.random(len(angles)) < 0.5, -1, 1)[
        :, None
    ]
    values = np.stack([p, q]).reshape(2, -1).astype(dtype) * rng.uniform(0.2, 5, (2, 1)).astype(dtype)
    shares = np.concatenate([[0, 1, 0.5, 1e-9, 1 - 1e-9], rng.random(20)])
    result, _ = directly(values, np.array([0.0, 1.0]), shares, "slerp", isa)
    rows = values.reshape(2, -1, 4)
    for k, share in enumerate(shares):
        at = np.full(len(angles), share if dtype == "float64" else np.float32(share))
        want = slerp_reference(rows[1], rows[0], 1 - at) if share == 1 else slerp_reference(rows[0], rows[1], at)
        assert np.abs(result[k].reshape(-1, 4) - want).max() < ROUNDING[dtype]


@st.composite
def journeys(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    stamps, targets, width = draw(st.integers(1, 12)), draw(st.integers(0, 90)), draw(st.integers(1, 9))
    times = np.cumsum(rng.uniform(0.1, 1, stamps))
    low, high = (times[0] - 1, times[-1] + 1) if draw(st.booleans()) else (times[0], times[-1])
    at = rng.uniform(low, high, targets)
    if draw(st.booleans()):
        at.sort()
    at[rng.random(targets) < 0.2] = rng.choice(times)
    values = rng.standard_normal((stamps, width, 4))
    if draw(st.booleans()):  # turns slowly, and changes its sign now and then
        values = values[:1] + 0.05 * values
        values *= rng.choice([-1, 1], (stamps, width, 1))
    dtype = draw(st.sampled_from(list(ROUNDING)))
    return values.reshape(stamps, -1).astype(dtype), times, at


def clear_way(values, times, at):
    """Where it is clear which way is the short one."""
    rows = values.astype(np.float64).reshape(len(values), -1, 4)
    rows /= np.linalg.norm(rows, axis=2, keepdims=True)
    close = np.abs((rows[1:] * rows[:-1]).sum(2)) < 1e-3 if len(rows) > 1 else np.zeros((1, rows.shape[1]), bool)
    i = np.clip(np.searchsorted(times, at, side="right") - 1, 0, max(0, len(times) - 2))
    return ~np.repeat(close[i], 4, 1)


@settings(max_examples=150, deadline=None)
@given(journeys(), st.sampled_from(["clamp", "nan", "extrapolate"]), st.none() | st.floats(0.2, 0.9))
def test_trajectories_agree_with_the_reference(case, outside, gap):
    values, times, at = case
    want, valid = resample_one(values, times, at, "slerp", outside=outside, max_gap=gap)
    clear = clear_way(values, times, at)
    for isa in ISAS:
        result, mask = directly(values, times, at, "slerp", isa, outside, gap)
        assert np.array_equal(mask, valid)
        assert np.array_equal(np.isnan(result), np.isnan(want))
        off = np.abs(result.astype(np.float64) - want)[clear]
        far = 4 if outside != "extrapolate" else 100  # spans beyond an end, where what is off counts as often
        assert np.nanmax(off, initial=0) < far * ROUNDING[values.dtype.name]


@settings(max_examples=100, deadline=None)
@given(journeys(), st.integers(1, 3))
def test_the_memory_layout_changes_no_bit(case, threads):
    values, times, at = case
    spread = np.repeat(values, 2, 1)[:, ::2]
    for isa in ISAS:
        result, _ = directly(values, times, at, "slerp", isa)
        strided = np.empty((len(at), 2 * values.shape[1]), values.dtype)[:, ::2]
        directly(values, times, at, "slerp", isa, out=strided, threads=threads)
        assert np.array_equal(result, strided, equal_nan=True)
        assert np.array_equal(result, directly(spread, times, at, "slerp", isa)[0], equal_nan=True)
        each = [directly(values, times, at[k : k + 1], "slerp", isa)[0] for k in range(len(at))]
        assert np.array_equal(result, np.concatenate([result[:0], *each]), equal_nan=True)


def test_gradients_of_small_turns_in_float64_are_those_of_the_arc():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    side = np.array([1.0, -1, 1, -1]) / 2  # at a right angle to the other, 1.7 degrees on at each stamp
    turns = np.cos(0.03 * np.arange(4))[:, None] / 2 + np.sin(0.03 * np.arange(4))[:, None] * side
    times, at = torch.arange(4.0, dtype=torch.float64), torch.from_numpy(rng.uniform(0, 3, (1, 5)))
    values = torch.from_numpy(turns[None]).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: resample(x, times, at, kind="slerp"), values, eps=1e-4, atol=2e-7, rtol=0)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 80), st.integers(1, 75), st.sampled_from(list(ROUNDING)), st.sampled_from(["near", "far", "holes"])
)
def test_angles_of_any_width_are_those_of_single_channels(seed, width, dtype, world):
    rng = np.random.default_rng(seed)
    values = rng.uniform(-9, 9, (12, width))
    if world == "far":  # more turns than are counted quickly, in some of them
        values[rng.random(values.shape) < 0.1] *= 1e7 if dtype != "float16" else 1e3
    if world == "holes":
        values[rng.random(values.shape) < 0.1] = np.nan
    values = values.astype(dtype)
    times, at = np.cumsum(rng.uniform(0.1, 1, 12)), rng.uniform(0, 8, 9)
    mean, std = rng.uniform(0.5, 2, (2, width))
    for isa in ISAS:
        result, _ = directly(values, times, at, "angle", isa)
        each = [directly(values[:, d : d + 1].copy(), times, at, "angle", isa)[0] for d in range(width)]
        want, _ = resample_one(values, times, at, "angle")
        if (
            world != "far"
        ):  # one that is far takes those beside it the slow way, by a turn that is off in its last digit
            assert np.array_equal(result, np.concatenate(each, 1), equal_nan=True)
        off = np.abs(np.angle(np.exp(1j * (result.astype(np.float64) - want))))
        assert np.nanmax(off, initial=0) < 4 * np.pi * ROUNDING[dtype] + (1e-7 if world == "far" else 0)
    scaled = resample(values, times, at, kind="angle", normalize={"mean": mean, "std": std}).astype(np.float64)
    assert np.allclose(
        scaled, (result.astype(np.float64) - mean) / std, atol=30 * ROUNDING[dtype], rtol=0, equal_nan=True
    )


@pytest.mark.parametrize("isa", ISAS)
def test_a_zero_quaternion_gives_nan_only_at_its_targets(isa):
    values = np.array([[0, 0, 0, 2.0], [0, 0, 0, 0], [0, 0, 3, 0]])
    result, mask = directly(values, np.arange(3.0), np.array([0, 0.5, 1, 1.5, 2]), "slerp", isa)
    assert mask.all()
    assert np.array_equal(np.isnan(result).all(1), [False, True, True, True, False])
    assert np.array_equal(result[[0, 4]], [[0, 0, 0, 1], [0, 0, 1, 0]])


@pytest.mark.parametrize("isa", ISAS)
def test_rotations_beside_other_kinds_and_masked_targets(isa):
    rng = np.random.default_rng(3)
    values, times = rng.standard_normal((30, 15)), np.arange(30.0)
    at = rng.uniform(-2, 32, 200)
    groups = [(0, 3, "linear"), (3, 11, "slerp"), (11, 15, "cubic")]
    result, mask = directly(values, times, at, groups, isa, "nan")
    assert np.array_equal(mask, (at >= 0) & (at <= 29))
    for start, stop, kind in groups:
        alone, _ = directly(np.ascontiguousarray(values[:, start:stop]), times, at, kind, isa, "nan")
        assert np.array_equal(result[:, start:stop], alone, equal_nan=True)
    assert np.isnan(result[~mask]).all()
    assert not np.isnan(result[mask]).any()


def test_scaled_rotations_are_scaled_after_they_were_turned():
    rng = np.random.default_rng(4)
    values, times, at = rng.standard_normal((2, 20, 8)).astype(np.float32), np.arange(20.0), rng.uniform(0, 19, (2, 60))
    mean, std = rng.standard_normal(8), rng.uniform(0.5, 2, 8)
    plain = resample(values, times, at, kind="slerp")
    scaled = resample(values, times, at, kind="slerp", normalize={"mean": mean, "std": std})
    assert np.allclose(scaled, (plain - mean) / std, atol=2e-6)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("channels", [*range(1, 20), 31, 32, 33, 64, 70])
def test_cubic_of_every_number_of_channels(dtype, channels):
    rng = np.random.default_rng(channels)
    values, times = rng.standard_normal((12, channels)).astype(dtype), np.cumsum(rng.uniform(0.1, 1, 12))
    at = rng.uniform(times[0], times[-1], 40)
    want = PchipInterpolator(times, values.astype(np.float64))(at)
    for isa in ISAS:
        result, _ = directly(values, times, at, "cubic", isa)
        assert np.abs(result - want).max() < {"float16": 4e-3, "float32": 4e-6, "float64": 1e-13}[dtype]
        strided = np.empty((len(at), 2 * channels), dtype)[:, ::2]
        directly(values, times, at, "cubic", isa, out=strided)
        assert (
            np.abs(result.astype(float) - strided).max() < {"float16": 4e-3, "float32": 4e-6, "float64": 1e-13}[dtype]
        )


def test_headings_have_gradients_after_a_call_in_inference_mode():
    torch = pytest.importorskip("torch")
    times, at = torch.arange(4.0, dtype=torch.float64)[None], torch.tensor([[0.5, 1.5]], dtype=torch.float64)
    values = torch.tensor([[[350.0], [10.0], [20.0], [25.0]]], dtype=torch.float64)
    with torch.inference_mode():
        resample(values, times, at, kind="degrees_360")
    result = resample(values.requires_grad_(), times, at, kind="degrees_360")
    assert torch.allclose(result[0, :, 0] % 360, torch.tensor([0.0, 15.0], dtype=torch.float64), atol=1e-9)
    result[0, 1, 0].backward()
    assert torch.allclose(values.grad[0, :, 0], torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64))
