"""The native loops for channels of one kind (linear, previous, nearest) with policies for ends and gaps, a mask, scale
and lengths: equal to the general loops in every bit, and compared with the slow reference.

python -m pytest tests/trajectory/test_ruled.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectory.reference import resample_one
from tests.trajectory.test_plain import ISAS, assert_close, assert_same_bits, batches, make_output

from ridgeline import native, resample


@st.composite
def rules(draw, values, times, at):
    """Draw the options of the call, in the form that native.resample takes."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, stamps, channels = values.shape
    compute = np.float64 if values.dtype == np.float64 else np.float32
    gap = draw(st.none() | st.sampled_from([0, 1, 3]))
    scaled = draw(st.booleans())
    return {
        "kind": draw(st.sampled_from(["linear", "previous", "nearest"])),
        "outside": draw(st.sampled_from(["clamp", "nan"])),
        "gap": gap if times.dtype == np.int64 or gap is None else float(gap) / 2,
        "lengths": rng.integers(0, stamps + 1, batch) if draw(st.booleans()) else None,
        "at_lengths": rng.integers(0, at.shape[1] + 1, batch) if draw(st.booleans()) else None,
        "scale": rng.standard_normal(channels).astype(compute) if scaled else None,
        "shift": rng.standard_normal(channels).astype(compute) if scaled else None,
    }


def call_native(values, times, at, options, out, isa, threads=1):
    """Call the native function: it writes the result into `out`. Return the mask."""
    mask = np.full(at.shape, 9, np.uint8)
    integer_clock = times.dtype == np.int64
    done = native.resample(
        values, times, at, out, mask, options["lengths"], options["at_lengths"], None,
        [(0, values.shape[2], options["kind"])], options["outside"],
        None if integer_clock else options["gap"], options["gap"] if integer_clock else None,
        options["scale"], options["shift"],
        values.dtype.name, out.dtype != values.dtype, threads, True, isa,
    )  # fmt: skip
    assert done == -1
    return mask


@settings(max_examples=400, deadline=None)
@given(st.data(), batches(), st.integers(1, 3))
def test_the_loops_for_one_kind_and_those_for_everything_give_the_same_bits(data, case, threads):
    options = data.draw(rules(*case))
    values, times, at = case
    wide = values.dtype == np.float16 and data.draw(st.booleans())
    for isa in ISAS:
        result, general = (make_output(values.astype(np.float32) if wide else values, at, spread) for spread in (1, 2))
        mask = call_native(values, times, at, options, result, isa, threads)
        assert np.array_equal(mask, call_native(values, times, at, options, general, isa))
        assert_same_bits(result, general)
        assert np.isnan(result[mask == 0]).all()


@settings(max_examples=200, deadline=None)
@given(st.data(), batches())
def test_the_loops_agree_with_the_reference(data, case):
    options = data.draw(rules(*case))
    values, times, at = case
    scale = options["scale"] if options["scale"] is not None else 1
    shift = options["shift"] if options["shift"] is not None else 0
    expected, valid = np.full((*at.shape, values.shape[2]), np.nan), np.zeros(at.shape, bool)
    for b in range(len(values)):
        n = values.shape[1] if options["lengths"] is None else options["lengths"][b]
        k = at.shape[1] if options["at_lengths"] is None else options["at_lengths"][b]
        with np.errstate(invalid="ignore"):
            one, mask = resample_one(
                values[b, :n],
                times[b, :n],
                at[b, :k],
                options["kind"],
                outside=options["outside"],
                max_gap=options["gap"],
            )
        expected[b, :k], valid[b, :k] = one * scale + shift, mask
    for isa in ISAS:
        result = make_output(values, at)
        assert np.array_equal(call_native(values, times, at, options, result, isa).astype(bool), valid)
        assert_close(result, expected)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("channels", range(1, 71))
def test_every_channel_count_gives_the_bits_of_single_channels(dtype, channels):
    """Channel counts that fill vector registers, and those that leave a remainder."""
    rng = np.random.default_rng(channels)
    values = rng.standard_normal((3, 9, channels)).astype(dtype)
    times, at = np.tile(np.arange(9.0), (3, 1)), np.sort(rng.uniform(-1, 9, (3, 11)), 1)
    at[:, 4] = 3.0  # equal to a stamp: copied
    for kind in ("linear", "previous"):
        all_channels = resample(values, times, at, kind=kind)
        parts = [resample(values[..., d : d + 1], times, at, kind=kind) for d in range(channels)]
        assert np.array_equal(all_channels, np.concatenate(parts, -1))


@pytest.mark.parametrize("clock", ["float32", "float64"])
@pytest.mark.parametrize("outside", ["clamp", "nan"])
@pytest.mark.parametrize("kind", ["linear", "previous", "nearest"])
def test_targets_on_infinite_stamps_hit_them(clock, outside, kind):
    times = np.array([[-np.inf, 0, 1, np.inf], [-np.inf, -np.inf, 2, np.inf], [-1, 0, np.inf, np.inf]], clock)
    at = np.tile(np.array([-np.inf, -5, 0, 0.5, 1, 7, np.inf, -np.inf], clock), (3, 1))
    values = np.random.default_rng(6).standard_normal((3, 4, 9)).astype(np.float32)
    options = {
        "kind": kind,
        "outside": outside,
        "gap": None,
        "lengths": None,
        "at_lengths": None,
        "scale": None,
        "shift": None,
    }
    for isa in ISAS:
        result, general = (make_output(values, at, spread) for spread in (1, 2))
        mask = call_native(values, times, at, options, result, isa)
        assert np.array_equal(mask, call_native(values, times, at, options, general, isa))
        assert_same_bits(result, general)
        assert np.array_equal(result[0, 0], values[0, 0])
        assert np.array_equal(result[1, 0], values[1, 1])
        assert np.array_equal(result[2, 6], values[2, 3])


@pytest.mark.parametrize("kind", ["linear", "previous", "nearest"])
@pytest.mark.parametrize("scaled", [False, True])
def test_bfloat16_passes_as_uint16(kind, scaled):
    """The values contain every bfloat16 number; the output is bfloat16 or float32."""
    rng = np.random.default_rng(7)
    values = rng.permutation(np.arange(2**16, dtype=np.uint16)).reshape(16, -1, 16)
    times = np.cumsum(rng.uniform(0.1, 1, values.shape[:2]), 1)
    at = np.sort(rng.uniform(0, times.max(), (16, 100)), 1)
    scale, shift = (rng.standard_normal(16).astype(np.float32) if scaled else None for _ in range(2))
    for isa in ISAS:
        for stored in (np.uint16, np.float32):
            answers = []
            for spread in (1, 2):
                out = np.zeros((16, 100, 16 * spread), stored)[..., ::spread]
                done = native.resample(
                    values, times, at, out, None, None, None, None, [(0, 16, kind)], "nan", None, None, scale, shift,
                    "bfloat16", stored == np.float32, 1, True, isa,
                )  # fmt: skip
                assert done == -1
                answers.append(out)
            one, other = answers
            if stored == np.float32:
                assert_same_bits(one, np.ascontiguousarray(other))
            else:
                assert np.array_equal(one, other)


def test_negative_counts_do_not_write_before_the_result():
    values, times, at = np.ones((2, 3, 4), np.float32), np.tile(np.arange(3.0), (2, 1)), np.ones((2, 5))
    memory = np.full((6, 5, 4), 7, np.float32)
    for kind in ("linear", "previous"):
        native.resample(
            values, times, at, memory[2:4], None, None, np.array([-3, 2]), None, [(0, 4, kind)], "nan", None, None,
            None, None, "float32", False, 1, True, "",
        )  # fmt: skip
        assert (memory[:2] == 7).all()
        assert (memory[4:] == 7).all()
        assert np.isnan(memory[2]).all()
        assert np.array_equal(np.isnan(memory[3, :, 0]), [False, False, True, True, True])
