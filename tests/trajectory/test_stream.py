"""Streams and their common clock: kinds by guess, exact grids, spans, masks, and hostile stamps."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from tests.trajectory.recordings import EPOCH, NS, turning

from ridgeline.errors import InputError
from ridgeline.trajectory.stream import Stream, align, build_grid


def ramp(name: str = "x", start: float = 0.0, end: float = 1.0, count: int = 11, **more) -> Stream:
    times = np.linspace(start, end, count)
    return Stream(name, times, times.copy(), **more)


# --- what a stream is ---


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("speed", np.linspace(0, 9, 5), "linear"),
        ("gear", np.arange(5), "previous"),
        ("armed", np.array([True, False] * 2), "previous"),
        ("yaw", np.array([3.0, -3.0, 0.1]), "angle"),
        ("base/joint_angle", np.array([3.0, -3.0, 0.1]), "angle"),
        ("armHeading", np.array([3.0, -3.0, 0.1]), "angle"),
        ("yaw", np.array([6.1, 0.1]), "angle_2pi"),
        ("heading", np.array([10.0, 350.0]), "degrees_360"),
        ("gps/course", np.array([10.0, 90.0]), "degrees_360"),
        ("yaw", np.array([350.0, 10.0]), "degrees_360"),
        ("yaw_deg", np.array([1.0, 170.0]), "degrees"),
        ("yaw_deg", np.array([-179.0, 179.0]), "degrees"),
        ("yaw", np.array([0.0, 10.0, 20.0, 30.0]), "linear"),  # radians that count turns
        ("heading", np.array([10.0, 370.0]), "linear"),
        ("yawspeed", np.array([0.1, -0.1]), "linear"),
        ("yaw_rate", np.array([0.1, -0.1]), "linear"),
        ("q", turning(6), "slerp"),
        ("arm/orientation", turning(6), "slerp"),
        ("q", turning(6) * 3, "linear"),  # no unit norm: four numbers that happen to be called q
        ("control", turning(6), "linear"),
    ],
)
def test_the_kind_follows_from_name_and_values(name: str, values: np.ndarray, kind: str):
    assert Stream(name, np.arange(len(values)), values).kind == kind


def test_columns_named_x_y_z_w_are_a_quaternion_in_either_order():
    for order in ("wxyz", "xyzw"):
        labels = tuple(f"pose.{c}" for c in order)
        assert Stream("pose", np.arange(6), turning(6), columns=labels).kind == "slerp"


def test_a_given_kind_overrides_the_guess():
    assert Stream("gear", np.arange(3), np.arange(3), kind="linear").kind == "linear"


@pytest.mark.parametrize(("unit", "factor"), [("ns", 1), ("us", 1000), ("ms", 10**6), ("s", 10**9)])
def test_integer_stamps_become_nanoseconds_exactly(unit: str, factor: int):
    stamps = np.array([1_700_000_000, 1_700_000_001])
    stream = Stream("x", stamps, np.zeros(2), unit=unit)
    assert stream.times.dtype == np.int64
    assert stream.times.tolist() == [s * factor for s in stamps.tolist()]


def test_unsigned_stamps_beyond_the_calendar_are_refused():
    with pytest.raises(InputError, match="is no time"):
        Stream("x", np.array([2**63], np.uint64), np.zeros(1))


@pytest.mark.parametrize(
    ("times", "values", "message"),
    [
        ([0.0, float("nan"), 2.0], [1.0, 2.0, 3.0], "stamp 1 is nan"),
        ([0.0, 1.0], [1.0], "2 stamps but values"),
        ([0.0, 1.0], ["a", "b"], "give numbers"),
        ([[0.0], [1.0]], [1.0, 2.0], "give \\[S\\]"),
        ([0.0, 1.0], np.ma.masked_equal([1.0, 2.0], 2.0), "1 masked entries; fill them with NaN"),
    ],
)
def test_an_invalid_stream_is_an_error_with_its_name(times, values, message: str):
    with pytest.raises(InputError, match=message) as raised:
        Stream("imu/gyro", np.array(times), np.asanyarray(values))
    assert "imu/gyro" in str(raised.value)


def test_slerp_of_three_columns_is_refused():
    with pytest.raises(InputError, match="4 of a quaternion"):
        Stream("x", np.arange(3), np.zeros((3, 3)), kind="slerp")


# --- the grid ---


@pytest.mark.parametrize("hz", [50, 30, 29.97, 33.333333, 3, 404, 1000 / 3])
def test_the_grid_in_nanoseconds_never_drifts(hz: float):
    ticks = build_grid(EPOCH, EPOCH + 7200 * NS, Fraction(str(hz)), integer_clock=True)
    assert len(ticks) == int(7200 * Fraction(str(hz))) + 1
    for k in (1, 17, len(ticks) // 2, len(ticks) - 1):
        exact = EPOCH + k * NS / Fraction(str(hz))
        assert abs(int(ticks[k]) - exact) <= Fraction(1, 2)
    assert ticks[-1] <= EPOCH + 7200 * NS


def test_the_grid_in_seconds_keeps_its_last_tick():
    assert build_grid(0.1, 0.7, Fraction(10), integer_clock=False).tolist() == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    )


def test_a_clock_of_too_many_ticks_is_refused():
    for far in (10**6, 10**9):
        odd = Stream("odd", np.array([0, 1, far]) * NS, np.zeros(3))
        with pytest.raises(InputError, match="ticks: the stamps of 'odd'"):
            align([odd], hz=50)


# --- align ---


def test_streams_of_mixed_rates_agree_with_interp():
    r = np.random.default_rng(1)
    streams = []
    for rate in (4.5, 20.9, 83, 250, 404):
        t = EPOCH + (np.cumsum(r.uniform(0.7, 1.3, int(10 * rate))) / rate * NS).astype(np.int64)
        streams.append(Stream(f"s{rate}", t, r.standard_normal((len(t), 2))))
    both = align(streams, hz=50)
    assert both.times[0] == max(s.times[0] for s in streams)
    for s in streams:
        want = np.interp((both.times - EPOCH) / NS, (s.times - EPOCH) / NS, s.values[:, 1])
        np.testing.assert_allclose(both.columns[s.name][:, 1], want, atol=1e-6)
        assert both.masks[s.name].all()


def test_integers_of_any_width_come_back_as_they_were():
    big = np.array([2**63 + 1, 2**63 + 3, 7], np.uint64)
    both = align([Stream("id", np.array([0, 1, 2]) * NS, big), Stream("f", np.array([0, 2]) * NS, np.zeros(2))], hz=2)
    assert both.columns["id"].dtype == np.uint64
    assert both.columns["id"].tolist() == [2**63 + 1, 2**63 + 1, 2**63 + 3, 2**63 + 3, 7]


def test_flipped_quaternions_turn_the_short_way():
    t = np.arange(13) * NS // 10
    both = align([Stream("q", t, turning(13, flips=True))], hz=40)
    plain = align([Stream("q", t, turning(13))], hz=40)
    same = np.abs((both.columns["q"] * plain.columns["q"]).sum(axis=1))
    np.testing.assert_allclose(same, 1, atol=1e-6)


@pytest.mark.parametrize("flips", [[3], [2, 3, 7], range(0, 13, 3)])
def test_sign_flips_of_quaternions_are_undone_along_the_whole_stream(flips):
    t, q = np.arange(13) * NS // 10, turning(13)
    q[list(flips)] *= -1
    q[5] = np.nan
    q[9] = 0
    one = align([Stream("q", t, q, kind="slerp")], hz=40)
    known = one.columns["q"][one.masks["q"]]
    assert len(known) > 20
    assert ((known[1:] * known[:-1]).sum(axis=1) > 0.9).all()


@pytest.mark.parametrize(
    ("name", "before", "after", "middle"),
    [("yaw", 6.1, 0.1, 6.1 + (2 * np.pi - 6.0) / 2), ("heading", 350.0, 20.0, 5.0),
     ("yaw_deg", -170.0, 150.0, 170.0), ("yaw", 3.0, -3.0, np.pi)],
)  # fmt: skip
def test_an_angle_goes_the_short_way_in_its_own_unit_and_range(name, before, after, middle):
    values = np.array([before, before, after, after])
    one = align([Stream(name, np.array([0, 1, 3, 4]) * NS, values)], hz=1).columns[name]
    np.testing.assert_allclose(one[[0, 1, 3, 4]], [before, before, after, after], atol=1e-12)
    assert min(abs(one[2] - middle), abs(one[2] + middle)) < 1e-9


def test_a_twelve_second_gap_is_masked_not_invented():
    t = np.concatenate([np.arange(0, 5, 0.1), np.arange(17, 20, 0.1)])
    one = align([Stream("x", t, t.copy())], hz=10, max_gap=0.5)
    gap = (one.times > 4.95) & (one.times < 16.95)
    assert not one.masks["x"][gap].any()
    assert np.isnan(one.columns["x"][gap]).all()
    assert one.masks["x"][~gap].all()


def test_targets_beyond_the_tolerance_are_masked():
    one = align([ramp(count=3)], at=np.array([0.0, 0.05, 0.2, 0.45, 0.5]), tolerance=0.05)
    assert one.masks["x"].tolist() == [True, True, False, True, True]
    assert np.isnan(one.columns["x"][2])


def test_masked_integers_are_zero_and_keep_their_type():
    one = align([Stream("n", np.array([0, 1, 9]) * NS, np.array([5, 6, 7], np.int16))], hz=1, max_gap=2.0)
    assert one.columns["n"].dtype == np.int16
    assert one.columns["n"].tolist() == [5, 6, 0, 0, 0, 0, 0, 0, 0, 7]
    assert one.masks["n"].tolist() == [True, True] + [False] * 7 + [True]


def test_a_nan_of_the_recording_is_masked_in_its_column():
    values = np.stack([np.arange(5.0), np.full(5, np.nan)], axis=1)
    values[3:, 1] = 7.0
    one = align([Stream("x", np.arange(5) * NS, values)], hz=1)
    assert one.masks["x"].tolist() == [False, False, False, True, True]
    assert one.valid("x").tolist() == [[True, False]] * 3 + [[True, True]] * 2
    assert [mask.sum() for _, _, mask in one.flat()] == [5, 2]
    assert one.warnings == ()


def test_a_stream_of_only_nan_is_named_as_such():
    both = align([Stream("x", np.arange(5) * NS, np.full(5, np.nan)), Stream("y", np.arange(5) * NS, np.ones(5))], hz=1)
    assert both.warnings == ("the recording has only NaN or infinity in x.",)
    assert not both.masks["x"].any()


def test_a_shift_moves_a_stream_and_all_below_its_name():
    both = align([ramp("imu/a"), ramp("imu/b"), ramp("cam")], hz=10, shifts={"imu": 0.25})
    assert both.times[0] == pytest.approx(0.25)
    np.testing.assert_allclose(both.columns["imu/a"], both.columns["cam"] - 0.25, atol=1e-9)


def test_an_unknown_shift_names_the_streams_there_are():
    with pytest.raises(InputError, match="did you mean 'cam'"):
        align([ramp("cam")], hz=10, shifts={"cma": 1.0})


def test_seconds_and_nanoseconds_meet_on_nanoseconds():
    nanoseconds = Stream("ns", np.array([0, 1, 2]) * NS, np.array([0.0, 1.0, 2.0]))
    both = align([nanoseconds, ramp("s", 0, 2)], hz=4)
    assert both.times.dtype == np.int64
    np.testing.assert_allclose(both.columns["ns"], both.columns["s"], atol=1e-6)


def test_the_union_masks_what_lies_outside_a_stream():
    both = align([ramp("a", 0, 1), ramp("b", 0.5, 2)], hz=2, span="union")
    assert both.masks["a"].tolist() == [True, True, True, False, False]
    assert both.masks["b"].tolist() == [False, True, True, True, True]


def test_streams_that_do_not_overlap_are_named_with_their_spans():
    with pytest.raises(InputError) as raised:
        align([ramp("imu", 0, 1), ramp("camera", 5, 6)], hz=10)
    message = str(raised.value)
    assert "'imu' (0.000 to 1.000 s)" in message
    assert "'camera' (5.000 to 6.000 s)" in message


def test_auto_is_bounded_by_streams_that_run_through_and_not_by_sparse_or_late_ones():
    streams = [
        ramp("imu", 0, 10, 1000),
        ramp("pose", 0.5, 9.5, 100),
        ramp("battery", 4, 6, 3),
        ramp("late", 9, 9.4, 80),
    ]
    both = align(streams, hz=10, span="auto")
    assert (both.times[0], both.times[-1]) == pytest.approx((0.5, 9.5))
    assert both.masks["battery"].sum() == 21
    assert both.masks["late"].sum() == pytest.approx(4, abs=1)
    with pytest.raises(InputError, match="do not overlap"):
        align(streams, hz=10, span="intersection")


def test_duplicate_stamps_the_last_wins():
    one = align([Stream("x", np.array([0.0, 1.0, 1.0, 2.0]), np.array([0.0, 1.0, 5.0, 6.0]))], at=np.array([1.0, 1.5]))
    assert one.columns["x"].tolist() == [5.0, 5.5]


def test_a_topic_with_one_stamp_is_left_out_with_a_warning():
    stuck = Stream("stuck", np.full(20, 3.0), np.zeros(20))
    empty = Stream("empty", np.zeros(0), np.zeros(0))
    both = align([ramp("x"), stuck, empty], hz=10)
    assert list(both.columns) == ["x"]
    assert both.warnings == ("left out for one stamp only: stuck.", "left out for no samples: empty.")


def test_if_no_stream_is_left_it_is_an_error():
    with pytest.raises(InputError, match="one stamp only: stuck"):
        align([Stream("stuck", np.full(20, 3.0), np.zeros(20))], hz=10)


def test_unsorted_stamps_are_an_error_with_their_index_without_sort():
    back = Stream("x", np.array([0.0, 2.0, 1.0, 3.0]), np.array([0.0, 2.0, 1.0, 3.0]))
    with pytest.raises(InputError, match=r"stamp 2 \(1.000000 s\) is earlier.*--sort"):
        align([back], hz=2)
    np.testing.assert_allclose(align([back], hz=2, sort=True).columns["x"], np.arange(7) / 2)


def test_a_stream_without_known_values_gives_a_warning():
    both = align([ramp("x", count=101), ramp("slow", count=2)], at=np.array([0.3, 0.5]), tolerance=0.01)
    assert any("no value on this clock is known" in w and "slow" in w for w in both.warnings)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "hz= or at="),
        ({"hz": 10, "at": np.zeros(1)}, "hz= or at="),
        ({"hz": 0}, "no rate"),
        ({"hz": float("nan")}, "no rate"),
        ({"hz": 10, "span": "all"}, "no span 'all'"),
        ({"hz": 10, "max_gap": -1}, "max_gap=-1"),
        ({"hz": 10, "tolerance": "much"}, "tolerance=much is no length of time"),
        ({"hz": 10, "shifts": {"x": float("inf")}}, r"shifts\['x'\] is inf; give seconds"),
        ({"hz": 10, "device": "tpu"}, "no device 'tpu'"),
        ({"hz": 10, "device": "cuda:one"}, "no device 'cuda:one'"),
    ],
)
def test_wrong_arguments_are_errors(more: dict, message: str):
    with pytest.raises(InputError, match=message):
        align([ramp()], **more)


@pytest.mark.parametrize("clock", [np.int64, np.float64])
def test_infinity_means_no_limit(clock):
    far = Stream("far", np.array([0, 1, 2, 900_000]).astype(clock), np.arange(4.0), unit="s")
    free, limited = (align([far], hz=1e-3, max_gap=most, tolerance=most) for most in (None, float("inf")))
    assert np.array_equal(free.columns["far"], limited.columns["far"])
    assert limited.masks["far"].all()


def test_two_streams_of_one_name_are_refused():
    with pytest.raises(InputError, match="two streams are called 'x'"):
        align([ramp(), ramp()], hz=1)


def test_four_large_numbers_are_no_rotation():
    assert Stream("a/q", np.arange(5.0), np.full((5, 4), 1e300)).kind == "linear"
    assert Stream("a/q", np.arange(5.0), np.full((5, 4), 0.5)).kind == "slerp"


@pytest.mark.parametrize("start", [0.0, 1.7e9])
@pytest.mark.parametrize("beside", [False, True])
def test_a_gap_of_exactly_max_gap_is_allowed_despite_rounding(start: float, beside: bool):
    t = start + np.arange(100) / 10
    streams = [Stream("x", t, np.arange(100.0))]
    if beside:  # then all of it is on a clock of nanoseconds
        streams.append(Stream("n", np.rint(t * 1e9).astype(np.int64), np.arange(100.0)))
    one = align(streams, hz=20, max_gap=0.1)
    assert one.masks["x"].all()
    assert not align(streams, hz=20, max_gap=0.0999).masks["x"].all()


def test_stamps_beyond_a_clock_of_nanoseconds_are_refused():
    nanoseconds = Stream("n", np.arange(5) * NS, np.arange(5))
    with pytest.raises(InputError, match="stream 'far': a stamp of 1e\\+10 s is no time"):
        align([nanoseconds, Stream("far", 1e10 + np.arange(5.0), np.arange(5))], hz=1)
    with pytest.raises(InputError, match="at: a stamp of 1e\\+10 s is no time"):
        align([nanoseconds], at=np.array([0.0, 1e10]))
    with pytest.raises(InputError, match="stream 'n': a shift of 1e\\+10 s"):
        align([nanoseconds], hz=1, shifts={"n": 1e10})
    assert len(align([nanoseconds], hz=1e-10).times) == 1
