"""Save and load an index as a folder: one `.npy` per array, the columns of the rows as Parquet, and a manifest.

The manifest holds checksums. Arrays are mapped, not read, so a large index opens at once and processes share it. The
folder does not depend on the device: an index built on a GPU loads on a CPU.
"""

from __future__ import annotations

import json
import mmap as mmap_module
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline import store
from ridgeline.errors import StoreError
from ridgeline.search.arrays import Array, wrap_rows
from ridgeline.search.engine import Backend, EngineConfig
from ridgeline.search.recall import Curve
from ridgeline.search.rows import Rows
from ridgeline.search.snapshot import Snapshot
from ridgeline.search.spec import Spec, parse_spec
from ridgeline.search.truth import TruthSample

KIND, FORMAT = "ridgeline index", 1
MIN_LARGE = 1 << 28  # bytes; smaller arrays may as well be read ahead
SHARDS, SHARDS_KIND = "shards.json", "ridgeline index shards"  # the list of the shards of one index
IDS, META = "ids.npy", "meta.parquet"
ARRAYS = "arrays"  # the folder of the arrays of the engine
TRUTH = "truth"  # the folder of the arrays of the truth sample


def describe_index(
    config: EngineConfig, count: int, rows: Rows, model: str | None, curve: Curve | None
) -> dict[str, Any]:
    """Return the settings that the manifest of an index holds."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "spec": str(config.spec),
        "metric": config.metric,
        "dim": config.dim,
        "dtype": config.dtype,
        "count": count,
        "next_id": rows.next_id,
        "rising": rows.rising,
        "model": model,
        "recall": None if curve is None else curve.to_json(),
    }


def write_index(
    snapshot: Snapshot, model: str | None, path: str | os.PathLike[str], settings: Mapping[str, Any]
) -> None:
    """Write the folder and publish it in one step; an older folder stays complete until then.

    `settings` that are not None are added to those of the manifest.
    """
    engine, rows = snapshot.engine, snapshot.rows
    if engine is None:
        raise StoreError("the index holds nothing yet; train it or add vectors first.")
    meta = describe_index(engine.config, engine.count, rows, model, snapshot.curve)
    meta |= {name: value for name, value in settings.items() if value is not None}
    with store.publish_dir(path, meta) as folder:
        (folder / ARRAYS).mkdir()
        for name, array in engine.arrays().items():
            np.save(folder / ARRAYS / f"{name}.npy", np.ascontiguousarray(array), allow_pickle=False)
        if snapshot.truth is not None:
            (folder / TRUTH).mkdir()
            for part in fields(snapshot.truth):
                np.save(folder / TRUTH / f"{part.name}.npy", getattr(snapshot.truth, part.name), allow_pickle=False)
        np.save(folder / IDS, rows.ids.rows, allow_pickle=False)
        if rows.meta is not None:
            import pyarrow.parquet as pq

            pq.write_table(rows.meta, folder / META)


def format_shard_list(folders: Sequence[str]) -> str:
    """Return the content of `shards.json`: the folders of the shards, relative to it, in the order of their rows."""
    return json.dumps({"kind": SHARDS_KIND, "format": FORMAT, "shards": list(folders)}, indent=1) + "\n"


def is_sharded(path: str | os.PathLike[str]) -> bool:
    """Whether a folder lists the shards of an index."""
    return Path(path, SHARDS).is_file()


def list_shards(path: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of the shards of a saved index; raises StoreError if there is no list of them."""
    file = Path(path, SHARDS)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise StoreError(f"{path} has no {SHARDS}; give a folder that `ridgeline bulk index` wrote.") from None
    except ValueError:
        raise StoreError(f"{file} is damaged; build the index again or restore the file from a copy.") from None
    names = content.get("shards") if isinstance(content, dict) else None
    if not isinstance(names, list) or content.get("kind") != SHARDS_KIND or not names:
        raise StoreError(f"{file} is no list of shards; give a folder that `ridgeline bulk index` wrote.")
    if content["format"] > FORMAT:
        raise StoreError(f"{file} has format {content['format']}, newer than {FORMAT}; update ridgeline to read it.")
    return [Path(path, str(name)) for name in names]


@dataclass(frozen=True)
class IndexFolder:
    """A saved index whose manifest is checked: `meta` holds the settings of the index."""

    path: Path
    files: tuple[str, ...]
    meta: Mapping[str, Any]
    spec: Spec


def open_index(path: str | os.PathLike[str], verify: bool) -> IndexFolder:
    """Check the manifest of a saved index; `verify` also compares every file with its checksum.

    Raises StoreError if the folder is not an index, has a newer format, or was changed.
    """
    folder = Path(path)
    manifest = store.verify(folder, quick=not verify)
    meta = manifest.meta
    if meta.get("kind") != KIND:
        raise StoreError(f"{folder} is no index; give a folder that `ridgeline index` or Index.save wrote.")
    if meta["format"] > FORMAT:
        raise StoreError(f"{folder} has format {meta['format']}, newer than {FORMAT}; update ridgeline to read it.")
    spec = parse_spec(meta["spec"])
    if spec is None:
        raise StoreError(f"{folder} has the spec '{meta['spec']}', which no saved index has; build the index again.")
    return IndexFolder(folder, tuple(manifest.files), meta, spec)


def read_snapshot(folder: IndexFolder, backend: Backend, mmap: bool) -> Snapshot:
    """Read the arrays of a saved index into an engine of `backend`; mmap: map the files instead of reading them."""
    meta, path = folder.meta, folder.path
    names = [Path(name) for name in folder.files]
    arrays = {n.stem: _read_array(path / n, mmap) for n in names if n.parent == Path(ARRAYS) and n.suffix == ".npy"}
    if mmap and backend.device == "cpu" and folder.spec.refine is not None:
        _expect_single_rows(arrays)
    table = None
    if META in folder.files:
        import pyarrow.parquet as pq

        table = pq.read_table(path / META, memory_map=mmap)
    rows = Rows(wrap_rows(_read_array(path / IDS, mmap)), None, table, meta["next_id"], meta["rising"])
    config = EngineConfig(folder.spec, meta["metric"], meta["dim"], meta["dtype"])
    try:
        engine = backend.restore_engine(config, arrays)
    except KeyError as missing:
        raise StoreError(f"{path} lacks the array {missing}; build the index again.") from None
    if engine.count != rows.count or engine.count != meta["count"]:
        counts = f"{engine.count} vectors, {rows.count} ids for {meta['count']}"
        raise StoreError(f"{path} holds {counts}; build the index again.")
    curve = None if meta["recall"] is None else Curve.from_json(meta["recall"])
    truth = None
    if f"{TRUTH}/queries.npy" in folder.files:  # an older index has none
        truth = TruthSample(**{p.name: _read_array(path / TRUTH / f"{p.name}.npy", False) for p in fields(TruthSample)})
    return Snapshot(rows, engine, curve, truth)


def _expect_single_rows(arrays: dict[str, Array]) -> None:
    """A search reads single rows of the vectors of a refiner: reading ahead would fill the memory with their
    neighbours.
    """
    vectors: Any = arrays.get("refine_codes")
    if vectors is None or vectors.nbytes <= MIN_LARGE:
        return
    while isinstance(vectors, np.ndarray):
        vectors = vectors.base
    if isinstance(vectors, mmap_module.mmap):
        vectors.madvise(mmap_module.MADV_RANDOM)


def _read_array(path: Path, mmap: bool) -> Array:
    try:
        # A plain view: slicing an np.memmap takes a microsecond more.
        return np.asarray(np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)).view(np.ndarray)
    except ValueError as error:
        raise StoreError(f"{path} cannot be read: {error}; verify the folder or build the index again.") from None
