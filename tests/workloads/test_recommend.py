"""The recommend workload: every contender is right, a wrong answer is seen.

python -m pytest tests/workloads/test_recommend.py
"""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.lab import Case, Profile
from ridgeline.lab.loading import load
from ridgeline.machine import Placement
from ridgeline.workloads import reference
from ridgeline.workloads.recommend import BASE, NUMPY, TORCH, histories

workload = load(reference("recommend"))


def case_of(task: str, users: int = 50) -> Case:
    return Case({**BASE, "task": task, "users": users, "items": 300, "likes": 12, "dim": 16}, "cpu")


def ran(case: Case, contender: str):
    run = workload.prepare(case, contender, Placement())
    for _ in range(2):
        run.reset()
        run.step()
    return run.result()


@pytest.mark.parametrize("contender", ["ridgeline", NUMPY, TORCH])
@pytest.mark.parametrize(("task", "users"), [("semantic", 50), ("ease", 50), ("one", 1)])
def test_every_contender_is_right(contender, task, users):
    case = case_of(task, users)
    assert contender in workload.contenders(case)
    check = workload.check(case, ran(case, contender))
    assert check.ok, check


@pytest.mark.parametrize("bend", ["seen", "worse", "scores", "few"])
def test_a_wrong_answer_is_seen(bend):
    case = case_of("semantic")
    result = ran(case, "ridgeline")
    rows, scores = result["rows"].copy(), result["scores"].copy()
    if bend == "seen":
        rows[0, 0] = histories(50, 300, 12, result["turn"]).items[0]
    elif bend == "worse":
        rows[0, 0] = np.setdiff1d(np.arange(300), [*rows[0], *histories(50, 300, 12, result["turn"]).items[:12]])[0]
    elif bend == "scores":
        scores[0, 0] += 0.01
    else:
        rows = rows[:, :5]
    assert not workload.check(case, {**result, "rows": rows, "scores": scores}).ok


def test_nobody_likes_an_item_twice_and_turns_differ():
    first, second = histories(40, 301, 20, 0), histories(40, 301, 20, 1)
    for row in range(40):
        assert len(set(first.items[first.starts[row] : first.starts[row + 1]].tolist())) == 20
    assert (first.items != second.items).any()


@pytest.mark.parametrize("profile", Profile)
def test_every_case_counts_its_work(profile):
    for case in workload.cases(profile):
        assert workload.work(case).flops > 0
