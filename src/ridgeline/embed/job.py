"""A file of texts to a file of vectors: resumable, whole or not there, and with a word about its quality.

Vectors are kept in chunks beside the output until all are there, so a job that was stopped goes on where it stood.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.embedder import Embedder
from ridgeline.embed.files import Rows, format_of, read_texts
from ridgeline.embed.quality import Measured, Quality
from ridgeline.errors import InputError, MissingExtra, unknown
from ridgeline.store import ChunkSet

FORMS = (".npy", ".parquet")
CHUNK = 8_192  # texts that a stop can lose at most
VERIFIED = 64  # rows encoded anew by `verify`
LEAST = {"float32": 0.99999, "bfloat16": 0.9998, "float16": 0.9998}  # cosine of a row to itself in float32

Progress = Callable[[int, int, float], None]  # texts done now, texts found done, share of the file


@dataclass(frozen=True)
class Done:
    """What a job made."""

    output: Path
    quality: Quality
    resumed: int  # texts that an earlier run had done


def embed_file(
    embedder: Embedder,
    path: Path,
    out: Path,
    *,
    column: str | None = None,
    settings: dict[str, Any] | None = None,
    batch_tokens: int | str = "auto",
    chunk: int = CHUNK,
    force: bool = False,
    progress: Progress = lambda *_: None,
) -> Done:
    """Embed one column of `path` into `out`; `settings` are what else decides the vectors."""
    if out.suffix not in FORMS:
        raise unknown(f"writer for '{out.name}': suffix", out.suffix, FORMS)
    if out.exists() and path.exists() and out.samefile(path):
        raise InputError(f"'{out}' is the file that is read; choose another name for the vectors.")
    with read_texts(path, column) as rows:
        return _embed(embedder, path, rows, out, settings or {}, batch_tokens, chunk, force, progress)


def _embed(
    embedder: Embedder,
    path: Path,
    rows: Rows,
    out: Path,
    settings: dict[str, Any],
    batch_tokens: int | str,
    chunk: int,
    force: bool,
    progress: Progress,
) -> Done:
    state = path.stat()
    key = {
        "input": {"name": path.name, "bytes": state.st_size, "changed_ns": state.st_mtime_ns},
        "column": rows.column,
        "model": embedder.name,
        "model_files": _state_of(embedder.folder),
        "dim": embedder.dim,
        "dtype": embedder.dtype,
        "max_tokens": embedder.max_tokens,
        "prompt": embedder.prompt,
        "chunk": chunk,
        **settings,
    }
    folder = out.parent / f".{out.name}.chunks"
    count = resumed = 0
    with ChunkSet(folder, key=key, suffix=".f32", anew=force, cure="forget it with --force") as chunks:
        ready = set(chunks.done())
        for number, texts in enumerate(_chunked(rows.texts, chunk)):
            if number in ready:
                resumed += len(texts)
            else:
                tell = partial(_tell, progress, count - resumed, resumed, rows.share)
                vectors = _encode(embedder, texts, count, batch_tokens, tell)
                chunks.put(number, vectors.tobytes())
            count += len(texts)
        if not count:
            raise InputError(f"'{path}' has no rows; there is nothing to embed.")
        measured = Measured(embedder.dim)
        column = rows.column if rows.column != "vector" else "text"
        again = partial(read_texts, path, rows.column if format_of(path) != "txt" else None)
        join = _joiner(out, embedder.dim, count, measured, column, again)
        chunks.finish(out, join)
    return Done(out, measured.quality(), resumed)


def verify_file(embedder: Embedder, path: Path, out: Path, column: str | None = None) -> tuple[bool, str]:
    """Read the output back and encode some rows anew, each by itself."""
    vectors = _read_back(out)
    wanted = sorted(set(np.linspace(0, len(vectors) - 1, VERIFIED, dtype=int).tolist()))
    with read_texts(path, column) as rows:
        texts = _picked(rows.texts, wanted)
    if len(texts) != len(wanted):
        return False, f"'{path}' has fewer rows than '{out}'"
    anew = np.stack([embedder.encode_one(text) for text in texts])
    there = vectors[wanted]
    norms = np.linalg.norm(there, axis=1) * np.linalg.norm(anew, axis=1)
    cosine = float(((there * anew).sum(1) / np.maximum(norms, 1e-30)).min())
    least = LEAST[embedder.dtype]
    good = bool(np.isfinite(there).all()) and cosine >= least
    return good, f"{len(wanted)} rows encoded anew one by one: lowest cosine {cosine:.6f} (needs {least})"


def _encode(
    embedder: Embedder, texts: Sequence[str], first: int, batch_tokens: int | str, tell: Callable[[int], None]
) -> NDArray[np.float32]:
    try:
        found: NDArray[np.float32] = embedder.encode(
            texts, batch_tokens=batch_tokens, progress=lambda done, _: tell(done)
        )
    except InputError as error:
        if str(error).startswith("text "):  # its number counts from the chunk's beginning
            raise InputError(f"among rows {first} to {first + len(texts) - 1}: {error}") from error
        raise
    return found


def _state_of(folder: Path) -> str:
    """What changes when a model's files do: as for the input, their sizes and times say so."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    told = [(str(file.relative_to(folder)), (is_now := file.stat()).st_size, is_now.st_mtime_ns) for file in files]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


def _tell(progress: Progress, done: int, before: int, share: Callable[[], float], more: int) -> None:
    progress(done + more, before, share())


def _chunked(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    while chunk := list(islice(texts, size)):
        yield chunk


def _joiner(out: Path, dim: int, count: int, measured: Measured, column: str, again: Callable[[], Rows]) -> Any:
    def blocks(parts: Sequence[Path]) -> Iterator[NDArray[np.float32]]:
        for part in parts:
            block = np.fromfile(part, np.float32).reshape(-1, dim)
            measured.add(block)
            yield block

    def as_npy(parts: Sequence[Path], tmp: Path) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
        with tmp.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks(parts):
                file.write(block.tobytes())

    def as_parquet(parts: Sequence[Path], tmp: Path) -> None:
        try:
            import pyarrow as arrow
            import pyarrow.parquet as parquet
        except ImportError:
            raise MissingExtra("writing Parquet", "parquet") from None
        schema = arrow.schema([(column, arrow.string()), ("vector", arrow.list_(arrow.float32(), dim))])
        with again() as rows, parquet.ParquetWriter(tmp, schema, compression="zstd", use_dictionary=False) as writer:
            for block in blocks(parts):
                flat = arrow.FixedSizeListArray.from_arrays(arrow.array(block.reshape(-1)), dim)
                texts = arrow.array(list(islice(rows.texts, len(block))), arrow.string())
                writer.write_table(arrow.table([texts, flat], schema=schema))

    return as_npy if out.suffix == ".npy" else as_parquet


def _read_back(out: Path) -> NDArray[np.float32]:
    if out.suffix == ".npy":
        found: NDArray[np.float32] = np.load(out, mmap_mode="r")
        return found
    import pyarrow.parquet as parquet

    column = parquet.read_table(out, columns=["vector"])["vector"].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(column), -1)


def _picked(texts: Iterator[str], wanted: Sequence[int]) -> list[str]:
    chosen = set(wanted)
    return [text for number, text in enumerate(islice(texts, wanted[-1] + 1)) if number in chosen]
