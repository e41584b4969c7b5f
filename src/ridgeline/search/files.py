"""An index as a folder: one `.npy` per array, the rows' columns as Parquet, and a manifest with checksums.

The arrays are mapped, not read, so a large index opens at once and is shared between processes; nothing in the folder
needs a GPU, whichever device it was built on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ridgeline import store
from ridgeline.errors import StoreError
from ridgeline.search.arrays import Array, grown
from ridgeline.search.engine import Recipe
from ridgeline.search.recall import Curve
from ridgeline.search.rows import Rows
from ridgeline.search.spec import parse

if TYPE_CHECKING:
    from ridgeline.search.index import Index
    from ridgeline.search.state import State

KIND, FORMAT = "ridgeline index", 1
IDS, META = "ids.npy", "meta.parquet"
PARTS = "arrays"  # the folder of the engine's arrays


def save(index: Index, state: State, path: str | os.PathLike[str]) -> None:
    """Publish the folder in one step; what was there before stays whole until then."""
    engine, rows = state.engine, state.rows
    if engine is None:
        raise StoreError("the index holds nothing yet; train it or add vectors first.")
    meta: dict[str, Any] = {
        "kind": KIND,
        "format": FORMAT,
        "spec": str(engine.recipe.spec),
        "metric": engine.recipe.metric,
        "dim": engine.recipe.dim,
        "dtype": engine.recipe.dtype,
        "count": engine.count,
        "next_id": rows.next_id,
        "rising": rows.rising,
        "model": index.model,
        "recall": None if state.curve is None else state.curve.to_json(),
    }
    with store.publish_dir(path, meta) as folder:
        (folder / PARTS).mkdir()
        for name, array in engine.arrays().items():
            np.save(folder / PARTS / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
        np.save(folder / IDS, rows.ids.rows, allow_pickle=False)
        if rows.meta is not None:
            import pyarrow.parquet as pq

            pq.write_table(rows.meta, folder / META)


def load(cls: type[Index], path: str | os.PathLike[str], *, verify: bool, device: str, mmap: bool) -> Index:
    folder = Path(path)
    manifest = store.verify(folder, quick=not verify)
    told = manifest.meta
    if told.get("kind") != KIND:
        raise StoreError(f"{folder} is no index; give a folder that `ridgeline index` or Index.save wrote.")
    if told["format"] > FORMAT:
        raise StoreError(f"{folder} has format {told['format']}, newer than {FORMAT}; update ridgeline to read it.")
    spec = parse(told["spec"])
    if spec is None:
        raise StoreError(f"{folder} has the spec '{told['spec']}', which no saved index has; make it anew.")
    from ridgeline.search.state import State

    index = cls(told["spec"], metric=told["metric"], device=device, dtype=told["dtype"], model=told["model"])
    names = [Path(name) for name in manifest.files]
    arrays = {n.stem: _array(folder / n, mmap) for n in names if n.parent == Path(PARTS) and n.suffix == ".npy"}
    table = None
    if META in manifest.files:
        import pyarrow.parquet as pq

        table = pq.read_table(folder / META, memory_map=mmap)
    rows = Rows(grown(_array(folder / IDS, mmap)), None, table, told["next_id"], told["rising"])
    recipe = Recipe(spec, told["metric"], told["dim"], told["dtype"])
    try:
        engine = index._place.restored(recipe, arrays)
    except KeyError as missing:
        raise StoreError(f"{folder} lacks the array {missing}; make it anew.") from None
    if engine.count != rows.count or engine.count != told["count"]:
        raise StoreError(f"{folder} holds {engine.count} vectors, {rows.count} ids for {told['count']}; make it anew.")
    curve = None if told["recall"] is None else Curve.from_json(told["recall"])
    index._state = State(rows, engine, curve)
    return index


def _array(path: Path, mmap: bool) -> Array:
    try:
        # A plain view: np.memmap's own class costs a microsecond at every slice.
        return np.asarray(np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)).view(np.ndarray)
    except ValueError as error:
        raise StoreError(f"{path} cannot be read: {error}; verify the folder or make it anew.") from None
