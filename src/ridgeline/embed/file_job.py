"""Embed a file of texts into a file of vectors: resumable, complete or absent, with a summary of the vectors.

Vectors are stored in chunks beside the output until the job is complete, so a job that was stopped resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.embedder import Embedder
from ridgeline.embed.embedder_pool import EmbedderPool
from ridgeline.embed.other_columns import VECTOR, OtherColumns
from ridgeline.embed.text_files import AS_FILE_SHOWS, TextFormat, TextRows, read_texts
from ridgeline.errors import InputError, unknown
from ridgeline.store import ChunkSet, VectorParquetWriter

OUTPUT_FORMATS = (".npy", ".parquet")
MAX_CHUNK = 8_192  # texts of a chunk
CHUNK_CHARACTERS = {"cpu": 1 << 15, "cuda": 1 << 24}  # of a chunk: a second of work, the most that a stopped job loses
METADATA = "ridgeline"  # the key of the model's description in the metadata of a Parquet file
VERIFIED_ROWS = 64  # rows that `verify_file` encodes again
MIN_COSINE = {
    "float32": 0.99999,
    "bfloat16": 0.9998,
    "float16": 0.9998,
    "int8": 0.9998,
}  # with the same row encoded again

Progress = Callable[[int, int, float], None]  # texts done now, texts done before, share of the file


@dataclass(frozen=True)
class JobResult:
    """The result of `embed_file`."""

    output: Path
    quality: Quality
    resumed: int  # texts of an earlier run


def embed_file(
    embedder: Embedder,
    path: Path,
    out: Path,
    *,
    column: str | None = None,
    keep: Sequence[str] | None = None,
    text_format: TextFormat = AS_FILE_SHOWS,
    pool: EmbedderPool | None = None,
    settings: dict[str, Any] | None = None,
    batch_tokens: int | str = "auto",
    chunk: int | None = None,
    force: bool = False,
    progress: Progress = lambda *_: None,
    resume: Callable[[int], object] = lambda _: None,
) -> JobResult:
    """Embed one column of `path` into `out`.

    A Parquet file gets the columns of `path` beside the vectors, and the name of the model in its metadata.

    column        the column to embed; by default "text", or the only one
    keep          the other columns to write to Parquet; None: all
    text_format   encoding, delimiter and comments of the file, where it does not show them
    pool          several devices that encode, with the settings of `embedder`
    settings      other settings that determine the vectors; a job with different ones does not resume
    batch_tokens  tokens per batch
    chunk         texts per chunk: the most that a stopped job loses (default: by device)
    force         discard the chunks of an earlier job
    progress      called with texts done now, texts done before, share of the file that is done
    resume        called with the number of texts of an earlier run, if there are any

    Raises InputError for a file that cannot be read or written.
    """
    if out.suffix not in OUTPUT_FORMATS:
        raise unknown(f"writer for '{out.name}': suffix", out.suffix, OUTPUT_FORMATS)
    if out.exists() and path.exists() and out.samefile(path):
        raise InputError(f"'{out}' is the file that is read; choose another name for the vectors.")
    if keep is not None and out.suffix != ".parquet":
        raise InputError(f"'{out.name}' holds vectors alone; write a .parquet file to keep columns.")
    with read_texts(path, column, text_format) as rows:
        columns = None
        if out.suffix == ".parquet":
            columns = OtherColumns(path, rows.column, keep, text_format)
        job = {**(settings or {}), "format": asdict(text_format)}
        return _embed_rows(embedder, pool, path, rows, columns, out, job, batch_tokens, chunk, force, progress, resume)


def _embed_rows(
    embedder: Embedder,
    pool: EmbedderPool | None,
    path: Path,
    rows: TextRows,
    columns: OtherColumns | None,
    out: Path,
    settings: dict[str, Any],
    batch_tokens: int | str,
    chunk: int | None,
    force: bool,
    progress: Progress,
    resume: Callable[[int], object],
) -> JobResult:
    input_stat = path.stat()
    characters = None if chunk else CHUNK_CHARACTERS[embedder.device.partition(":")[0]]
    key = {
        "input": {"name": path.name, "bytes": input_stat.st_size, "changed_ns": input_stat.st_mtime_ns},
        "column": rows.column,
        "model": embedder.name,
        "model_files": _hash_model_files(embedder.folder),
        "dim": embedder.dim,
        "dtype": embedder.dtype,
        "max_tokens": embedder.max_tokens,
        "prompt": embedder.prompt,
        "chunk": chunk or f"{characters} characters",
        **settings,
    }
    folder = out.parent / f".{out.name}.chunks"
    count = resumed = 0
    with ChunkSet(folder, key=key, suffix=".f32", start_over=force, cure="forget it with --force") as chunks:
        ready = set(chunks.done())
        if ready:
            resume(sum(chunks.file(number).stat().st_size for number in ready) // (4 * embedder.dim))
        pending: deque[tuple[int, int, int]] = deque()  # number of a chunk, its first text, its texts

        def missing_chunks() -> Iterator[list[str]]:
            nonlocal count, resumed
            for number, texts in enumerate(_split_chunks(rows.texts, chunk or MAX_CHUNK, characters)):
                if number in ready:
                    resumed += len(texts)
                else:
                    pending.append((number, count, len(texts)))
                    yield texts
                count += len(texts)

        def encode_alone() -> Iterator[NDArray[np.float32]]:
            before = 0.0  # the share of the file that is done
            for texts in missing_chunks():
                report = partial(_report, progress, count - resumed, resumed, before, rows.share(), len(texts))
                yield _encode_chunk(embedder, texts, pending[0][1], batch_tokens, report)
                before = rows.share()

        done = 0
        numbered = ((pending[-1][1], texts) for texts in missing_chunks())  # its number is put there before
        for vectors in encode_alone() if pool is None else pool.encode_parts(numbered):
            number, _, length = pending.popleft()
            chunks.put(number, vectors.tobytes())
            done += length
            if pool is not None:
                progress(done, resumed, rows.share())
        if not count:
            raise InputError(f"'{path}' has no rows; there is nothing to embed.")
        meter = QualityMeter(embedder.dim)
        chunks.finish(out, _make_writer(out, embedder, count, meter, columns, settings))
    return JobResult(out, meter.quality(), resumed)


def verify_file(
    embedder: Embedder,
    path: Path,
    out: Path,
    column: str | None = None,
    text_format: TextFormat = AS_FILE_SHOWS,
) -> tuple[bool, str]:
    """Read the output and encode some rows again, one by one; return whether they agree, and a sentence."""
    vectors = _read_vectors(out)
    row_numbers = sorted(set(np.linspace(0, len(vectors) - 1, VERIFIED_ROWS, dtype=int).tolist()))
    with read_texts(path, column, text_format) as rows:
        texts = _pick_texts(rows.texts, row_numbers)
    if len(texts) != len(row_numbers):
        return False, f"'{path}' has fewer rows than '{out}'"
    again = np.stack([embedder.encode_one(text) for text in texts])
    stored = vectors[row_numbers]
    norms = np.linalg.norm(stored, axis=1) * np.linalg.norm(again, axis=1)
    cosine = float(((stored * again).sum(1) / np.maximum(norms, 1e-30)).min())
    min_cosine = MIN_COSINE[embedder.dtype]
    passed = bool(np.isfinite(stored).all()) and cosine >= min_cosine
    return passed, f"{len(row_numbers)} rows encoded again one by one: lowest cosine {cosine:.6f} (needs {min_cosine})"


def _encode_chunk(
    embedder: Embedder, texts: Sequence[str], first: int, batch_tokens: int | str, report: Callable[[int], None]
) -> NDArray[np.float32]:
    return embedder.encode_part(texts, first, batch_tokens=batch_tokens, progress=lambda done, _: report(done))


def _hash_model_files(folder: Path) -> str:
    """A hash of the names, sizes and times of the files of a model."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    states = [(str(file.relative_to(folder)), (stat := file.stat()).st_size, stat.st_mtime_ns) for file in files]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:12]


def _report(progress: Progress, done: int, resumed: int, before: float, after: float, length: int, added: int) -> None:
    """Report `added` texts of a chunk of `length`; the file is read up to the share `after`, not yet encoded."""
    progress(done + added, resumed, before + (after - before) * added / length)


def _split_chunks(texts: Iterator[str], size: int, characters: int | None) -> Iterator[list[str]]:
    """Split texts after `size` of them or after `characters`, the same way in every run."""
    chunk: list[str] = []
    total = 0
    for text in texts:
        chunk.append(text)
        total += len(text)
        if len(chunk) >= size or (characters is not None and total >= characters):
            yield chunk
            chunk, total = [], 0
    if chunk:
        yield chunk


def _make_writer(
    out: Path,
    embedder: Embedder,
    count: int,
    meter: QualityMeter,
    columns: OtherColumns | None,
    settings: dict[str, Any],
) -> Any:
    dim = embedder.dim

    def blocks(parts: Sequence[Path]) -> Iterator[NDArray[np.float32]]:
        for part in parts:
            block = np.fromfile(part, np.float32).reshape(-1, dim)
            meter.add(block)
            yield block

    def as_npy(parts: Sequence[Path], tmp: Path) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
        with tmp.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for block in blocks(parts):
                file.write(block.tobytes())

    def as_parquet(parts: Sequence[Path], tmp: Path) -> None:
        import pyarrow as arrow

        if columns is None:
            raise InputError(f"'{out}' is no Parquet file.")
        schema = columns.schema.append(arrow.field(VECTOR, arrow.list_(arrow.float32(), dim)))
        schema = schema.with_metadata({METADATA: json.dumps(_describe_model(embedder, settings))})
        take, close = columns.open()
        try:
            with tmp.open("w+b") as file:
                writer = VectorParquetWriter(file, schema)
                for block in blocks(parts):
                    flat = arrow.FixedSizeListArray.from_arrays(arrow.array(block.reshape(-1)), dim)
                    writer.write(take(len(block)).append_column(schema.field(VECTOR), flat))
                writer.close()
        finally:
            close()

    return as_npy if out.suffix == ".npy" else as_parquet


def _describe_model(embedder: Embedder, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a search needs to encode a query like these texts."""
    is_folder = Path(embedder.name).is_dir()
    return {
        "model": str(Path(embedder.name).resolve()) if is_folder else embedder.name,
        "dim": embedder.dim,
        "dtype": embedder.dtype,
        "max_tokens": embedder.max_tokens,
        "prompt": embedder.prompt,
        "normalize": settings.get("normalize", True),
    }


def _read_vectors(out: Path) -> NDArray[np.float32]:
    if out.suffix == ".npy":
        vectors: NDArray[np.float32] = np.load(out, mmap_mode="r")
        return vectors
    import pyarrow.parquet as parquet

    column = parquet.read_table(out, columns=["vector"])["vector"].combine_chunks()
    return np.asarray(column.flatten()).reshape(len(column), -1)


def _pick_texts(texts: Iterator[str], row_numbers: Sequence[int]) -> list[str]:
    chosen = set(row_numbers)
    return [text for number, text in enumerate(islice(texts, row_numbers[-1] + 1)) if number in chosen]


@dataclass(frozen=True)
class Quality:
    """A summary of all vectors of a file."""

    count: int
    dim: int
    norm_mean: float
    norm_std: float
    norm_min: float
    norm_max: float
    not_finite: int  # vectors with a NaN or an infinity
    duplicates: int  # vectors equal to an earlier one

    def format_line(self) -> str:
        return (
            f"{self.count:,} × {self.dim}, norm {self.norm_mean:.6f} ± {self.norm_std:.1e} "
            f"({self.norm_min:.6f} to {self.norm_max:.6f}), {self.not_finite} not finite, "
            f"{self.duplicates:,} duplicates"
        )


class QualityMeter:
    """Measures blocks [n, dim]; stores 16 bytes per row."""

    def __init__(self, dim: int) -> None:
        self._dim, self._norms, self._hashes, self._bad = dim, [np.zeros(0)], [np.zeros(0, np.int64)], 0

    def add(self, block: NDArray[np.float32]) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            norms = np.sqrt(np.square(block, dtype=np.float64).sum(1))
        good = np.isfinite(norms)
        self._bad += int((~good).sum())
        self._norms.append(norms[good])
        rows = np.ascontiguousarray(block).view(np.dtype((np.void, block.shape[1] * 4)))[:, 0]
        self._hashes.append(np.fromiter((hash(row.tobytes()) for row in rows), np.int64, len(rows)))

    def quality(self) -> Quality:
        norms, hashes = np.concatenate(self._norms), np.concatenate(self._hashes)
        has_norms = len(norms) > 0
        return Quality(
            count=len(hashes),
            dim=self._dim,
            norm_mean=float(norms.mean()) if has_norms else 0.0,
            norm_std=float(norms.std()) if has_norms else 0.0,
            norm_min=float(norms.min()) if has_norms else 0.0,
            norm_max=float(norms.max()) if has_norms else 0.0,
            not_finite=self._bad,
            duplicates=len(hashes) - len(np.unique(hashes)),
        )
