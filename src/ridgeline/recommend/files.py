"""A fitted model as a folder: arrays as `.npy` (mapped when loaded), items as Parquet, a manifest with checksums."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline import store
from ridgeline.errors import StoreError
from ridgeline.recommend.data import Catalogue
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.models import Ease, Era, Hybrid, ItemKnn, Popularity, Semantic

if TYPE_CHECKING:
    from ridgeline.recommend.recommender import Recommender

KIND, FORMAT = "ridgeline recommender", 1
ITEMS = "items.parquet"


def save(model: Recommender, path: str | os.PathLike[str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    c, ease, near = model.catalogue, model.hybrid.ease, model.hybrid.itemknn.near
    meta: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "name": model.name,
        "encoder": model.encoder,
        "template": model.template,
        "min_rating": model.min_rating,
        "penalty": ease.penalty,
        "neighbours": model.hybrid.itemknn.neighbours,
        "weights": model.hybrid.weights,
        "genome": c.genome,
        "users": len(model.user_ids),
        "items": len(c),
    }
    arrays = {
        "users": model.user_ids,
        "vectors": model.vectors,
        "ease_items": ease.kept,
        "ease_weights": ease.weights,
        "knn_values": near.data,
        "knn_items": near.indices,
        "knn_starts": near.indptr,
        **_flat("likes", model.likes),
        **_flat("seen", model.seen),
    }
    columns = {
        "item": pa.array(c.ids.tolist()),
        "title": pa.array(list(c.titles)),
        "year": pa.array(c.years),
        "genres": pa.array([list(g) for g in c.genres], pa.list_(pa.string())),
        "themes": pa.array([list(t) for t in c.themes], pa.list_(pa.string())),
    }
    with store.publish_dir(path, meta) as folder:
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
        pq.write_table(pa.table(columns), folder / ITEMS)


def load(cls: type[Recommender], path: str | os.PathLike[str], *, device: str, verify: bool) -> Recommender:
    import pyarrow.parquet as pq
    from scipy.sparse import csr_matrix

    folder = Path(path)
    told = store.verify(folder, quick=not verify).meta
    if told.get("kind") != KIND:
        raise StoreError(f"{folder} is no recommender; give a folder that `ridgeline recommend fit` wrote.")
    if told["format"] != FORMAT:
        raise StoreError(
            f"{folder} has format {told['format']}, and this version reads {FORMAT}; "
            "fit it anew, or use the version that wrote it."
        )

    def array(name: str) -> Any:
        try:
            found = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            return np.asarray(found).view(np.ndarray)
        except (OSError, ValueError) as error:
            raise StoreError(f"{folder}/{name}.npy cannot be read: {error}; fit the model anew.") from None

    table = pq.read_table(folder / ITEMS)
    catalogue = Catalogue(
        np.array(table["item"].to_pylist()),
        table["title"].to_pylist(),
        table["year"].to_numpy(),
        [tuple(g) for g in table["genres"].to_pylist()],
        [tuple(t) for t in table["themes"].to_pylist()],
        told["genome"],
    )
    width = len(catalogue)
    likes, seen = (_history(array, name, width) for name in ("likes", "seen"))
    ease = Ease(told["penalty"], device="cpu")
    ease.kept, ease.weights, ease.width = array("ease_items"), array("ease_weights"), width
    knn = ItemKnn(told["neighbours"])
    knn.near = csr_matrix((array("knn_values"), array("knn_items"), array("knn_starts")), shape=(width, width))
    vectors = array("vectors")
    era = Era(catalogue.years).fit(likes)
    hybrid = Hybrid(ease, Semantic(vectors), Popularity().fit(likes), knn, era, told["weights"])
    return cls(
        catalogue,
        array("users"),
        likes,
        seen,
        hybrid,
        vectors,
        encoder=told["encoder"],
        device=device,
        name=told["name"],
        min_rating=told["min_rating"],
        template=told["template"],
    )


def _flat(name: str, histories: Histories) -> dict[str, Any]:
    return {
        f"{name}_starts": histories.starts,
        f"{name}_items": histories.items,
        f"{name}_stars": histories.stars,
        f"{name}_times": histories.times,
        f"{name}_now": histories.now,
    }


def _history(array: Any, name: str, width: int) -> Histories:
    starts, items, stars, times, now = (
        array(f"{name}_{part}") for part in ("starts", "items", "stars", "times", "now")
    )
    return Histories(starts, items, stars, times, width, now)
