"""Fit a model again with the items and ratings that arrived since its last fit: a new version of it.

    ridgeline recommend refit MODEL

Text vectors are those that the model and its journal hold, so no encoder is needed. Removed items are left out. Ratings
of items that are not there wait in the version, and count once the item comes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import store
from ridgeline.errors import InputError
from ridgeline.recommend.data import Catalogue, Dataset, Floats, Problems, Ratings
from ridgeline.recommend.recommender import Recommender, save_model
from ridgeline.recommend.versions import (
    REFIT_LOCK,
    delete_old_versions,
    get_live_folder,
    hash_fit,
    prepare_version,
    set_current,
)

Progress = Callable[[str], object]


def refit(path: str | os.PathLike[str], *, device: str = "cpu", progress: Progress = lambda _: None) -> int:
    """Fit a saved model again, use the result from the next load on, and return the number of this version."""
    folder = Path(path).absolute()
    model = Recommender.load(folder, device=device)
    if model._live is None or not model._live.offset > model.journal_lines:
        raise InputError(f"nothing was added to '{path}' since version {model.version}, so there is nothing to refit.")
    with store.lock(get_live_folder(folder) / REFIT_LOCK):
        lines = model._live.offset
        dataset, vectors, waiting = collect(model)
        fitted = Recommender.fit(
            dataset,
            None,
            min_rating=model.min_rating,
            penalty=model.fixed_penalty,
            template=model.template,
            vectors=vectors,
            encoder=model.encoder,
            device=device,
            progress=progress,
        )
        fitted.waiting, fitted.rating_range = waiting, model.rating_range
        progress("writing")
        number, target = prepare_version(folder)
        save_model(fitted, target, {"journal_lines": lines, "fit": hash_fit(folder), "version": number})
        set_current(folder, number)
        delete_old_versions(folder)
    return number


def collect(model: Recommender) -> tuple[Dataset, Floats, list[dict[str, Any]]]:
    """Return the data of a model with its changes, its text vectors, and the ratings of items that are not there."""
    c, seen = model.catalogue, model.seen
    is_present = np.ones(len(c), bool) if c.removed is None else ~c.removed
    rows = np.flatnonzero(is_present)
    place = np.full(len(c), -1, np.int64)
    place[rows] = np.arange(len(rows))
    changed = model._live.ratings if model._live is not None else {}
    owners = seen.users
    is_changed = np.zeros(len(model.user_ids), bool)
    is_changed[list(changed)] = True
    fitted = ~is_changed[owners]
    item_rows, keys = model._rows_of_items(), [str(key) for key in c.ids.tolist()]
    names = [str(name) for name in model.user_ids.tolist()]
    entries: list[tuple[int, int, float, int]] = []
    waiting: list[dict[str, Any]] = []

    def add_waiting(user: int, key: str, stars: float, moment: int) -> None:
        waiting.append({"op": "rating", "user": names[user], "item": key, "rating": stars, "time": moment})

    for user, given in changed.items():
        for key, (stars, moment) in given.items():
            row = item_rows.get(key, -1)
            if row < 0 or not is_present[row]:
                add_waiting(user, key, float(stars), int(moment))
            else:
                entries.append((user, int(place[row]), float(stars), int(moment)))
    for at in np.flatnonzero(fitted & ~is_present[seen.items]).tolist():
        add_waiting(int(owners[at]), keys[seen.items[at]], float(seen.stars[at]), int(seen.times[at]))
    fitted &= is_present[seen.items]
    new = np.array(entries, np.float64).reshape(-1, 4)
    ratings = Ratings(
        np.concatenate([owners[fitted], new[:, 0].astype(np.int64)]),
        np.concatenate([place[seen.items[fitted]], new[:, 1].astype(np.int64)]),
        np.concatenate([seen.stars[fitted], new[:, 2].astype(np.float32)]),
        np.concatenate([seen.times[fitted], new[:, 3].astype(np.int64)]),
    )

    def select(values: Any) -> list[Any]:
        return [values[row] for row in rows.tolist()]

    catalogue = Catalogue(
        c.ids[rows] if c.ids.dtype != object or len({type(v) for v in c.ids.tolist()}) > 1 else np.array(select(c.ids)),
        select(c.titles),
        c.years[rows],
        select(c.genres),
        select(c.themes),
        c.genome,
        select(c.texts) if c.texts and any(c.texts) else (),
    )
    dataset = Dataset(model.name, "refit", catalogue, model.user_ids, ratings, Problems())
    return dataset, np.ascontiguousarray(model.vectors[rows]), waiting
