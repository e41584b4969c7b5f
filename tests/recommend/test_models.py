"""Each model against a slow reference; hostile histories give no NaN.

python -m pytest tests/recommend/test_models.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend.data import Ratings, build_histories, build_single_history
from ridgeline.recommend.models import (
    DecayedPopularity,
    Ease,
    FoldIn,
    Hybrid,
    ItemKnn,
    NeighbourEase,
    Popularity,
    RecentPopularity,
    Semantic,
    Tfidf,
    ease,
)
from ridgeline.recommend.models.factors import Als, Bpr
from ridgeline.recommend.models.fold_in import MAX_NEIGHBOURS
from ridgeline.recommend.models.hybrid import WITHOUT_ORDER, standardize
from ridgeline.recommend.weights import recency_weights

USERS, ITEMS = 60, 25


@pytest.fixture(scope="module")
def train():
    rng = np.random.default_rng(3)
    users, items = np.nonzero(rng.random((USERS, ITEMS)) < 0.2)
    stars = rng.choice([0.5, 4.0, 5.0], len(users)).astype(np.float32)
    times = rng.integers(1_000_000_000, 1_100_000_000, len(users))
    return build_histories(Ratings(users, items, stars, times), USERS, ITEMS)


def dense(train) -> np.ndarray:
    matrix = np.zeros((len(train), train.width))
    matrix[train.users, train.items] = 1
    return matrix


def vectors(seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(ITEMS, 8)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("penalty", [0.1, 1.0, 100.0])
def test_ease_is_the_best_linear_model_without_a_diagonal(train, penalty):
    x = dense(train)
    model = Ease(penalty).fit(train)
    want = np.zeros((ITEMS, ITEMS))
    for item in range(ITEMS):  # column by column: ridge regression on all other items
        others = [i for i in range(ITEMS) if i != item]
        a = x[:, others]
        want[others, item] = np.linalg.solve(a.T @ a + penalty * np.eye(ITEMS - 1), a.T @ x[:, item])
    assert np.abs(model.scores(train) - x @ want).max() < 1e-4


@settings(max_examples=40, deadline=None)
@given(
    users=st.integers(1, 12),
    items=st.integers(2, 60),
    penalty=st.sampled_from([0.01, 0.5, 10.0, 1000.0]),
    share=st.sampled_from([0.05, 0.3, 0.9]),
    seed=st.integers(0, 1 << 16),
)
def test_ease_is_the_same_by_users_and_by_items(users, items, penalty, share, seed):
    liked = np.random.default_rng(seed).random((users, items)) < share
    liked[0, 0] = True
    rows, columns = np.nonzero(liked)
    many = len(rows)
    train = build_histories(Ratings(rows, columns, np.full(many, 5.0, np.float32), np.zeros(many, int)), users, items)
    model = Ease(penalty).fit(train)
    x = liked[:, model.item_rows].astype(float)
    inverse = np.linalg.inv(x.T @ x + penalty * np.eye(x.shape[1]))
    expected = -inverse / np.diag(inverse)[None, :]
    np.fill_diagonal(expected, 0)
    np.testing.assert_allclose(model.weights, expected, atol=2e-3 * max(1.0, np.abs(expected).max()))
    for min_items_per_user in (1e-9, 1e9):  # by users for certain, by items for certain
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ease, "MIN_ITEMS_PER_USER", min_items_per_user)
            np.testing.assert_allclose(Ease(penalty).fit(train).weights, model.weights, atol=2e-3)


def test_co_likes_are_counted_exactly_in_blocks(train, monkeypatch):
    monkeypatch.setattr(ease, "BLOCK", 7)
    assert (ease.count_co_likes(train.matrix(), "cpu") == dense(train).T @ dense(train)).all()


@pytest.mark.gpu
def test_ease_on_a_gpu_equals_ease_on_a_cpu(train):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    on_gpu, on_cpu = Ease(10.0, device="cuda").fit(train), Ease(10.0).fit(train)
    assert np.abs(on_gpu.scores(train) - on_cpu.scores(train)).max() < 1e-4


def test_ease_over_the_most_liked_items_scores_the_rest_zero(train):
    counts = np.bincount(train.items, minlength=ITEMS)
    model = Ease(10.0, max_items=7).fit(train)
    assert len(model.item_rows) == 7
    assert counts[model.item_rows].min() >= np.delete(counts, model.item_rows).max()
    assert (np.delete(model.scores(train), model.item_rows, axis=1) == 0).all()


@pytest.mark.parametrize("model", [Als(4, 10.0), Bpr(4, 0.05)], ids=["ALS", "BPR"])
def test_factors_rank_what_similar_users_like_first(model):
    pytest.importorskip("implicit")
    users, items = np.nonzero(np.kron(np.eye(2), np.ones((20, 10))))
    kept = np.random.default_rng(0).random(len(users)) < 0.7
    many = int(kept.sum())
    ratings = Ratings(users[kept], items[kept], np.full(many, 5.0, np.float32), np.zeros(many, int))
    train = build_histories(ratings, 40, 20)
    scores = model.fit(train).scores(train)
    assert scores[:20, :10].mean() > scores[:20, 10:].mean() + 0.5
    assert scores[20:, 10:].mean() > scores[20:, :10].mean() + 0.5


@pytest.mark.parametrize("penalty", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_penalty_is_an_error(penalty):
    with pytest.raises(InputError, match=r"λ is .*; give a finite number above 0, such as 100"):
        Ease(penalty)


def test_itemknn_sums_the_cosines_of_the_nearest(train):
    x = dense(train)
    length = np.maximum(np.linalg.norm(x, axis=0), 1e-9)
    similarities = (x.T @ x) / np.outer(length, length)
    np.fill_diagonal(similarities, 0)
    for row in similarities:
        row[np.argsort(-row.astype(np.float32), kind="stable")[5:]] = 0
    assert np.abs(ItemKnn(5).fit(train).scores(train) - x @ similarities.T).max() < 1e-5


def test_popularity_with_decay_halves_with_age(train):
    users = train.at_moment(1_100_000_000)
    moment = 1_100_000_000 // 2_592_000 * 2_592_000
    want = np.zeros(ITEMS)
    for item, moment_of_like in zip(train.items.tolist(), train.times.tolist(), strict=True):
        if moment_of_like < moment:
            want[item] += 0.5 ** ((moment - moment_of_like) / (180 * 86_400))
    np.testing.assert_allclose(DecayedPopularity().fit(train).scores(users)[0], want, rtol=1e-5)


def test_popularity_counts_likes(train):
    assert (Popularity().fit(train).scores(train)[3] == dense(train).sum(0)).all()


def texts() -> list[str]:
    return [f"film {n % 3} about {'ships' if n % 2 else 'trains'} number{n}" for n in range(ITEMS)]


def all_models(train):
    parts = (Ease(1.0), Semantic(vectors()), Popularity(), ItemKnn(3), RecentPopularity(np.full(ITEMS, 2000)))
    weights = dict.fromkeys(("ease", "ease lately", "unreleased", "era", "semantic", "itemknn", "popularity"), 0.5)
    return [*(p.fit(train) for p in parts), Tfidf(texts()), Hybrid(*parts, weights)]


@pytest.mark.parametrize("stars", [[5.0], [1.0, 1.0, 1.0], [0.0, 0.0], [0.5, 5.0], []])
def test_no_history_gives_nan(train, stars):
    user = build_single_history(np.arange(len(stars)), np.array(stars), ITEMS, 1_050_000_000)
    for model in all_models(train):
        empty_scores = model.scores(user)
        assert empty_scores.shape == (1, ITEMS), model.name
        assert np.isfinite(empty_scores).all(), model.name
        assert np.isfinite(model.similar(2)).all(), model.name


@settings(max_examples=60, deadline=None)
@given(
    stars=st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, 4.0, 4.5, 5.0, 10.0]), max_size=6), min_size=1),
    cuts=st.sets(st.integers(1, 8)),
    seed=st.integers(0, 1 << 16),
)
def test_a_user_is_scored_the_same_alone_with_all_and_in_any_part(train, stars, cuts, seed):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(len(stars)), [len(user_stars) for user_stars in stars])
    items = np.concatenate([rng.permutation(ITEMS)[: len(user_stars)] for user_stars in stars])
    given = np.array([s for user_stars in stars for s in user_stars], np.float32)
    times = rng.integers(1_000_000_000, 1_100_000_000, len(users))
    all_users = build_histories(Ratings(users, items.astype(np.int64), given, times), len(stars), ITEMS)
    parts = np.split(np.arange(len(stars)), sorted(c for c in cuts if c < len(stars)))
    for model in all_models(train):
        together = model.scores(all_users)
        for split in (parts, np.arange(len(stars))[:, None]):
            in_parts = np.concatenate([model.scores(all_users.select(part)) for part in split])
            np.testing.assert_allclose(in_parts, together, atol=2e-5, err_msg=model.name)


@settings(max_examples=30, deadline=None)
@given(likes=st.integers(0, 12), new=st.integers(0, 3), seed=st.integers(0, 1 << 16))
@pytest.mark.parametrize("kind", [Ease, NeighbourEase])
def test_a_few_users_are_scored_as_many_are(train, kind, likes, new, seed):
    """Few users take another path than many; some like items that arrived after the fit."""
    rng, width = np.random.default_rng(seed), ITEMS + new
    fold = FoldIn(
        rng.permutation(np.arange(ITEMS, width)),
        rng.integers(0, ITEMS, (new, MAX_NEIGHBOURS)),
        rng.random((new, MAX_NEIGHBOURS), np.float32) / MAX_NEIGHBOURS,
    )
    semantic = Semantic(rng.standard_normal((width, 8)).astype(np.float32))
    eases = {"ease": 1.0, "ease lately": 0.35, "ease just now": 0.6}
    hybrid = Hybrid(
        kind(5.0).fit(train).extend(width, fold),
        semantic,
        Popularity(),
        ItemKnn(4).fit(train).extend(fold),
        RecentPopularity(np.full(width, 2003)).fit(train),
        eases | {"semantic": 0.6, "itemknn": 0.1, "era": 0.2},
    )
    users = np.repeat(np.arange(9), likes)
    items = np.concatenate([rng.permutation(width)[:likes] for _ in range(9)]).astype(np.int64)
    given = Ratings(users, items, np.full(len(users), 5.0, np.float32), rng.integers(1, 9, len(users)))
    histories = build_histories(given, 9, width)
    many = hybrid.scores(histories)
    few = np.concatenate([hybrid.scores(histories.select(part)) for part in np.array_split(np.arange(9), 4)])
    np.testing.assert_allclose(few, many, atol=2e-4)


def test_a_history_is_scored_the_same_while_its_likes_come_and_go(train, monkeypatch):
    """The sums over the oldest likes are cached; likes that change must not meet those of another history."""
    monkeypatch.setattr(ease, "CACHED_LIKES", 3)
    monkeypatch.setattr(ease, "MAX_CACHE_BYTES", 4_000)  # ten histories
    rng = np.random.default_rng(0)
    model, half_lives = Ease(5.0).fit(train), [None, 2.0]
    items = rng.permutation(ITEMS)[:10]
    for _ in range(200):
        change = rng.integers(4)
        if change == 0 and len(items) < ITEMS:
            items = np.append(items, rng.choice(np.setdiff1d(np.arange(ITEMS), items)))
        elif change == 1 and len(items):
            items = np.delete(items, rng.integers(len(items)))
        elif change == 2:
            items = rng.permutation(items)
        user = build_single_history(items, np.full(len(items), 5.0), ITEMS, 0)
        want = np.concatenate([model.scores(user, recency_weights(user, half_life)) for half_life in half_lives])
        np.testing.assert_allclose(model.score_user(items, half_lives), want, atol=1e-5)


def test_a_semantic_user_is_the_centred_mean_of_liked_items(train):
    v = vectors()
    model = Semantic(v)
    centred = v - v.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    two = build_single_history(np.array([4, 9]), np.array([5.0, 5.0]), ITEMS, 0)
    lately = 0.5 ** (1 / 30)  # the older of the two counts a little less
    want = lately * centred[4] + centred[9]
    assert np.allclose(model.embed_users(two)[0], want / np.linalg.norm(want), atol=1e-5)
    assert np.argmax(model.scores(build_single_history(np.array([4]), np.array([5.0]), ITEMS, 0))[0]) == 4


def test_recent_popularity_uses_no_later_likes(train):
    model = RecentPopularity(np.full(ITEMS, 2003)).fit(train)
    moment = int(np.quantile(train.times, 0.5))
    user = build_single_history(np.array([1]), np.array([5.0]), ITEMS, moment)
    before = train.times < moment
    early = build_histories(
        Ratings(train.users[before], train.items[before], train.stars[before], train.times[before]), USERS, ITEMS
    )
    assert (model.scores(user) == RecentPopularity(np.full(ITEMS, 2003)).fit(early).scores(user)).all()
    assert model.scores(user).any()
    assert RecentPopularity(np.array([1990, 2050])).mark_unreleased(user).tolist() == [[0.0, 1.0]]


def test_the_blend_keeps_only_parts_that_help(train):
    model = Hybrid(
        Ease(1.0), Semantic(vectors()), Popularity(), ItemKnn(3), RecentPopularity(np.full(ITEMS, 2000))
    ).fit(train)
    target = model.part("semantic", train)
    model.learn(train, lambda scores: -float(np.abs(standardize(scores) - target).mean()))
    assert model.weights["semantic"] >= 1.0
    model.learn(train, lambda scores: 1.0)
    assert model.weights == {"ease": 1.0}


def test_the_order_of_likes_has_a_weight_only_where_it_helps_and_may_be_used(train):
    model = Hybrid(
        Ease(1.0), Semantic(vectors()), Popularity(), ItemKnn(3), RecentPopularity(np.full(ITEMS, 2000))
    ).fit(train)
    target = model.part("ease just now", train)
    objective = lambda scores: -float(np.abs(standardize(scores) - target).mean())  # noqa: E731
    assert model.learn(train, objective).weights["ease just now"] >= 1.0
    assert set(model.learn(train, objective, WITHOUT_ORDER).weights) <= set(WITHOUT_ORDER)
