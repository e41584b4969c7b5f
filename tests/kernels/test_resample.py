"""The GPU's resampler against a slow float64 reference: interpreted everywhere, compiled where there is a GPU.

python -m pytest tests/kernels/test_resample.py
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()
pytest.importorskip("triton")

from tests.kernels import reference_resample as reference  # noqa: E402

from ridgeline.kernels.resample import resample  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
KINDS = ["linear", "previous", "nearest", "angle", "slerp", "cubic"]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
STAMPS = [torch.float64, torch.int64, torch.float32]
OUTSIDE = ["clamp", "nan", "extrapolate"]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes in the interpreter
# Lanes that are masked out divide by zero; NumPy, behind the interpreter, says so.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
gpu = pytest.mark.skipif(not CUDA, reason="no CUDA device here")


@dataclasses.dataclass
class Case:
    """A batch as the caller has it; `lists` is the same batch trajectory by trajectory, for the reference."""

    values: Any
    times: Any
    at: Any
    options: dict[str, Any]
    lists: tuple[list[Any], list[Any]]
    channels: tuple[tuple[int, int, str], ...]


def make(
    batch, stamps, targets, channels, *, seed=0, dtype=torch.float32, clock=torch.float64, layout="padded",
    ragged=False, shared=False, duplicates=0.2, holes=0.0, strided=False, outside="clamp", max_gap=None, scaled=False,
):  # fmt: skip
    """Stamps are quarters, so weights are exact and no kind sits on a knife's edge by rounding."""
    r = np.random.default_rng(seed)
    depth = channels[-1][1] if channels else 0
    lengths = r.integers(0, stamps + 1, batch) if ragged or layout == "packed" else np.full(batch, stamps)
    at_lengths = r.integers(0, targets + 1, batch) if ragged else None
    shared = shared and layout == "padded"
    steps = r.integers(1, 9, (batch, stamps)) * (r.random((batch, stamps)) >= duplicates)
    ticks = np.cumsum(steps, axis=1) + 4 * 1_000_000
    at_ns = r.integers(4 * 1_000_000 - 3, 4 * 1_000_000 + max(4, 5 * stamps), (batch, targets))
    if shared:
        ticks, at_ns = np.repeat(ticks[:1], batch, 0), np.repeat(at_ns[:1], batch, 0)
    unit = 250_000_000 if clock == torch.int64 else 0.25
    clocks = {torch.float64: np.float64, torch.int64: np.int64, torch.float32: np.float32}[clock]
    times, at = (ticks * unit).astype(clocks), (at_ns * unit).astype(clocks)
    values = torch.tensor(r.standard_normal((batch, stamps, depth)) * 2, dtype=dtype)
    values[torch.tensor(r.random(values.shape) < holes)] = math.nan
    plain = values.double().numpy()
    lists = ([plain[b, : lengths[b]] for b in range(batch)], [times[b, : lengths[b]] for b in range(batch)])

    options: dict[str, Any] = {"outside": outside}
    if max_gap is not None:
        options["max_gap"] = max_gap * unit
    if at_lengths is not None:
        options["at_lengths"] = torch.tensor(at_lengths, device=DEVICE)
    if scaled:
        wide = np.float64 if dtype == torch.float64 else np.float32
        options["scale"] = torch.tensor((1 + r.random(depth)).astype(wide), device=DEVICE)
        options["shift"] = torch.tensor(r.standard_normal(depth).astype(wide), device=DEVICE)
    if layout == "packed":
        options["offsets"] = torch.tensor(np.concatenate([[0], np.cumsum(lengths)]), device=DEVICE)
        values = torch.cat([values[b, : lengths[b]] for b in range(batch)] or [values.reshape(0, depth)])
        times = np.concatenate(lists[1]) if batch else np.empty(0, clocks)
    elif ragged:
        options["lengths"] = torch.tensor(lengths, device=DEVICE)
    t, x = torch.tensor(times, device=DEVICE), torch.tensor(at, device=DEVICE)
    if shared:
        t, x = t[:1].expand(batch, -1), x[:1].expand(batch, -1)
    values = values.to(DEVICE)
    if strided:  # channels far apart, and frames backwards in memory order
        values = values.transpose(-1, -2).contiguous().transpose(-1, -2)
        x = torch.stack([x, x], -1)[..., 0]
    return Case(values, t, x, options, lists, tuple(channels))


def compute_both(case, out_dtype=None, strided=False):
    """(out, mask) of the kernel and of the reference."""
    batch, targets = case.at.shape
    depth = case.channels[-1][1] if case.channels else 0
    shape = (batch, depth, targets) if strided else (batch, targets, depth)
    out = torch.full(shape, 77.0, dtype=out_dtype or case.values.dtype, device=DEVICE)
    out = out.transpose(1, 2) if strided else out
    mask = torch.full((batch, targets), True, device=DEVICE)
    resample.run(case.values, case.times, case.at, out, mask, channels=case.channels, **case.options)
    options = {k: v.cpu().numpy() if torch.is_tensor(v) else v for k, v in case.options.items()}
    for name in ("lengths", "offsets"):
        options.pop(name, None)
    values, times = case.lists
    want = reference.resample(values, times, case.at.cpu().numpy(), case.channels, **options)
    return (out.double().cpu().numpy(), mask.cpu().numpy()), want


def check(case, out_dtype=None, strided=False):
    (out, mask), (want, want_mask) = compute_both(case, out_dtype, strided)
    np.testing.assert_array_equal(mask, want_mask)
    # What an extrapolated curve takes beyond float16's largest number is infinite there, with its sign.
    most = torch.finfo(out_dtype or case.values.dtype).max
    want = np.where((np.abs(want) > 0.999 * most) & (out == np.copysign(np.inf, want)), out, want)
    error = out - want
    scale = case.options.get("scale")
    turn = 2 * math.pi * (np.ones(want.shape[-1]) if scale is None else scale.double().cpu().numpy())
    for start, stop, kind in case.channels:
        if kind == "angle":  # π and -π are one angle
            part = error[..., start:stop]
            error[..., start:stop] = part - np.round(part / turn[start:stop]) * turn[start:stop]
    exact = case.values.dtype == torch.float64 and out_dtype is None
    size = np.nanmax(np.abs(want), initial=1.0, where=np.isfinite(want))
    narrow = torch.finfo(out_dtype or case.values.dtype).eps
    allowed = (1e-11 if exact else 1e-5) * size + narrow * np.abs(np.nan_to_num(want, posinf=0, neginf=0))
    if case.options["outside"] == "extrapolate" and not exact:
        for start, stop, kind in case.channels:
            if kind in ("slerp", "angle"):  # bounded, and turned on by a weight that was narrowed to float32
                allowed[..., start:stop] *= reach(case)[..., None]
    np.testing.assert_array_equal(np.isnan(out), np.isnan(want))
    assert np.all(np.isnan(error) | (np.abs(error) <= allowed)), np.nanmax(np.abs(error))


def reach(case):
    """How many spans beyond its end each target lies, at least 1: [batch, targets]."""
    at = case.at.double().cpu().numpy()
    far = np.ones(at.shape)
    for b, stamps in enumerate(case.lists[1]):
        clock = np.unique(np.asarray(stamps, np.float64))
        if len(clock) > 1:
            over, under = (at[b] - clock[-2]) / (clock[-1] - clock[-2]), (clock[1] - at[b]) / (clock[1] - clock[0])
            far[b] = np.maximum(1, np.maximum(over, under))
    return far


@st.composite
def cases(draw):
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    channels, start = [], 0
    for kind in kinds:
        width = 4 * draw(st.integers(1, 2)) if kind == "slerp" else draw(st.integers(1, 5))
        channels.append((start, start + width, kind))
        start += width
    return make(
        draw(st.integers(0, 3)), draw(st.integers(0, 19)), draw(st.integers(0, 6)), channels,
        seed=draw(st.integers(0, 2**32)), dtype=draw(st.sampled_from(FLOATS)), clock=draw(st.sampled_from(STAMPS)),
        layout=draw(st.sampled_from(["padded", "packed"])), ragged=draw(st.booleans()), shared=draw(st.booleans()),
        duplicates=draw(st.sampled_from([0.0, 0.3, 0.8])), holes=draw(st.sampled_from([0.0, 0.2])),
        strided=draw(st.booleans()), outside=draw(st.sampled_from(OUTSIDE)),
        max_gap=draw(st.sampled_from([None, 0, 4, 4.5])), scaled=draw(st.booleans()),
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(cases(), st.booleans())
def test_any_batch_is_resampled_as_the_reference_says(case, strided):
    check(case, strided=strided)


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_follows_the_reference(kind, outside):
    check(make(2, 19, 12, [(0, 8, kind)], outside=outside, duplicates=0.3))


def test_small_turns_in_float64_follow_the_arc():
    case = make(2, 20, 30, [(0, 8, "slerp")], dtype=torch.float64, duplicates=0)
    slow = case.values[:, :1] + 0.01 * case.values
    check(dataclasses.replace(case, values=slow, lists=(list(slow.cpu().numpy()), case.lists[1])))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", ["linear", "slerp", "cubic"])
def test_each_type_is_computed_to_its_precision(kind, dtype):
    check(make(1, 12, 9, [(0, 4, kind)], dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_result_can_be_float32(dtype):
    check(make(1, 9, 5, [(0, 4, "linear")], dtype=dtype), out_dtype=torch.float32)


@pytest.mark.parametrize(("batch", "stamps", "targets"), [(0, 3, 3), (2, 3, 0), (2, 0, 3), (2, 1, 3), (2, 2, 3)])
@pytest.mark.parametrize("kind", ["linear", "cubic"])
def test_empty_and_tiny_shapes_are_defined(batch, stamps, targets, kind):
    for outside in OUTSIDE:
        check(make(batch, stamps, targets, [(0, 4, kind)], outside=outside, duplicates=0))


def test_without_channels_the_mask_is_still_written():
    check(make(2, 5, 6, [(0, 0, "linear")], outside="nan"))


def test_channels_default_to_linear():
    case = make(1, 6, 5, [(0, 3, "linear")])
    out = torch.empty(1, 5, 3, device=DEVICE)
    resample.run(case.values, case.times, case.at, out)
    np.testing.assert_array_equal(out.cpu().numpy(), compute_both(case)[0][0])


def test_wide_frames_take_several_turns():
    check(make(1, 5, 4, [(0, 150, "linear"), (150, 286, "slerp")]))


def run_kernel(values, times, at, **options):
    values, times, at = (torch.tensor(np.asarray(x)[None], device=DEVICE) for x in (values, times, at))
    values = values[..., None] if values.ndim == 2 else values
    out = torch.empty(1, at.shape[1], values.shape[2], dtype=values.dtype, device=DEVICE)
    mask = torch.empty(1, at.shape[1], dtype=torch.bool, device=DEVICE)
    kind = options.pop("kind", "linear")
    resample.run(values, times, at, out, mask, channels=((0, values.shape[2], kind),), **options)
    return out[0].squeeze(-1).cpu().numpy(), mask[0].cpu().numpy()


@pytest.mark.parametrize("kind", ["linear", "cubic", "previous", "nearest"])
def test_a_target_on_a_stamp_gives_its_frame_even_beside_nan(kind):
    y = np.array([1.25, np.nan, 3.5, np.nan], np.float32)
    got, mask = run_kernel(y, np.arange(4.0), np.array([0.0, 2.0, 3.0]), kind=kind)
    np.testing.assert_array_equal(got, y[[0, 2, 3]])
    assert mask.all()


def test_of_equal_stamps_the_last_counts_on_both_sides():
    t = np.array([0, 0, 1, 1, 1, 2], np.int64)
    got, _ = run_kernel(np.array([9.0, 0, 9, 9, 4, 6], np.float32), 2 * t, np.array([0, 1, 2, 3, 4], np.int64))
    np.testing.assert_array_equal(got, [0, 2, 4, 5, 6])


def test_nanoseconds_since_the_epoch_stay_exact():
    start = 1_700_000_000_000_000_000
    t = start + np.array([0, 4_000_001, 8_000_000], np.int64)
    got, _ = run_kernel(np.array([0, 1, 0], np.float64), t, start + np.array([1, 4_000_001, 4_000_002], np.int64))
    np.testing.assert_allclose(got, [1 / 4_000_001, 1, 1 - 1 / 3_999_999], rtol=1e-15)


@pytest.mark.parametrize(("kind", "expected"), [("previous", [5, 5, 5, 0]), ("nearest", [5, 0, 0, 0])])
def test_a_nanosecond_before_a_stamp_is_before_it(kind, expected):
    t, at = np.array([0, 100_000_001]), np.array([50_000_000, 50_000_001, 100_000_000, 100_000_001])
    got, _ = run_kernel(np.array([5, 0], np.float32), t, at, kind=kind)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("clock", [np.float64, np.float32, np.int64])
@pytest.mark.parametrize(("limit", "bridged"), [(1.5, False), (2, True), (2.5, True), (math.inf, True), (1e300, True)])
def test_only_gaps_longer_than_the_limit_are_left_open(clock, limit, bridged):
    _, mask = run_kernel(np.arange(3.0), np.array([0, 2, 3], clock), np.array([0, 1, 2, 9], clock), max_gap=limit)
    assert mask.tolist() == [True, bridged, True, True]


def test_a_nan_target_is_masked():
    got, mask = run_kernel(np.arange(3.0), np.arange(3.0), np.array([np.nan, 1.0, np.inf]))
    assert mask.tolist() == [False, True, True]
    np.testing.assert_array_equal(got, [np.nan, 1, 2])


def test_cubic_equals_scipys_pchip():
    interpolate = pytest.importorskip("scipy.interpolate")
    r = np.random.default_rng(1)
    t, y = np.cumsum(r.uniform(0.01, 0.1, 30)), r.standard_normal((30, 3)).round(1)
    at = np.linspace(t[0], t[-1], 41)
    got, _ = run_kernel(y, t, at, kind="cubic")
    np.testing.assert_allclose(got, interpolate.PchipInterpolator(t, y)(at), atol=1e-12)


def test_a_long_trajectory_is_searched_to_its_end():
    t = np.arange(3000.0)
    got, _ = run_kernel(2 * t, t, np.array([0.5, 1499.25, 2998.75, 374, 375, 374.5]))
    np.testing.assert_array_equal(got, [1, 2998.5, 5997.5, 748, 750, 749])


def test_neighbouring_groups_of_one_kind_are_one_launch():
    assert resample._merge_neighbours(((0, 2, "linear"), (2, 5, "linear"), (5, 6, "angle"))) == [
        (0, 5, "linear"),
        (5, 6, "angle"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("depth", [32, 30])
def test_cubic_frames_that_are_read_in_whole_rows_follow_the_reference(depth, dtype, outside):
    """Some targets of a program at a time: at ends, on stamps, beside NaN, without a frame."""
    for layout, scaled in (("padded", False), ("packed", True)):
        case = make(
            6, 12, 11, [(0, depth, "cubic")], dtype=dtype, clock=torch.float32, outside=outside, layout=layout,
            ragged=True, duplicates=0.2, holes=0.02, max_gap=7, scaled=scaled,
        )  # fmt: skip
        check(case)


@pytest.mark.parametrize("by", [1, 2, 3, 7, 50, 64, 641, 65_535, 1_000_003, 2**30, 2**31 - 1])
def test_rows_are_divided_by_the_number_of_targets_without_a_division(by):
    times, halvings = resample._division(by)
    most = 2**31 - 1
    edges = [k * by + r for k in (0, 1, 2, most // by - 1, most // by) for r in (-1, 0, 1)]
    rows = [n for n in (*edges, *np.random.default_rng(by).integers(0, most, 1000).tolist(), most - 1) if 0 <= n < most]
    assert [(n + 1) * (times % 2**32) >> 32 + halvings for n in rows] == [n // by for n in rows]


@pytest.mark.slow
def test_a_cubic_a_hundred_spans_beyond_its_end_keeps_its_digits():
    """The powers of the weight are millions there, and what they multiply nearly cancels."""
    case = make(
        17, 130, 70, [(0, 32, "cubic")], dtype=torch.float16, clock=torch.float32, outside="extrapolate", ragged=True,
        duplicates=0.1, scaled=True,
    )  # fmt: skip
    check(case)


# ---- where there is a GPU ----


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS)
def test_on_a_gpu_larger_batches_follow_the_reference(kind, dtype):
    for outside, clock in zip(OUTSIDE, STAMPS, strict=True):
        for layout in ("padded", "packed"):
            case = make(
                17, 130, 70, [(0, 32, kind)], dtype=dtype, clock=clock, outside=outside, layout=layout, ragged=True,
                duplicates=0.1, holes=0.01, max_gap=7, scaled=True,
            )  # fmt: skip
            for _ in range(3):  # compiled, tried, launched directly
                check(case)


@gpu
@pytest.mark.gpu
def test_on_a_gpu_unaligned_pointers_get_another_kernel():
    for shift in (0, 1, 3, 4, 0):
        base = torch.randn(4 * 20 * 16 + 8, device="cuda", dtype=torch.bfloat16)
        values = base[shift : shift + 4 * 20 * 16].view(4, 20, 16)
        case = make(4, 20, 9, [(0, 16, "linear")], duplicates=0)
        lists = (list(values.double().cpu().numpy()), case.lists[1])
        for _ in range(2):
            check(dataclasses.replace(case, values=values, lists=lists))


@gpu
@pytest.mark.gpu
def test_on_a_gpu_the_compiled_kernel_is_launched_directly_without_allocating():
    case = make(8, 40, 20, [(0, 12, "linear"), (12, 16, "slerp")])
    out = torch.empty(8, 20, 16, device="cuda")
    for _ in range(2):
        resample.run(case.values, case.times, case.at, out, channels=case.channels)
    assert all(launch.direct is not None for plan in resample._plans.values() for launch in plan)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    resample.run(case.values, case.times, case.at, out, channels=case.channels)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@gpu
@pytest.mark.gpu
def test_on_a_gpu_a_call_can_be_captured_and_replayed():
    case = make(8, 40, 20, [(0, 16, "cubic")])
    out, again = (torch.empty(8, 20, 16, device="cuda") for _ in range(2))
    resample.run(case.values, case.times, case.at, out, channels=case.channels)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        resample.run(case.values, case.times, case.at, again, channels=case.channels)
    case.values.mul_(2)
    resample.run(case.values, case.times, case.at, out, channels=case.channels)
    graph.replay()
    torch.testing.assert_close(out, again, rtol=0, atol=0)


@gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_path_gives_the_same_bits_as_the_general_path(kind):
    import ridgeline

    values = torch.randn(8, 30, 16, device="cuda")
    times = torch.rand(8, 30, device="cuda").cumsum(1)
    at = torch.rand(8, 20, device="cuda") * 15
    short = torch.empty(8, 20, 16, device="cuda")
    assert ridgeline.resample(values, times, at, kind=kind, out=short, check=False) is short
    assert torch.equal(short, ridgeline.resample(values, times, at, kind=kind))
    if kind == "slerp":
        with pytest.raises(ridgeline.errors.InputError, match="four channels each"):
            ridgeline.resample(values[..., :6], times, at, kind=kind, out=short[..., :6], check=False)
