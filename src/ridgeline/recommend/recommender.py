"""`Recommender`: recommends for users, new users, titles and texts; saves, loads, and writes results for all users.

    with Recommender.load("model") as model:
        model.recommend(1, Options(k=10))

Results are lists of `Recommendation`, best first, without items that the user rated. A saved model is a folder: arrays
as `.npy` (memory-mapped on load), items as Parquet, a manifest with checksums.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline import store
from ridgeline.errors import InputError, StoreError
from ridgeline.native import dot_few, dot_floats
from ridgeline.recommend.data import (
    Catalogue,
    Dataset,
    Floats,
    Histories,
    build_histories,
    build_single_history,
    find_user_row,
    plain_ids,
)
from ridgeline.recommend.diversity import CANDIDATES, check_diversity, choose_diverse
from ridgeline.recommend.evaluation import Encode, choose_penalty, learn_blend, select_likes, split_likes
from ridgeline.recommend.item_vectors import TEMPLATE, encode_cached, item_texts
from ridgeline.recommend.live import (
    Change,
    Line,
    LiveData,
    LiveTitles,
    NotFound,
)
from ridgeline.recommend.models import (
    Ease,
    Hybrid,
    ItemKnn,
    NeighbourEase,
    Popularity,
    RecentPopularity,
    Semantic,
    make_ease,
)
from ridgeline.recommend.models.hybrid import standardize
from ridgeline.recommend.ranking import top_k
from ridgeline.recommend.readers import FORMS, STARS
from ridgeline.recommend.titles import TitleIndex, move_article_first
from ridgeline.recommend.versions import JOURNAL, find_version, get_current, get_live_folder

if TYPE_CHECKING:
    from ridgeline.embed import Embedder
    from ridgeline.search import Index


MAX_REASONS = 2  # liked items that explain a recommendation, and
MAX_TERMS = 3  # genres and themes that it shares with them
TEXT_WEIGHT = 0.5  # of a new user's text: 0 uses the liked items alone, 1 the text alone
RANK_OFFSET = 60  # of reciprocal rank fusion: an item that is near the top twice beats one that is first only once

Progress = Callable[[str], object]
MODEL_KIND, MODEL_FORMAT = "ridgeline recommender", 1
DENSE, NEIGHBOURS = "dense", "neighbours"  # kinds of EASE
ITEMS_FILE, WAITING_FILE = "items.parquet", "waiting.jsonl"
USER_BLOCK = 1_024  # users per block of scores [users, items] float32, and at most
MAX_SCORES = 20_000_000  # numbers in a block


@dataclass(frozen=True)
class Recommendation:
    """A recommended item; `why` names liked titles that are similar to it, `terms` their common genres and themes.

    `basis` says what the score rests on: likes, text, likes and text, similarity, or, for a user whose likes say
    nothing about other items, meaning (of the liked items' texts) or popularity. For likes and text, `ranks` holds the
    rank of the item by each of them alone.
    """

    item: Any
    title: str
    genres: list[str]
    score: float
    why: list[str]
    basis: str = "likes"
    ranks: dict[str, int] = field(default_factory=dict)
    terms: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Options:
    """The options of a recommendation: `k` results, of one genre and of a span of years (first, last).

    `diversify` is the weight of differences between the results, from 0 (none) to 1 (see diversity.py).
    """

    k: int = 10
    genre: str | None = None
    years: tuple[int, int] | None = None
    diversify: float = 0.0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise InputError(f"k is {self.k}; give 1 or more.")
        check_diversity(self.diversify)


DEFAULT_OPTIONS = Options()


def parse_years(text: str | None) -> tuple[int, int] | None:
    """Parse '1980-1989', '1999', '2000-' or '-1960' as a span of years."""
    if text is None:
        return None
    first, dash, last = (w.strip() for w in text.partition("-"))
    try:
        span = (int(first or 1), int(last or 9999) if dash else int(first))
    except ValueError:
        raise InputError(f"'{text}' is no span of years; write 1980-1989, 1999 or 2000-.") from None
    if span[0] > span[1]:
        raise InputError(f"the years '{text}' end before they begin; write {span[1]}-{span[0]}.")
    return span


@dataclass
class _LoadedEncoder:
    """The encoder of a model and its snapshots, once a text has needed it."""

    embedder: Embedder | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Recommender:
    """A fitted hybrid model with the item vectors in an `Index` and the rated items of every user.

    The encoder loads with the first text; all other requests work without it. Close it, or use it in a `with` block.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        user_ids: NDArray[Any],
        likes: Histories,
        seen: Histories,
        hybrid: Hybrid,
        vectors: Floats,
        *,
        encoder: str,
        device: str = "cpu",
        name: str = "",
        min_rating: float = 4.0,
        template: str = TEMPLATE,
    ) -> None:
        from ridgeline.search import Index

        self.catalogue, self.likes, self.seen = catalogue, likes, seen
        self.user_ids = user_ids
        self.hybrid, self.vectors = hybrid, vectors
        self.encoder, self.device, self.name = encoder, device, name
        self.min_rating, self.template = min_rating, template
        self.latest = int(seen.times.max(initial=0))
        known = np.bincount(seen.items, minlength=len(catalogue))
        self.titles: TitleIndex | LiveTitles = TitleIndex(catalogue.titles, known.astype(float).tolist())
        self.index: Index | None = None  # without text vectors
        if vectors.shape[1]:
            self.index = Index("Flat", metric="cosine", device=device, model=encoder)
            self.index.add(vectors)
        self._loaded_encoder = _LoadedEncoder()
        self._item_rows: dict[str, int] | None = None
        self._folder: Path | None = None  # with the journal; None for a model that was not loaded
        self._live: LiveData | None = None  # what arrived after the fit
        self._followed_bytes = 0  # size of the journal when it was last read for changes of another process
        self.version = 1  # grows with every refit
        self.rating_range: tuple[float, float] | None = None  # of the data's format, if it has one
        self.fixed_penalty: float | None = None  # EASE's λ if the caller gave it; else every refit chooses one
        self.journal_lines = 0  # lines of the journal that this version learnt from
        self.waiting: list[dict[str, Any]] = []  # ratings that it could not learn, because their items are not there

    @classmethod
    def fit(
        cls,
        dataset: Dataset,
        embedder: Embedder | None,
        *,
        min_rating: float = 4.0,
        penalty: float | None = None,
        template: str = TEMPLATE,
        encode: Encode | None = None,
        vectors: Floats | None = None,
        encoder: str = "",
        device: str = "cpu",
        progress: Progress = lambda _: None,
    ) -> Recommender:
        """Fit on all ratings; each user's latest likes decide EASE's λ and the weights of the blend.

        embedder    encodes item texts; None: fit on ratings alone, without searches by text, unless `vectors` are given
        min_rating  ratings from this on are likes
        penalty     EASE's λ instead
        template    text of an item: {title}, {year}, {genres}, {themes}
        encode      encodes the item texts instead of `embedder.encode`, for example with a cache (`encode_cached`)
        vectors     float32 [items, dim] of unit length, instead of encoding; `encoder` is the name of their encoder
        device      for the solution without an embedder
        progress    receives the name of each stage
        """
        device = device if embedder is None else embedder.device
        solver = device if device.startswith("cuda") else "cpu"
        width, users = len(dataset.catalogue), len(dataset.user_ids)
        if vectors is None and embedder is not None:
            progress(f"embedding {width:,} item texts")
            vectors = np.asarray((encode or embedder.encode)(item_texts(dataset.catalogue, template)), np.float32)
        vectors = np.zeros((width, 0), np.float32) if vectors is None else np.asarray(vectors, np.float32)
        if vectors.ndim != 2 or len(vectors) != width:
            raise InputError(f"the vectors have the shape {vectors.shape} for {width:,} items; give one row per item.")
        progress("learning the blend")
        selected, items, user_count = select_likes(dataset, min_rating)
        inner = split_likes(selected, items, user_count, "temporal-user" if selected.times.any() else "random", 0)
        fixed_penalty = penalty
        penalty = penalty if penalty is not None else choose_penalty(inner, solver)
        weights = learn_blend(inner, vectors[items], dataset.catalogue.years[items], penalty, solver)
        progress("fitting")
        r, liked_items = dataset.ratings, len(items)
        del selected, inner  # with many ratings, memory for what follows
        seen = build_histories(r, users, width)
        is_like = r.stars >= min_rating
        likes = seen if is_like.all() else build_histories(r.select(is_like), users, width)
        hybrid = Hybrid(
            make_ease(penalty, liked_items, solver),
            Semantic(vectors),
            Popularity(),
            ItemKnn() if "itemknn" in weights else ItemKnn(0),
            RecentPopularity(dataset.catalogue.years),
            weights,
        ).fit(likes)
        if isinstance(hybrid.ease, NeighbourEase):
            hybrid.ease.forget_counts()
        model = cls(
            dataset.catalogue,
            dataset.user_ids,
            likes,
            seen,
            hybrid,
            vectors,
            encoder=encoder if embedder is None else str(embedder.name),
            device=device,
            name=dataset.name,
            min_rating=min_rating,
            template=template,
        )
        model.fixed_penalty = fixed_penalty
        model.rating_range = STARS if dataset.form in FORMS else None
        model._loaded_encoder.embedder = embedder
        return model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model as a folder; it appears complete or not at all. Changes go to its journal."""
        if self._live is None:
            save_model(self, path)
            return
        self._live.save(Path(path))

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, device: str = "cpu", verify: bool = False) -> Recommender:
        """Load a saved model; `verify` checks all checksums. Raises StoreError for a folder that is no model."""
        return load_model(cls, path, device=device, verify=verify)

    def recommend(
        self, user: object, options: Options = DEFAULT_OPTIONS, *, explain: bool = True
    ) -> list[Recommendation]:
        """Recommend for a user of the data, by id, at the time of the dataset's latest rating."""
        liked, seen = self._select_histories(np.array([self.find_user(user)]))
        scores, bases = self._score(liked)
        return self._rank(scores[0], seen.items, options, liked if explain else None, bases[0])

    def new(
        self,
        liked: Sequence[str],
        text: str = "",
        options: Options = DEFAULT_OPTIONS,
        *,
        text_weight: float = TEXT_WEIGHT,
    ) -> list[Recommendation]:
        """Recommend for a new user by liked titles, by a text, or both, without a new fit (see `for_items`)."""
        if not liked and not text.strip():
            raise InputError("a new user needs liked titles or a text; give one of them.")
        rows = np.array([self.titles.find(title)[0] for title in liked], np.int64)
        return self.for_items(rows, text, options, text_weight=text_weight)

    def for_items(
        self,
        rows: NDArray[np.int64],
        text: str = "",
        options: Options = DEFAULT_OPTIONS,
        *,
        text_weight: float = TEXT_WEIGHT,
    ) -> list[Recommendation]:
        """Recommend for liked items, by row, a text, or both.

        With both, items are sorted by the weighted geometric mean of their ranks by the likes and by the text: ranks,
        because the scores of EASE have a few very large values that no text score reaches. `text_weight` 0 uses the
        likes alone, 1 the text alone.
        """
        if not 0 <= text_weight <= 1:
            raise InputError(f"the text weight is {text_weight:g}; give 0 (likes alone) to 1 (text alone).")
        rows = np.asarray(list(dict.fromkeys(rows.tolist())), np.int64)
        liked = build_single_history(rows, np.full(len(rows), 5.0), len(self.catalogue), self.latest)
        use_text = bool(text.strip()) and (text_weight > 0 or not len(rows))
        use_likes = len(rows) > 0 and (text_weight < 1 or not use_text)
        if not use_text:
            scores, bases = self._score(liked)
            return self._rank(scores[0], rows, options, liked, bases[0])
        text_scores = self.hybrid.semantic.items @ self.hybrid.semantic.embed_query(self.embedder.encode_one(text))
        if not use_likes:
            return self._rank(text_scores, rows, options, None, "text")
        like_scores, bases = self._score(liked)
        ranks = {
            name: rank_items(self._mask(scores, rows, options))
            for name, scores in (("likes", like_scores[0]), ("text", text_scores))
        }
        blend = blend_ranks(ranks["likes"], ranks["text"], text_weight)
        return self._rank(blend, rows, options, liked, f"{bases[0]} and text", ranks)

    def add_items(self, items: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Add items {"id", "title", "text"?, "genres"?, "year"?}: all or none; {"added": n}.

        They can be searched and recommended when this returns. A loaded model keeps changes in the journal
        MODEL.live/journal.jsonl; this and the next four methods wait for the disk, and `load` applies the journal.
        No other thread may use the model meanwhile; `copy.copy(model)` is a snapshot that other threads may use.
        """
        return self._change("add_items", items)

    def put_item(self, item: Mapping[str, Any]) -> dict[str, int]:
        """Change an item: its title, text, genres and year; ratings stay."""
        return self._change("put_item", [item])

    def remove_items(self, items: Sequence[object]) -> dict[str, int]:
        """Remove items by id from every answer. Their ratings wait, and count again if the item is added again."""
        return self._change("remove_items", items)

    def add_ratings(self, ratings: Sequence[Mapping[str, Any]]) -> dict[str, int]:
        """Add ratings {"user", "item", "rating", "time"?} of known and new users; {"added": n, "waiting": n}.

        A rating of an unknown item waits until the item comes. A second rating of an item replaces the first.
        """
        return self._change("add_ratings", ratings)

    def remove_ratings(self, pairs: Sequence[tuple[object, object]]) -> dict[str, int]:
        """Remove ratings by (user, item)."""
        return self._change("remove_ratings", pairs)

    def add(
        self,
        items: Sequence[Mapping[str, Any]],
        ratings: Sequence[Mapping[str, Any]],
        *,
        progress: Progress = lambda _: None,
    ) -> dict[str, int]:
        """Add many items and ratings: all or none. Texts are encoded with the cache on disk, so that a call that was
        stopped continues. Returns {"items", "ratings", "waiting"}; ratings include those that wait."""
        changes = [Change("add_items", items), Change("add_ratings", ratings)]
        results = self.apply_changes(
            changes,
            encode=(lambda texts: encode_cached(self.embedder, texts, progress)) if self.has_texts else None,
            all_or_none=True,
        )
        for result in results:
            if isinstance(result, InputError):
                raise result
        added, rated = (dict(result) for result in results if not isinstance(result, InputError))
        return {"items": added["added"], "ratings": rated["added"] + rated["waiting"], "waiting": rated["waiting"]}

    def list_ratings(self, user: object) -> list[dict[str, Any]]:
        """List a user's ratings {"item", "title", "rating", "time"}, oldest first; empty for an unknown user."""
        if self._live is not None:
            return self._live.list_ratings(str(user))
        rows = self.find_users([user])
        seen = self.seen.select(rows[rows >= 0])
        ids, titles = self.catalogue.ids[seen.items].tolist(), self.catalogue.titles
        entries = zip(ids, seen.items.tolist(), seen.stars.tolist(), seen.times.tolist(), strict=True)
        return [{"item": key, "title": titles[row], "rating": stars, "time": time} for key, row, stars, time in entries]

    def describe_item(self, item: object) -> dict[str, Any]:
        """Return the id, title, text, genres and year of an item."""
        row, c = self.find_item(item), self.catalogue
        return {
            "id": c.ids[[row]].tolist()[0],
            "title": c.titles[row],
            "text": c.texts[row] if c.texts else "",
            "genres": list(c.genres[row]),
            "year": int(c.years[row]) or None,
        }

    def apply_changes(
        self, changes: Sequence[Change], *, encode: Encode | None = None, all_or_none: bool = False
    ) -> list[dict[str, int] | InputError]:
        """Apply several changes, each complete or not at all, with one pass of the encoder and one wait for the disk.

        Return for each what it did, or why it was refused; with `all_or_none`, one refusal refuses all.
        """
        live = self._get_live()
        try:
            live.open()
            return live.write(changes, encode or self._encode_texts, all_or_none)
        finally:
            self._refresh()

    def check_changes(self, changes: Sequence[Change]) -> tuple[list[dict[str, int] | InputError], list[Line]]:
        """Return for each change what it would do, or why it is refused, and the lines to commit."""
        live = self._get_live()
        try:
            live.open()
            return live.check(changes, self._encode_texts)
        finally:
            self._refresh()

    def copy_lines(self, lines: Sequence[Line]) -> list[Line]:
        """Return the lines that another model checked, with vectors of this model's encoder."""
        return self._get_live().copy_lines(lines, self._encode_texts)

    def commit_lines(self, lines: Sequence[Line]) -> None:
        """Store and apply lines of `check_changes` or `copy_lines`."""
        live = self._get_live()
        try:
            live.open()
            live.commit(lines)
        finally:
            self._refresh()

    def take_over(self, old: Recommender) -> None:
        """Write to the journal from now on instead of `old`, another version of this model."""
        live = self._get_live()
        if old._live is not None:
            live.take_over(old._live)
        self._refresh()

    def follow(self) -> bool:
        """Use what another process wrote to the journal; return whether there was any."""
        if self._folder is None:
            return False
        try:
            size = (get_live_folder(self._folder) / JOURNAL).stat().st_size
        except OSError:
            return False
        if size == self._followed_bytes:
            return False
        self._followed_bytes = size
        is_changed = self._get_live().follow()
        if is_changed:
            self._refresh()
        return is_changed

    def _encode_texts(self, texts: Sequence[str]) -> Floats:
        if not self.has_texts:
            return np.zeros((len(texts), 0), np.float32)
        return np.asarray(self.embedder.encode(list(texts)), np.float32)

    def _change(self, kind: str, values: Sequence[Any]) -> dict[str, int]:
        (result,) = self.apply_changes([Change(kind, values)])
        if isinstance(result, InputError):
            raise result
        return result

    def _get_live(self) -> LiveData:
        if self._live is None:
            folder = None if self._folder is None else get_live_folder(self._folder)
            self._live = LiveData(self, folder)
            if isinstance(self.titles, TitleIndex):
                self.titles = LiveTitles(self.titles, self._live)
            self._refresh()
        return self._live

    def _refresh(self) -> None:
        """Use what has arrived."""
        if self._live is not None:
            self.catalogue, self.vectors = self._live.make_catalogue(), self._live.make_vectors()
            self.hybrid = self._live.make_hybrid()

    def similar(self, title: str, options: Options = DEFAULT_OPTIONS) -> tuple[str, bool, list[Recommendation]]:
        """Return (the matched title, whether the spelling was exact, similar items)."""
        row, exact = self.titles.find(title)
        return self.catalogue.titles[row], exact, self.similar_to(row, options)

    def similar_to(self, row: int, options: Options = DEFAULT_OPTIONS) -> list[Recommendation]:
        scores = self.hybrid.similar(row)
        if not scores.any():
            title = self.catalogue.titles[row]
            raise InputError(f"no user who likes '{title:.80}' likes another item, so nothing is known to be similar.")
        return self._rank(scores, np.array([row]), options, None, "similarity")

    def search(self, text: str, options: Options = DEFAULT_OPTIONS) -> list[Recommendation]:
        """Find items by the meaning of a text."""
        if not text.strip():
            raise InputError("the text is empty; describe the film.")
        keep = self.catalogue.find_allowed(options.genre, options.years)
        if not keep.any():
            return []
        vector = self.embedder.encode_one(text)
        if self._live is not None or self.index is None:
            similarities = np.empty(len(self.vectors), np.float32)
            dot_floats(np.asarray(vector, np.float32), self.vectors, similarities)
            similarities[~keep] = -np.inf
            nearest = top_k(similarities[None], options.k)[0].tolist()
            return [self._describe(row, float(similarities[row]), [], "text") for row in nearest if row >= 0]
        where = None if keep.all() else keep
        scores, rows = self.index.search(
            np.asarray(vector, np.float32)[None], min(options.k, int(keep.sum())), where=where
        )
        pairs = zip(rows[0].tolist(), scores[0].tolist(), strict=True)
        return [self._describe(row, score, [], "text") for row, score in pairs if row >= 0]

    def top(self, users: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], Floats]:
        """Return (item rows int64 [n, k], scores) for user rows, without rated items; −1 if no item remains."""
        return self.rank_users(users, k)[:2]

    def rank_users(self, users: NDArray[np.int64], k: int) -> tuple[NDArray[np.int64], Floats, list[str]]:
        """Return the result of `top`, and what it rests on for each user: likes, meaning or popularity."""
        parts, bases = [], list[str]()
        block = max(1, min(USER_BLOCK, MAX_SCORES // max(1, len(self.catalogue))))
        for first in range(0, max(1, len(users)), block):
            liked, seen = self._select_histories(users[first : first + block])
            scores, more = self._score(liked)
            scores[seen.users, seen.items] = -np.inf
            if self.catalogue.removed is not None:
                scores[:, self.catalogue.removed] = -np.inf
            order = top_k(scores, k)
            parts.append((order, np.take_along_axis(scores, np.maximum(order, 0), axis=1)))
            bases += more
        return np.concatenate([order for order, _ in parts]), np.concatenate([values for _, values in parts]), bases

    @property
    def user_ids(self) -> NDArray[Any]:
        """The users' ids by row, with those that arrived after the fit."""
        if self._live is None or not self._live.new_users:
            return self.fitted_user_ids
        new = np.array(self._live.new_users, object)
        return plain_ids(np.concatenate([self.fitted_user_ids.astype(object), new]))

    @user_ids.setter
    def user_ids(self, ids: NDArray[Any]) -> None:
        self.fitted_user_ids = ids
        self._user_rows: dict[str, int] | None = None
        self._live = None

    @property
    def has_texts(self) -> bool:
        """Whether items have text vectors; without them the model answers by ratings alone."""
        return bool(self.vectors.shape[1])

    @property
    def embedder(self) -> Embedder:
        loaded = self._loaded_encoder
        if not self.has_texts:
            raise InputError("this model was fitted without texts; fit it without --no-text to use texts.")
        with loaded.lock:  # many first requests at once load one encoder
            if loaded.embedder is None:
                from ridgeline.embed import Embedder

                embedder = Embedder(self.encoder, device=self.device)
                if embedder.dim != self.vectors.shape[1]:
                    embedder.close()
                    raise InputError(
                        f"'{self.encoder}' makes {embedder.dim} dimensions and the model has "
                        f"{self.vectors.shape[1]}; fit it again with this encoder."
                    )
                loaded.embedder = embedder
            return loaded.embedder

    def close(self) -> None:
        if self._live is not None:
            self._live.close()
        if self._loaded_encoder.embedder is not None:
            self._loaded_encoder.embedder.close()
            self._loaded_encoder.embedder = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def find_user(self, user: object) -> int:
        """Return the row of a user's id, a number or text."""
        if self._live is not None:
            row = self._live.user_rows.get(str(user))
        else:
            if self._user_rows is None:
                self._user_rows = {str(key): row for row, key in enumerate(self.fitted_user_ids.tolist())}
            row = self._user_rows.get(str(user))
        return find_user_row(self.user_ids, user) if row is None else row

    def find_users(self, users: Sequence[object]) -> NDArray[np.int64]:
        """Return the rows of many users by id, −1 for those that the model does not know."""
        if self._live is None and self._user_rows is None:
            self._user_rows = {str(key): row for row, key in enumerate(self.fitted_user_ids.tolist())}
        rows = self._live.user_rows if self._live is not None else self._user_rows or {}
        return np.array([rows.get(str(user), -1) for user in users], np.int64)

    def find_item(self, item: object) -> int:
        """Return the row of an item's id, a number or text."""
        row = self._rows_of_items().get(str(item))
        removed = self.catalogue.removed
        if row is None or row >= len(self.catalogue) or (removed is not None and removed[row]):
            raise NotFound(f"there is no item '{item}'; /api/search finds some.")
        return row

    def _rows_of_items(self) -> dict[str, int]:
        if self._live is not None:
            return self._live.item_rows
        if self._item_rows is None:
            self._item_rows = {str(key): row for row, key in enumerate(self.catalogue.ids.tolist())}
        return self._item_rows

    def _select_histories(self, users: NDArray[np.int64]) -> tuple[Histories, Histories]:
        """Return what users like, at the moment of the latest rating of the fit, and what they rated."""
        if self._live is None:
            return self.likes.select(users).at_moment(self.latest), self.seen.select(users)
        width = len(self.catalogue)
        liked = self._live.select_histories(users, self.likes, width, self.min_rating)
        return liked.at_moment(self.latest), self._live.select_histories(users, self.seen, width, None)

    def _score(self, liked: Histories) -> tuple[Floats, list[str]]:
        """Return the scores of all items, float32 [n, items], and what they rest on for each user.

        EASE and item-kNN score every item 0 for a user without likes, or with likes of items that no other user likes.
        The order would then be that of the catalogue. Such a user gets the items that others like most, or the items
        whose texts are nearest to those of the liked items.
        """
        scores = self.hybrid.scores(liked)
        is_known = np.zeros(len(self.catalogue), bool)
        is_known[self.hybrid.ease.item_rows] = True
        if self.hybrid.ease.fold is not None:
            is_known[self.hybrid.ease.fold.rows] = True
        known_likes = np.bincount(liked.users, is_known[liked.items], minlength=len(liked))
        uninformed = (known_likes == 0) | (np.ptp(scores, axis=1) == 0)
        bases = np.where(uninformed, np.where(liked.lengths > 0, "meaning", "popularity"), "likes").tolist()
        for row in np.flatnonzero(uninformed).tolist():
            if not self.has_texts:
                bases[row] = "popularity"
            part = self.hybrid.semantic if bases[row] == "meaning" else self.hybrid.popularity
            scores[row] = part.scores(liked.select(np.array([row])))[0]
        return scores, bases

    def _mask(self, scores: Floats, hidden: NDArray[Any], options: Options) -> Floats:
        allowed = self.catalogue.find_allowed(options.genre, options.years)
        masked = np.where(allowed, scores, -np.inf).astype(np.float32)
        masked[hidden] = -np.inf
        return masked

    def _rank(
        self,
        scores: Floats,
        hidden: NDArray[Any],
        options: Options,
        liked: Histories | None,
        basis: str,
        ranks: Mapping[str, NDArray[np.int64]] | None = None,
    ) -> list[Recommendation]:
        scores = self._mask(scores, hidden, options)
        rows = top_k(scores[None], max(CANDIDATES, 4 * options.k) if options.diversify else options.k)[0]
        rows = rows[rows >= 0]
        if options.diversify:
            if not self.has_texts:
                raise InputError("this model was fitted without texts, so it cannot tell which items differ.")
            vectors = self.hybrid.semantic.items[rows]
            rows = rows[choose_diverse(scores[rows], vectors, options.k, options.diversify)]
        reasons_by_row = (
            self._explain(rows, liked) if liked is not None and basis != "popularity" else [[] for _ in rows]
        )
        return [
            self._describe(
                row, float(scores[row]), reasons, basis, {name: int(of[row]) for name, of in (ranks or {}).items()}
            )
            for row, reasons in zip(rows.tolist(), reasons_by_row, strict=True)
        ]

    def _explain(self, rows: NDArray[np.int64], liked: Histories) -> list[list[int]]:
        """Return for each item the rows of the most similar liked items, by EASE's weights if known and by texts."""
        liked_items = np.sort(liked.items)  # of one user, so each item comes once
        if self.catalogue.removed is not None:
            liked_items = liked_items[~self.catalogue.removed[liked_items]]
        if not len(liked_items):
            return [[] for _ in rows]
        semantic, ease = self.hybrid.semantic.items, self.hybrid.ease
        similarity = np.empty((len(rows), len(liked_items)), np.float32)
        dot_few(semantic[rows], semantic[liked_items], similarity)
        ease_weights = ease.get_weights(liked_items, rows)
        known = ease_weights.any(1)
        similarity[known] = standardize(similarity[known]) + standardize(ease_weights[known])
        if not self.has_texts:
            similarity[~known] = -np.inf  # nothing says why
        first = top_k(similarity, MAX_REASONS)
        return [[int(liked_items[i]) for i in line if i >= 0] for line in first.tolist()]

    def _find_common_terms(self, row: int, others: Sequence[int]) -> list[str]:
        """Return the genres and themes that an item shares with others, those of most of them first."""
        catalogue = self.catalogue
        item_terms = dict.fromkeys((*catalogue.genres[row], *catalogue.themes[row]))
        shared = [{*catalogue.genres[other], *catalogue.themes[other]} for other in others]
        counts = {term: sum(term in words for words in shared) for term in item_terms}
        return sorted((term for term in item_terms if counts[term]), key=lambda term: -counts[term])[:MAX_TERMS]

    def _describe(
        self, row: int, score: float, reasons: list[int], basis: str, ranks: dict[str, int] | None = None
    ) -> Recommendation:
        why = [move_article_first(self.catalogue.titles[reason]) for reason in reasons]
        item = self.catalogue.ids[row]
        known = item.item() if hasattr(item, "item") else item
        genres = list(self.catalogue.genres[row])
        terms = self._find_common_terms(row, reasons)
        return Recommendation(known, self.catalogue.titles[row], genres, score, why, basis, ranks or {}, terms)


def rank_items(scores: Floats) -> NDArray[np.int64]:
    """Return the rank of every item, from 1; equal scores go by row.

    >>> rank_items(np.array([0.5, 2.0, 0.5]))
    array([2, 1, 3])
    """
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return ranks


def blend_ranks(by_likes: NDArray[np.int64], by_text: NDArray[np.int64], text_weight: float) -> Floats:
    """Return scores, 1 for an item that is first in both rankings, by the weighted geometric mean of the ranks."""
    best = 1 + RANK_OFFSET
    scores = (best / (by_likes + RANK_OFFSET)) ** (1 - text_weight) * (best / (by_text + RANK_OFFSET)) ** text_weight
    return np.asarray(scores, np.float32)


def save_model(model: Recommender, path: str | os.PathLike[str], more: Mapping[str, Any] | None = None) -> None:
    """Write a model; `more` goes into its manifest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    c, ease, similarities = model.catalogue, model.hybrid.ease, model.hybrid.itemknn.similarities
    meta: dict[str, Any] = {
        "kind": MODEL_KIND,
        "format": MODEL_FORMAT,
        "name": model.name,
        "encoder": model.encoder,
        "template": model.template,
        "min_rating": model.min_rating,
        "penalty": ease.penalty,
        "ease": NEIGHBOURS if isinstance(ease, NeighbourEase) else DENSE,
        "neighbours": model.hybrid.itemknn.neighbours,
        "weights": model.hybrid.weights,
        "genome": c.genome,
        "fixed_penalty": model.fixed_penalty,
        "rating_range": model.rating_range,
        "users": len(model.user_ids),
        "items": len(c),
        **(more or {}),
    }
    arrays = {
        "users": model.user_ids,
        "vectors": model.vectors,
        "ease_items": ease.item_rows,
        **_name_weights(ease),
        "knn_values": similarities.data,
        "knn_items": similarities.indices,
        "knn_starts": similarities.indptr,
        **_name_arrays("likes", model.likes),
        **_name_arrays("seen", model.seen),
    }
    ids = c.ids.tolist()
    is_number = [isinstance(value, int) for value in ids]
    columns = {
        "item": pa.array(ids if all(is_number) else [str(value) for value in ids]),
        "title": pa.array(list(c.titles)),
        "year": pa.array(c.years),
        "genres": pa.array([list(g) for g in c.genres], pa.list_(pa.string())),
        "themes": pa.array([list(t) for t in c.themes], pa.list_(pa.string())),
    }
    if any(is_number) and not all(is_number):  # items that came later have ids of another kind
        columns["item_is_number"] = pa.array(is_number)
    if c.texts:
        columns["text"] = pa.array(list(c.texts))
    with store.publish_dir(path, meta) as folder:
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
        pq.write_table(pa.table(columns), folder / ITEMS_FILE)
        if model.waiting:
            (folder / WAITING_FILE).write_text("".join(json.dumps(line) + "\n" for line in model.waiting))


def load_model(
    cls: type[Recommender], path: str | os.PathLike[str], *, device: str, verify: bool, version: int | None = None
) -> Recommender:
    """Load the version in use of a model, or another `version`, with all changes of its journal."""
    folder = Path(path).absolute()
    number = get_current(folder) if version is None else version
    model = _load_folder(cls, find_version(folder, number), device=device, verify=verify)
    model._folder, model.version = folder, number
    if model.waiting or (get_live_folder(folder) / JOURNAL).exists():
        model._get_live().replay()
        model._refresh()
    return model


def _load_folder(cls: type[Recommender], folder: Path, *, device: str, verify: bool) -> Recommender:
    import pyarrow.parquet as pq
    from scipy.sparse import csr_matrix

    meta = store.verify(folder, quick=not verify).meta
    if meta.get("kind") != MODEL_KIND:
        raise StoreError(f"{folder} is no recommender; give a folder that `ridgeline recommend fit` wrote.")
    if meta["format"] != MODEL_FORMAT:
        raise StoreError(
            f"{folder} has format {meta['format']}, and this version reads {MODEL_FORMAT}; "
            "fit it again, or use the version that wrote it."
        )

    def array(name: str) -> Any:
        try:
            mapped = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            return np.asarray(mapped).view(np.ndarray)
        except (OSError, ValueError) as error:
            raise StoreError(f"{folder}/{name}.npy cannot be read: {error}; fit the model again.") from None

    table = pq.read_table(folder / ITEMS_FILE)
    ids = np.array(table["item"].to_pylist())
    if "item_is_number" in table.column_names:
        pairs = zip(ids.tolist(), table["item_is_number"].to_pylist(), strict=True)
        ids = np.array([int(key) if is_number else key for key, is_number in pairs], object)
    catalogue = Catalogue(
        ids,
        table["title"].to_pylist(),
        table["year"].to_numpy(),
        [tuple(g) for g in table["genres"].to_pylist()],
        [tuple(t) for t in table["themes"].to_pylist()],
        meta["genome"],
        table["text"].to_pylist() if "text" in table.column_names else (),
    )
    width = len(catalogue)
    likes, seen = (_load_history(array, name, width) for name in ("likes", "seen"))
    ease: Ease | NeighbourEase
    if meta.get("ease") == NEIGHBOURS:
        ease = NeighbourEase(meta["penalty"])
        parts = array("ease_values"), array("ease_columns"), array("ease_starts")
        ease.weights = csr_matrix(parts, shape=(width, width))
    else:
        ease = Ease(meta["penalty"])
        ease.weights = array("ease_weights")
    ease.item_rows, ease.width = array("ease_items"), width
    knn = ItemKnn(meta["neighbours"])
    knn.similarities = csr_matrix((array("knn_values"), array("knn_items"), array("knn_starts")), shape=(width, width))
    vectors = array("vectors")
    recent = RecentPopularity(catalogue.years).fit(likes)
    hybrid = Hybrid(ease, Semantic(vectors), Popularity().fit(likes), knn, recent, meta["weights"])
    model = cls(
        catalogue,
        array("users"),
        likes,
        seen,
        hybrid,
        vectors,
        encoder=meta["encoder"],
        device=device,
        name=meta["name"],
        min_rating=meta["min_rating"],
        template=meta["template"],
    )
    model.fixed_penalty, model.journal_lines = meta.get("fixed_penalty"), meta.get("journal_lines", 0)
    if meta.get("rating_range") is not None:
        model.rating_range = float(meta["rating_range"][0]), float(meta["rating_range"][1])
    if (folder / WAITING_FILE).exists():
        model.waiting = list(store.read_lines(folder / WAITING_FILE).objects)
    return model


def _name_weights(ease: Ease | NeighbourEase) -> dict[str, Any]:
    if isinstance(ease, Ease):
        return {"ease_weights": ease.weights}
    return {
        "ease_values": ease.weights.data,
        "ease_columns": ease.weights.indices,
        "ease_starts": ease.weights.indptr,
    }


def _name_arrays(name: str, histories: Histories) -> dict[str, Any]:
    return {
        f"{name}_starts": histories.starts,
        f"{name}_items": histories.items,
        f"{name}_stars": histories.stars,
        f"{name}_times": histories.times,
        f"{name}_now": histories.now,
    }


def _load_history(array: Any, name: str, width: int) -> Histories:
    starts, items, stars, times, now = (
        array(f"{name}_{part}") for part in ("starts", "items", "stars", "times", "now")
    )
    return Histories(starts, items, stars, times, width, now)


def write_recommendations(
    model: Recommender, out: Path, k: int, progress: Callable[[str], object] = lambda _: None
) -> int:
    """Write the k best items of every user to a Parquet file: user, rank (from 1), item, title, score, basis.

    Returns the number of rows. The file appears complete or not at all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    titles, item_ids = np.array(model.catalogue.titles, dtype=object), plain_ids(model.catalogue.ids)
    rows = 0
    with store.publish(out) as tmp:
        writer = None
        for start in range(0, len(model.user_ids), USER_BLOCK):
            users = np.arange(start, min(start + USER_BLOCK, len(model.user_ids)))
            items, scores, bases = model.rank_users(users, k)
            present = items >= 0
            ranks = np.broadcast_to(np.arange(1, items.shape[1] + 1), items.shape)[present]
            user_column = np.broadcast_to(model.user_ids[users][:, None], items.shape)[present]
            item_rows = items[present]
            table = pa.table(
                {
                    "user": user_column,
                    "rank": ranks.astype(np.int32),
                    "item": item_ids[item_rows],
                    "title": pa.array(titles[item_rows].tolist(), pa.string()),
                    "score": scores[present].astype(np.float32),
                    "basis": pa.array(np.broadcast_to(np.array(bases)[:, None], items.shape)[present].tolist()),
                }
            )
            writer = writer or pq.ParquetWriter(tmp, table.schema)
            writer.write_table(table)
            rows += len(table)
            progress(f"{users[-1] + 1:,} of {len(model.user_ids):,} users")
        if writer is not None:
            writer.close()
    return rows
