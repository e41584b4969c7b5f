"""`Recommender`: fitted once, answers for users, new users, titles and texts.

    with Recommender.load("model") as model:
        model.recommend(1, k=10)

Every answer is a list of `Answer`, best first; what the user has rated is never among them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Catalogue, Dataset, Real, user_row
from ridgeline.recommend.evaluation import Encode, blend
from ridgeline.recommend.histories import Histories, histories_of, one_history
from ridgeline.recommend.metrics import best
from ridgeline.recommend.models import Ease, Era, Hybrid, ItemKnn, Popularity, Semantic
from ridgeline.recommend.models.hybrid import standard
from ridgeline.recommend.splits import divided, likes_of
from ridgeline.recommend.texts import TEMPLATE, item_texts
from ridgeline.recommend.titles import Titles, spoken

if TYPE_CHECKING:
    from ridgeline.embed import Embedder
    from ridgeline.search import Index

REASONS = 2  # items of the user's own that an answer is explained by
USERS = 1_024  # ranked at a time by `all`
TEXT_WEIGHT = 1.5  # of a new user's own words beside the items they named, in deviations

Tell = Callable[[str], object]


@dataclass(frozen=True)
class Answer:
    item: Any
    title: str
    genres: list[str]
    score: float
    why: list[str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Wish:
    """How many, and of what kind."""

    k: int = 10
    genre: str | None = None
    years: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"k is {self.k}; ask for 1 or more.")


ANYTHING = Wish()


def years_of(words: str | None) -> tuple[int, int] | None:
    """'1980-1989', '1999', '2000-' or '-1960' as a span."""
    if words is None:
        return None
    first, dash, last = (w.strip() for w in words.partition("-"))
    try:
        span = (int(first or 1), int(last or 9999) if dash else int(first))
    except ValueError:
        raise InputError(f"'{words}' is no span of years; write 1980-1989, 1999 or 2000-.") from None
    if span[0] > span[1]:
        raise InputError(f"the years '{words}' end before they begin; write {span[1]}-{span[0]}.")
    return span


class Recommender:
    """Holds a fitted hybrid, the item vectors in an `Index`, and what every user has seen.

    The encoder is loaded when the first text comes; everything else answers without it.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        user_ids: NDArray[Any],
        likes: Histories,
        seen: Histories,
        hybrid: Hybrid,
        vectors: Real,
        *,
        encoder: str,
        device: str = "cpu",
        name: str = "",
        min_rating: float = 4.0,
        template: str = TEMPLATE,
    ) -> None:
        from ridgeline.search import Index

        self.catalogue, self.user_ids, self.likes, self.seen = catalogue, user_ids, likes, seen
        self.hybrid, self.vectors = hybrid, vectors
        self.encoder, self.device, self.name = encoder, device, name
        self.min_rating, self.template = min_rating, template
        self.latest = int(seen.times.max(initial=0))
        known = np.bincount(seen.items, minlength=len(catalogue))
        self.titles = Titles(catalogue.titles, known.astype(float).tolist())
        self.index: Index = Index("Flat", metric="cosine", device=device, model=encoder)
        self.index.add(vectors)
        self._embedder: Embedder | None = None

    @classmethod
    def fit(
        cls,
        dataset: Dataset,
        embedder: Embedder,
        *,
        min_rating: float = 4.0,
        penalty: float = 100.0,
        template: str = TEMPLATE,
        encode: Encode | None = None,
        tell: Tell = lambda _: None,
    ) -> Recommender:
        """Learn from all ratings; the blend's weights on each user's latest likes, held back for that only.

        `encode` makes the item vectors instead of the embedder, from vectors that are kept, for example (`kept.py`).
        """
        device = embedder.device
        solver = device if device.startswith("cuda") else "cpu"
        width, users = len(dataset.catalogue), len(dataset.user_ids)
        tell(f"embedding {width:,} item texts")
        vectors = np.asarray((encode or embedder.encode)(item_texts(dataset.catalogue, template)), np.float32)
        tell("learning the blend")
        kept, items, enough = likes_of(dataset, min_rating)
        inner = divided(kept, items, enough, "temporal-user" if kept.times.any() else "random", 0)
        weights = blend(inner, vectors[items], dataset.catalogue.years[items], penalty, solver)
        tell("fitting")
        r = dataset.ratings
        seen = histories_of(r, users, width)
        likes = histories_of(r.taken(np.flatnonzero(r.stars >= min_rating)), users, width)
        hybrid = Hybrid(
            Ease(penalty, device=solver),
            Semantic(vectors),
            Popularity(),
            ItemKnn() if "itemknn" in weights else ItemKnn(0),
            Era(dataset.catalogue.years),
            weights,
        ).fit(likes)
        made = cls(
            dataset.catalogue,
            dataset.user_ids,
            likes,
            seen,
            hybrid,
            vectors,
            encoder=str(embedder.name),
            device=device,
            name=dataset.name,
            min_rating=min_rating,
            template=template,
        )
        made._embedder = embedder
        return made

    def save(self, path: str | os.PathLike[str]) -> None:
        """Publish the model as a folder, whole or not at all."""
        from ridgeline.recommend.files import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str = "cpu", verify: bool = False) -> Recommender:
        from ridgeline.recommend.files import load

        return load(cls, path, device=device, verify=verify)

    def recommend(self, user: object, wish: Wish = ANYTHING, *, explain: bool = True) -> list[Answer]:
        """For a user of the data, by id: as of the latest rating there is."""
        row = np.array([user_row(self.user_ids, user)])
        liked, seen = self.likes.taken(row).asked_at(self.latest), self.seen.taken(row)
        if not len(liked.items):  # rated, but liked nothing: what others like is the honest answer
            liked = one_history(np.zeros(0), np.zeros(0), len(self.catalogue), self.latest)
        return self._answers(self.hybrid.scores(liked)[0], seen.items, wish, liked if explain else None)

    def new(self, liked: Sequence[str], text: str = "", wish: Wish = ANYTHING) -> list[Answer]:
        """For somebody who is not in the data: titles they like, or words, or both; nothing is refitted."""
        if not liked and not text.strip():
            raise InputError("a new user needs something to go by; give titles they like, or a text.")
        rows = np.array([self.titles.find(title)[0] for title in liked], np.int64)
        return self.for_items(rows, text, wish)

    def for_items(self, rows: NDArray[np.int64], text: str = "", wish: Wish = ANYTHING) -> list[Answer]:
        rows = np.asarray(list(dict.fromkeys(rows.tolist())), np.int64)
        history = one_history(rows, np.full(len(rows), 5.0), len(self.catalogue), self.latest)
        scores = self.hybrid.scores(history)[0] if len(rows) else np.zeros(len(self.catalogue), np.float32)
        if text.strip():
            meant = self.hybrid.semantic.items @ self.hybrid.semantic.query(self.embedder.encode_one(text))
            scores = scores + np.float32(TEXT_WEIGHT) * standard(meant[None])[0]
        return self._answers(scores, rows, wish, history)

    def similar(self, title: str, wish: Wish = ANYTHING) -> tuple[str, bool, list[Answer]]:
        """(the title that was meant, whether it was written so, items like it)."""
        row, exact = self.titles.find(title)
        return self.catalogue.titles[row], exact, self.similar_to(row, wish)

    def similar_to(self, row: int, wish: Wish = ANYTHING) -> list[Answer]:
        return self._answers(self.hybrid.similar(row), np.array([row]), wish, None)

    def search(self, text: str, wish: Wish = ANYTHING) -> list[Answer]:
        """Items by what a text means."""
        if not text.strip():
            raise InputError("the text is empty; say what the film should be about.")
        keep = self.catalogue.allowed(wish.genre, wish.years)
        if not keep.any():
            return []
        vector = self.embedder.encode_one(text)
        where = None if keep.all() else keep
        scores, rows = self.index.search(
            np.asarray(vector, np.float32)[None], min(wish.k, int(keep.sum())), where=where
        )
        pairs = zip(rows[0].tolist(), scores[0].tolist(), strict=True)
        return [self._answer(row, score, []) for row, score in pairs if row >= 0]

    def top(self, users: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], Real]:
        """(rows of items int64 [n, k], scores): for rows of users, seen left out; −1 where there are no more."""
        liked, seen = self.likes.taken(users).asked_at(self.latest), self.seen.taken(users)
        scores = self.hybrid.scores(liked)
        scores[seen.users, seen.items] = -np.inf
        order = best(scores, k)
        return order, np.take_along_axis(scores, np.maximum(order, 0), axis=1)

    @property
    def embedder(self) -> Embedder:
        if self._embedder is None:
            from ridgeline.embed import Embedder

            self._embedder = Embedder(self.encoder, device=self.device)
            if self._embedder.dim != self.vectors.shape[1]:
                raise InputError(
                    f"'{self.encoder}' makes {self._embedder.dim} dimensions and the model has "
                    f"{self.vectors.shape[1]}; fit it anew with this encoder."
                )
        return self._embedder

    def close(self) -> None:
        if self._embedder is not None:
            self._embedder.close()
            self._embedder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self, scores: Real, hidden: NDArray[Any], wish: Wish, liked: Histories | None) -> list[Answer]:
        scores = np.where(self.catalogue.allowed(wish.genre, wish.years), scores, -np.inf).astype(np.float32)
        scores[hidden] = -np.inf
        rows = best(scores[None], wish.k)[0]
        rows = rows[rows >= 0]
        why = self._reasons(rows, liked) if liked is not None else [[] for _ in rows]
        return [self._answer(row, float(scores[row]), told) for row, told in zip(rows.tolist(), why, strict=True)]

    def _reasons(self, rows: NDArray[np.int64], liked: Histories) -> list[list[str]]:
        """For each item the nearest of what the user liked, by taste where both are known, and by meaning."""
        own = np.unique(liked.items)
        if not len(own):
            return [[] for _ in rows]
        semantic, ease = self.hybrid.semantic.items, self.hybrid.ease
        near = semantic[rows] @ semantic[own].T
        at = np.searchsorted(ease.kept, own)
        known = (at < len(ease.kept)) & (ease.kept[np.minimum(at, len(ease.kept) - 1)] == own)
        for number, row in enumerate(rows.tolist()):
            place = np.searchsorted(ease.kept, row)
            if place < len(ease.kept) and ease.kept[place] == row and known.any():
                taste = np.zeros(len(own), np.float32)
                taste[known] = ease.weights[at[known], place]
                near[number] = standard(near[number][None])[0] + standard(taste[None])[0]
        first = best(near, REASONS)
        return [[spoken(self.catalogue.titles[own[i]]) for i in line if i >= 0] for line in first.tolist()]

    def _answer(self, row: int, score: float, why: list[str]) -> Answer:
        item = self.catalogue.ids[row]
        known = item.item() if hasattr(item, "item") else item
        return Answer(known, self.catalogue.titles[row], list(self.catalogue.genres[row]), score, why)
