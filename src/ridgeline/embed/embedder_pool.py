"""`EmbedderPool`: the same encoder on several devices, one process each; texts in, vectors out, in order.

with EmbedderPool(devices=["cuda:0", "cuda:1"]) as embedders:
    vectors = embedders.encode(texts)  # float32 [N, dim]
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.embed.embedder import Embedder, TruncationWarning
from ridgeline.embed.inputs import check_texts, get_length, split_windows
from ridgeline.embed.models import DEFAULT, find_model
from ridgeline.errors import InputError
from ridgeline.pipeline import WorkerStats, is_integer, pool

Vectors = NDArray[np.float32]
CHUNK = 4_096  # texts per task of a worker


class EmbedderPool:
    """One `Embedder` per device, each in its own process.

    devices  names of devices, a number of them, or "auto"
    chunk    texts per task of a worker
    model and all other settings are those of `Embedder`
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT,
        *,
        devices: str | int | Sequence[str] = "auto",
        chunk: int = CHUNK,
        **settings: Any,
    ) -> None:
        if not is_integer(chunk) or chunk < 1:
            raise InputError(f"chunk is {chunk!r}; give 1 text or more.")
        find_model(model)  # raises here, not in a worker
        self.chunk = chunk
        self._pool = pool(partial(_make_encode, os.fspath(model), settings), devices)

    def encode(self, texts: Iterable[str], *, progress: Callable[[int, int | None], None] | None = None) -> Vectors:
        """Return float32 [N, dim], in the order of the texts."""
        check_texts(texts)
        total, blocks, done = get_length(texts), [], 0
        for block in self.encode_blocks(texts):
            blocks.append(block)
            done += len(block)
            if progress is not None:
                progress(done, total)
        return np.concatenate(blocks)

    def encode_blocks(self, texts: Iterable[str]) -> Iterator[Vectors]:
        """Yield float32 [n, dim], one chunk at a time, in order; one empty block if there are no texts."""
        check_texts(texts)
        chunks = (part[k : k + self.chunk] for _, part in split_windows(texts) for k in range(0, len(part), self.chunk))
        first = next(chunks, [])
        yield from self.encode_chunks(chain([first], chunks))

    def encode_chunks(self, chunks: Iterable[list[str]]) -> Iterator[Vectors]:
        """Yield float32 [n, dim] for each list of texts, in order; a worker encodes one list at a time."""

        def count() -> Iterator[tuple[int, list[str]]]:
            first = 0
            for texts in chunks:
                yield first, texts
                first += len(texts)

        yield from self.encode_parts(count())

    def encode_parts(self, parts: Iterable[tuple[int, list[str]]]) -> Iterator[Vectors]:
        """Yield float32 [n, dim] for each (number of the first text, texts); messages count the texts from there."""
        for vectors, notes in self._pool.map(parts):
            for note in notes:
                warnings.warn(note, stacklevel=2)
            yield vectors

    def stats(self) -> Sequence[WorkerStats]:
        """Return chunks, busy seconds and restarts of each worker."""
        return self._pool.stats()

    def __enter__(self) -> Self:
        self._pool.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.__exit__(kind, error, trace)


def _make_encode(
    model: str, settings: dict[str, Any], device: str
) -> Callable[[tuple[int, list[str]]], tuple[Vectors, list[str | Warning]]]:
    """Load the encoder in a worker; its function returns vectors and warnings, which the caller repeats."""
    embedder = Embedder(model, device=device, **settings)

    def encode(part: tuple[int, list[str]]) -> tuple[Vectors, list[str | Warning]]:
        first, texts = part
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            vectors = embedder.encode_part(texts, first)
        messages = [warning.message for warning in caught]
        return vectors, [note if isinstance(note, TruncationWarning) else str(note) for note in messages]

    return encode
