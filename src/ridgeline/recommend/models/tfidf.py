"""TF-IDF: the same idea as the semantic model over plain words, to see what meaning adds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.models.profile import taste

_WORD = re.compile(r"[^\W_]+(?:['-][^\W_]+)*")


class Tfidf:
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
        holders = np.bincount(counts.indices, minlength=shape[1])
        rarity = np.log((1 + len(texts)) / (1 + holders)).astype(np.float32)  # a word in every text says nothing
        weighted = counts.multiply(rarity[None, :]).tocsr()
        self.items = _unit(weighted)

    def fit(self, train: Histories) -> Self:
        return self

    def scores(self, users: Histories) -> Real:
        profiles = _unit((users.matrix(taste(users)) @ self.items).tocsr())
        return np.asarray((profiles @ self.items.T).toarray(), np.float32)

    def similar(self, item: int) -> Real:
        return np.asarray((self.items @ self.items[[item]].T).toarray()[:, 0], np.float32)


def _unit(rows: Any) -> Any:
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(1)).ravel())
    scale = np.divide(1.0, length, out=np.zeros_like(length), where=length > 1e-12)
    return rows.multiply(scale[:, None].astype(np.float32)).tocsr()
