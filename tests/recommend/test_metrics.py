"""The metrics against a plain loop from their definitions, and against two other libraries.

python -m pytest tests/recommend/test_metrics.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend.data import Ratings, build_histories
from ridgeline.recommend.evaluation import bootstrap_interval, measure, parse_metrics
from ridgeline.recommend.ranking import top_k

NAMES = ["recall@1", "recall@3", "ndcg@2", "ndcg@10", "mrr"]


def obvious(scores: list[float], relevant_items: set[int]) -> dict[str, float]:
    ranking = sorted((i for i in range(len(scores)) if scores[i] != -math.inf), key=lambda i: (-scores[i], i))
    metrics = {}
    for name in NAMES[:-1]:
        kind, k = name.split("@")
        first = ranking[: int(k)]
        if kind == "recall":
            metrics[name] = sum(i in relevant_items for i in first) / len(relevant_items)
        else:
            gain = sum(1 / math.log2(place + 2) for place, i in enumerate(first) if i in relevant_items)
            metrics[name] = gain / sum(1 / math.log2(place + 2) for place in range(min(int(k), len(relevant_items))))
    metrics["mrr"] = 1 / next(place + 1 for place, i in enumerate(ranking) if i in relevant_items)
    return metrics


def draw_scores(seed: int, items: int, users: int, *, ties: bool):
    """(scores with some masked, what is wanted of each user, the same as histories)."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (users, items)) if ties else rng.permuted(np.tile(np.arange(items), (users, 1)), axis=1)
    scores = scores.astype(np.float32)
    relevant_items = [rng.choice(items, rng.integers(1, items), replace=False) for _ in range(users)]
    for row, user_items in enumerate(relevant_items):
        rest = np.setdiff1d(np.arange(items), user_items)
        scores[row, rest[: len(rest) // 2]] = -np.inf
    user_column = np.repeat(np.arange(users), [len(w) for w in relevant_items])
    what = np.concatenate(relevant_items).astype(np.int64)
    rated = Ratings(user_column, what, np.ones(len(what), np.float32), np.zeros(len(what), np.int64))
    return scores, relevant_items, build_histories(rated, users, items)


def by_trec_eval(scores, relevant_items) -> dict[str, list[float]]:
    """NIST's own program, which settles the definitions of this field."""
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="has no wheel for this machine")
    names = {"recall@1": "recall_1", "recall@3": "recall_3", "ndcg@2": "ndcg_cut_2", "ndcg@10": "ndcg_cut_10"}
    names["mrr"] = "recip_rank"
    relevant = {str(u): {str(i): 1 for i in user_items.tolist()} for u, user_items in enumerate(relevant_items)}
    ranked = {
        str(u): {str(i): float(row[i]) for i in np.flatnonzero(~np.isneginf(row)).tolist()}
        for u, row in enumerate(scores)
    }
    judge = pytrec_eval.RelevanceEvaluator(relevant, {"recall.1,3", "ndcg_cut.2,10", "recip_rank"})
    results = judge.evaluate(ranked)
    return {
        name: [results[str(u)][user_items] for u in range(len(relevant_items))] for name, user_items in names.items()
    }


def by_torchmetrics(scores, relevant_items) -> dict[str, list[float]]:
    torch = pytest.importorskip("torch")
    retrieval = pytest.importorskip("torchmetrics.functional.retrieval")
    measured: dict[str, list[float]] = {name: [] for name in NAMES}
    for row, user_items in zip(scores, relevant_items, strict=True):
        candidates = np.flatnonzero(~np.isneginf(row))
        given = (
            torch.from_numpy(row[candidates] + 1),
            torch.from_numpy(np.isin(candidates, user_items)),
        )  # it wants scores above 0
        for name in NAMES:
            kind, _, k = name.partition("@")
            of = {"recall": "recall", "ndcg": "normalized_dcg", "mrr": "reciprocal_rank"}[kind]
            value = getattr(retrieval, f"retrieval_{of}")(*given, top_k=min(int(k), len(candidates)) if k else None)
            measured[name].append(float(value))
    return measured


@pytest.mark.parametrize("judge", [by_trec_eval, by_torchmetrics])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), items=st.integers(2, 40), users=st.integers(1, 4))
def test_every_metric_equals_that_of_other_libraries(judge, seed, items, users):
    scores, relevant_items, test = draw_scores(
        seed, items, users, ties=False
    )  # each of them orders equal scores in its own way
    measured, _ = measure(scores, test, NAMES)
    for name, values in judge(scores, relevant_items).items():
        assert measured[name] == pytest.approx(values, abs=1e-5), name


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 6))
def test_every_metric_equals_its_definition(seed, items, users):
    scores, relevant_items, test = draw_scores(seed, items, users, ties=True)
    measured, _ = measure(scores, test, NAMES)
    for row, user_items in enumerate(relevant_items):
        for name, value in obvious(scores[row].tolist(), set(user_items.tolist())).items():
            assert measured[name][row] == pytest.approx(value), name


def test_top_k_equals_a_full_sort_without_masked_items():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, (40, 50)).astype(np.float32)
    for k in (1, 7, 50, 99):
        assert (top_k(scores, k) == np.argsort(-scores, axis=1, kind="stable")[:, :k]).all()
    scores[:, 5:] = -np.inf
    assert (top_k(scores, 8)[:, 5:] == -1).all()
    assert set(top_k(scores, 8)[:, :5].ravel()) == {0, 1, 2, 3, 4}


def test_the_interval_contains_the_mean_and_narrows_with_more_users():
    values = np.random.default_rng(0).random(4_000)
    narrow, wide = bootstrap_interval(values), bootstrap_interval(values[:100])
    assert narrow[0] < values.mean() < narrow[1]
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 3
    assert bootstrap_interval(values) == narrow


@pytest.mark.parametrize("words", ["recall", "ndcg@0", "precision@3", "recall@x", " , "])
def test_an_unknown_metric_is_an_error(words):
    with pytest.raises(InputError, match="metric"):
        parse_metrics(words)
    assert parse_metrics("NDCG@10, mrr,ndcg@10") == ["ndcg@10", "mrr"]
