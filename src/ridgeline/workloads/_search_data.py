"""Vectors to search, by fixed recipes: the same on every machine and in every process.

clustered  unit vectors around one centre per 250 rows, noise 0.9: neighbours are clear, and so close to each other
           that only fine codes can rank them
texts      sentences about invented films, each a title with three tags, through `embed`; queries ask for the same
           things in other words (templates that no stored sentence uses)

Queries are drawn separately from the rows, and the queries for tuning separately from the timed ones.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.store import publish

Vectors = NDArray[np.float32]
KINDS = ("clustered", "texts")
NOISE, PER_CENTRE = 0.9, 250
SEED_CENTRES, SEED_ROWS, SEED_TUNE, SEED_TIMED = 11, 12, 13, 14
ROWS_PER_PART = 65_536


def _split_words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


FIRST = _split_words(
    "amber,broken,crimson,distant,electric,fallen,gentle,hidden,iron,jagged,kind,last,midnight,northern,open"
)
SECOND = _split_words(
    "bridge,canyon,dream,engine,forest,garden,harbour,island,journey,kingdom,letter,mirror,night,orchard,road"
)
THIRD = _split_words(
    "of glass,of tomorrow,in winter,without end,for two,by the sea,under fire,at noon,of wolves,on mars"
)
TAGS = _split_words(
    "slow burn,space travel,coming of age,heist,courtroom,time loop,road movie,whodunit,dystopia,screwball comedy,"
    "haunted house,cooking,chess,jazz,submarine,robots,sibling rivalry,revenge,mountaineering,journalism,amnesia,"
    "undercover,small town,boxing,first contact,magic,pirates,archaeology,school,wartime letters"
)
ROW_TEMPLATES = (
    "{title}: a film with {a}, {b} and {c}.",
    "{title} mixes {a} with {b}; some call it {c}.",
    "Tagged {a}, {b}, {c}: {title}.",
)
QUERY_TEMPLATES = ("I would like to see something about {a} and {b}", "anything like {title}, but with more {c}?")


def draw_vectors(data: str, rows: int, dim: int) -> Vectors:
    """[rows, dim], unit length."""
    if data not in KINDS:
        raise InputError(f"data is '{data}'; there are: {', '.join(KINDS)}.")
    return (
        _draw_clustered(rows, rows, dim, SEED_ROWS)
        if data == "clustered"
        else _encode_sentences(rows, rows, False, dim)
    )


def draw_queries(data: str, count: int, rows: int, dim: int, turn: int) -> Vectors:
    """[count, dim] for a turn; turn −1 is for tuning."""
    if data == "clustered":
        return _draw(_draw_centres(rows, dim), count, (SEED_TUNE,) if turn < 0 else (SEED_TIMED, turn))
    vectors = _encode_sentences(4096, rows, True, dim)
    half = vectors[: len(vectors) // 2] if turn < 0 else vectors[len(vectors) // 2 :]
    return half[np.random.default_rng((SEED_TIMED, turn + 1)).choice(len(half), count, replace=count > len(half))]


@lru_cache(maxsize=2)
def _draw_clustered(count: int, rows: int, dim: int, seed: int) -> Vectors:
    return _draw(_draw_centres(rows, dim), count, (seed,))


@lru_cache(maxsize=2)
def _draw_centres(rows: int, dim: int) -> Vectors:
    number = max(4, rows // PER_CENTRE)
    return np.random.default_rng(SEED_CENTRES).standard_normal((number, dim), np.float32)


def _draw(centres: Vectors, count: int, seed: tuple[int, ...]) -> Vectors:
    random = np.random.default_rng(seed)
    out = np.empty((count, centres.shape[1]), np.float32)
    for at in range(0, count, ROWS_PER_PART):
        n = min(ROWS_PER_PART, count - at)
        part = random.standard_normal((n, centres.shape[1]), np.float32)
        part *= np.float32(NOISE)
        part += centres[random.integers(0, len(centres), n)]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        out[at : at + n] = part
    return out


def generate_sentences(count: int, as_queries: bool) -> Iterator[str]:
    """Distinct as long as titles and tags suffice; queries use separate templates."""
    random = np.random.default_rng((SEED_TIMED if as_queries else SEED_ROWS, 7))
    templates = QUERY_TEMPLATES if as_queries else ROW_TEMPLATES
    for _ in range(count):
        words: tuple[Any, ...] = tuple(part[random.integers(len(part))] for part in (FIRST, SECOND, THIRD))
        a, b, c = (TAGS[i] for i in random.choice(len(TAGS), 3, replace=False))
        title = " ".join(words).title()
        yield templates[random.integers(len(templates))].format(title=title, a=a, b=b, c=c)


@lru_cache(maxsize=4)
def _encode_sentences(count: int, rows: int, as_queries: bool, dim: int) -> Vectors:
    """Encode once per machine into a cache file that all contenders read."""
    from ridgeline.embed import DEFAULT

    texts = list(generate_sentences(count, as_queries))
    name = hashlib.sha256("\n".join([DEFAULT, *texts]).encode()).hexdigest()[:24]
    path = _get_cache_folder() / f"{name}.npy"
    if not path.is_file():
        import ridgeline

        with ridgeline.Embedder(DEFAULT, dtype="float32") as embedder, publish(path) as tmp, tmp.open("wb") as file:
            np.save(file, embedder.encode(texts))
    vectors: Vectors = np.load(path)
    if vectors.shape[1] != dim:
        raise InputError(f"dim is {dim}, and the model of the texts has {vectors.shape[1]}; use that.")
    return vectors


def _get_cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "ridgeline" / "search-texts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def find_truth(queries: Vectors, vectors: Vectors, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(rows [q, k], scores [q, k]): inner products in float64, best first; ties by row."""
    queries_float64 = queries.astype(np.float64)
    best = np.empty((len(queries), 0))
    rows = np.empty((len(queries), 0), np.int64)
    for at in range(0, len(vectors), ROWS_PER_PART):
        scores = queries_float64 @ vectors[at : at + ROWS_PER_PART].astype(np.float64).T
        keep = min(k, scores.shape[1])
        top = np.sort(np.argpartition(-scores, keep - 1, axis=1)[:, :keep], 1)
        best = np.concatenate([best, np.take_along_axis(scores, top, 1)], 1)
        rows = np.concatenate([rows, top + at], 1)
        order = np.argsort(-best, 1, kind="stable")[:, :k]
        best, rows = np.take_along_axis(best, order, 1), np.take_along_axis(rows, order, 1)
    return rows, best
