"""What limits a path, from made-up records: each kind of evidence, its order, and what is said where there is none.

python -m pytest tests/lab/test_limiting.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.conftest import make_record

from ridgeline.lab.judge.findings import standings
from ridgeline.lab.judge.limiting import NEAR


def race(ours=1000.0, *, case=None, extras=None, control=None, ceilings=None, **work):
    """Ours takes 1000 ns at no ceiling that matters; a control takes its own time."""
    told = {"ridgeline": [ours] * 12, **({"control": [control] * 12} if control else {})}
    one = make_record(told)
    lanes = [replace(one.contenders[0], extras=extras or {})]
    if control:
        lanes.append(replace(one.contenders[1], settings={"does": "copying", "lacks": "the exchange"}))
    whole = {"n": 8, "device": "cpu", "ranks": 1, **(case or {})}
    placed = ({"node": None, "cpus": [0, 1], "memory": "local", "gpu": None},)
    return replace(
        one,
        case=whole,
        contenders=tuple(lanes),
        controls=("control",) if control else (),
        placement=placed,
        ceilings=ceilings or {},
        work={**one.work, "flops": 0, **work},
    )


def limit(*records):
    (found,) = standings(records)
    return found.limit


def cpu(user, system=0.0, queued=0.0):
    parts = {"wall": 1.0, "user": user, "system": system, "queued": queued}
    return {f"steps_{name}_ns": int(part * 1e9) for name, part in parts.items()}


@pytest.mark.parametrize(
    ("extras", "words"),
    [
        (cpu(0.98), "one core of 2"),
        (cpu(1.9), "instructions (all 2 cores busy)"),
        (cpu(0.2, 0.1), "waiting (70 % of a step off the CPU)"),
        (cpu(0.3, 0.6), "the kernel (67 % of its CPU time)"),
        (cpu(1.35), None),
        (cpu(0.5, queued=0.5), None),
    ],
)
def test_cpu_time_of_the_steps_tells_where_nothing_else_does(extras, words):
    assert limit(race(extras=extras)) == words


def test_what_is_not_known_says_what_would_tell():
    older, crowded, unknown = race(), race(extras=cpu(0.5, queued=0.5)), race(extras=cpu(1.35))
    told = [standings([one])[0] for one in (older, crowded, unknown)]
    assert [one.limit for one in told] == [None] * 3
    assert all(part in one.sentence for one, part in zip(told, ("record it again", "quiet", "stages_ns"), strict=True))
    assert all(one.to_json()["to_measure"] for one in told)


def test_cpu_time_says_nothing_of_ranks_that_spin_nor_of_a_gpu():
    assert limit(race(extras=cpu(0.98), case={"ranks": 2})) is None
    assert limit(race(extras=cpu(0.98), case={"device": "cuda"})) is None


def test_a_control_tells_by_what_it_does_or_by_what_it_leaves_out():
    assert limit(race(control=800.0, extras=cpu(0.98))) == "copying (80 % of a step)"
    assert limit(race(control=200.0)) == "the exchange (80 % of a step)"
    assert limit(race(control=1500.0)) == "copying (100 % of a step)", "a control that is slower bounds all of it"
    silent = race(control=800.0)
    lanes = (silent.contenders[0], replace(silent.contenders[1], settings={}))
    assert limit(replace(silent, contenders=lanes)) is None, "spin's own twin is no limit"


def test_a_smaller_case_that_takes_as_long_shows_a_fixed_cost():
    small, large = race(900.0, case={"n": 1}, items=1), race(1000.0, items=100)
    assert limit(small, large) == "a fixed cost of every step (90 % of it)"
    assert limit(race(500.0, case={"n": 1}, items=50), large) is None, "half of the work in half of the time"
    other = race(900.0, case={"n": 1, "kind": "b"}, items=1)
    assert limit(race(1000.0, case={"kind": "a"}, items=100), other) is None, "another kind is no sweep"


@given(st.floats(0.0, 1.0), st.floats(0.01, 0.4))
def test_the_fixed_part_of_a_straight_line_is_found(fixed, part):
    """Time = fixed + the rest × work."""
    small = race(1e6 * (fixed + (1 - fixed) * part), case={"n": 1}, items=1000 * part)
    found = limit(small, race(1e6, items=1000))
    assert (found is not None) == (fixed >= NEAR) or fixed == pytest.approx(NEAR)


def test_launching_one_by_one_is_told_on_a_gpu():
    direct = {"direct": {"rate": 1e9 / 600, "name": "per direct launch", "what": "0.6 µs per direct launch"}}
    cuda = {"device": "cuda"}
    assert limit(race(case=cuda, ceilings=direct, launches=1)) == "launching kernels one by one (60 % of a step)"
    assert limit(race(5000.0, case=cuda, ceilings=direct, launches=1)) is None


def test_two_stages_together_are_told_after_a_ceiling_and_before_cpu_time():
    stages = {"stages_ns": {"reading": [400.0], "hashing": [300.0], "rest": [100.0]}, **cpu(0.98)}
    assert limit(race(extras=stages)) == "reading and hashing (70 % of a step)"
    near = {"memory": {"rate": 1e8, "name": "copy", "what": "copy"}}
    assert limit(race(extras=stages, ceilings=near, bytes={"memory": 80})) == "memory bandwidth"
