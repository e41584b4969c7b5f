"""The reference for searches: NumPy in float64, and a sort."""

from __future__ import annotations

import numpy as np


def compute_scores(queries, vectors, metric: str) -> np.ndarray:
    """[q, n]; cosine normalises both, and a zero vector scores 0 with everything."""
    q, x = np.asarray(queries, np.float64), np.asarray(vectors, np.float64)
    if metric == "l2":
        return ((q[:, None, :] - x[None]) ** 2).sum(2)
    if metric == "cosine":
        q, x = (a / np.where((n := np.linalg.norm(a, axis=1, keepdims=True)) > 0, n, 1) for a in (q, x))
    return (q[:, None, :] * x[None]).sum(2)


def nearest(queries, vectors, k: int, metric: str, ids=None, allowed=None) -> tuple[np.ndarray, np.ndarray]:
    scores = compute_scores(queries, vectors, metric)
    ids = np.arange(len(vectors)) if ids is None else np.asarray(ids)
    best = np.full((len(scores), k), np.inf if metric == "l2" else -np.inf)
    best_rows = np.full((len(scores), k), -1, np.int64)
    rows = np.arange(len(vectors)) if allowed is None else np.flatnonzero(allowed)
    for number, row in enumerate(scores):
        keys = row[rows] if metric == "l2" else -row[rows]
        order = rows[np.lexsort((ids[rows], keys))][:k]
        best[number, : len(order)], best_rows[number, : len(order)] = row[order], ids[order]
    return best, best_rows


def assert_exact(answer, queries, stored, k: int, metric: str, ids=None, allowed=None, tolerance: float = 1e-6) -> None:
    """No score is worse than the true one of its rank by more than the tolerance (relative for large scores)."""
    scores, best_rows = answer
    expected, _ = nearest(queries, stored, k, metric, ids, allowed)
    assert scores.shape == best_rows.shape == expected.shape
    assert scores.dtype == np.float32
    assert best_rows.dtype == np.int64
    ids = np.arange(len(stored)) if ids is None else np.asarray(ids)
    rows = {int(name): row for row, name in enumerate(ids)}
    true = compute_scores(queries, stored, metric)
    for number in range(len(scores)):
        valid = best_rows[number] >= 0
        assert valid.sum() == np.isfinite(expected[number]).sum()
        assert len(set(best_rows[number][valid])) == valid.sum()
        mine = np.array([true[number, rows[int(name)]] for name in best_rows[number][valid]])
        if allowed is not None:
            assert all(allowed[rows[int(name)]] for name in best_rows[number][valid])
        scale = max(1.0, float(np.abs(mine).max(initial=0)))
        assert np.abs(mine - expected[number][valid]).max(initial=0) <= tolerance * scale
        assert np.abs(mine - scores[number][valid]).max(initial=0) <= 1e-6 * scale
