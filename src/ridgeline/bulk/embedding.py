"""`bulk embed`: the columns of a source and a vector for each text."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.bulk.parts import Outcome, Task
from ridgeline.bulk.row_worker import Computed, RowWorker
from ridgeline.bulk.sources import VECTOR, Table
from ridgeline.errors import InputError
from ridgeline.store import hash_file

METADATA = "ridgeline"  # the key of the model's description in a Parquet file, as `ridgeline embed` writes it


@dataclass(frozen=True)
class EmbedSettings:
    """What determines the vectors."""

    model: str
    model_hash: str
    dtype: str
    max_tokens: int | None
    prompt: str | None
    truncate_dim: int | None
    normalize: bool
    vectors: str  # the type they are stored in


@dataclass(frozen=True)
class EmbedFactory:
    """Makes the worker of a device; it is sent to each worker once."""

    table: Table
    target: str
    folder: str  # of the parts in the target
    settings: EmbedSettings
    check_model: bool = False  # on other machines: compare the files of the model

    def __call__(self, device: str) -> Callable[[Task], Outcome]:
        return EmbedWorker(self, device)


class EmbedWorker(RowWorker):
    """Computes the vectors of texts."""

    added = (VECTOR,)

    def __init__(self, factory: EmbedFactory, device: str) -> None:
        from ridgeline.embed import Embedder

        super().__init__(factory, device)
        settings = factory.settings
        if factory.check_model and hash_model(settings.model) != settings.model_hash:
            raise InputError(f"model '{settings.model}' has other files here than where the job started; copy them.")
        self._settings, self._truncated = settings, 0
        self._embedder = Embedder(
            settings.model,
            device=device,
            dtype=settings.dtype.partition(" ")[0],
            max_tokens=settings.max_tokens,
            prompt=settings.prompt,
            truncate_dim=settings.truncate_dim,
            normalize=settings.normalize,
        )

    def compute(self, values: Any) -> Computed:
        import pyarrow as arrow

        self._truncated = 0
        vectors, bad = _encode_good(self._encode, values.to_pylist(), self._embedder.dim)
        reasons = _find_unfit(vectors, self._settings.vectors)
        if reasons:
            good = np.delete(np.arange(len(values)), [index for index, _ in bad])
            bad += [(int(good[row]), reason) for row, reason in reasons.items()]
            vectors = np.delete(vectors, list(reasons), axis=0)
        flat = arrow.array(_convert(vectors, self._settings.vectors).reshape(-1))
        column = arrow.FixedSizeListArray.from_arrays(flat, self._embedder.dim)
        return Computed(arrow.table({VECTOR: column}), sorted(bad), self._truncated)

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        """Encode texts and count those of this call that reach the limit: a worker has no terminal for warnings."""
        from ridgeline.embed import TruncationWarning

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", TruncationWarning)
            vectors: NDArray[np.float32] = self._embedder.encode(texts)
        messages = [warning.message for warning in caught]
        self._truncated = sum(note.count for note in messages if isinstance(note, TruncationWarning))
        for warning in caught:
            if not isinstance(warning.message, TruncationWarning):
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        return vectors

    def describe(self) -> dict[str, str]:
        settings, embedder = self._settings, self._embedder
        description = {
            "model": str(Path(settings.model).resolve()) if Path(settings.model).is_dir() else settings.model,
            "dim": embedder.dim,
            "dtype": embedder.dtype,
            "max_tokens": embedder.max_tokens,
            "prompt": embedder.prompt,
            "normalize": settings.normalize,
        }
        return {METADATA: json.dumps(description)}

    def close(self) -> None:
        super().close()
        self._embedder.close()


def hash_model(name: str) -> str:
    """Return a hash of the files of a model, the same on every machine that has these files."""
    from ridgeline.embed import find_model

    folder = find_model(name, verify=False).folder
    files = sorted(file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
    state = [(str(file.relative_to(folder)), hash_file(file)) for file in files]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def _convert(vectors: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Return the vectors in the type that they are stored in, by torch: NumPy converts to float16 one by one."""
    if dtype == "float32":
        return np.ascontiguousarray(vectors)
    import torch

    converted: NDArray[Any] = torch.from_numpy(np.ascontiguousarray(vectors)).to(getattr(torch, dtype)).numpy()
    return converted


def _find_unfit(vectors: NDArray[np.float32], dtype: str) -> dict[int, str]:
    """Return why vectors cannot be stored, by row.

    A small sum of squares excuses a row in one pass over the memory; only the others are looked at number by number.
    """
    largest = float(np.finfo(dtype).max)
    with np.errstate(invalid="ignore", over="ignore"):
        doubtful = np.flatnonzero(~(np.einsum("ij,ij->i", vectors, vectors) < min(largest, 1e30) ** 2))
    reasons = {}
    for row in doubtful.tolist():
        if not np.isfinite(vectors[row]).all():
            reasons[row] = "its vector is not finite"
        elif np.abs(vectors[row]).max() > largest:
            reasons[row] = f"its vector has numbers that {dtype} cannot hold; choose --vectors float32"
    return reasons


def _encode_good(
    encode: Callable[[list[str]], NDArray[np.float32]], texts: list[str], dim: int
) -> tuple[NDArray[np.float32], list[tuple[int, str]]]:
    """Encode all texts that can be encoded; return their vectors, and (number, reason) of the others."""
    if not texts:
        return np.empty((0, dim), np.float32), []
    try:
        return encode(texts), []
    except InputError:
        bad = _find_bad(encode, texts, 0)
    numbers = {number for number, _ in bad}
    good = [text for number, text in enumerate(texts) if number not in numbers]
    return (encode(good) if good else np.empty((0, dim), np.float32)), bad


def _find_bad(
    encode: Callable[[list[str]], NDArray[np.float32]], texts: list[str], first: int
) -> list[tuple[int, str]]:
    """Return (number, reason) of each text that cannot be encoded, by halving."""
    try:
        encode(texts)
    except InputError as error:
        if len(texts) == 1:
            return [(first, str(error))]
        half = len(texts) // 2
        return [*_find_bad(encode, texts[:half], first), *_find_bad(encode, texts[half:], first + half)]
    return []
