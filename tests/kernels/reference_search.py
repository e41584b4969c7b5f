"""The reference for search kernels: every score in float64 NumPy, sorted by score and then by number."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def compute_scores(queries: Array, rows: Array, metric: str) -> Array:
    """[Q, D], [N, D] → float64 [Q, N]; higher is nearer, for l2 the negative squared distance."""
    q, x = queries.astype(np.float64), rows.astype(np.float64)
    if metric == "l2":
        return -((q[:, None, :] - x[None, :, :]) ** 2).sum(2)
    return q @ x.T


def search(
    queries: Array, rows: Array, k: int, metric: str = "ip", allowed: Array | None = None, ids: Array | None = None
) -> tuple[Array, Array]:
    """The best k → scores float64 [Q, k] (l2: squared distances), numbers [Q, k] padded with -1."""
    scores = compute_scores(queries, rows, metric)
    names = np.arange(len(rows)) if ids is None else ids
    far = np.inf if metric == "l2" else -np.inf
    best_scores, numbers = np.full((len(queries), k), far), np.full((len(queries), k), -1)
    for q, line in enumerate(scores):
        open_to = [n for n in range(len(rows)) if allowed is None or allowed[n]]
        best = sorted(open_to, key=lambda n: (-line[n], names[n]))[:k]
        for place, n in enumerate(best):
            best_scores[q, place] = -line[n] if metric == "l2" else line[n]
            numbers[q, place] = names[n]
    return best_scores, numbers


def check(
    got: tuple[Any, Any],
    queries: Array,
    rows: Array,
    k: int,
    metric: str = "ip",
    allowed: Array | None = None,
    ids: Array | None = None,
    tolerance: float = 1e-6,
) -> None:
    """No returned score is worse than the true k-th by more than `tolerance`; the scores are those of the rows; equal
    scores are ordered by number; no row occurs twice; missing results are -1."""
    values, numbers = (np.asarray(t.cpu()) for t in got)
    expected, order = search(queries, rows, k, metric, allowed, ids)
    size = max(1.0, float(np.abs(np.where(np.isfinite(expected), expected, 0)).max(initial=0)))
    assert values.shape == numbers.shape == (len(queries), k)
    assert ((numbers == -1) == (order == -1)).all(), (numbers, order)
    assert (np.isinf(values) == np.isinf(expected)).all()
    assert (np.where(np.isinf(values), np.sign(values), 0) == np.where(np.isinf(expected), np.sign(expected), 0)).all()
    names = np.arange(len(rows)) if ids is None else ids
    place = {int(name): n for n, name in enumerate(names)}
    scores = compute_scores(queries, rows, metric)
    for q in range(len(queries)):
        valid = numbers[q] >= 0
        row_scores = np.array([scores[q, place[int(n)]] for n in numbers[q][valid]])
        assert len(set(numbers[q][valid])) == valid.sum()
        assert allowed is None or all(allowed[place[int(n)]] for n in numbers[q][valid])
        sign = -1 if metric == "l2" else 1
        assert np.abs(sign * values[q][valid] - row_scores).max(initial=0) <= 1e-6 * size
        assert (sign * expected[q][valid] - row_scores).max(initial=-1) <= tolerance * size
        for a, b, s, t in zip(numbers[q][valid], numbers[q][valid][1:], row_scores, row_scores[1:], strict=False):
            assert s > t or (s == t and a < b) or abs(s - t) <= 1e-12 * size, (s, t, a, b)
