"""Films and made-up users that come with ridgeline, so that everything can be tried without data or a network.

    ridgeline recommend demo

The users are drawn, not people: each likes two kinds of film, gives those high stars and others fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.recommend.data import Catalogue, Dataset, Problems, Ratings
from ridgeline.recommend.recommender import Recommender, Wish

if TYPE_CHECKING:
    from ridgeline.embed import Embedder

USERS = 240
RATED = (20, 45)  # films that a user has rated, from and to
FIRST, LAST = 1_262_304_000, 1_577_836_800  # 2010 to 2020, in seconds


@cache
def catalogue() -> Catalogue:
    lines = files("ridgeline.recommend").joinpath("assets", "films.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(";") for line in lines if line.strip()]
    return Catalogue(
        np.arange(1, len(rows) + 1),
        [f"{title} ({year})" for title, year, _, _ in rows],
        np.array([int(year) for _, year, _, _ in rows], np.int64),
        [tuple(genres.split()) for _, _, genres, _ in rows],
        [tuple(words.split(", ")) for _, _, _, words in rows],
    )


def dataset(seed: int = 0) -> Dataset:
    """The films with the made-up users' ratings, the same for a seed."""
    rng = np.random.default_rng(seed)
    films = catalogue()
    genres = films.all_genres
    has = np.array([[g in own for g in genres] for own in films.genres], float)  # [films, genres]
    users, items, stars, times = [], [], [], []
    for user in range(USERS):
        liked = np.zeros(len(genres))
        liked[rng.choice(len(genres), 2, replace=False, p=has.sum(0) / has.sum())] = (1.0, 0.7)
        pull = has @ liked
        chance = np.exp(2.2 * pull)
        count = int(rng.integers(*RATED))
        chosen = rng.choice(len(films), count, replace=False, p=chance / chance.sum())
        given = np.clip(np.round(2 * (2.6 + 1.5 * pull[chosen] + rng.normal(0, 0.6, count))) / 2, 0.5, 5.0)
        users.append(np.full(count, user))
        items.append(chosen)
        stars.append(given)
        times.append(np.sort(rng.integers(FIRST, LAST, count)))
    ratings = Ratings(
        np.concatenate(users).astype(np.int64),
        np.concatenate(items).astype(np.int64),
        np.concatenate(stars).astype(np.float32),
        np.concatenate(times).astype(np.int64),
    )
    return Dataset("demo", "made up", films, np.arange(1, USERS + 1), ratings, Problems())


def shown(embedder: Embedder, tell: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Fit on the demo's data and ask one question of each kind."""
    data = dataset()
    model = Recommender.fit(data, embedder, tell=tell)
    few = Wish(5)
    answers = {
        "for user 1": model.recommend(1, few),
        "like 'Alien'": model.similar("Alien", few)[2],
        "about 'a shark terrorises a beach town'": model.search("a shark terrorises a beach town", few),
        "for somebody who likes 'Toy Story' and 'Spirited Away'": model.new(["Toy Story", "Spirited Away"], "", few),
        "for somebody who says 'quiet films about memory'": model.new([], "quiet films about memory", few),
    }
    told = {question: [a.to_json() for a in found] for question, found in answers.items()}
    return {"data": data.describe(), "answers": told}
