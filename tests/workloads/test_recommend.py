"""The recommend workload: every contender is right, a wrong answer is seen.

python -m pytest tests/workloads/test_recommend.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.workloads.limits import finding

from ridgeline.errors import InputError
from ridgeline.lab import Case, Profile
from ridgeline.lab.race.loading import load
from ridgeline.machine import Placement
from ridgeline.recommend.ranking import FEW_USERS, ByVectors
from ridgeline.workloads import _recommend_fit as fits
from ridgeline.workloads import _recommend_texts as texts
from ridgeline.workloads import _recommend_users as profiles
from ridgeline.workloads import reference
from ridgeline.workloads._recommend_made import histories, semantic
from ridgeline.workloads.recommend import BASE, NUMPY, TORCH

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
@pytest.mark.parametrize(("task", "users"), [("semantic", 50), ("ease", 50), ("one", 1), ("users", 50)])
def test_every_contender_is_right(contender, task, users):
    case = case_of(task, users)
    if task == "users":
        contender = {NUMPY: profiles.NUMPY, TORCH: profiles.TORCH}.get(contender, contender)
    assert contender in workload.contenders(case)
    check = workload.check(case, ran(case, contender))
    assert check.ok, check


@pytest.mark.parametrize(("task", "users"), [("semantic", 500), ("ease", 500), ("one", 1)])
def test_ranking_is_taken_apart_and_names_what_limits_it(task, users):
    case = Case({**BASE, "task": task, "users": users}, "cpu")
    run = workload.prepare(case, "ridgeline", Placement())
    found = finding(workload, case, run, apart=True)
    wanted = {"products with all items", "masking what was seen", "top-k"}
    wanted |= {"sending histories", "answers"} if users > FEW_USERS else set()  # for a few all happens in one place
    assert set(found.stages) == wanted | ({"user profiles"} if task != "ease" else set())
    assert 0.4 < sum(found.stages.values()) < 2.5, "the whole of a step, as the weather has it"
    assert found.limit, found.measure
    run.extras()
    assert workload.check(case, run.result()).ok, "the answer stays that of the last timed step"
    assert "stages_ns" not in workload.prepare(case_of(task), NUMPY, Placement()).extras()


def test_taken_apart_a_step_gives_the_same_answers():
    drawn, heard = histories(50, 300, 12, 0), list[str]()
    ranker = ByVectors(semantic(300, 16).items)
    vectors = ranker.users(drawn)
    for one, other in zip(ranker.best(vectors, drawn, 5), ranker.best(vectors, drawn, 5, heard.append), strict=True):
        assert np.array_equal(one, other)
    assert heard[0] == "sending histories"
    assert heard[-1] == "answers"


@pytest.mark.parametrize("contender", ["ridgeline", NUMPY, TORCH])
def test_items_beyond_those_that_ease_keeps_score_nothing(contender, monkeypatch):
    from ridgeline.workloads import _recommend_made, recommend

    for module in (_recommend_made, recommend):
        monkeypatch.setattr(module, "MOST", 100)
    _recommend_made.weights_of.cache_clear()
    case = case_of("ease")
    assert workload.check(case, ran(case, contender)).ok
    assert workload.work(case).flops == 2 * 50 * 12 * 100 / 300 * 100
    _recommend_made.weights_of.cache_clear()


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


def test_user_vectors_that_are_wrong_are_seen():
    case = case_of("users")
    result = ran(case, "ridgeline")
    result["vectors"][0, 0] += 0.01
    assert not workload.check(case, result).ok


FITTED = [("fit ease", "ridgeline"), ("fit ease", fits.SCIPY), ("fit ease", fits.ALS)]
FITTED += [("fit itemknn", "ridgeline"), ("fit itemknn", fits.KNN)]


def fitted(task: str) -> Case:
    return Case({**BASE, "task": task, "users": 150, "items": 120, "likes": 15}, "cpu")


@pytest.mark.parametrize(("task", "contender"), FITTED)
def test_what_is_learnt_finds_more_than_fame_does(task, contender):
    case = fitted(task)
    if contender not in workload.contenders(case):
        assert workload.missing(case)[contender] == "peers"
        pytest.skip(f"{contender} is not installed")
    check = workload.check(case, ran(case, contender))
    assert check.ok, check
    split = fits.split_for("made", 150, 120, 15)
    famous = np.tile(np.bincount(split.train.items, minlength=120), (len(split.test), 1))
    fame = fits._quality(split, fits._first(famous, split))
    assert check.quality["ndcg@10"] > 1.1 * fame["ndcg@10"]


@pytest.mark.parametrize("bend", ["seen", "twice", "few", "worse"])
def test_a_wrong_list_is_seen(bend):
    case = fitted("fit ease")
    result = ran(case, "ridgeline")
    rows = result["rows"].copy()
    split = fits.split_for("made", 150, 120, 15)
    if bend == "seen":
        rows[0, 3] = split.shown.items[0]
    elif bend == "twice":
        rows[0, 3] = rows[0, 4]
    elif bend == "few":
        rows = rows[:, :5]
    else:
        rows = rows[:, ::-1]
    assert not workload.check(case, {**result, "rows": rows}).ok


def test_a_folder_of_ratings_is_split_like_the_evaluation_splits_it(tmp_path, monkeypatch):
    from tests.recommend import folders

    from ridgeline.recommend import read
    from ridgeline.recommend.splits import split_of

    root = folders.many(tmp_path / "movielens/few")
    monkeypatch.setenv("RIDGELINE_DATA", str(tmp_path))
    found, want = fits.split_for("few", 0, 0, 0), split_of(read(root), "random", 4.0)
    assert (found.test.items == want.test.items).all()
    with pytest.raises(InputError, match="does not exist"):
        fits.split_for("nowhere", 0, 0, 0)


@pytest.mark.parametrize("contender", ["ridgeline", pytest.param(texts.SENTENCE, marks=pytest.mark.peer)])
def test_item_texts_become_vectors_by_every_contender(contender):
    if not texts.possible():
        pytest.skip("no model on this machine")
    case = Case({**BASE, "task": "embed", "items": 12, "batch": 4}, "cpu")
    if contender not in workload.contenders(case):
        assert workload.missing(case) == {contender: "peers"}
        pytest.skip(f"{contender} is not installed")
    run = workload.prepare(case, contender, Placement())
    run.reset()
    run.step()
    result = run.result()
    check = workload.check(case, result)
    assert check.ok, check
    assert check.quality["lowest cosine"] > 0.999
    assert run.extras()["load_ns"] > 0
    assert run.extras()["peak_host_bytes"] > 0
    assert not workload.check(case, {**result, "found": np.roll(result["found"], 1, axis=0)}).ok


def test_a_task_that_is_not_there_is_said():
    with pytest.raises(InputError, match="no task 'train'"):
        workload.work(case_of("train"))
