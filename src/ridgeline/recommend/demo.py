"""Films and synthetic users that come with ridgeline, for a demo without data or a network.

    ridgeline recommend demo

The users are random: each likes two genres, gives films of these high ratings and others lower ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline.recommend.data import Catalogue, Dataset, Problems, Ratings
from ridgeline.recommend.recommender import Options, Recommender

if TYPE_CHECKING:
    from ridgeline.embed import Embedder

USERS = 240
RATED = (20, 45)  # number of films that a user rates, from and to
FIRST, LAST = 1_262_304_000, 1_577_836_800  # 2010 to 2020, in seconds


@cache
def load_catalogue() -> Catalogue:
    lines = files("ridgeline.recommend").joinpath("assets", "films.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split(";") for line in lines if line.strip()]
    return Catalogue(
        np.arange(1, len(rows) + 1),
        [f"{title} ({year})" for title, year, _, _ in rows],
        np.array([int(year) for _, year, _, _ in rows], np.int64),
        [tuple(genres.split()) for _, _, genres, _ in rows],
        [tuple(words.split(", ")) for _, _, _, words in rows],
    )


def draw_dataset(seed: int = 0) -> Dataset:
    """Return the films with ratings of synthetic users; a seed gives the same ratings every time."""
    rng = np.random.default_rng(seed)
    films = load_catalogue()
    genres = films.all_genres
    has = np.array([[g in film_genres for g in genres] for film_genres in films.genres], float)  # [films, genres]
    users, items, stars, times = [], [], [], []
    for user in range(USERS):
        liked = np.zeros(len(genres))
        liked[rng.choice(len(genres), 2, replace=False, p=has.sum(0) / has.sum())] = (1.0, 0.7)
        attraction = has @ liked
        chance = np.exp(2.2 * attraction)
        count = int(rng.integers(*RATED))
        chosen = rng.choice(len(films), count, replace=False, p=chance / chance.sum())
        rated_stars = np.clip(np.round(2 * (2.6 + 1.5 * attraction[chosen] + rng.normal(0, 0.6, count))) / 2, 0.5, 5.0)
        users.append(np.full(count, user))
        items.append(chosen)
        stars.append(rated_stars)
        times.append(np.sort(rng.integers(FIRST, LAST, count)))
    ratings = Ratings(
        np.concatenate(users).astype(np.int64),
        np.concatenate(items).astype(np.int64),
        np.concatenate(stars).astype(np.float32),
        np.concatenate(times).astype(np.int64),
    )
    return Dataset("demo", "made up", films, np.arange(1, USERS + 1), ratings, Problems())


def run_demo(embedder: Embedder, progress: Callable[[str], object] = lambda _: None) -> dict[str, Any]:
    """Fit on the demo's data and return one recommendation of each kind."""
    data = draw_dataset()
    model = Recommender.fit(data, embedder, progress=progress)
    options = Options(5)
    answers = {
        "for user 1": model.recommend(1, options),
        "like 'Alien'": model.similar("Alien", options)[2],
        "about 'a shark terrorises a beach town'": model.search("a shark terrorises a beach town", options),
        "for a new user who likes 'Toy Story' and 'Spirited Away'": model.new(
            ["Toy Story", "Spirited Away"], "", options
        ),
        "for a new user who writes 'quiet films about memory'": model.new([], "quiet films about memory", options),
    }
    answers_json = {question: [a.to_json() for a in recommendations] for question, recommendations in answers.items()}
    return {"data": data.describe(), "answers": answers_json}
