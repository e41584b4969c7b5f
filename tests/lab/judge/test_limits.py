"""What limits a path, from synthetic records: each kind of evidence, their order, and the advice without any.

python -m pytest tests/lab/judge/test_limits.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.conftest import make_record

from ridgeline.lab.judge import summarise_paths
from ridgeline.lab.judge.limits import DECISIVE


def make_race(ours=1000.0, *, case=None, extras=None, control=None, ceilings=None, **work):
    """Return a record: ours takes 1000 ns, far from every ceiling; a control takes its own time."""
    times = {"ridgeline": [ours] * 12, **({"control": [control] * 12} if control else {})}
    one = make_record(times)
    results = [replace(one.contenders[0], extras=extras or {})]
    if control:
        results.append(replace(one.contenders[1], settings={"does": "copying", "lacks": "the exchange"}))
    parameters = {"n": 8, "device": "cpu", "ranks": 1, **(case or {})}
    placement = ({"node": None, "cpus": [0, 1], "memory": "local", "gpu": None},)
    return replace(
        one,
        case=parameters,
        contenders=tuple(results),
        controls=("control",) if control else (),
        placement=placement,
        ceilings=ceilings or {},
        work={**one.work, "flops": 0, **work},
    )


def find_words(*records):
    (path,) = summarise_paths(records)
    return path.limit


def make_cpu_time(user, system=0.0, queued=0.0):
    parts = {"wall": 1.0, "user": user, "system": system, "queued": queued}
    return {f"steps_{name}_ns": int(part * 1e9) for name, part in parts.items()}


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        (make_cpu_time(0.98), "one core of 2"),
        (make_cpu_time(1.9), "instructions (all 2 cores busy)"),
        (make_cpu_time(0.2, 0.1), "waiting (70 % of a step off the CPU)"),
        (make_cpu_time(0.3, 0.6), "the kernel (67 % of its CPU time)"),
        (make_cpu_time(1.35), None),
        (make_cpu_time(0.5, queued=0.5), None),
    ],
)
def test_cpu_time_of_the_steps_gives_the_limit_without_other_evidence(extras, words):
    assert find_words(make_race(extras=extras)) == words


def test_an_unknown_limit_comes_with_advice_what_to_measure():
    older, crowded, unknown = (
        make_race(),
        make_race(extras=make_cpu_time(0.5, queued=0.5)),
        make_race(extras=make_cpu_time(1.35)),
    )
    paths = [summarise_paths([one])[0] for one in (older, crowded, unknown)]
    assert [path.limit for path in paths] == [None] * 3
    parts = ("record it again", "quiet", "stages_ns")
    assert all(part in path.sentence for path, part in zip(paths, parts, strict=True))
    assert all(path.to_json()["to_measure"] for path in paths)


def test_cpu_time_says_nothing_about_spinning_ranks_or_a_gpu():
    assert find_words(make_race(extras=make_cpu_time(0.98), case={"ranks": 2})) is None
    assert find_words(make_race(extras=make_cpu_time(0.98), case={"device": "cuda"})) is None


def test_a_control_limits_by_what_it_does_or_by_what_it_lacks():
    assert find_words(make_race(control=800.0, extras=make_cpu_time(0.98))) == "copying (80 % of a step)"
    assert find_words(make_race(control=200.0)) == "the exchange (80 % of a step)"
    assert find_words(make_race(control=1500.0)) == "copying (100 % of a step)", (
        "a slower control explains the entire step"
    )
    undescribed = make_race(control=800.0)
    results = (undescribed.contenders[0], replace(undescribed.contenders[1], settings={}))
    assert find_words(replace(undescribed, contenders=results)) is None, "a control without a description is no limit"


def test_a_smaller_case_that_takes_as_long_means_a_fixed_cost():
    small, large = make_race(900.0, case={"n": 1}, items=1), make_race(1000.0, items=100)
    assert find_words(small, large) == "a fixed cost of every step (90 % of it)"
    assert find_words(make_race(500.0, case={"n": 1}, items=50), large) is None, "half of the work in half of the time"
    other = make_race(900.0, case={"n": 1, "kind": "b"}, items=1)
    assert find_words(make_race(1000.0, case={"kind": "a"}, items=100), other) is None, "another kind is no sweep"


@given(st.floats(0.0, 1.0), st.floats(0.01, 0.4))
def test_the_fixed_part_of_a_straight_line_is_the_limit(fixed, part):
    """Time = fixed + the rest × work."""
    small = make_race(1e6 * (fixed + (1 - fixed) * part), case={"n": 1}, items=1000 * part)
    words = find_words(small, make_race(1e6, items=1000))
    assert (words is not None) == (fixed >= DECISIVE) or fixed == pytest.approx(DECISIVE)


def test_launching_one_by_one_is_the_limit_on_a_gpu():
    direct = {"direct": {"rate": 1e9 / 600, "name": "per direct launch", "what": "0.6 µs per direct launch"}}
    cuda = {"device": "cuda"}
    assert (
        find_words(make_race(case=cuda, ceilings=direct, launches=1)) == "launching kernels one by one (60 % of a step)"
    )
    assert find_words(make_race(5000.0, case=cuda, ceilings=direct, launches=1)) is None


def test_two_stages_together_come_after_a_ceiling_and_before_cpu_time():
    stages = {"stages_ns": {"reading": [400.0], "hashing": [300.0], "rest": [100.0]}, **make_cpu_time(0.98)}
    assert find_words(make_race(extras=stages)) == "reading and hashing (70 % of a step)"
    ceiling = {"memory": {"rate": 1e8, "name": "copy", "what": "copy"}}
    assert find_words(make_race(extras=stages, ceilings=ceiling, bytes={"memory": 80})) == "memory bandwidth"
