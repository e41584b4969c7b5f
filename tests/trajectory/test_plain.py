"""The most common call (linear between stamps, clamped at the ends): its loops against the slow reference.

python -m pytest tests/trajectory/test_plain.py
"""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectory.reference import resample_one

from ridgeline import native, resample
from ridgeline.errors import InputError

ISAS = native.instruction_sets()
TOLERANCE = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-13}
WIDTHS = [7, 8, 14, 16, 32, 64]  # channel counts that have compiled loops
EPOCH_NS = 1_700_000_000_000_000_000


def short_path(values, times, at, out=None, check=True):
    """The short path alone; None where resample takes the general path."""
    return native.resample_arrays(values, times, at, out, check)


@pytest.fixture
def general(monkeypatch):
    """resample returns "general" where it takes the general path."""
    monkeypatch.setattr(sys.modules[resample.__module__], "_resample_any", lambda *_, **__: "general")


def call_native(values, times, at, out, isa="", threads=1, check=False, mask=None, lengths=None, offsets=None):
    """Call the native function as resample does, with this instruction set and number of threads."""
    return native.resample(
        values, times, at, out, mask, lengths, None, offsets, [(0, out.shape[2], "linear")], "clamp",
        None, None, None, None, values.dtype.name, False, threads, check, isa,
    )  # fmt: skip


def make_output(values, at, spread=1):
    """Return an array for the result. With `spread` 2 the channels are strided, which needs the general loop."""
    return np.full((*at.shape, spread * values.shape[2]), -7, values.dtype)[..., ::spread]


def assert_close(result, expected):
    """Check that NaN and infinity are in the same places, and the rest agrees within the rounding of the type."""
    scale = max(1.0, float(np.abs(expected[np.isfinite(expected)]).max(initial=0)))
    finite = np.isfinite(expected)
    assert np.array_equal(result[~finite], expected[~finite].astype(result.dtype), equal_nan=True)
    error = np.abs(result[finite].astype(np.float64) - expected[finite])
    assert error.max(initial=0) <= TOLERANCE[result.dtype.name] * scale


def assert_same_bits(a, b):
    """Check that all bits agree, the sign of zero too; all NaNs count as equal."""
    is_nan = np.isnan(a)
    assert np.array_equal(is_nan, np.isnan(b))
    assert np.where(is_nan, 0, a).astype(a.dtype).tobytes() == np.where(is_nan, 0, b).astype(b.dtype).tobytes()


@st.composite
def batches(draw):
    """Draw stamps with runs of equal stamps at the start, inside and at the end, and targets of every pattern."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch = draw(st.sampled_from([1, 1, 2, 5]))
    stamps = draw(st.integers(1, 12) | st.integers(1, 300))
    channels = draw(st.integers(1, 5) | st.integers(1, 70) | st.sampled_from(WIDTHS))
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    clock = draw(st.sampled_from(["float32", "float64", "int64"]))
    steps = rng.choice(draw(st.sampled_from([[1], [0, 1, 2], [0, 0, 1, 7], [3, 5, 50]])), (batch, stamps))
    steps[:, 1 : 1 + draw(st.integers(0, 5))] = 0
    if tail := draw(st.integers(0, 5)):
        steps[:, -tail:] = 0
    units = np.cumsum(steps, 1)
    last = int(units.max())
    parts = []
    for pattern in draw(st.lists(st.sampled_from(["rising", "any", "far", "hits", "outside", "same"]), max_size=4)):
        count = draw(st.integers(1, 40))
        part = rng.integers(-4, 4 * last + 5, (batch, count))
        if pattern == "rising":
            part.sort(1)
        elif pattern == "far":  # from one end to the other and back
            part = np.where(
                np.arange(count) % 2, rng.integers(0, 3, part.shape), 4 * last - rng.integers(0, 3, part.shape)
            )
        elif pattern == "hits":
            part = 4 * units[:, rng.integers(0, stamps, count)]
        elif pattern == "outside":
            part = rng.choice([-9, -1, 4 * int(units[0, 0]) - 1, 4 * last + 1, 4 * last + 99], part.shape)
        elif pattern == "same":
            part[:] = part[:, :1]
        parts.append(part)
    quarters = np.concatenate(parts, 1) if parts else np.zeros((batch, 0), np.int64)
    if clock == "int64":
        times, at = EPOCH_NS + 4 * units, EPOCH_NS + quarters
    else:
        origin = 1.7e9 if clock == "float64" and draw(st.booleans()) else 0
        unit = draw(st.sampled_from([0.5, 0.1]))  # exact, and not
        times, at = (origin + 4 * units * (unit / 4)).astype(clock), (origin + quarters * (unit / 4)).astype(clock)
        if draw(st.booleans()):
            at[rng.random(at.shape) < 0.2] = np.nan
    values = rng.standard_normal((batch, stamps, channels)).astype(dtype)
    if draw(st.booleans()):
        special_values = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], values.shape).astype(dtype)
        values = np.where(rng.random(values.shape) < 0.2, special_values, values)
    return values, times, at


@settings(max_examples=300, deadline=None)
@given(batches(), st.integers(1, 3))
def test_every_instruction_set_agrees_with_the_reference(case, threads):
    values, times, at = case
    with np.errstate(invalid="ignore"):
        rows = [resample_one(*row) for row in zip(values, times, at, strict=True)]
    expected, valid = np.array([out for out, _ in rows]), np.array([mask for _, mask in rows])
    for isa in ISAS:
        result, mask = make_output(values, at), np.full(at.shape, 9, np.uint8)
        assert call_native(values, times, at, result, isa, threads, True, mask) == -1
        assert_close(result, expected)
        assert np.array_equal(mask, valid)
        general = make_output(values, at, 2)  # not contiguous: the general loop
        call_native(values, times, at, general, isa, threads)
        assert_same_bits(result, general)


@settings(max_examples=300, deadline=None)
@given(batches())
def test_the_short_path_and_the_general_path_give_the_same_bits(case):
    values, times, at = case
    short = resample(values, times, at)
    assert short.dtype == values.dtype
    assert short.flags.c_contiguous
    general, mask = resample(values, times, at, return_mask=True)
    assert_same_bits(short, general)
    assert np.array_equal(mask, at == at)
    for out in (
        make_output(values, at),
        make_output(values, at, 2),
        np.full((*at.shape, values.shape[2] + 3), -7, values.dtype)[..., 3:],
    ):
        assert resample(values, times, at, out=out) is out
        assert_same_bits(short, out)
    assert_same_bits(short, resample(values, times, at, check=False))
    assert_same_bits(short, resample(values.transpose(2, 0, 1).copy().transpose(1, 2, 0), times, np.asfortranarray(at)))
    wide = resample(values, times, at, dtype=np.float64)
    if values.dtype == np.float64:
        assert_same_bits(short, wide)


@settings(max_examples=200, deadline=None)
@given(batches())
def test_the_short_path_agrees_with_the_reference(case):
    values, times, at = case
    with np.errstate(invalid="ignore"):
        expected = np.array([resample_one(*row)[0] for row in zip(values, times, at, strict=True)])
    for frozen in (values, times, at):
        frozen.flags.writeable = False
    result, general = make_output(values, at), make_output(values, at)
    assert short_path(values, times, at, out=result) is result
    assert_close(result, expected)
    call_native(values, times, at, general)
    assert_same_bits(result, general)
    reversed_output = make_output(values, at)[:, ::-1]  # rows in reverse order
    assert short_path(np.asfortranarray(values), times, np.asfortranarray(at), out=reversed_output) is reversed_output
    assert_same_bits(result, np.ascontiguousarray(reversed_output))


def test_the_short_path_refuses_other_arrays():
    values, times, at = np.ones((2, 3, 4), np.float32), np.tile(np.arange(3.0), (2, 1)), np.ones((2, 5))
    out = make_output(values, at)
    assert short_path(values, times, at, out=out) is out
    frozen = out.copy()
    frozen.flags.writeable = False
    record = np.ones((2, 3), [("t", "f8"), ("more", "i4")])["t"]  # the stride is no multiple of the item size
    out[:] = -7
    for wrong in (
        (values[0], times, at, out),
        (values, times[:, :2], at, out),
        (values, times[:1], at, out),
        (values, times, at[:1], out),
        (values, times, at[:, :4], out),
        (values, times, at.astype(np.float32), out),
        (values, times.astype(">f8"), at.astype(">f8"), out),
        (values, times.astype(np.int32), at.astype(np.int32), out),
        (values, record, at, out),
        (values.astype(np.int32), times, at, out),
        (values, times, at, out.astype(np.float64)),
        (values, times, at, frozen),
        (values, times[:, ::-1], at, make_output(values, at)),  # not in order
        (values.tolist(), times, at, out),
        (np.empty((2, 3, 4), "V0"), times, at, out),  # items of zero bytes
        (values, np.empty((2, 3), "V0"), np.empty((2, 5), "V0"), out),
        (values, times, at, np.empty((2, 5, 4), "V0")),
    ):
        assert short_path(*wrong[:3], out=wrong[3]) is None
        if wrong[3] is out and wrong[2].shape[1] == 5:  # the other cases are wrong only together with `out`
            assert short_path(*wrong[:3]) is None
    assert short_path(values, times[:, ::-1], at) is None
    assert (out == -7).all()
    assert (resample(values, times.astype(">f8"), at) == 1).all()


def test_resample_takes_the_short_path_where_options_have_their_defaults(general):
    values, times, at = np.ones((2, 3, 4), np.float32), np.tile(np.arange(3.0), (2, 1)), np.ones((2, 5))
    options = {name: option.default for name, option in inspect.signature(resample).parameters.items()}
    assert len(options) == 15
    for name, default in list(options.items())[3:]:
        assert (resample(values, times, at, **{name: default}) == 1).all()
        if name != "check":
            assert isinstance(resample(values, times, at, **{name: "another"}), str)
    assert (resample(values, times, at, check=False, kind="".join(["lin", "ear"])) == 1).all()
    for option in ({"kind": None}, {"kind": ["linear"]}, {"outside": None}):
        assert isinstance(resample(values, times, at, **option), str)
    with pytest.raises(TypeError, match="typo"):
        resample(values, times, at, typo=None)
    with pytest.raises(TypeError, match="at"):
        resample(values, times)
    assert (resample(values=values, times=times, at=at) == 1).all()


def test_resample_is_a_plain_function_with_signature_and_docstring():
    assert inspect.isfunction(resample)
    assert list(inspect.signature(resample).parameters)[:4] == ["values", "times", "at", "kind"]
    assert inspect.signature(resample).parameters["check"].default is True
    assert "Of duplicate stamps the last one counts." in (resample.__doc__ or "")
    assert resample.__name__ == "resample"
    assert pickle.loads(pickle.dumps(resample)) is resample
    assert copy.deepcopy(resample) is resample


def test_the_short_path_keeps_no_reference():
    values, times, at = np.ones((2, 3, 4), np.float32), np.tile(np.arange(3.0), (2, 1)), np.ones((2, 5))
    out = np.empty((2, 5, 4), np.float32)
    gc.collect()
    before = [sys.getrefcount(a) for a in (values, times, at, out, values.dtype)]
    for _ in range(100):
        short_path(values, times, at)
        short_path(values, times, at, out=out)
        short_path(values, times[:, ::-1], at)
        short_path(values, times, at[:1], out=out)
    assert [sys.getrefcount(a) for a in (values, times, at, out, values.dtype)] == before


@pytest.mark.parametrize("batch", [1, 64])  # one thread, and several threads
def test_a_failed_allocation_is_an_error_and_the_next_call_is_right(batch):
    values, times = np.ones((batch, 100, 128), np.float32), np.tile(np.arange(100.0), (batch, 1))
    for _ in range(20):
        with pytest.raises(MemoryError, match="allocate"):
            resample(values, times, np.broadcast_to(np.zeros((batch, 1)), (batch, 1 << 40)))
        assert (resample(values, times, times) == 1).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [1, 2, 15, 16, 17, 63, 64, 65, 257])
@pytest.mark.parametrize("threads", [1, 2, 3, 64, 100])
def test_any_number_of_threads_computes_every_trajectory_once(isa, batch, threads):
    values = np.arange(batch, dtype=np.float32).repeat(6).reshape(batch, 2, 3)
    times, at = np.tile(np.arange(2.0), (batch, 1)), np.tile([0.0, 0.5, 1.0], (batch, 1))
    out = make_output(values, at)
    assert call_native(values, times, at, out, isa, threads, check=True) == -1
    assert (out == np.arange(batch)[:, None, None]).all()
    times[batch // 2, 1] = -1
    assert call_native(values, times, at, make_output(values, at), isa, threads, check=True) == batch // 2


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("clock", ["float32", "float64", "int64"])
@pytest.mark.parametrize("stamps", [*range(1, 14), 60, 301])
def test_targets_may_jump_from_every_stamp_to_every_other(isa, clock, stamps):
    """One call whose targets go from each stamp, and each midpoint, to all the others and back."""
    rng = np.random.default_rng(stamps)
    times = 4 * np.arange(stamps)
    places = np.arange(-2, 4 * stamps, 2)
    if stamps > 13:
        places = np.unique(np.concatenate([places[:9], places[-9:], rng.choice(places, 40)]))
    at = np.array([(first, second) for first in places for second in places]).reshape(-1)
    values = rng.standard_normal((1, stamps, 1))
    result = make_output(values, at[None])
    call_native(values, times[None].astype(clock), at[None].astype(clock), result, isa)
    np.testing.assert_allclose(result[0, :, 0], np.interp(at, times, values[0, :, 0]), rtol=0, atol=1e-14)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("clock", ["float32", "float64"])
@pytest.mark.parametrize("stamps", [[0.0], [0.0, 1.0], [0.0, 0.0, 1.0, 2.0, 2.0], range(20)])
def test_any_target_may_follow_any_other(isa, clock, stamps):
    """NaN, infinite, largest and ordinary targets, in every order of three."""
    times = np.array([stamps], clock)
    largest = np.finfo(clock).max
    places = [np.nan, np.inf, -np.inf, largest, -largest, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, 18.5, 19.0, 40.0]
    at = np.array([[(first, second, third) for first in places for second in places for third in places]], clock)
    at = at.reshape(1, -1)
    values = np.random.default_rng(0).standard_normal((1, times.shape[1], 3)).astype(np.float32)
    result, mask = make_output(values, at), np.full(at.shape, 7, np.uint8)
    call_native(values, times, at, result, isa, mask=mask)
    with np.errstate(invalid="ignore"):
        assert_close(result, resample_one(values[0], times[0], at[0])[0][None])
    assert np.array_equal(mask, at == at)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("span", [1e-300, 1e-50, 1.0, 1e50, 1e300])
def test_spans_beyond_float32_are_divided_before_they_are_narrowed(dtype, span):
    values, times = np.array([[[0.0], [1.0]]], dtype), np.array([[0.0, span]])
    assert resample(values, times, span * np.array([[1.0, 0.5, 0.25]]))[0].tolist() == [[1.0], [0.5], [0.25]]


def test_memory_around_the_result_does_not_change():
    rng = np.random.default_rng(5)
    for channels in range(1, 71):
        values, times = rng.standard_normal((3, 9, channels)), np.tile(np.arange(9.0), (3, 1))
        at = rng.uniform(-1, 9, (3, 7))
        for dtype in ("float16", "float32", "float64"):
            padded = np.full((3, 7, channels + 40), -7, dtype)
            resample(values.astype(dtype), times, at, out=padded[..., 20:-20])
            assert (padded[..., :20] == -7).all()
            assert (padded[..., -20:] == -7).all()


@pytest.mark.parametrize("width", [*WIDTHS, 9, 33, 128])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("clock", ["float32", "float64", "int64"])
def test_compiled_widths_and_other_widths_agree_with_the_reference(width, dtype, clock):
    rng = np.random.default_rng(width)
    steps = rng.choice([0, 1, 2, 9], (6, 150))
    steps[::2] = np.maximum(steps[::2], 1)  # every other trajectory has no equal stamps
    values, times = rng.standard_normal((6, 150, width)).astype(dtype), np.cumsum(steps, 1).astype(clock)
    at = np.sort(rng.integers(-3, int(times.max()) + 3, (6, 70)), 1).astype(clock)
    for stamps in (times, np.broadcast_to(times[:1], times.shape), np.broadcast_to(times[1:2], times.shape)):
        expected = np.array([resample_one(*row)[0] for row in zip(values, stamps, at, strict=True)])
        for isa in ISAS:
            for check in (True, False):
                result, general = make_output(values, at), make_output(values, at, 2)
                assert call_native(values, stamps, at, result, isa, 2, check) == -1
                assert_close(result, expected)
                call_native(values, stamps, at, general, isa, 2, check)
                assert_same_bits(result, general)


def shuffle_stamps(batch, stamps, bad, clock="float64"):
    """Return rising stamps with one unsorted stamp for each item of `bad` {trajectory: index}."""
    times = np.tile(np.arange(1, stamps + 1), (batch, 1)).astype(clock)
    for trajectory, index in bad.items():
        times[trajectory, index] = 0
    return times


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.integers(0, 299), st.integers(1, 39), min_size=1, max_size=40), st.data())
def test_the_error_names_the_lowest_unsorted_trajectory(bad, data):
    clock = data.draw(st.sampled_from(["float32", "float64", "int64"]))
    times, at = shuffle_stamps(300, 40, bad, clock), np.ones((300, 3), clock)
    values = np.ones((300, 40, 2), np.float32)
    lowest = min(bad)
    for isa in ISAS:
        for threads in (1, 2, 7):
            assert call_native(values, times, at, make_output(values, at), isa, threads, True) == lowest
    message = rf"times of trajectory {lowest} are not sorted: index {bad[lowest]} is 0(\.0)? after {bad[lowest]}(\.0)?;"
    for options in (
        {},
        {"return_mask": True},
        {"outside": "raise"},
        {"out": make_output(values, at)},
        {"lengths": np.full(300, 40)},
    ):
        with pytest.raises(InputError, match=message):
            resample(values, times, at, **options)
    lengths = np.full(300, 40)
    lengths[list(bad)] = list(bad.values())  # the lengths exclude the unsorted stamps
    resample(values, times, at, lengths=lengths)
    packed = {"offsets": np.arange(301) * 40}
    with pytest.raises(InputError, match=message):
        resample(values.reshape(-1, 2), times.reshape(-1), at, **packed)


def test_several_threads_name_the_lowest_unsorted_trajectory():
    batch, stamps, channels = 2000, 50, 16
    values, at = np.ones((batch, stamps, channels), np.float32), np.ones((batch, 40))
    assert values.nbytes > 1 << 22, "enough for several threads"
    rng = np.random.default_rng(0)
    for _ in range(10):
        bad = dict(zip(rng.integers(0, batch, 9).tolist(), rng.integers(1, stamps, 9).tolist(), strict=True))
        times = shuffle_stamps(batch, stamps, bad)
        nan = min(bad) // 2
        if nan not in bad:
            bad[nan], times[nan, 0] = 0, np.nan
        lowest = min(bad)
        for threads in (2, os.cpu_count() or 1, 16):
            assert call_native(values, times, at, make_output(values, at), "", threads, True) == lowest
        with pytest.raises(InputError, match=rf"trajectory {lowest} are not sorted: index {bad[lowest]} is "):
            resample(values, times, at)


@pytest.mark.parametrize("kind", ["linear", "cubic"])
@pytest.mark.parametrize("stored", ["float32", "float64"], ids=["same-type", "other-type"])
@pytest.mark.parametrize("spread", [1, 2])
def test_unsorted_stamps_leave_the_output_unchanged(kind, stored, spread):
    values, at = np.ones((600, 50, 8), np.float32), np.ones((600, 60))
    out = make_output(values.astype(stored), at, spread)
    with pytest.raises(InputError, match="trajectory 599 are not sorted: index 49"):
        resample(values, shuffle_stamps(600, 50, {599: 49}), at, out=out, kind=kind)
    assert (out == -7).all()
    resample(values, shuffle_stamps(600, 50, {}), at, out=out, kind=kind)
    assert (out == 1).all()


def test_unsorted_stamps_are_reported_before_targets_outside():
    with pytest.raises(InputError, match=r"times of trajectory 0 are not sorted: index 2 is 1.0 after 2.0"):
        resample(np.arange(3.0), np.array([0.0, 2.0, 1.0]), np.array([1.5]), outside="raise")


@pytest.mark.parametrize("isa", ISAS)
def test_unchecked_unsorted_stamps_read_only_inside_the_arrays(isa):
    """The result is undefined, but it is computed from the values only."""
    rng = np.random.default_rng(7)
    for stamps in (1, 2, 5, 8, 9, 40, 300):
        times, at = rng.uniform(0, 9, (20, stamps)), rng.uniform(-1, 10, (20, 50))
        times[rng.random(times.shape) < 0.1] = np.nan
        values = np.ones((20, stamps, 3))
        result = make_output(values, at)
        call_native(values, times, at, result, isa)
        assert (np.isnan(result) | (np.abs(result - 1) < 1e-9)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("check", [True, False])
def test_the_result_is_written_into_the_array_of_the_caller(dtype, check):
    rng = np.random.default_rng(5)
    values = rng.standard_normal((40, 30, 6)).astype(dtype)
    times = np.cumsum(rng.uniform(0.1, 1, (40, 30)), 1)
    at = rng.uniform(0, 20, (40, 25))
    expected = resample(values, times, at)
    strided, transposed = np.full((40, 25, 12), 9, dtype)[:, :, ::2], np.empty((25, 40, 6), dtype).swapaxes(0, 1)
    for out in (np.empty_like(expected), strided, transposed):
        assert resample(values, times, at, out=out, check=check) is out
        assert_same_bits(out, expected)
    wider = np.empty((40, 25, 6), np.float64)
    assert resample(values, times, at, out=wider, check=check) is wider
    assert np.allclose(wider, expected, atol=4e-3)
    with pytest.raises(InputError, match=r"out has shape \[40, 25, 5\]"):
        resample(values, times, at, out=np.empty((40, 25, 5), dtype), check=check)


def test_one_unsorted_trajectory_leaves_the_array_of_the_caller_unchanged():
    values, times = np.ones((64, 40, 33), np.float32), np.tile(np.arange(40.0), (64, 1))
    times[63, 20] = 3
    out = np.full((64, 50, 33), 7, np.float32)
    with pytest.raises(InputError, match=r"times of trajectory 63 are not sorted: index 20 is 3\.0 after 19\.0"):
        resample(values, times, np.tile(np.linspace(0, 39, 50), (64, 1)), out=out)
    assert (out == 7).all()
