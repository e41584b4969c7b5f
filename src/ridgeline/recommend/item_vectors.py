"""Item texts → vectors: the text of an item, encoding with a cache on disk, checks, and export."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ridgeline import store
from ridgeline.errors import InputError, StoreError, unknown
from ridgeline.recommend.data import Catalogue, plain_ids
from ridgeline.recommend.titles import move_article_first

if TYPE_CHECKING:
    from ridgeline.embed import Embedder
    from ridgeline.recommend.recommender import Recommender


TEMPLATE = "{title}. Genres: {genres}. Themes: {themes}."
FIELDS = ("title", "year", "genres", "themes")
CACHE_FORMAT = 1
CACHE_BLOCK = 512  # texts per block: the most that an interrupted run loses
CHECKED_TEXTS = 4  # cached texts to encode again as a check
MAX_CACHE_BYTES = 1 << 30  # per encoder; beyond it, the oldest blocks are deleted
Progress = Callable[[str], object]
Vectors = NDArray[np.float32]
UNIT_TOLERANCE = 1e-3  # largest distance of a length from 1
MAX_REPEAT_DISTANCE = 1e-2  # between two encodings of a text: other texts in the batch change the rounding
REPEATED_TEXTS = 32  # texts to encode twice


def item_texts(catalogue: Catalogue, template: str = TEMPLATE) -> list[str]:
    """Return one text per item for the encoder; a sentence of the template with an empty field is left out.

    >>> toy = Catalogue(np.array([1]), ["Toy Story (1995)"], np.array([1995]), [("Animation", "Comedy")], [("pixar",)])
    >>> item_texts(toy)
    ['Toy Story (1995). Genres: Animation, Comedy. Themes: pixar.']
    """
    try:
        fields = [(name, spec, how) for _, name, spec, how in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InputError(f"the template '{template}' cannot be read: {error}.") from None
    for name, spec, how in fields:
        if name not in FIELDS:
            raise unknown("field", name, FIELDS)
        if spec or how:
            raise InputError(f"the template '{template}' gives '{name}' a format; write {{{name}}} alone.")
    if not fields:
        raise InputError(f"the template '{template}' names no field; it may use {', '.join(FIELDS)}.")
    sentences = re.split(r"(?<=\.)\s+", template.strip())
    parts = [(s, [n for _, n, _, _ in Formatter().parse(s) if n]) for s in sentences]
    texts = []
    for row, title in enumerate(catalogue.titles):
        year = int(catalogue.years[row])
        values = {
            "title": move_article_first(title),
            "year": str(year) if year else "",
            "genres": ", ".join(catalogue.genres[row]),
            "themes": ", ".join(catalogue.themes[row]),
        }
        text = " ".join(s.format(**values) for s, names in parts if all(values[n] for n in names))
        texts.append(f"{text} {catalogue.texts[row]}".strip() if catalogue.texts else text)
    return texts


def encode_cached(
    embedder: Embedder, texts: Sequence[str], progress: Progress = lambda _: None, base: Path | None = None
) -> Vectors:
    """Encode texts with a cache on disk: float32 [N, dim] in the order of the texts.

    The same encoder gives the same text the same vector, so a second run encodes only new texts. Blocks are stored in
    `$XDG_CACHE_HOME/ridgeline/vectors/ENCODER/`, where ENCODER is a hash of weights, tokenizer and settings. Each call
    encodes a few cached texts again; if they differ, the cache is deleted. On a GPU there is no cache, because encoding
    is faster.
    """
    if embedder.device != "cpu":
        return np.asarray(embedder.encode(texts), np.float32)
    folder = (base or _cache_folder()) / _hash_encoder(embedder)
    keys = [hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest() for text in texts]
    rows: dict[bytes, int] = {}
    for key in keys:
        rows.setdefault(key, len(rows))
    text_by_key = dict(zip(keys, texts, strict=True))
    distinct = list(rows)
    vectors = np.empty((len(distinct), embedder.dim), np.float32)
    ready = _load_blocks(folder, rows, vectors)
    checked_keys = [
        distinct[row] for row in np.flatnonzero(ready)[:: max(1, int(ready.sum()) // CHECKED_TEXTS)][:CHECKED_TEXTS]
    ]
    if checked_keys:
        again = np.asarray(embedder.encode([text_by_key[key] for key in checked_keys]), np.float32)
        if (
            not np.linalg.norm(again - vectors[[rows[key] for key in checked_keys]], axis=1).max()
            <= MAX_REPEAT_DISTANCE
        ):
            _delete_blocks(folder)
            ready[:] = False
    missing = np.flatnonzero(~ready)
    for first in range(0, len(missing), CACHE_BLOCK):
        part = missing[first : first + CACHE_BLOCK]
        progress(f"{len(distinct) - len(missing) + first:,} of {len(distinct):,} item texts are embedded")
        block_keys = [distinct[row] for row in part.tolist()]
        vectors[part] = embedder.encode([text_by_key[key] for key in block_keys])
        _save_block(folder, block_keys, vectors[part])
    return vectors[[rows[key] for key in keys]] if len(distinct) != len(keys) else vectors


def check_vectors(vectors: NDArray[Any]) -> dict[str, Any]:
    """Check vectors and return counts as plain values; `ok` means that all are finite and of unit length."""
    finite = np.isfinite(vectors).all(1)
    norms = np.linalg.norm(vectors[finite].astype(np.float64), axis=1)
    distinct = len(np.unique(vectors, axis=0)) if len(vectors) else 0
    off = int((np.abs(norms - 1) > UNIT_TOLERANCE).sum())
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


def is_repeatable(encode: Callable[[Sequence[str]], NDArray[Any]], texts: Sequence[str], vectors: NDArray[Any]) -> bool:
    """Whether a second encoding of some texts gives the same vectors."""
    rows = np.unique(np.linspace(0, len(texts) - 1, min(REPEATED_TEXTS, len(texts))).astype(np.int64))
    again = np.asarray(encode([texts[row] for row in rows.tolist()]), np.float32)
    return bool(np.linalg.norm(again - vectors[rows], axis=1).max(initial=0.0) <= MAX_REPEAT_DISTANCE)


def export_vectors(model: Recommender, path: str | os.PathLike[str]) -> None:
    """Write a folder with items.npy, users.npy (float32, unit length; 0 for users without likes) and their ids."""
    meta = {"kind": "ridgeline recommend vectors", "encoder": model.encoder, "name": model.name}
    with store.publish_dir(path, meta) as folder:
        np.save(folder / "items.npy", np.ascontiguousarray(model.vectors), allow_pickle=False)
        np.save(folder / "item_ids.npy", plain_ids(model.catalogue.ids), allow_pickle=False)
        np.save(folder / "users.npy", model.hybrid.semantic.embed_users(model.likes), allow_pickle=False)
        np.save(folder / "user_ids.npy", plain_ids(model.user_ids), allow_pickle=False)


def _load_blocks(folder: Path, rows: dict[bytes, int], out: Vectors) -> NDArray[np.bool_]:
    """Fill `out` from the cached blocks; return bool [N] of the filled rows."""
    ready = np.zeros(len(out), bool)
    for path in sorted(folder.glob("*.npz")):
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as block:
                keys, vectors = block["keys"], block["vectors"]
            if keys.shape != (len(vectors), 16) or vectors.shape[1:] != out.shape[1:]:
                raise ValueError
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):  # damaged: encode again
            with suppress(OSError):
                path.unlink()
            continue
        at = np.array([rows.get(key.tobytes(), -1) for key in keys], np.int64)
        out[at[at >= 0]] = vectors[at >= 0]
        ready[at[at >= 0]] = True
    return ready


def _save_block(folder: Path, keys: Sequence[bytes], vectors: Vectors) -> None:
    # Without a writable cache (a read-only home, a full disk) the vectors are still valid.
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
            if total <= MAX_CACHE_BYTES:
                break
            path.unlink()
            total -= size


def _delete_blocks(folder: Path) -> None:
    for path in folder.glob("*.npz"):
        with suppress(OSError):
            path.unlink()


def _hash_encoder(embedder: Embedder) -> str:
    """Hash everything that decides a vector."""
    parts: list[Any] = [CACHE_FORMAT, embedder.dtype, embedder.dim, embedder.max_tokens, embedder.prompt]
    for path in sorted(embedder.folder.rglob("*")):
        if path.suffix in (".json", ".txt", ".safetensors") and path.is_file():
            parts += [path.relative_to(embedder.folder).as_posix(), store.hash_file(path)]
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ridgeline" / "vectors"
