"""Centres of a cloud of vectors, by Lloyd's rounds on a sample."""

from __future__ import annotations

import numpy as np

from ridgeline.search.arrays import Floats, Whole
from ridgeline.search.metric import norms, unit

ROUNDS = 10
SAMPLE_PER_CENTRE = 128  # more moves the centres hardly; this is what training time goes by
BLOCK = 1 << 21  # scores at a time


def kmeans(vectors: Floats, centres: int, *, seed: int = 0, rounds: int = ROUNDS, spherical: bool = False) -> Floats:
    """[centres, d]; `spherical` keeps them at length 1. Needs at least as many vectors as centres."""
    random = np.random.default_rng(seed)
    if len(vectors) > centres * SAMPLE_PER_CENTRE:
        vectors = vectors[random.choice(len(vectors), centres * SAMPLE_PER_CENTRE, replace=False)]
    found: Floats = vectors[random.choice(len(vectors), centres, replace=False)].astype(np.float32)
    for _ in range(rounds):
        home = nearest(vectors, found)
        sizes = np.bincount(home, minlength=centres)
        order = np.argsort(home, kind="stable")
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        full = sizes > 0
        moved = found.copy()
        if full.any():
            sums = np.add.reduceat(vectors[order], starts[full], axis=0, dtype=np.float64)
            moved[full] = sums / sizes[full, None]
        _fill_empty(moved, sizes, random)
        found = unit(moved, norms(moved)) if spherical else moved
    return found


def nearest(vectors: Floats, centres: Floats) -> Whole:
    """The number of the nearest centre by distance, [n]; the lowest of equals."""
    halves = (np.einsum("ij,ij->i", centres, centres, dtype=np.float64) / 2).astype(np.float32)
    home = np.empty(len(vectors), np.int64)
    step = max(1, BLOCK // max(1, len(centres)))
    for at in range(0, len(vectors), step):
        scores = vectors[at : at + step] @ centres.T
        scores -= halves
        home[at : at + step] = scores.argmax(1)
    return home


def _fill_empty(centres: Floats, sizes: Whole, random: np.random.Generator) -> None:
    """A centre that lost all its vectors takes half of a full one's, drawn by size: both move a little apart."""
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    donors = random.choice(len(sizes), len(empty), p=sizes / sizes.sum())
    shift = random.standard_normal((len(empty), centres.shape[1])).astype(np.float32)
    scale = np.abs(centres[donors]).mean(1, keepdims=True) / 1024
    centres[empty] = centres[donors] + scale * shift
