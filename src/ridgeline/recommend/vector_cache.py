"""Vectors of texts that were encoded before, kept on this machine by what the texts say.

The same encoder gives the same text the same vector, so an evaluation after a fit, a fit of more data, or one that was
stopped on its way encodes only what is new. Blocks lie in `$XDG_CACHE_HOME/ridgeline/vectors/ENCODER/`, where ENCODER
is a hash of everything that decides a vector: weights, tokenizer, settings. A few of the texts found there are encoded
again each time; if they disagree, all of it is thrown away. On a GPU nothing is kept: encoding is the quicker way.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline import store
from ridgeline.errors import StoreError

if TYPE_CHECKING:
    from ridgeline.embed import Embedder

FORMAT = 1
BLOCK = 512  # texts that a stop can lose
CHECKED = 4  # kept texts that are encoded again
SAME = 1e-2  # how far a vector may be from the one made again: other texts beside it change the rounding
MOST = 1 << 30  # bytes for one encoder; beyond, the oldest blocks go

Tell = Callable[[str], object]
Vectors = NDArray[np.float32]


def encode_kept(
    embedder: Embedder, texts: Sequence[str], tell: Tell = lambda _: None, base: Path | None = None
) -> Vectors:
    """float32 [N, dim], in the order of the texts; equal texts are encoded once."""
    if embedder.device != "cpu":
        return np.asarray(embedder.encode(texts), np.float32)
    folder = (base or _home()) / _identity(embedder)
    keys = [hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest() for text in texts]
    rows: dict[bytes, int] = {}
    for key in keys:
        rows.setdefault(key, len(rows))
    words = dict(zip(keys, texts, strict=True))
    distinct = list(rows)
    found = np.empty((len(distinct), embedder.dim), np.float32)
    ready = _ready(folder, rows, found)
    some = [distinct[row] for row in np.flatnonzero(ready)[:: max(1, int(ready.sum()) // CHECKED)][:CHECKED]]
    if some:
        again = np.asarray(embedder.encode([words[key] for key in some]), np.float32)
        if not np.linalg.norm(again - found[[rows[key] for key in some]], axis=1).max() <= SAME:
            _forget(folder)
            ready[:] = False
    lacking = np.flatnonzero(~ready)
    for first in range(0, len(lacking), BLOCK):
        part = lacking[first : first + BLOCK]
        tell(f"{len(distinct) - len(lacking) + first:,} of {len(distinct):,} item texts are embedded")
        own = [distinct[row] for row in part.tolist()]
        found[part] = embedder.encode([words[key] for key in own])
        _keep(folder, own, found[part])
    return found[[rows[key] for key in keys]] if len(distinct) != len(keys) else found


def _ready(folder: Path, rows: dict[bytes, int], found: Vectors) -> NDArray[np.bool_]:
    """Fill `found` from the blocks; which rows were there."""
    ready = np.zeros(len(found), bool)
    for path in sorted(folder.glob("*.npz")):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as block:
                keys, vectors = block["keys"], block["vectors"]
            if keys.shape != (len(vectors), 16) or vectors.shape[1:] != found.shape[1:]:
                raise ValueError
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # torn or foreign: made again
            with suppress(OSError):
                path.unlink()
            continue
        at = np.array([rows.get(key.tobytes(), -1) for key in keys], np.int64)
        found[at[at >= 0]] = vectors[at >= 0]
        ready[at[at >= 0]] = True
    return ready


def _keep(folder: Path, keys: Sequence[bytes], vectors: Vectors) -> None:
    # Where nothing can be kept (a read-only home, a full disk), the vectors hold all the same.
    with suppress(OSError, StoreError):
        folder.mkdir(parents=True, exist_ok=True)
        joined = b"".join(keys)
        with (
            store.publish(folder / f"{hashlib.blake2b(joined, digest_size=16).hexdigest()}.npz") as tmp,
            tmp.open("wb") as file,
        ):
            np.savez(file, keys=np.frombuffer(joined, np.uint8).reshape(-1, 16), vectors=vectors)
        blocks = sorted((p.stat().st_mtime_ns, p.stat().st_size, p) for p in folder.glob("*.npz"))
        total = sum(size for _, size, _ in blocks)
        for _, size, path in blocks[:-1]:
            if total <= MOST:
                break
            path.unlink()
            total -= size


def _forget(folder: Path) -> None:
    for path in folder.glob("*.npz"):
        with suppress(OSError):
            path.unlink()


def _identity(embedder: Embedder) -> str:
    """A hash of what decides a vector."""
    told: list[Any] = [FORMAT, embedder.dtype, embedder.dim, embedder.max_tokens, embedder.prompt]
    for path in sorted(embedder.folder.rglob("*")):
        if path.suffix in (".json", ".txt", ".safetensors") and path.is_file():
            told += [path.relative_to(embedder.folder).as_posix(), store.sha256_of(path)]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:32]


def _home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ridgeline" / "vectors"
