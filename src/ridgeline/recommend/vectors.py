"""Are the vectors what they should be? Count, size, lengths, rows that say the same; and out with them, as files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline import store

if TYPE_CHECKING:
    from ridgeline.recommend.recommender import Recommender

UNIT = 1e-3  # how far a length may be from 1
SAME = 1e-2  # how far a vector may be from the one made again: other texts beside it change the rounding
AGAIN = 32  # texts that are encoded twice


def integrity(vectors: NDArray[Any]) -> dict[str, Any]:
    """What was found, as plain values; `ok` is whether all are finite and of unit length."""
    finite = np.isfinite(vectors).all(1)
    norms = np.linalg.norm(vectors[finite].astype(np.float64), axis=1)
    distinct = len(np.unique(vectors, axis=0)) if len(vectors) else 0
    off = int((np.abs(norms - 1) > UNIT).sum())
    return {
        "count": len(vectors),
        "dim": int(vectors.shape[1]),
        "bytes": int(vectors.nbytes),
        "norm_mean": float(norms.mean()) if len(norms) else None,
        "norm_std": float(norms.std()) if len(norms) else None,
        "not_finite": int((~finite).sum()),
        "not_unit": off,
        "duplicates": len(vectors) - distinct,
        "ok": bool(finite.all() and not off),
    }


def repeatable(encode: Callable[[Sequence[str]], NDArray[Any]], texts: Sequence[str], vectors: NDArray[Any]) -> bool:
    """Whether some of the texts, encoded again, give the vectors they gave."""
    rows = np.unique(np.linspace(0, len(texts) - 1, min(AGAIN, len(texts))).astype(np.int64))
    again = np.asarray(encode([texts[row] for row in rows.tolist()]), np.float32)
    return bool(np.linalg.norm(again - vectors[rows], axis=1).max(initial=0.0) <= SAME)


def export(model: Recommender, path: str | os.PathLike[str]) -> None:
    """A folder of items.npy, users.npy (float32, unit length; 0 for users without likes) and the ids of their rows."""
    meta = {"kind": "ridgeline recommend vectors", "encoder": model.encoder, "name": model.name}
    with store.publish_dir(path, meta) as folder:
        np.save(folder / "items.npy", np.ascontiguousarray(model.vectors), allow_pickle=False)
        np.save(folder / "item_ids.npy", np.asarray(model.catalogue.ids), allow_pickle=False)
        np.save(folder / "users.npy", model.hybrid.semantic.users(model.likes), allow_pickle=False)
        np.save(folder / "user_ids.npy", np.asarray(model.user_ids), allow_pickle=False)
