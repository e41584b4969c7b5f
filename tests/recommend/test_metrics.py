"""The metrics against a plain loop, written from their definitions, and against two libraries of other people.

python -m pytest tests/recommend/test_metrics.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend.data import Ratings
from ridgeline.recommend.histories import histories_of
from ridgeline.recommend.metrics import best, checked_metrics, interval, measured

NAMES = ["recall@1", "recall@3", "ndcg@2", "ndcg@10", "mrr"]


def obvious(scores: list[float], wanted: set[int]) -> dict[str, float]:
    ranking = sorted((i for i in range(len(scores)) if scores[i] != -math.inf), key=lambda i: (-scores[i], i))
    found = {}
    for name in NAMES[:-1]:
        kind, k = name.split("@")
        first = ranking[: int(k)]
        if kind == "recall":
            found[name] = sum(i in wanted for i in first) / len(wanted)
        else:
            gain = sum(1 / math.log2(place + 2) for place, i in enumerate(first) if i in wanted)
            found[name] = gain / sum(1 / math.log2(place + 2) for place in range(min(int(k), len(wanted))))
    found["mrr"] = 1 / next(place + 1 for place, i in enumerate(ranking) if i in wanted)
    return found


def drawn(seed: int, items: int, users: int, *, ties: bool):
    """(scores with some masked, what is wanted of each user, the same as histories)."""
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 4, (users, items)) if ties else rng.permuted(np.tile(np.arange(items), (users, 1)), axis=1)
    scores = scores.astype(np.float32)
    wanted = [rng.choice(items, rng.integers(1, items), replace=False) for _ in range(users)]
    for row, own in enumerate(wanted):
        rest = np.setdiff1d(np.arange(items), own)
        scores[row, rest[: len(rest) // 2]] = -np.inf
    who = np.repeat(np.arange(users), [len(w) for w in wanted])
    what = np.concatenate(wanted).astype(np.int64)
    rated = Ratings(who, what, np.ones(len(what), np.float32), np.zeros(len(what), np.int64))
    return scores, wanted, histories_of(rated, users, items)


def by_trec_eval(scores, wanted) -> dict[str, list[float]]:
    """NIST's own program, which settles the definitions of this field."""
    pytrec_eval = pytest.importorskip("pytrec_eval", reason="has no wheel for this machine")
    names = {"recall@1": "recall_1", "recall@3": "recall_3", "ndcg@2": "ndcg_cut_2", "ndcg@10": "ndcg_cut_10"}
    names["mrr"] = "recip_rank"
    relevant = {str(u): {str(i): 1 for i in own.tolist()} for u, own in enumerate(wanted)}
    ranked = {
        str(u): {str(i): float(row[i]) for i in np.flatnonzero(~np.isneginf(row)).tolist()}
        for u, row in enumerate(scores)
    }
    judge = pytrec_eval.RelevanceEvaluator(relevant, {"recall.1,3", "ndcg_cut.2,10", "recip_rank"})
    told = judge.evaluate(ranked)
    return {name: [told[str(u)][own] for u in range(len(wanted))] for name, own in names.items()}


def by_torchmetrics(scores, wanted) -> dict[str, list[float]]:
    torch = pytest.importorskip("torch")
    retrieval = pytest.importorskip("torchmetrics.functional.retrieval")
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for row, own in zip(scores, wanted, strict=True):
        there = np.flatnonzero(~np.isneginf(row))
        given = torch.from_numpy(row[there] + 1), torch.from_numpy(np.isin(there, own))  # it wants scores above 0
        for name in NAMES:
            kind, _, k = name.partition("@")
            of = {"recall": "recall", "ndcg": "normalized_dcg", "mrr": "reciprocal_rank"}[kind]
            value = getattr(retrieval, f"retrieval_{of}")(*given, top_k=min(int(k), len(there)) if k else None)
            found[name].append(float(value))
    return found


@pytest.mark.parametrize("judge", [by_trec_eval, by_torchmetrics])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), items=st.integers(2, 40), users=st.integers(1, 4))
def test_every_metric_is_what_other_people_compute(judge, seed, items, users):
    scores, wanted, test = drawn(seed, items, users, ties=False)  # each of them orders equal scores in its own way
    found, _ = measured(scores, test, NAMES)
    for name, values in judge(scores, wanted).items():
        assert found[name] == pytest.approx(values, abs=1e-5), name


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 6))
def test_every_metric_is_what_its_definition_says(seed, items, users):
    scores, wanted, test = drawn(seed, items, users, ties=True)
    found, _ = measured(scores, test, NAMES)
    for row, own in enumerate(wanted):
        for name, value in obvious(scores[row].tolist(), set(own.tolist())).items():
            assert found[name][row] == pytest.approx(value), name


def test_the_best_are_those_of_a_full_sort_and_masked_ones_never_come():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 3, (40, 50)).astype(np.float32)
    for k in (1, 7, 50, 99):
        assert (best(scores, k) == np.argsort(-scores, axis=1, kind="stable")[:, :k]).all()
    scores[:, 5:] = -np.inf
    assert (best(scores, 8)[:, 5:] == -1).all()
    assert set(best(scores, 8)[:, :5].ravel()) == {0, 1, 2, 3, 4}


def test_the_interval_holds_the_mean_and_narrows_with_more_users():
    values = np.random.default_rng(0).random(4_000)
    narrow, wide = interval(values), interval(values[:100])
    assert narrow[0] < values.mean() < narrow[1]
    assert narrow[1] - narrow[0] < (wide[1] - wide[0]) / 3
    assert interval(values) == narrow


@pytest.mark.parametrize("words", ["recall", "ndcg@0", "precision@3", "recall@x", " , "])
def test_a_metric_that_is_not_there_is_refused(words):
    with pytest.raises(InputError, match="metric"):
        checked_metrics(words)
    assert checked_metrics("NDCG@10, mrr,ndcg@10") == ["ndcg@10", "mrr"]
