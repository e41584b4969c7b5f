"""Splits and evaluation: held-out likes are never in the training data.

python -m pytest tests/recommend/test_splits.py
"""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.recommend import EvaluationSettings, demo, evaluate, evaluation, join_given, read, read_ratings
from ridgeline.recommend.evaluation import MIN_LIKES, SPLITS, mask_scores, select_likes, split_dataset
from ridgeline.recommend.models import Ease


def pairs(histories) -> set[tuple[int, int]]:
    return set(zip(histories.users.tolist(), histories.items.tolist(), strict=True))


@pytest.mark.parametrize("kind", SPLITS)
def test_held_out_items_are_not_in_the_history(kind):
    split = split_dataset(demo.draw_dataset(), kind, 4.0)
    assert len(split.test) == len(split.history) > 0
    assert not pairs(split.history) & pairs(split.test)
    assert split.test.lengths.min() >= 1
    assert split.history.lengths.min() >= 1
    assert split.candidates[split.test.items].all()


@pytest.mark.parametrize("kind", ["random", "temporal-user"])
def test_a_fifth_of_every_user_is_held_out(kind):
    likes, _, users = select_likes(demo.draw_dataset(), 4.0)
    split = split_dataset(demo.draw_dataset(), kind, 4.0)
    have = np.bincount(likes.users, minlength=users)
    assert have.min() >= MIN_LIKES
    assert split.test.lengths.tolist() == [max(1, round(0.2 * n)) for n in have.tolist()]
    again, other = split_dataset(demo.draw_dataset(), kind, 4.0), split_dataset(demo.draw_dataset(), kind, 4.0, seed=1)
    assert pairs(again.test) == pairs(split.test)
    assert (pairs(other.test) == pairs(split.test)) == (kind == "temporal-user")


def test_the_latest_are_held_out():
    split = split_dataset(demo.draw_dataset(), "temporal-user", 4.0)
    first = split.test.times[split.test.starts[:-1]]
    assert (first >= split.history.now).all()


def test_temporal_global_trains_only_on_earlier_likes():
    split = split_dataset(demo.draw_dataset(), "temporal-global", 4.0)
    assert split.train.times.max() < split.test.times.min()
    assert (split.history.now <= split.test.times.min()).all()
    assert split.without_themes  # tags may be from the future
    assert (np.bincount(split.train.items, minlength=len(split.items)) > 0)[split.candidates].all()


def test_strong_does_not_train_on_test_users():
    split = split_dataset(demo.draw_dataset(), "strong", 4.0)
    likes, _, users = select_likes(demo.draw_dataset(), 4.0)
    assert len(split.test) == round(0.2 * users)
    learnt = len(split.train.items) + len(split.history.items) + len(split.test.items)
    assert learnt == len(likes)
    assert (split.train.lengths == 0).sum() == len(split.test)


def test_cold_items_are_not_in_the_training_data_and_only_they_are_ranked():
    split = split_dataset(demo.draw_dataset(), "cold-items", 4.0)
    assert not split.candidates[split.train.items].any()
    assert split.candidates.sum() == round(0.2 * len(split.items))
    likes, items, users = select_likes(demo.draw_dataset(), 4.0)
    assert sorted(split.items.tolist()) == items.tolist() != split.items.tolist()
    all_pairs = {(u, int(items[i])) for u, i in zip(likes.users.tolist(), likes.items.tolist(), strict=True)}
    test_pairs = {(u, int(split.items[i])) for u, i in pairs(split.test)}
    assert users == len(split.train)
    assert {film for _, film in test_pairs} <= set(split.items[split.candidates].tolist())
    assert len(test_pairs) == sum(film in set(split.items[split.candidates].tolist()) for _, film in all_pairs)


def test_models_without_knowledge_rank_cold_items_at_random():
    evaluation = evaluate(
        demo.draw_dataset(), random_vectors, EvaluationSettings(split="cold-items", metrics=("mrr",))
    )["models"]
    low, high = evaluation["random"]["mrr"]["ci"]
    assert low - 0.06 < evaluation["popularity"]["mrr"]["mean"] < high + 0.06


def test_masked_items_cannot_be_recommended():
    split = split_dataset(demo.draw_dataset(), "random", 4.0)
    scores = mask_scores(np.zeros((len(split.history), len(split.items)), np.float32), split.history, split.candidates)
    assert np.isneginf(scores).sum() == len(split.history.items)
    assert np.isneginf(scores[split.history.users, split.history.items]).all()


def test_an_impossible_split_is_an_error():
    with pytest.raises(InputError, match="no split 'weekly'"):
        split_dataset(demo.draw_dataset(), "weekly", 4.0)
    with pytest.raises(InputError, match="lower --min-rating"):
        split_dataset(demo.draw_dataset(), "random", 9.0)


def random_vectors(texts):
    drawn = np.random.default_rng(0).normal(size=(len(texts), 16)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPLITS)
def test_an_evaluation_has_every_model_and_its_difference_to_ease(kind):
    names = ("recall@20", "ndcg@10", "mrr", "coverage")
    evaluation = evaluate(demo.draw_dataset(), random_vectors, EvaluationSettings(split=kind, metrics=names))
    uses_order = any(name.startswith("ease ") for name in evaluation["protocol"]["hybrid_weights"])
    assert ("hybrid without order" in evaluation["models"]) == uses_order
    assert set(evaluation["models"]) - {"hybrid without order", "ALS", "BPR"} == {
        "random",
        "popularity",
        "popularity with decay",
        "itemknn",
        "ease",
        "semantic",
        "tfidf",
        "hybrid",
    }
    for name, result in evaluation["models"].items():
        for metric in names:
            low, high = result[metric]["ci"] or (0.0, 1.0)
            assert 0 <= low <= result[metric]["mean"] <= high <= 1, (name, metric)
        assert ("paired_vs_ease" in result) == (name != "ease")
    ease, hybrid = evaluation["models"]["ease"], evaluation["models"]["hybrid"]
    assert hybrid["paired_vs_ease"]["mrr"]["mean"] == pytest.approx(hybrid["mrr"]["mean"] - ease["mrr"]["mean"])
    if kind != "cold-items":  # the made-up users have a taste that can be learnt
        assert ease["recall@20"]["mean"] > 1.3 * evaluation["models"]["random"]["recall@20"]["mean"]


PUBLISHED = {
    "random": {"popularity": (0.137, 0.135), "itemknn": (0.238, 0.214), "ease": (0.268, 0.254)},
    "temporal-user": {"popularity": (0.078, 0.063), "itemknn": (0.125, 0.089), "ease": (0.144, 0.103)},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PUBLISHED)
def test_the_published_figures_are_reproduced(data, kind):
    folder = data / "movielens/ml-latest-small"
    if not folder.is_dir():
        pytest.skip("no ml-latest-small")
    evaluation = evaluate(read(folder), random_vectors, EvaluationSettings(split=kind, penalty=100.0))["models"]
    for name, want in PUBLISHED[kind].items():
        got = evaluation[name]["recall@20"]["mean"], evaluation[name]["ndcg@10"]["mean"]
        # EASE to the last digit; popularity and kNN within 0.004: perhaps the order of ties, which was not looked into.
        assert got == pytest.approx(want, abs=0.0006 if name == "ease" else 0.004), name


def write_ratings(path, data, rows, names=("user", "item", "rating", "time"), delimiter=","):
    r, c = data.ratings, data.catalogue
    lines = [
        delimiter.join(map(str, (data.user_ids[r.users[i]], c.ids[r.items[i]], r.stars[i], r.times[i])))
        for i in rows.tolist()
    ]
    head = [delimiter.join(names)] if names else []
    path.write_text("\n".join([*head, *lines]) + "\n")
    return path


@pytest.mark.parametrize(
    ("name", "names", "delimiter"),
    [
        ("test.csv", ("user", "item", "rating", "time"), ","),
        ("test.tsv", ("user_id", "item_id", "rating", "timestamp"), "\t"),
        ("u1.test", (), "\t"),
    ],
)
def test_ratings_that_the_caller_held_out_are_the_test(name, names, delimiter, tmp_path):
    data = demo.draw_dataset()
    last = np.arange(len(data.ratings)) % 5 == 0
    held_out = write_ratings(tmp_path / name, data, np.flatnonzero(last), names, delimiter)
    learnt = write_ratings(tmp_path / "train.csv", data, np.flatnonzero(~last))
    train, test = (read_ratings(file, data.catalogue) for file in (learnt, held_out))
    split = join_given(train, test, 4.0)

    def list_likes(rows):
        r = data.ratings.select(np.flatnonzero(rows & (data.ratings.stars >= 4)))
        return {(int(data.user_ids[u]), int(i)) for u, i in zip(r.users, r.items, strict=True)}

    train_users = {user for user, _ in list_likes(~last)}
    expected = {(user, item) for user, item in list_likes(last) if user in train_users}
    test_users = {user for user, _ in expected}
    evaluated = [user for user in train.user_ids.tolist() if user in test_users]
    actual = {(evaluated[u], int(split.items[i])) for u, i in pairs(split.test)}
    assert actual == expected
    assert len(split.train.items) == len(list_likes(~last))


def test_held_out_ratings_of_strangers_and_of_the_training_are_said(tmp_path):
    data = demo.draw_dataset()
    like = np.flatnonzero(data.ratings.stars >= 4)
    train = read_ratings(write_ratings(tmp_path / "train.csv", data, like[1:]), data.catalogue)
    held_out = write_ratings(tmp_path / "test.csv", data, like[:2])
    held_out.write_text(held_out.read_text() + f"nobody,{data.catalogue.ids[0]},5,1\n1,999999,5,1\n")
    test = read_ratings(held_out, data.catalogue)
    split = join_given(train, test, 4.0)
    assert len(split.test.items) == 1
    assert test.problems.counts == {"unknown item": 1, "unknown user": 1, "in both files": 1}


def test_a_file_of_ratings_that_cannot_be_read_is_one_sentence(tmp_path):
    catalogue = demo.load_catalogue()
    with pytest.raises(InputError, match="there is no file"):
        read_ratings(tmp_path / "none.csv", catalogue)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match=r"ends in none of \.csv"):
        read_ratings(tmp_path / "x.json", catalogue)
    (tmp_path / "x.csv").write_text("name,film\na,1\n")
    with pytest.raises(InputError, match="has no column 'user'; it has: name, film"):
        read_ratings(tmp_path / "x.csv", catalogue)


def test_the_penalty_is_the_best_one_on_the_validation_split(monkeypatch):
    split = split_dataset(demo.draw_dataset(), "temporal-user", 4.0)
    history, objective = evaluation._make_objective(split)
    quality = {p: objective(Ease(p).fit(split.train).scores(history)) for p in evaluation.PENALTIES}
    chosen = evaluation.choose_penalty(split, "cpu")
    at = evaluation.PENALTIES.index(chosen)
    near = evaluation.PENALTIES[max(0, at - 1) : at + 2]
    assert quality[chosen] == max(quality[p] for p in near)
    assert quality[chosen] >= quality[100.0]
    best = iter([0.3, 0.1, 0.5, 0.4])  # of 200, 100, 500 and 1000, in the order of the walk
    monkeypatch.setattr(evaluation, "_make_objective", lambda _: (history, lambda scores: next(best)))
    assert evaluation.choose_penalty(split, "cpu") == 500
