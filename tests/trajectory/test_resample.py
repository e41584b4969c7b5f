"""resample against the slow reference: every kind, layout, clock, policy; numpy and torch; gradients.

python -m pytest tests/trajectory/test_resample.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectory.reference import resample_one

from ridgeline import native, resample
from ridgeline.errors import InputError

KINDS = ("linear", "previous", "nearest", "cubic", "slerp", "angle")
TOLERANCE = {"float16": 4e-3, "float32": 3e-6, "float64": 1e-11}
EPOCH_NS = 1_700_000_000_000_000_000


def close(result, expected, tolerance, kind="linear"):
    """Within tolerance of the largest value; angles modulo a turn; NaN in the same places."""
    result = np.asarray(result, np.float64)
    assert np.array_equal(np.isnan(result), np.isnan(expected)), "NaN in other places"
    error = np.abs(result - expected)
    if kind == "angle":
        error = np.abs([math.remainder(x, math.tau) for x in (result - expected).ravel() if x == x])
    scale = max(1.0, float(np.nanmax(np.abs(expected), initial=0)))
    assert np.nanmax(error, initial=0) <= tolerance * scale


@st.composite
def trajectories(draw, kind, clock):
    """One trajectory with duplicate stamps and gaps, and targets inside, on, and outside of its stamps."""
    stamps = draw(st.integers(0, 12))
    width = 4 * draw(st.integers(1, 2)) if kind == "slerp" else draw(st.integers(1, 5))
    steps = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 40]), min_size=stamps, max_size=stamps))
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    units = np.cumsum(np.array(steps, np.int64)) if stamps else np.zeros(0, np.int64)
    values = rng.standard_normal((stamps, width)) * (2 if kind == "angle" else 1)
    last = int(units[-1]) if stamps else 0
    quarters = rng.integers(-8, 4 * last + 9, draw(st.integers(0, 9)))
    if clock == "int64":
        return values, EPOCH_NS + units * 4_000_000, EPOCH_NS + quarters * 1_000_000
    dtype = np.dtype(clock)
    origin = 1.7e9 if clock == "float64" else 0.0
    return values, (origin + units * 0.5).astype(dtype), (origin + quarters * 0.125).astype(dtype)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clock", ["float64", "int64", "float32"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_kind_agrees_with_the_reference(kind, clock, data):
    values, times, at = data.draw(trajectories(kind, clock))
    outside = data.draw(st.sampled_from(["clamp", "nan", "extrapolate"]))
    gap = data.draw(st.sampled_from([None, 3]))
    if gap is not None and clock == "int64":
        gap *= 4_000_000
    dtype = data.draw(st.sampled_from(["float16", "float32", "float64"]))
    given_values = values.astype(dtype)
    expected, mask = resample_one(given_values.astype(np.float64), times, at, kind, outside, gap)
    result, known = resample(given_values, times, at, kind=kind, outside=outside, max_gap=gap, return_mask=True)
    assert result.dtype == np.dtype(dtype)
    assert np.array_equal(known, mask)
    tolerance = TOLERANCE[dtype] * (30 if outside == "extrapolate" else 1) * (20 if kind == "cubic" else 1)
    most = float(np.finfo(dtype).max)  # a cubic leaves float16's range soon after the last stamp: infinite there
    assert (np.abs(expected[np.isinf(result)]) > 0.99 * most).all()
    assert np.isinf(result[np.abs(expected) > 1.01 * most]).all()
    close(np.clip(result.astype(np.float64), -most, most), np.clip(expected, -most, most), tolerance, kind)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_batches_ragged_packed_strided_and_shared_are_the_same_as_one_by_one(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    batch, stamps, width, count = (data.draw(st.integers(low, high)) for low, high in ((1, 5), (1, 9), (1, 6), (0, 7)))
    lengths = rng.integers(0, stamps + 1, batch)
    target_counts = rng.integers(0, count + 1, batch)
    values = rng.standard_normal((batch, stamps, width)).astype(np.float32)
    times = np.cumsum(rng.integers(0, 3, (batch, stamps)), 1).astype(np.float64)
    at = rng.uniform(-1, stamps * 2, (batch, count))
    one_by_one, masks = [], []
    for b in range(batch):
        got, mask = resample_one(values[b, : lengths[b]], times[b, : lengths[b]], at[b])
        got[target_counts[b] :], mask[target_counts[b] :] = np.nan, False
        one_by_one.append(got)
        masks.append(mask)
    expected, mask = np.array(one_by_one).reshape(batch, count, width), np.array(masks).reshape(batch, count)
    how = {"lengths": lengths, "at_lengths": target_counts, "return_mask": True}
    result, known = resample(values, times, at, **how)
    close(result, expected, 3e-6)
    assert np.array_equal(known, mask)
    # strided: channels first in memory, every second stamp, targets reversed in memory
    spread = np.zeros((width, 2 * stamps, batch), np.float32)
    spread[:, ::2] = values.transpose(2, 1, 0)
    strided = spread[:, ::2].transpose(2, 1, 0)
    clock = np.asfortranarray(times)
    close(resample(strided, clock, at[:, ::-1].copy()[:, ::-1], **how)[0], expected, 3e-6)
    # packed
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    packed = np.concatenate([values[b, : lengths[b]] for b in range(batch)]).reshape(-1, width)
    stamps_packed = np.concatenate([times[b, : lengths[b]] for b in range(batch)])
    result, known = resample(packed, stamps_packed, at, offsets=offsets, at_lengths=target_counts, return_mask=True)
    close(result, expected, 3e-6)
    assert np.array_equal(known, mask)
    # shared clocks
    shared = resample(values, times[0], at[0])
    for b in range(batch):
        close(shared[b], resample_one(values[b], times[0], at[0])[0], 3e-6)
    # into a buffer of the caller's, also one with gaps between its rows
    strided_out = np.full((batch, count, 2 * width), -7, np.float32)[:, :, ::2]
    assert resample(values, times, at, out=strided_out, lengths=lengths, at_lengths=target_counts) is strided_out
    close(strided_out, expected, 3e-6)


@pytest.mark.parametrize("isa", native.instruction_sets())
def test_all_instruction_sets_agree(isa, monkeypatch):
    rng = np.random.default_rng(3)
    for width in (1, 3, 8, 33):
        values = rng.standard_normal((3, 50, width)).astype(np.float32)
        times = np.cumsum(rng.uniform(0.01, 0.1, (3, 50)), 1)
        at = np.sort(rng.uniform(0, times.max(), (3, 31)), 1)
        out = np.empty((3, 31, width), np.float32)
        groups = [(0, width, "linear")]
        native.resample(
            values,
            times,
            at,
            out,
            None,
            None,
            None,
            None,
            groups,
            "clamp",
            None,
            None,
            None,
            None,
            "float32",
            False,
            2,
            False,
            isa,
        )
        for b in range(3):
            close(out[b], resample_one(values[b], times[b], at[b])[0], 3e-6)


def test_an_hour_of_nanoseconds_is_exact_to_float32():
    rng = np.random.default_rng(1)
    n = 900_000
    times = EPOCH_NS + np.arange(n) * 4_000_000 + rng.integers(-900_000, 900_000, n)
    values = np.sin(np.arange(n) * 0.01).astype(np.float32)
    at = np.linspace(times[0], times[-1], 5000).astype(np.int64)
    expected = np.interp((at - times[0]).astype(float), (times - times[0]).astype(float), values.astype(float))
    close(resample(values, times, at), expected, 1e-6)


@pytest.mark.parametrize("type_name", ["float16", "bfloat16"])
def test_half_types_are_rounded_to_nearest_even_and_keep_their_extremes(type_name):
    torch = pytest.importorskip("torch")
    dtype = getattr(torch, type_name)
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    every = bits.view(dtype)
    copied = resample(
        every, torch.arange(len(every), dtype=torch.float64), torch.arange(len(every), dtype=torch.float64)
    )
    nan = torch.isnan(every)
    assert torch.equal(torch.isnan(copied), nan)
    assert torch.equal(copied[~nan].view(torch.int16), every[~nan].view(torch.int16)), "every number survives"
    rng = torch.Generator().manual_seed(0)
    pairs = torch.randn(4000, generator=rng).to(dtype)
    at = torch.arange(3999, dtype=torch.float64) + 0.5
    wide = resample(pairs, torch.arange(4000, dtype=torch.float64), at, dtype=torch.float32)
    narrow = resample(pairs, torch.arange(4000, dtype=torch.float64), at)
    assert torch.equal(narrow.view(torch.int16), wide.to(dtype).view(torch.int16)), "as torch itself rounds"


@pytest.mark.parametrize(
    ("kind", "unit", "low"),
    [("angle_2pi", 1.0, 0.0), ("degrees", np.pi / 180, -180.0), ("degrees_360", np.pi / 180, 0.0)],
)
@pytest.mark.parametrize("outside", ["clamp", "nan", "extrapolate"])
def test_angles_in_degrees_or_positive_are_those_of_the_reference(kind, unit, low, outside):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    turn = 2 * np.pi / unit
    values, times = rng.uniform(low, low + turn, (2, 9, 3)), np.sort(rng.uniform(0, 1, (2, 9)))
    values[0, 4, 1] = np.nan
    at = np.sort(rng.uniform(-0.1, 1.1, (2, 20)))
    result, mask = resample(values, times, at, kind=kind, outside=outside, return_mask=True)
    for b in range(2):
        expected, known = resample_one(values[b] * unit, times[b], at[b], "angle", outside)
        close(result[b] * unit, expected, 1e-11, "angle")
        assert np.array_equal(mask[b], known)
    finite = result[np.isfinite(result)]
    assert finite.min() >= low
    assert finite.max() <= low + turn
    tensors = [torch.from_numpy(a) for a in (values, times, at)]
    np.testing.assert_array_equal(resample(*tensors, kind=kind, outside=outside).numpy(), result)
    only = resample(values, times, at, kind=[(slice(1, 2), kind)], outside=outside)
    np.testing.assert_array_equal(only[..., 1], result[..., 1])
    np.testing.assert_array_equal(only[..., [0, 2]], resample(values, times, at, outside=outside)[..., [0, 2]])
    single = resample(values[0, :, 0], times[0], at[0], kind=kind, outside=outside)
    np.testing.assert_array_equal(single, result[0, :, 0])
    into = np.empty(result.shape, np.float32)
    scale = {"mean": 10.0, "std": 2.0}
    assert resample(values, times, at, kind=kind, outside=outside, out=into, normalize=scale) is into
    np.testing.assert_allclose(into, (result - 10) / 2, rtol=1e-6, atol=1e-5)
    with pytest.raises(InputError, match="cannot hold NaN"):
        resample(values, times, at, kind=kind, dtype=np.int32)


def test_gradients_go_through_angles_in_degrees():
    torch = pytest.importorskip("torch")
    values = torch.tensor([[350.0], [20.0]], dtype=torch.float64, requires_grad=True)
    result = resample(values, torch.tensor([0.0, 1.0]).double(), torch.tensor([0.75]).double(), kind="degrees_360")
    result.sum().backward()
    assert result.item() == pytest.approx(12.5)
    assert values.grad.ravel().tolist() == pytest.approx([0.25, 0.75])


def test_kinds_per_channel_and_the_rest_is_linear():
    times, at = np.array([0.0, 1.0]), np.array([0.25])
    values = np.array([[0, 0, 0, 0, 1, 3.1, 5.0], [1, 0, 0, 1, 0, -3.1, 9.0]])
    result = resample(
        values, times, at, kind=[(slice(1, 5), "slerp"), (slice(5, 6), "angle"), (slice(0, 1), "nearest")]
    )
    assert result[0, 0] == 0
    assert np.allclose(result[0, 1:5], [0, 0, math.sin(math.pi / 8), math.cos(math.pi / 8)])
    assert abs(result[0, 5]) == pytest.approx(3.1 + 0.25 * (math.tau - 6.2))
    assert result[0, 6] == 6.0


def test_a_nan_value_affects_only_its_intervals():
    values, times = np.array([1.0, np.nan, 3.0, 4.0]), np.arange(4.0)
    result = resample(values, times, np.array([0.0, 0.5, 1.0, 1.5, 2.0, 2.5]))
    assert np.array_equal(np.isnan(result), [False, True, True, True, False, False])


@pytest.mark.parametrize("how", [{"mean": [1.0, 2.0], "std": [2.0, 0.0]}, {"q01": [0.0, 2.0], "q99": [4.0, 2.0]}])
def test_normalising_happens_in_the_same_pass(how):
    values, times = np.array([[1.0, 2.0], [3.0, 2.0]]), np.array([0.0, 1.0])
    result = resample(values, times, np.array([0.5]), normalize=how)
    first = (2.0 - 1.0) / 2.0 if "mean" in how else 2 * 2.0 / 4.0 - 1
    assert result.tolist() == [[first, 0.0]], "a channel without spread comes out 0"


def test_unsorted_stamps_are_named_or_sorted():
    values, times = np.arange(6.0).reshape(2, 3, 1), np.array([[0.0, 1, 2], [0, 2, 1]])
    with pytest.raises(InputError, match=r"trajectory 1 .*index 2 is 1.0 after 2.0"):
        resample(values, times, np.array([0.5]))
    assert resample(values, times, np.array([1.0]), sort=True)[:, 0, 0].tolist() == [1.0, 5.0]
    with pytest.raises(InputError, match="index 0 is nan"):
        resample(np.ones(2), np.array([np.nan, 1.0]), np.array([0.5]))


def test_outside_can_be_an_error_that_names_the_target():
    with pytest.raises(InputError, match=r"target 1 of trajectory 0 is 9.0"):
        resample(np.arange(3.0), np.arange(3.0), np.array([1.0, 9.0]), outside="raise")
    assert resample(np.arange(3.0), np.arange(3.0), np.array([1.5]), outside="raise").tolist() == [1.5]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"kind": "cubik"}, "did you mean 'cubic'"),
        ({"outside": "wrap"}, "no policy for targets outside 'wrap'"),
        ({"kind": "slerp"}, "channels 0 to 2 are 2"),
        ({"kind": [(slice(0, 2), "linear"), (slice(1, 2), "angle")]}, "channel 1 has two kinds"),
        ({"kind": [(slice(0, 9), "linear")]}, "names no run of the 2 channels"),
        ({"times": np.arange(3.0)}, "4 stamps, times .* has 3"),
        ({"at": np.zeros((2, 3))}, "beside one trajectory"),
        ({"lengths": [9]}, r"lengths\[0\] is 9; it must lie between 0 and 4"),
        ({"lengths": [1, 2]}, "2 entries for 1 trajectories"),
        ({"offsets": [0, 9]}, "offsets must rise from 0 to 4"),
        ({"max_gap": -1.0}, "max_gap is -1.0"),
        ({"normalize": {"mean": 0}}, "wants mean and std"),
        ({"normalize": {"mean": [0] * 3, "std": [1] * 3}}, "3 numbers for 2 channels"),
        ({"normalize": (0, 1)}, "it is a tuple"),
        ({"normalize": {"mean": None, "std": 1}}, r"normalize\['mean'\] is None; give a number"),
        ({"kind": 3}, "kind is 3; give one of"),
        ({"max_gap": "1 s"}, "max_gap is 1 s"),
        ({"max_gap": [1, 2]}, r"max_gap is \[1, 2\]"),
        ({"lengths": [2.5]}, r"lengths\[0\] is 2.5; give whole numbers"),
        ({"at_lengths": "one"}, "at_lengths are .*; give whole numbers"),
        ({"offsets": [0, np.nan]}, r"offsets\[1\] is nan"),
        ({"dtype": np.int32}, "cannot hold NaN"),
        ({"dtype": "float31"}, "no dtype 'float31'"),
        ({"out": [0, 0]}, "out is a list; give a numpy.ndarray"),
        ({"values": np.array(["a"] * 4)}, "values are <U1"),
        ({"values": np.ma.masked_equal(np.arange(8.0).reshape(4, 2), 3)}, "1 masked entries; fill them with NaN"),
        ({"times": np.arange(4).astype("M8[ms]")}, r"by .astype\('datetime64\[ms\]'\)"),
        ({"times": np.arange(4, dtype="u8") + 2**63}, "beyond int64"),
        ({"out": np.empty((9, 9))}, r"out has shape \[9, 9\]"),
        ({"times": EPOCH_NS + np.arange(4), "at": np.array([0.5])}, "give both as int64"),
    ],
)
def test_bad_input_is_one_sentence(change, says):
    call = {"values": np.zeros((4, 2)), "times": np.arange(4.0), "at": np.array([0.5]), **change}
    with pytest.raises(InputError, match=says):
        resample(call.pop("values"), call.pop("times"), call.pop("at"), **call)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"out": np.zeros((1, 2))}, "out is a ndarray; give a torch.Tensor"),
        ({"dtype": "float32"}, "no torch dtype"),
        ({"dtype": "int32"}, "cannot hold NaN"),
        ({"lengths": [1.5]}, r"lengths\[0\] is 1.5"),
        ({"times": "now"}, "times is a str that torch cannot read"),
        ({"max_gap": -2}, "max_gap is -2"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bad_input_beside_tensors_is_one_sentence(device, change, says):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    if change.get("dtype") == "int32":
        change = {"dtype": torch.int32}
    if "lengths" in change:
        change = {"lengths": torch.tensor(change["lengths"], device=device)}
        says = "give whole numbers"
    call = {"times": torch.arange(4.0, device=device), "at": torch.tensor([0.5], device=device), **change}
    with pytest.raises(InputError, match=says):
        resample(torch.zeros((4, 2), device=device), call.pop("times"), call.pop("at"), **call)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_statistics_may_be_tensors(device):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    values, times, at = torch.arange(8.0, device=device).reshape(4, 2), torch.arange(4.0), torch.tensor([0.5, 2.25])
    mean, std = torch.tensor([1.0, 2.0], dtype=torch.bfloat16, device=device), torch.ones(2, requires_grad=True)
    times, at = times.to(device), at.to(device)
    result = resample(values, times, at, normalize={"mean": mean, "std": std})
    assert torch.equal(result, resample(values, times, at) - mean.float())


def test_other_byte_orders_integral_floats_and_infinite_gaps_work():
    values, times, at = np.arange(8.0).reshape(4, 2), np.arange(4.0), np.array([0.5, 2.25])
    want = resample(values, times, at)
    assert np.array_equal(resample(values.astype(">f4"), times.astype(">f8"), at.astype(">f8")), want)
    assert np.array_equal(resample(values, times, at, lengths=[4.0], max_gap=np.inf), want)
    integer_times = resample(values, times.astype("i8"), np.array([1, 2]), max_gap=np.inf)
    assert np.array_equal(integer_times, values[1:3])
    assert np.array_equal(resample(np.ma.array(values), times, at), want)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 3, 0), (2, 1, 2)])
@pytest.mark.parametrize("count", [0, 2])
def test_empty_and_single_are_defined(shape, count):
    batch, stamps, width = shape
    result, mask = resample(
        np.ones(shape), np.arange(float(stamps)), np.linspace(0, 1, count), return_mask=True, outside="nan"
    )
    assert result.shape == (batch, count, width)
    assert mask.all() == (not mask.size or (stamps > 1 or count == 0))
    assert np.array_equal(~np.isnan(result).any(-1), mask | (width == 0))


class TestTorch:
    torch = pytest.importorskip("torch")

    @pytest.mark.parametrize("kind", KINDS)
    def test_tensors_give_tensors_with_the_same_result(self, kind):
        torch = self.torch
        rng = np.random.default_rng(0)
        values = rng.standard_normal((3, 20, 8)).astype(np.float32)
        times, at = np.sort(rng.uniform(0, 9, (3, 20)), 1), rng.uniform(-1, 10, (3, 15))
        expected, mask = resample(values, times, at, kind=kind, max_gap=0.7, outside="nan", return_mask=True)
        given = map(torch.tensor, (values, times, at))
        result, known = resample(*given, kind=kind, max_gap=0.7, outside="nan", return_mask=True)
        assert isinstance(result, torch.Tensor)
        assert np.array_equal(result.numpy(), expected, equal_nan=True)
        assert np.array_equal(known.numpy(), mask)

    def test_expanded_and_transposed_tensors_and_out(self):
        torch = self.torch
        base = torch.randn(5, 8)
        values = base.t().expand(3, 8, 5)
        times, at = torch.arange(8.0).double(), torch.linspace(0, 7, 4).double()
        out = torch.empty(3, 4, 5)
        assert resample(values, times, at, out=out) is out
        assert torch.allclose(out, resample(values.contiguous(), times, at))
        wide = torch.empty(3, 4, 5, dtype=torch.float64)
        assert resample(values, times, at, out=wide) is wide
        assert torch.allclose(wide.float(), out)

    def test_views_with_the_negative_bit(self):
        torch = self.torch
        numbers = torch.randn(2, 5, 4, dtype=torch.complex64)
        stamps = torch.arange(5.0).double().repeat(2, 1)
        turned = [numbers.conj().imag, torch.complex(stamps, -stamps).conj().imag, torch.ones(2, 3).double()]
        assert [tensor.is_neg() for tensor in turned] == [True, True, False]
        assert torch.equal(resample(*turned), resample(-numbers.imag, stamps, turned[2]))
        with pytest.raises(InputError, match="out is a view of conjugated complex numbers"):
            resample(*turned, out=torch.empty(2, 3, 4, dtype=torch.complex64).conj().imag)

    def test_clocks_must_be_of_one_type(self):
        torch = self.torch
        with pytest.raises(InputError, match=r"times are torch.int64 and at torch.float32"):
            resample(torch.zeros(2), torch.tensor([0, 1]), torch.tensor([0.5]))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("layout", ["batch", "ragged", "packed"])
    def test_gradients_are_right(self, kind, layout):
        torch = self.torch
        rng = torch.Generator().manual_seed(1)
        values = torch.randn(2, 7, 4, generator=rng, dtype=torch.float64)
        times = torch.tensor([[0.0, 1, 1, 2, 4, 5, 7], [0, 2, 3, 3.5, 3.5, 6, 8]], dtype=torch.float64)
        at = torch.tensor([[0.3, 1.0, 1.7, 4.5], [0.1, 2.9, 3.7, 5.0]], dtype=torch.float64)
        how = {"kind": kind, "normalize": {"mean": 0.5, "std": 2.0}}
        if layout == "ragged":
            how["lengths"] = [6, 7]
        if layout == "packed":
            values, times, how["offsets"] = values.reshape(14, 4), times.reshape(14), [0, 7, 14]
        values.requires_grad_()
        assert torch.autograd.gradcheck(lambda v: resample(v, times, at, **how), (values,), atol=1e-6)

    def test_masked_targets_send_no_gradient(self):
        torch = self.torch
        values = torch.tensor([0.0, 1.0, 9.0], requires_grad=True)
        result = resample(values, torch.tensor([0.0, 1, 9]), torch.tensor([0.5, 5.0]), max_gap=2.0)
        result.nansum().backward()
        assert values.grad.tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("clock", ["f8", "f4", "i8"])
@pytest.mark.parametrize("cut", [False, True])
def test_the_gpu_sorts_as_the_cpu_does(clock, cut):
    torch = pytest.importorskip("torch")
    from ridgeline.trajectory import on_numpy, on_torch
    from ridgeline.trajectory.shape import unify_shapes

    rng = np.random.default_rng(5)
    sizes = np.array([4, 0, 7, 1, 9])
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    values, times = rng.standard_normal((21, 3)).astype("f4"), rng.integers(0, 6, 21).astype(clock)  # with equal stamps
    lengths = np.maximum(0, sizes - 2) if cut else None
    at = np.linspace(0, 5, 8).astype(clock)
    packed = unify_shapes(values, times, at, offsets, lambda a, n: np.broadcast_to(a, (n, *a.shape[1:])))
    _, want, want_clock = on_numpy._sort(packed, values, times, lengths, offsets, at)
    given = (torch.tensor(x) for x in (values, times, at, offsets))
    batch = unify_shapes(*given, lambda a, n: a.expand(n, *a.shape[1:]))
    got = on_torch._sort(batch, torch.tensor(lengths) if cut else None, torch.tensor(offsets))
    np.testing.assert_array_equal(got.times.numpy(), want_clock)
    np.testing.assert_array_equal(got.values.numpy(), want)

    rows, row_times = values.reshape(3, 7, 3), times.reshape(3, 7)
    lengths_or_none = np.array([7, 3, 0]) if cut else None
    padded = unify_shapes(rows, row_times, at, None, lambda a, n: np.broadcast_to(a, (n, *a.shape[1:])))
    _, want, want_clock = on_numpy._sort(padded, rows, row_times, lengths_or_none, None, at)
    batch = unify_shapes(
        *(torch.tensor(x) for x in (rows, row_times, at)), None, lambda a, n: a.expand(n, *a.shape[1:])
    )
    got = on_torch._sort(batch, torch.tensor(lengths_or_none) if cut else None, None)
    np.testing.assert_array_equal(got.times.numpy(), want_clock)
    np.testing.assert_array_equal(got.values.numpy(), want)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_nanosecond_before_a_stamp_is_before_it(dtype):
    """In float32 the weight of such a target is 1, or a half: rounding must not choose the sample."""
    torch = pytest.importorskip("torch")
    times, values = np.array([0, 100_000_001]), np.array([5, 0], dtype)
    at = np.array([50_000_000, 50_000_001, 100_000_000, 100_000_001])
    for three in ((values, times, at), tuple(torch.from_numpy(a) for a in (values, times, at))):
        assert list(resample(*three, kind="previous")) == [5, 5, 5, 0]
        assert list(resample(*three, kind="nearest")) == [5, 0, 0, 0]
    if dtype != "float16":
        tracked = torch.from_numpy(values).requires_grad_()
        result = resample(tracked, torch.from_numpy(times), torch.from_numpy(at), kind="previous")
        result.sum().backward()
        assert tracked.grad.tolist() == [3, 1]


@pytest.mark.parametrize("clock", ["float64", "float32"])
def test_a_gap_as_long_as_max_gap_is_not_longer(clock: str):
    torch = pytest.importorskip("torch")
    times, at = (np.arange(100) / 10).astype(clock), (np.arange(199) / 20).astype(clock)
    for arrays in ((np.arange(100.0), times, at), tuple(map(torch.from_numpy, (np.arange(100.0), times, at)))):
        assert resample(*arrays, max_gap=0.1, return_mask=True)[1].all()
        assert not resample(*arrays, max_gap=0.0999, return_mask=True)[1].all()
