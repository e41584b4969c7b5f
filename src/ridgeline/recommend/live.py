"""Items and ratings that arrive after the fit, kept in a journal beside the model: MODEL.live/journal.jsonl.

A change is checked, written to the journal, and only then applied and acknowledged; `Recommender.load` applies the
journal again. Until the next fit a new item is folded in (models/fold_in.py), a user's new ratings change their list at
once, and what the models learnt about known items stays. A rating of an item that is not there waits, and counts once
the item comes.

The arrays that grow are shared with snapshots: rows are only appended, so a snapshot of the first n rows stays valid.
Changed and removed items are written in place.
"""

from __future__ import annotations

import base64
import heapq
import json
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline import store
from ridgeline.errors import InputError, StoreError
from ridgeline.native import dot_few
from ridgeline.recommend.data import Catalogue, Floats, Histories, Ints
from ridgeline.recommend.item_vectors import item_texts
from ridgeline.recommend.models import FoldIn, Hybrid, RecentPopularity
from ridgeline.recommend.models.content import normalize_rows
from ridgeline.recommend.models.fold_in import MAX_NEIGHBOURS
from ridgeline.recommend.readers import read_rating_rows
from ridgeline.recommend.titles import TitleIndex, normalize_title, parse_year
from ridgeline.recommend.versions import JOURNAL, get_live_folder

if TYPE_CHECKING:
    from ridgeline.recommend.recommender import Recommender

LOCK = "lock"
MAX_TEXT_CHARS = 100_000  # of one item: title and text
MAX_GENRES = 100  # of one item
MAX_ID_CHARS = 500
MAX_AHEAD_S = 86_400  # a later time is a mistake of the client's clock or unit
MAX_FANS = 100  # whose likes describe a new item
TEXT_NEIGHBOURS = 10  # items with the nearest texts, for a new item without fans
TRUST_FANS = 2.0  # fans after which they count as much as the text
_NUMBER = re.compile(r"-?\d{1,18}")

Encode = Callable[[Sequence[str]], NDArray[Any]]
Line = dict[str, Any]


class Conflict(InputError):
    """What should be added is there already."""


class NotFound(InputError):
    """What should be changed or removed is not there."""


class TooLarge(InputError):
    """A text or a list is larger than allowed."""


@dataclass(frozen=True)
class Change:
    """One request: `kind` is add_items, put_item, remove_items, add_ratings or remove_ratings; all of it or nothing."""

    kind: str
    values: Sequence[Any]


@dataclass
class GrowingArray:
    """An array whose first rows are never moved while others are appended: `view()` stays valid."""

    data: NDArray[Any]
    count: int = -1

    def __post_init__(self) -> None:
        self.count = len(self.data)

    def append(self, rows: NDArray[Any]) -> None:
        needed = self.count + len(rows)
        if needed > len(self.data):
            larger = np.zeros((max(needed, len(self.data) * 5 // 4 + 64), *self.data.shape[1:]), self.data.dtype)
            larger[: self.count] = self.data[: self.count]
            self.data = larger
        self.data[self.count : needed] = rows
        self.count = needed

    def view(self) -> NDArray[Any]:
        return self.data[: self.count]


@dataclass
class _Pending:
    """What the changes of a batch that are accepted, but not applied yet, add (True) and remove (False)."""

    items: dict[str, bool] = field(default_factory=dict)
    ratings: dict[tuple[str, str], bool] = field(default_factory=dict)


class LiveData:
    """The items and ratings of a model, with those that arrived after the fit; one thread writes at a time."""

    def __init__(self, model: Recommender, folder: Path | None = None) -> None:
        """Start from a fitted model; `folder` holds the journal (None: keep changes in memory only)."""
        catalogue = model.catalogue
        self._fitted = copy(model)  # without changes
        self.folder, self.offset = folder, model.journal_lines  # lines of the journal that the model has
        self.lines: list[Line] = []  # changes of a model without a folder
        self._locks, self._locked = ExitStack(), False
        self._hybrid, self._recent, self._min_rating = model.hybrid, model.hybrid.recent, model.min_rating
        self._base_seen, self._template = model.seen, model.template
        self.fitted_items, self.fitted_users = len(catalogue), len(model.fitted_user_ids)
        self._numbers = _has_numbers(catalogue.ids), _has_numbers(model.fitted_user_ids)
        self.item_rows = {str(key): row for row, key in enumerate(catalogue.ids.tolist())}
        self.user_rows = {str(key): row for row, key in enumerate(model.fitted_user_ids.tolist())}
        self.new_users: list[Any] = []
        self._keys = [str(key) for key in catalogue.ids.tolist()]  # by row
        self._ids = GrowingArray(catalogue.ids.astype(object))
        self._years, self._known_years = GrowingArray(catalogue.years.copy()), GrowingArray(catalogue.years.copy())
        self._titles: list[str] = list(catalogue.titles)
        self._genres, self._themes = list(catalogue.genres), list(catalogue.themes)
        self.texts = list(catalogue.texts) if catalogue.texts else [""] * len(catalogue)
        self.removed = GrowingArray(np.zeros(len(catalogue), bool))
        self._genome = catalogue.genome
        self._vectors = GrowingArray(np.array(model.vectors))
        self._centred = GrowingArray(np.array(model.hybrid.semantic.items))
        self._counts = GrowingArray(model.hybrid.popularity.counts.copy())
        self._is_learnt = np.zeros(len(catalogue), bool)
        self._is_learnt[model.hybrid.ease.item_rows] = True
        self._learnt_keys = {self._keys[row] for row in model.hybrid.ease.item_rows.tolist()}
        self.ratings: dict[int, dict[str, tuple[float, int]]] = {}  # by user row and item; replaced, never changed
        self._fans: dict[str, dict[int, None]] = {}  # users who like an item that is not learnt, oldest first
        self._near_texts: dict[int, tuple[Ints, Floats]] = {}  # learnt items with the nearest texts, by row
        self._fold_at: dict[int, int] = {}  # row → place in the fold-in
        self._fold = [
            GrowingArray(np.zeros(0, np.int64)),
            GrowingArray(np.zeros((0, MAX_NEIGHBOURS), np.int64)),
            GrowingArray(np.zeros((0, MAX_NEIGHBOURS), np.float32)),
        ]
        self.new_titles: dict[str, int] = {}
        self.changed: set[int] = set()  # rows of the fit whose title may be another one now
        self.apply(model.waiting)

    # -- the journal

    def open(self) -> bool:
        """Lock the journal and apply what another process wrote meanwhile; return whether there was any."""
        if self.folder is None or self._locked:
            return False
        with store.explain_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        self._locks.enter_context(store.lock(self.folder / LOCK))
        self._locked = True
        return self.replay()

    def close(self) -> None:
        """Free the journal for other processes."""
        self._locks.close()
        self._locked = False

    def take_over(self, old: LiveData) -> None:
        """Write to the journal from now on instead of `old`, which must be of the same model, and apply its changes."""
        if old._locked:
            self._locks, old._locks = old._locks.pop_all(), ExitStack()
            self._locked, old._locked = True, False
        self.replay()

    def replay(self) -> bool:
        """Apply the lines of the journal that this model does not have; return whether there were any."""
        path = None if self.folder is None else self.folder / JOURNAL
        if path is None or not path.exists():
            return False
        lines = store.read_lines(path).objects[self.offset :]
        self.apply(lines)
        self.offset += len(lines)
        return bool(lines)

    def follow(self) -> bool:
        """Apply what another process wrote, if this one does not write; return whether there was any."""
        return not self._locked and self.replay()

    def save(self, path: Path) -> None:
        """Save the fitted model to `path`, and the changes to the journal beside it."""
        journal = get_live_folder(path) / JOURNAL
        lines = self.lines
        if self.folder is not None:
            journal_path = self.folder / JOURNAL
            is_own = journal_path == journal.absolute() or not journal_path.exists()
            lines = [] if is_own else list(store.read_lines(journal_path).objects[self._fitted.journal_lines :])
        if lines and journal.exists():
            raise InputError(f"{journal.parent} holds changes of another model; save under another name.")
        self._fitted.save(path)
        if lines:
            with store.explain_errors(journal):
                journal.parent.mkdir(exist_ok=True)
            store.append_lines(journal, lines)

    def write(
        self, changes: Sequence[Change], encode: Encode, all_or_none: bool = False
    ) -> list[dict[str, int] | InputError]:
        """Check, store and apply changes; return for each what it did, or why it was refused."""
        results, lines = self.check(changes, encode, all_or_none)
        self.commit(lines)
        return results

    def check(
        self, changes: Sequence[Change], encode: Encode, all_or_none: bool = False
    ) -> tuple[list[dict[str, int] | InputError], list[Line]]:
        """Return for each change what it would do, or why it is refused, and the lines to `commit`.

        All texts are encoded in one batch.
        """
        results: list[dict[str, int] | InputError] = []
        pending, lines = _Pending(), list[Line]()
        vectors = self._encode_items(changes, encode)
        for change in changes:
            try:
                result, more = self._check(change, pending, vectors)
            except InputError as error:
                if all_or_none:
                    return [error] * len(changes), []
                results.append(error)
                continue
            results.append(result)
            lines += more
        return results, lines

    def copy_lines(self, lines: Sequence[Line], encode: Encode) -> list[Line]:
        """Return the lines that another model checked, with this model's vectors."""
        items = [line for line in lines if line["op"] == "item"]
        vectors = self._encode_items([Change("put_item", [_select_fields(line)]) for line in items], encode)
        return [
            {**line, "vector": _encode_vector(vectors[self._make_text(line)])} if line["op"] == "item" else line
            for line in lines
        ]

    def commit(self, lines: Sequence[Line]) -> None:
        """Store and apply checked changes; all are on the disk with one write."""
        if lines:
            if self.folder is None:
                self.lines += lines
            else:
                store.append_lines(self.folder / JOURNAL, lines)
                self.offset += len(lines)
            self.apply(lines)

    # -- checks: nothing changes here but `pending`

    def _encode_items(self, changes: Sequence[Change], encode: Encode) -> dict[str, NDArray[np.float32]]:
        texts: dict[str, None] = {}
        for change in changes:
            if change.kind in ("add_items", "put_item"):
                try:
                    texts.update((self._make_text(parse_item(value)), None) for value in change.values)
                except InputError:
                    continue  # refused when it is checked
        return dict(zip(texts, np.asarray(encode(list(texts)), np.float32), strict=True)) if texts else {}

    def _make_text(self, item: Line) -> str:
        one = Catalogue(
            np.array([item["id"]], object), [item["title"]], np.array([item["year"]]), [tuple(item["genres"])], [()], 0
        )
        return " ".join(filter(None, (item_texts(one, self._template)[0], item["text"])))

    def _check(
        self, change: Change, pending: _Pending, vectors: Mapping[str, NDArray[np.float32]]
    ) -> tuple[dict[str, int], list[Line]]:
        """Return (the answer, the lines of the journal) of one change; raise InputError if it is refused."""
        lines: list[Line] = []
        added: set[str] = set()

        def exists(key: str) -> bool:
            row = self.item_rows.get(key)
            return pending.items.get(key, row is not None and not self.removed.data[row])

        if change.kind in ("add_items", "put_item"):
            for item in map(parse_item, change.values):
                key = item["id"]
                if key in added:
                    raise Conflict(f"the id '{key}' is twice in this request; give each item once.")
                if change.kind == "add_items" and exists(key):
                    raise Conflict(f"there is an item '{key}' already; change it with PUT, or give another id.")
                if change.kind == "put_item" and not exists(key):
                    raise NotFound(f"there is no item '{key}'; add it with POST.")
                added.add(key)
                vector = vectors[self._make_text(item)]
                lines.append({"op": "item", **item, "vector": _encode_vector(vector)})
            pending.items |= dict.fromkeys(added, True)
            return {"added" if change.kind == "add_items" else "changed": len(lines)}, lines
        if change.kind == "remove_items":
            keys = list(dict.fromkeys(parse_id(value, "item") for value in change.values))
            for key in keys:
                if not exists(key):
                    raise NotFound(f"there is no item '{key}', so it cannot be removed.")
            pending.items |= dict.fromkeys(keys, False)
            return {"removed": len(keys)}, [{"op": "remove item", "id": key} for key in keys]
        if change.kind == "add_ratings":
            now = int(time.time())
            ratings = [parse_rating(value, now) for value in change.values]
            low, high = self._fitted.rating_range or (-math.inf, math.inf)
            for rating in ratings:
                if not low <= rating["rating"] <= high:
                    raise InputError(
                        f"user '{rating['user']}' gave item '{rating['item']}' {rating['rating']:g}; the ratings of "
                        f"this model go from {low:g} to {high:g}."
                    )
            waiting = sum(not exists(rating["item"]) for rating in ratings)
            pending.ratings |= {(rating["user"], rating["item"]): True for rating in ratings}
            lines = [{"op": "rating", **rating} for rating in ratings]
            return {"added": len(ratings) - waiting, "waiting": waiting}, lines
        pairs = list(dict.fromkeys(parse_pair(value) for value in change.values))
        for user, key in pairs:
            if not pending.ratings.get((user, key), key in self.get_ratings(user)):
                raise NotFound(f"user '{user}' has not rated item '{key}', so the rating cannot be removed.")
        pending.ratings |= dict.fromkeys(pairs, False)
        return {"removed": len(pairs)}, [{"op": "remove rating", "user": user, "item": key} for user, key in pairs]

    # -- changes

    def apply(self, lines: Iterable[Line]) -> None:
        """Apply lines of the journal, in order; a line that was applied before changes nothing."""
        dirty: dict[str, None] = {}
        new_texts: dict[int, None] = {}  # rows of learnt items
        for line in lines:
            op = line["op"]
            if op == "item":
                place = self._put_item(line)
                if self._learns(place):
                    new_texts[place] = None
                dirty[line["id"]] = None
            elif op == "remove item":
                row = self.item_rows.get(line["id"])
                if row is not None:
                    self.removed.data[row] = True
            elif op in ("rating", "remove rating"):
                self._put_rating(line, dirty)
            else:
                raise StoreError(f"the journal of this model has the entry '{op}'; use the version that wrote it.")
        dirty |= dict.fromkeys(self._forget_near_texts(list(new_texts)))
        self._fold_items([key for key in dirty if key in self.item_rows])

    def _put_item(self, line: Line) -> int:
        """Add or change an item; return its row."""
        key, genres = line["id"], tuple(line["genres"])
        vector = np.frombuffer(base64.b64decode(line["vector"]), np.float32)
        if len(vector) != self._vectors.data.shape[1]:
            raise StoreError(
                f"the journal of this model holds vectors of {len(vector)} dimensions and the model has "
                f"{self._vectors.data.shape[1]}; fit it again with the encoder of the journal."
            )
        centred = normalize_rows((vector - self._hybrid.semantic.mean)[None])
        row = self.item_rows.get(key)
        if row is None:
            row = self._ids.count
            self._titles.append(line["title"])
            self._genres.append(genres)
            self._themes.append(())
            self.texts.append(line["text"])
            self._keys.append(key)
            identity = np.array([make_id(key, self._numbers[0])], object)
            for array, value in (
                (self._ids, identity),
                (self._years, np.array([line["year"]])),
                (self._known_years, np.zeros(1, np.int64)),  # a live item is out
                (self.removed, np.zeros(1, bool)),
                (self._vectors, vector[None]),
                (self._centred, centred),
                (self._counts, np.zeros(1, np.float32)),
            ):
                array.append(value)
            self.item_rows[key] = row
        else:
            self.removed.data[row] = False
            self._titles[row], self._genres[row], self.texts[row] = line["title"], genres, line["text"]
            self._themes[row] = ()
            self._years.data[row] = line["year"]
            self._vectors.data[row], self._centred.data[row] = vector, centred[0]
            self.changed.add(row)
            self._near_texts.pop(row, None)
        for name in _title_keys(line["title"]):
            self.new_titles[name] = row
        return row

    def _put_rating(self, line: Line, dirty: dict[str, None]) -> None:
        name, key = line["user"], line["item"]
        row = self.user_rows.get(name)
        if row is None:
            row = self.fitted_users + len(self.new_users)
            self.new_users.append(make_id(name, self._numbers[1]))
            self.user_rows[name] = row
        ratings = dict(self.ratings[row] if row in self.ratings else self._get_fitted(row))
        ratings.pop(key, None)  # a new rating counts as the latest of equal times
        fans = self._fans.get(key, {})
        fans.pop(row, None)
        if line["op"] == "rating":
            ratings[key] = (line["rating"], line["time"])
            if line["rating"] >= self._min_rating and key not in self._learnt_keys:
                fans[row] = None
                self._fans[key] = fans
        self.ratings[row] = ratings
        for other in (key, *ratings):
            if other in self._fans:
                dirty[other] = None

    def _get_fitted(self, row: int) -> dict[str, tuple[float, int]]:
        if row >= self.fitted_users:
            return {}
        part = slice(int(self._base_seen.starts[row]), int(self._base_seen.starts[row + 1]))
        seen = self._base_seen
        items, stars, times = (a[part].tolist() for a in (seen.items, seen.stars, seen.times))
        return {self._keys[item]: (star, moment) for item, star, moment in zip(items, stars, times, strict=True)}

    def _fold_items(self, keys: Sequence[str]) -> None:
        """Compute the neighbours of items that the models did not learn."""
        rows = [row for row in (self.item_rows[key] for key in keys) if not self._learns(row)]
        if not rows or not self._is_learnt.any():
            return
        self._find_near_texts([row for row in rows if row not in self._near_texts])
        for row in rows:
            self._fold_item(row, *self._near_texts[row])

    def _find_near_texts(self, rows: Sequence[int]) -> None:
        """Find the learnt items with the nearest texts; they stay the same while ratings arrive."""
        fitted, count = self.fitted_items, min(TEXT_NEIGHBOURS, int(self._is_learnt.sum()))
        for first in range(0, len(rows), 64):
            block = np.array(rows[first : first + 64])
            similarities = np.empty((len(block), fitted), np.float32)
            dot_few(self._centred.data[block], self._centred.data[:fitted], similarities)
            similarities[:, ~self._is_learnt] = -np.inf
            best = np.argpartition(similarities, -count, axis=1)[:, -count:]
            likeness = np.take_along_axis(similarities, best, 1)
            self._near_texts |= dict(zip(block.tolist(), zip(best, likeness, strict=True), strict=True))

    def _forget_near_texts(self, changed: Sequence[int]) -> list[str]:
        """Forget the nearest texts of the items for which learnt items with a new text may be nearer, or no longer
        near. Return the ids of these items.
        """
        rows = np.array(list(self._near_texts), np.int64)
        if not changed or not len(rows):
            return []
        neighbours = np.array([items for items, _ in self._near_texts.values()])
        least = np.array([likeness.min() for _, likeness in self._near_texts.values()])
        similarities = np.empty((len(changed), len(rows)), np.float32)
        dot_few(self._centred.data[np.array(changed)], self._centred.data[rows], similarities)
        affected = np.isin(neighbours, changed).any(1) | (similarities.max(0) >= least)
        for row in rows[affected].tolist():
            del self._near_texts[row]
        return [self._keys[row] for row in rows[affected].tolist()]

    def _fold_item(self, row: int, text_items: Ints, similarity: Floats) -> None:
        likeness = np.maximum(similarity, 0)
        shares: dict[int, float] = {}
        fans = list(self._fans.get(self._keys[row], {}))[-MAX_FANS:]
        for user in fans:
            liked = [
                item
                for key, (stars, _) in self.ratings[user].items()
                if stars >= self._min_rating and key in self._learnt_keys
                for item in (self.item_rows[key],)
            ]
            for item in liked:
                shares[item] = shares.get(item, 0.0) + 1 / len(liked) / len(fans)
        trust = len(fans) / (len(fans) + TRUST_FANS) if shares else 0.0
        joined = {item: trust * share for item, share in shares.items()}
        total = float(likeness.sum())
        if total > 0:  # a text that is near to none of the known ones says little: the mean likeness scales it
            for item, value in zip(text_items.tolist(), likeness.tolist(), strict=True):
                joined[item] = joined.get(item, 0.0) + (1 - trust) * value / total * float(likeness.mean())
        best = heapq.nlargest(MAX_NEIGHBOURS, joined.items(), key=lambda pair: pair[1])
        neighbours, weights = np.zeros((1, MAX_NEIGHBOURS), np.int64), np.zeros((1, MAX_NEIGHBOURS), np.float32)
        neighbours[0, : len(best)] = [item for item, _ in best]
        weights[0, : len(best)] = [share for _, share in best]
        self._counts.data[row] = len(self._fans.get(self._keys[row], {}))
        place = self._fold_at.get(row)
        if place is None:
            self._fold_at[row] = self._fold[0].count
            parts: tuple[NDArray[Any], ...] = (np.array([row]), neighbours, weights)
            for array, value in zip(self._fold, parts, strict=True):
                array.append(value)
        else:
            self._fold[1].data[place], self._fold[2].data[place] = neighbours[0], weights[0]

    def title_keys(self, row: int) -> tuple[str, ...]:
        return _title_keys(self._titles[row])

    def _learns(self, row: int) -> bool:
        return row < self.fitted_items and bool(self._is_learnt[row])

    # -- what a model reads

    def make_catalogue(self) -> Catalogue:
        return Catalogue(
            self._ids.view(),
            self._titles,
            self._years.view(),
            self._genres,
            self._themes,
            self._genome,
            self.texts,
            self.removed.view(),
        )

    def make_vectors(self) -> Floats:
        return self._vectors.view()

    def make_hybrid(self) -> Hybrid:
        """Return the fitted hybrid with the new items folded in; all arrays are shared."""
        base, width = self._hybrid, self._ids.count
        rows, neighbours, weights = (array.view() for array in self._fold)
        fold = FoldIn(rows, neighbours, weights, self._fold_at)
        semantic, popularity, recent = (
            copy(base.semantic),
            copy(base.popularity),
            RecentPopularity(self._known_years.view()),
        )
        semantic.items, popularity.counts = self._centred.view(), self._counts.view()
        recent.times, recent.items, recent.cache = self._recent.times, self._recent.items, self._recent.cache
        return Hybrid(
            base.ease.extend(width, fold), semantic, popularity, base.itemknn.extend(fold), recent, base.weights
        )

    def get_ratings(self, user: str) -> dict[str, tuple[float, int]]:
        """Return a user's ratings by item; empty for an unknown user."""
        row = self.user_rows.get(user)
        if row is None:
            return {}
        return self.ratings[row] if row in self.ratings else self._get_fitted(row)

    def list_ratings(self, user: str) -> list[dict[str, Any]]:
        """Return a user's ratings of the items that are there, oldest first."""
        ratings = sorted(self.get_ratings(user).items(), key=lambda pair: pair[1][1])
        rows = [(self.item_rows.get(key), stars, moment) for key, (stars, moment) in ratings]
        return [
            {"item": self._ids.data[row], "title": self._titles[row], "rating": stars, "time": moment}
            for row, stars, moment in rows
            if row is not None and not self.removed.data[row]
        ]

    def select_histories(self, users: Ints, base: Histories, width: int, min_rating: float | None) -> Histories:
        """Return the histories of user rows; ratings that arrived count, unknown and removed items do not."""
        if not any(row in self.ratings or row >= self.fitted_users for row in users.tolist()):
            return replace(base.select(users), width=width)
        starts, parts = [0], []
        for row in users.tolist():
            ratings = self.ratings.get(row)
            if ratings is None:
                one = base.select(np.array([row]))
                part = np.stack([one.items, one.stars, one.times], axis=1).astype(np.float64)
            else:
                entries = [
                    (item, stars, moment)
                    for key, (stars, moment) in ratings.items()
                    for item in (self.item_rows.get(key, width),)
                    if item < width and not self.removed.data[item] and (min_rating is None or stars >= min_rating)
                ]
                entries.sort(key=lambda entry: entry[2])
                part = np.array(entries, np.float64).reshape(-1, 3)
            parts.append(part)
            starts.append(starts[-1] + len(part))
        joined = np.concatenate(parts)
        return Histories(
            np.array(starts, np.int64),
            joined[:, 0].astype(np.int64),
            joined[:, 1].astype(np.float32),
            joined[:, 2].astype(np.int64),
            width,
            np.zeros(len(users), np.int64),
        )


def _has_numbers(ids: NDArray[Any]) -> bool:
    return any(isinstance(value, int) for value in ids.tolist()) if ids.dtype == object else ids.dtype.kind in "iu"


def _encode_vector(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.tobytes()).decode()


def _select_fields(line: Line) -> Line:
    return {name: line[name] for name in ("id", "title", "text", "genres", "year")}


def parse_item(value: Any) -> Line:
    """Return a checked item: id, title, text, genres, year (0: unknown)."""
    if not isinstance(value, Mapping):
        raise InputError(f"an item is {type(value).__name__}; give an object with id and title.")
    extra = sorted(set(value) - {"id", "title", "text", "genres", "year"})
    if extra:
        raise InputError(f"an item has the field '{extra[0]:.40}'; it may have id, title, text, genres and year.")
    key = parse_id(value.get("id"), "item")
    title = _parse_text(value.get("title"), f"the title of item '{key}'")
    text = _parse_text("" if value.get("text") is None else value["text"], f"the text of item '{key}'")
    if not title.strip():
        raise InputError(f"item '{key}' has no title; give some words.")
    if len(title) + len(text) > MAX_TEXT_CHARS:
        raise TooLarge(
            f"the texts of item '{key}' have {len(title) + len(text):,} characters; give up to {MAX_TEXT_CHARS:,}."
        )
    genres = value.get("genres") or []
    if not isinstance(genres, list | tuple) or not all(isinstance(g, str) for g in genres):
        raise InputError(f"the genres of item '{key}' are no list of words.")
    if len(genres) > MAX_GENRES or sum(map(len, genres)) > MAX_TEXT_CHARS:
        raise TooLarge(f"item '{key}' has {len(genres):,} genres; give up to {MAX_GENRES}, and short ones.")
    for genre in genres:
        _check_characters(genre, f"a genre of item '{key}'")
    year = value.get("year")
    if year is None:
        year = parse_year(title)
    if isinstance(year, bool) or not isinstance(year, int) or not 0 <= year <= 9_999:
        raise InputError(f"the year of item '{key}' is {year!r:.40}; give a whole number up to 9999.")
    return {"id": key, "title": title.strip(), "text": text.strip(), "genres": list(genres), "year": year}


def parse_rating(value: Any, now: int) -> Line:
    """Return a checked rating: user, item, rating, time (default: `now`)."""
    if not isinstance(value, Mapping):
        raise InputError(f"a rating is {type(value).__name__}; give an object with user, item and rating.")
    extra = sorted(set(value) - {"user", "item", "rating", "time"})
    if extra:
        raise InputError(f"a rating has the field '{extra[0]:.40}'; it may have user, item, rating and time.")
    user, item = parse_id(value.get("user"), "user"), parse_id(value.get("item"), "item")
    stars, moment = value.get("rating"), value.get("time")
    if isinstance(stars, bool) or not isinstance(stars, int | float) or not abs(stars) <= 1e6:  # not NaN either
        given = "missing" if stars is None else f"{stars!r:.40}"
        raise InputError(f"the rating of item '{item}' by user '{user}' is {given}; give a number.")
    if moment is None:
        moment = now
    if isinstance(moment, bool) or not isinstance(moment, int | float) or not 0 <= moment <= now + MAX_AHEAD_S:
        why = "give seconds since 1970, not more than a day ahead"
        raise InputError(f"the time of the rating of item '{item}' by user '{user}' is {moment!r:.40}; {why}.")
    return {"user": user, "item": item, "rating": float(stars), "time": int(moment)}


def parse_pair(value: Any) -> tuple[str, str]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise InputError("a rating to remove is a pair: user, item.")
    return parse_id(value[0], "user"), parse_id(value[1], "item")


def parse_id(value: Any, what: str) -> str:
    """Return an id, a text or a whole number, as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        given = "missing" if value in (None, "") else f"{value!r:.40}"
        raise InputError(f"the id of the {what} is {given}; give a text or a whole number.")
    text = str(value)
    if len(text) > MAX_ID_CHARS:
        raise TooLarge(f"the id of the {what} has {len(text):,} characters; give up to {MAX_ID_CHARS}.")
    _check_characters(text, f"the id of the {what}")
    return text


def make_id(key: str, are_numbers: bool) -> Any:
    """Return an id in the type of the data's ids, if it fits."""
    return int(key) if are_numbers and _NUMBER.fullmatch(key) and str(int(key)) == key else key


def _parse_text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{what} is {'missing' if value is None else type(value).__name__}; give a string.")
    _check_characters(value, what)
    return value


def _check_characters(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} holds half a character, such as \\ud800; send complete characters.") from None


def _title_keys(title: str) -> tuple[str, ...]:
    bare = re.sub(r"\s*\(\d{4}\)\s*$", "", title)
    return tuple(key for key in (normalize_title(title), normalize_title(bare)) if key)


def read_new_items(path: Path) -> list[Line]:
    """Read items from a JSONL file, one object per line; an id may come once."""
    lines: dict[str, int] = {}
    items = []
    for number, value in _read_json_lines(path):
        item = _check_line(parse_item, value, path, number)
        first = lines.setdefault(item["id"], number)
        if first != number:
            raise Conflict(f"{path} line {number}: the id '{item['id']}' is that of line {first}; give each item once.")
        items.append(item)
    return items


def read_new_ratings(path: Path) -> list[Line]:
    """Read ratings from a JSONL file, or from CSV or Parquet with the columns user and item [rating, time]."""
    now = int(time.time())
    if path.suffix != ".jsonl":
        values: Iterable[tuple[int, Any]] = enumerate(read_rating_rows(path), start=1)
        where = "row"
    else:
        values, where = _read_json_lines(path), "line"
    return [_check_line(lambda v: parse_rating(v, now), value, path, number, where) for number, value in values]


def _check_line(check: Callable[[Any], Line], value: Any, path: Path, number: int, where: str = "line") -> Line:
    try:
        return check(value)
    except InputError as error:
        raise type(error)(f"{path} {where} {number}: {error}") from None


def _read_json_lines(path: Path) -> Iterable[tuple[int, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as UTF-8 text: {getattr(error, 'strerror', None) or error}.") from None
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError):
                raise InputError(f"{path} line {number} is no JSON; write one object per line.") from None


class LiveTitles:
    """Finds the row of a title: of a new or changed item by its exact title, of others as the fit's index does."""

    def __init__(self, fitted: TitleIndex, live: LiveData) -> None:
        self._fitted, self._live = fitted, live

    def find(self, title: str) -> tuple[int, bool]:
        live = self._live
        row = live.new_titles.get(normalize_title(title))
        if row is not None and not live.removed.data[row] and normalize_title(title) in live.title_keys(row):
            return row, True
        row, exact = self._fitted.find(title)
        if live.removed.data[row] or row in live.changed:
            raise NotFound(f"there is no title '{title:.80}' any more; search finds films by what they are about.")
        return row, exact
