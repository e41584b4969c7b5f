"""The recommend workload: every contender is correct, and a wrong result fails the check.

python -m pytest tests/workloads/test_recommend.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.workloads.limits import find_limit

from ridgeline.errors import InputError
from ridgeline.lab import Case, Profile
from ridgeline.lab.race import load_workload
from ridgeline.machine import Placement
from ridgeline.recommend.ranking import SMALL_BATCH_USERS, VectorRanker
from ridgeline.workloads import _recommend_fit as fits
from ridgeline.workloads import _recommend_serve as serving
from ridgeline.workloads import _recommend_texts as texts
from ridgeline.workloads import get_reference
from ridgeline.workloads.recommend import BASE, NUMPY, TORCH, USERS_NUMPY, USERS_TORCH, draw_histories, draw_semantic

workload = load_workload(get_reference("recommend"))


def make_case(task: str, users: int = 50) -> Case:
    return Case({**BASE, "task": task, "users": users, "items": 300, "likes": 12, "dim": 16}, "cpu")


def ran(case: Case, contender: str):
    run = workload.prepare(case, contender, Placement())
    for _ in range(2):
        run.reset()
        run.step()
    return run.result()


@pytest.mark.parametrize("contender", ["ridgeline", NUMPY, TORCH])
@pytest.mark.parametrize(("task", "users"), [("semantic", 50), ("ease", 50), ("one", 1), ("users", 50)])
def test_every_contender_is_correct(contender, task, users):
    case = make_case(task, users)
    if task == "users":
        contender = {NUMPY: USERS_NUMPY, TORCH: USERS_TORCH}.get(contender, contender)
    assert contender in workload.contenders(case)
    check = workload.check(case, ran(case, contender))
    assert check.ok, check


@pytest.mark.parametrize(("task", "users"), [("semantic", 500), ("ease", 500), ("one", 1)])
def test_ranking_reports_its_stages_and_its_limit(task, users):
    case = Case({**BASE, "task": task, "users": users}, "cpu")
    run = workload.prepare(case, "ridgeline", Placement())
    limit = find_limit(workload, case, run, separate_steps=True)
    expected = {"products with all items", "masking what was seen", "top-k"}
    if users > SMALL_BATCH_USERS:  # a small batch has no copies
        expected |= {"sending histories", "answers"}
    assert set(limit.stages) == expected | ({"user profiles"} if task != "ease" else set())
    assert 0.4 < sum(limit.stages.values()) < 2.5, "the stages add up to a step, within noise"
    assert limit.limit, limit.measure
    run.extras()
    assert workload.check(case, run.result()).ok, "the answer stays that of the last timed step"
    assert "stages_ns" not in workload.prepare(make_case(task), NUMPY, Placement()).extras()


def test_measuring_stages_does_not_change_the_results():
    drawn, stages = draw_histories(50, 300, 12, 0), list[str]()
    ranker = VectorRanker(draw_semantic(300, 16).items)
    vectors = ranker.embed_users(drawn)
    for one, other in zip(
        ranker.top_items(vectors, drawn, 5), ranker.top_items(vectors, drawn, 5, stages.append), strict=True
    ):
        assert np.array_equal(one, other)
    assert stages[0] == "sending histories"
    assert stages[-1] == "answers"


@pytest.mark.parametrize("contender", ["ridgeline", NUMPY, TORCH])
def test_items_beyond_the_limit_of_ease_score_zero(contender, monkeypatch):
    from ridgeline.workloads import recommend

    monkeypatch.setattr(recommend, "MAX_ITEMS", 100)
    recommend.draw_ease_weights.cache_clear()
    case = make_case("ease")
    assert workload.check(case, ran(case, contender)).ok
    assert workload.work(case).flops == 2 * 50 * 12 * 100 / 300 * 100
    recommend.draw_ease_weights.cache_clear()


@pytest.mark.parametrize("bend", ["seen", "worse", "scores", "few"])
def test_a_wrong_result_fails_the_check(bend):
    case = make_case("semantic")
    result = ran(case, "ridgeline")
    rows, scores = result["rows"].copy(), result["scores"].copy()
    if bend == "seen":
        rows[0, 0] = draw_histories(50, 300, 12, result["turn"]).items[0]
    elif bend == "worse":
        rows[0, 0] = np.setdiff1d(np.arange(300), [*rows[0], *draw_histories(50, 300, 12, result["turn"]).items[:12]])[
            0
        ]
    elif bend == "scores":
        scores[0, 0] += 0.01
    else:
        rows = rows[:, :5]
    assert not workload.check(case, {**result, "rows": rows, "scores": scores}).ok


def test_no_user_likes_an_item_twice_and_turns_differ():
    first, second = draw_histories(40, 301, 20, 0), draw_histories(40, 301, 20, 1)
    for row in range(40):
        assert len(set(first.items[first.starts[row] : first.starts[row + 1]].tolist())) == 20
    assert (first.items != second.items).any()


@pytest.mark.parametrize("profile", Profile)
def test_every_case_counts_its_work(profile):
    for case in workload.cases(profile):
        assert workload.work(case).flops > 0


def test_wrong_user_vectors_fail_the_check():
    case = make_case("users")
    result = ran(case, "ridgeline")
    result["vectors"][0, 0] += 0.01
    assert not workload.check(case, result).ok


FITTED = [("fit ease", "ridgeline"), ("fit ease", fits.SCIPY), ("fit ease", fits.TORCH), ("fit ease", fits.ALS)]
FITTED += [("fit itemknn", "ridgeline"), ("fit itemknn", fits.KNN)]


def make_fit_case(task: str) -> Case:
    return Case({**BASE, "task": task, "users": 150, "items": 120, "likes": 15}, "cpu")


@pytest.mark.parametrize(("task", "contender"), FITTED)
def test_fitted_models_are_better_than_popularity(task, contender):
    case = make_fit_case(task)
    if contender not in workload.contenders(case):
        assert workload.missing(case)[contender] == "peers"
        pytest.skip(f"{contender} is not installed")
    check = workload.check(case, ran(case, contender))
    assert check.ok, check
    split = fits.load_split("made", 150, 120, 15)
    famous = np.tile(np.bincount(split.train.items, minlength=120), (len(split.test), 1))
    fame = fits._quality(split, fits._rank(famous, split))
    assert check.quality["ndcg@10"] > 1.1 * fame["ndcg@10"]


@pytest.mark.parametrize("bend", ["seen", "twice", "few", "worse"])
def test_a_wrong_list_fails_the_check(bend):
    case = make_fit_case("fit ease")
    result = ran(case, "ridgeline")
    rows = result["rows"].copy()
    split = fits.load_split("made", 150, 120, 15)
    if bend == "seen":
        rows[0, 3] = split.history.items[0]
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
    from ridgeline.recommend.evaluation import split_dataset

    root = folders.many(tmp_path / "movielens/few")
    monkeypatch.setenv("RIDGELINE_DATA", str(tmp_path))
    actual, expected = fits.load_split("few", 0, 0, 0), split_dataset(read(root), "random", 4.0)
    assert (actual.test.items == expected.test.items).all()
    with pytest.raises(InputError, match="does not exist"):
        fits.load_split("nowhere", 0, 0, 0)


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


def test_an_unknown_task_is_an_error():
    with pytest.raises(InputError, match="no task 'train'"):
        workload.work(make_case("train"))


def make_served_case(updates: int) -> Case:
    settings = {**serving.SETTINGS, "clients": 2, "requests": 3, "updates": updates}
    return Case({**make_case("serve").params, **settings}, "cpu")


def test_lists_in_process_are_right_and_wrong_ones_fail():
    case = make_served_case(0)
    result = ran(case, serving.IN_PROCESS)
    assert workload.check(case, result).ok
    first, *rest = result["lists"]
    wrong = [[(item, score + 1) for item, score in first], *rest]
    assert not workload.check(case, {**result, "lists": wrong}).ok
    assert not workload.check(case, {**result, "lists": rest}).ok
    assert not workload.check(make_served_case(50), {**result, "lists": [first[:2], *rest], "rates": [False] * 6}).ok


@pytest.mark.slow  # starts a server
@pytest.mark.parametrize("updates", [0, 50])
def test_lists_of_a_server_are_right_while_ratings_arrive(updates):
    case = make_served_case(updates)
    run = workload.prepare(case, "ridgeline", Placement())
    try:
        for _ in range(2):
            run.reset()
            run.step()
        assert workload.check(case, run.result()).ok
        extras = run.extras()
        assert len(extras["calls_ns"]) + len(extras["updates_ns"]) == 12
        assert bool(extras["updates_ns"]) == bool(updates)
    finally:
        run.close()
