"""Vectors to search, by fixed recipes: the same on every machine and in every process.

clustered  unit vectors around one centre per 250 rows, noise 0.9: neighbours that are neighbours for a reason, and
           near enough to each other that codes must be fine to rank them
texts      sentences about invented films, each a title with three tags, through `embed`; queries say the same kind of
           thing in other words (templates that no stored sentence uses)

Queries are drawn apart from the rows, and those a contender tunes itself with apart from those it is timed with.
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
PIECE = 65_536


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


FIRST = _words(
    "amber,broken,crimson,distant,electric,fallen,gentle,hidden,iron,jagged,kind,last,midnight,northern,open"
)
SECOND = _words(
    "bridge,canyon,dream,engine,forest,garden,harbour,island,journey,kingdom,letter,mirror,night,orchard,road"
)
THIRD = _words("of glass,of tomorrow,in winter,without end,for two,by the sea,under fire,at noon,of wolves,on mars")
TAGS = _words(
    "slow burn,space travel,coming of age,heist,courtroom,time loop,road movie,whodunit,dystopia,screwball comedy,"
    "haunted house,cooking,chess,jazz,submarine,robots,sibling rivalry,revenge,mountaineering,journalism,amnesia,"
    "undercover,small town,boxing,first contact,magic,pirates,archaeology,school,wartime letters"
)
STORED = (
    "{title}: a film with {a}, {b} and {c}.",
    "{title} mixes {a} with {b}; some call it {c}.",
    "Tagged {a}, {b}, {c}: {title}.",
)
ASKED = ("I would like to see something about {a} and {b}", "anything like {title}, but with more {c}?")


def vectors_of(data: str, rows: int, dim: int) -> Vectors:
    """[rows, dim], unit length."""
    if data not in KINDS:
        raise InputError(f"data is '{data}'; there are: {', '.join(KINDS)}.")
    return _clustered(rows, rows, dim, SEED_ROWS) if data == "clustered" else _texts(rows, rows, False, dim)


def queries_of(data: str, count: int, rows: int, dim: int, turn: int) -> Vectors:
    """[count, dim] for a turn; turn −1 is for tuning."""
    if data == "clustered":
        return _draw(_centres(rows, dim), count, (SEED_TUNE,) if turn < 0 else (SEED_TIMED, turn))
    asked = _texts(4096, rows, True, dim)
    half = asked[: len(asked) // 2] if turn < 0 else asked[len(asked) // 2 :]
    return half[np.random.default_rng((SEED_TIMED, turn + 1)).choice(len(half), count, replace=count > len(half))]


@lru_cache(maxsize=2)
def _clustered(count: int, rows: int, dim: int, seed: int) -> Vectors:
    return _draw(_centres(rows, dim), count, (seed,))


@lru_cache(maxsize=2)
def _centres(rows: int, dim: int) -> Vectors:
    number = max(4, rows // PER_CENTRE)
    return np.random.default_rng(SEED_CENTRES).standard_normal((number, dim), np.float32)


def _draw(centres: Vectors, count: int, seed: tuple[int, ...]) -> Vectors:
    random = np.random.default_rng(seed)
    out = np.empty((count, centres.shape[1]), np.float32)
    for at in range(0, count, PIECE):
        n = min(PIECE, count - at)
        part = random.standard_normal((n, centres.shape[1]), np.float32)
        part *= np.float32(NOISE)
        part += centres[random.integers(0, len(centres), n)]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
        out[at : at + n] = part
    return out


def sentences(count: int, asked: bool) -> Iterator[str]:
    """Distinct while there are titles and tags enough; queries use templates of their own."""
    random = np.random.default_rng((SEED_TIMED if asked else SEED_ROWS, 7))
    forms = ASKED if asked else STORED
    for _ in range(count):
        words: tuple[Any, ...] = tuple(part[random.integers(len(part))] for part in (FIRST, SECOND, THIRD))
        a, b, c = (TAGS[i] for i in random.choice(len(TAGS), 3, replace=False))
        title = " ".join(words).title()
        yield forms[random.integers(len(forms))].format(title=title, a=a, b=b, c=c)


@lru_cache(maxsize=4)
def _texts(count: int, rows: int, asked: bool, dim: int) -> Vectors:
    """Encoded once per machine and kept; every contender reads the same file."""
    from ridgeline.embed import DEFAULT

    texts = list(sentences(count, asked))
    name = hashlib.sha256("\n".join([DEFAULT, *texts]).encode()).hexdigest()[:24]
    path = _cache() / f"{name}.npy"
    if not path.is_file():
        import ridgeline

        with ridgeline.Embedder(DEFAULT, dtype="float32") as embedder, publish(path) as tmp, tmp.open("wb") as file:
            np.save(file, embedder.encode(texts))
    found: Vectors = np.load(path)
    if found.shape[1] != dim:
        raise InputError(f"dim is {dim}, and the model of the texts has {found.shape[1]}; use that.")
    return found


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "ridgeline" / "search-texts"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def truth_of(queries: Vectors, vectors: Vectors, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(rows [q, k], scores [q, k]): inner products in float64, best first; ties by row."""
    wide = queries.astype(np.float64)
    best = np.empty((len(queries), 0))
    rows = np.empty((len(queries), 0), np.int64)
    for at in range(0, len(vectors), PIECE):
        scores = wide @ vectors[at : at + PIECE].astype(np.float64).T
        keep = min(k, scores.shape[1])
        top = np.sort(np.argpartition(-scores, keep - 1, axis=1)[:, :keep], 1)
        best = np.concatenate([best, np.take_along_axis(scores, top, 1)], 1)
        rows = np.concatenate([rows, top + at], 1)
        order = np.argsort(-best, 1, kind="stable")[:, :k]
        best, rows = np.take_along_axis(best, order, 1), np.take_along_axis(rows, order, 1)
    return rows, best
