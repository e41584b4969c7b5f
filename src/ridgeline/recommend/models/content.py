"""Models of item texts: a user is the weighted mean of the items they liked, and items near it score high."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.native import dot_floats, sum_rows
from ridgeline.recommend.data import Floats, Histories
from ridgeline.recommend.weights import preference_weights

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


class Semantic:
    """Scores items by the vectors of their texts.

    All item texts share words ("Genres: …"), so the mean vector is subtracted first: the rest distinguishes items.
    """

    name = "semantic"

    def __init__(self, vectors: NDArray[Any]) -> None:
        """`vectors` float32 [items, dim], of unit length."""
        matrix = np.asarray(vectors, np.float32)
        self.mean = matrix.mean(0)
        self.items = normalize_rows(matrix - self.mean)

    def fit(self, train: Histories) -> Self:
        return self

    def embed_users(self, users: Histories) -> Floats:
        """Return user vectors, float32 [n, dim], of unit length; 0 for a user without likes."""
        if len(users) == 1:
            summed = np.empty((1, self.items.shape[1]), np.float32)
            sum_rows(self.items, users.items, preference_weights(users)[None], summed)
            return normalize_rows(summed)
        summed = users.matrix(preference_weights(users)) @ self.items
        return normalize_rows(np.asarray(summed, np.float32))

    def scores(self, users: Histories) -> Floats:
        if len(users) == 1:  # BLAS would wake its threads, and wait for them while others use the cores
            scores = np.empty((1, len(self.items)), np.float32)
            dot_floats(self.embed_users(users)[0], self.items, scores[0])
            return scores
        return np.asarray(self.embed_users(users) @ self.items.T, np.float32)

    def similar(self, item: int) -> Floats:
        return np.asarray(self.items @ self.items[item], np.float32)

    def embed_query(self, vector: NDArray[Any]) -> Floats:
        """Center and normalize the vector of a text like those of the items."""
        return np.asarray(normalize_rows((np.asarray(vector, np.float32) - self.mean)[None])[0])


class Tfidf:
    """Scores items by the words of their texts (TF-IDF): shows what the semantic vectors add."""

    name = "tfidf"

    def __init__(self, texts: Sequence[str]) -> None:
        from scipy.sparse import csr_matrix

        words: dict[str, int] = {}
        rows, columns = [], []
        for row, text in enumerate(texts):
            for word in _WORD.findall(text.lower()):
                rows.append(row)
                columns.append(words.setdefault(word, len(words)))
        shape = (len(texts), max(len(words), 1))
        counts: Any = csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), shape=shape)
        document_counts = np.bincount(counts.indices, minlength=shape[1])
        rarity = np.log((1 + len(texts)) / (1 + document_counts)).astype(np.float32)  # 0 for a word in every text
        weighted = counts.multiply(rarity[None, :]).tocsr()
        self.items = _normalize_sparse_rows(weighted)

    def fit(self, train: Histories) -> Self:
        return self

    def scores(self, users: Histories) -> Floats:
        profiles = _normalize_sparse_rows((users.matrix(preference_weights(users)) @ self.items).tocsr())
        return np.asarray((profiles @ self.items.T).toarray(), np.float32)

    def similar(self, item: int) -> Floats:
        return np.asarray((self.items @ self.items[[item]].T).toarray()[:, 0], np.float32)


def normalize_rows(vectors: Floats) -> Floats:
    """Scale rows to length 1; a row of zeros stays 0."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(np.divide(vectors, length, out=np.zeros_like(vectors), where=length > 1e-12))


def _normalize_sparse_rows(rows: Any) -> Any:
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 1e-12)
    return rows.multiply(scale[:, None].astype(np.float32)).tocsr()
