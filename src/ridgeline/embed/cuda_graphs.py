"""Encode a small batch on a GPU with recorded CUDA graphs, so that only the time on the GPU is left.

One graph copies the tokens to the GPU, runs the encoder, and copies the vectors back. A graph has a capacity of tokens
and texts; unused texts have no tokens. A batch that is larger than a graph runs in parts, one after the other: each
launch of a kernel without a graph waits for Python's lock, which a server's event loop holds half of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.embed.encoder import Encoder
from ridgeline.embed.inputs import MAX_RECORDED_TEXTS
from ridgeline.embed.layers import Packed
from ridgeline.embed.tokens import Tokens
from ridgeline.kernels import get_recording_stream, record_graph, recording

MIN_TOKENS = 16  # the smallest capacity; the others are powers of two
TEXT_CAPACITIES = (1, 32, 512, MAX_RECORDED_TEXTS)  # capacities in texts
MAX_TOKENS = 16_384  # of one recording
MAX_REPLAYED_TOKENS = 65_536  # with more, copies beside the computation save more than recordings

Replay = Callable[[], None]


def round_up_size(tokens: int) -> int:
    """The capacity of the graph for this many tokens.

    >>> [round_up_size(n) for n in (1, 16, 17, 100)]
    [16, 16, 32, 128]
    """
    return max(MIN_TOKENS, 1 << (tokens - 1).bit_length())


def split_for_recordings(tokens: Tokens) -> list[Tokens] | None:
    """Return consecutive parts of a batch that each fit a recording; None if it is empty, or too large for recordings.

    >>> tokens = Tokens(np.zeros(24_000, np.int32), np.array([0, 9_000, 16_000, 24_000]))
    >>> [len(part) for part in split_for_recordings(tokens)]
    [2, 1]
    """
    offsets = tokens.offsets
    if not len(tokens) or offsets[-1] - offsets[0] > MAX_REPLAYED_TOKENS or tokens.lengths.max() > MAX_TOKENS:
        return None
    parts, begin = [], 0
    while begin < len(tokens):
        end = int(np.searchsorted(offsets, offsets[begin] + MAX_TOKENS, "right")) - 1
        end = min(end, begin + MAX_RECORDED_TEXTS)
        parts.append(Tokens(tokens.ids, offsets[begin : end + 1]))
        begin = end
    return parts


class SmallBatchReplay:
    """Tokens → vectors float32 [n, dim] by CUDA graphs, recorded on first use."""

    def __init__(self, encoder: Encoder, device: Any) -> None:
        self.encoder, self.device = encoder, device
        self._recordings: dict[tuple[int, int, int], _Recording] = {}
        self._pool = (
            torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        )  # graphs run in turn and share memory
        self._lock = threading.Lock()  # a recording has one input and one output buffer

    def __call__(self, tokens: Tokens) -> NDArray[np.float32]:
        texts = next(capacity for capacity in TEXT_CAPACITIES if capacity >= len(tokens))
        shape = (
            round_up_size(int(tokens.offsets[-1] - tokens.offsets[0])),
            texts,
            round_up_size(int(tokens.lengths.max())),
        )
        with self._lock:
            if shape not in self._recordings:
                self._recordings[shape] = _Recording(self.encoder, self.device, *shape, self._pool)
            return self._recordings[shape](tokens)


class _Recording:
    """One graph with its buffers."""

    def __init__(self, encoder: Encoder, device: Any, size: int, texts: int, longest: int, pool: Any) -> None:
        pinned = device.type == "cuda"
        header_bytes = 8 * (texts + 1)  # bytes of the offsets, before the tokens
        self._device = device
        self._up = torch.zeros(header_bytes + 4 * size, dtype=torch.uint8, pin_memory=pinned)
        self._offsets = self._up[:header_bytes].view(torch.int64).numpy()
        self._ids = self._up[header_bytes:].view(torch.int32).numpy()
        self._offsets[:] = np.minimum(np.arange(texts + 1), size)
        self._vectors = torch.empty(texts, encoder.dim, pin_memory=pinned)
        # Kept as long as the graph, which writes to it: else another tensor, even of another model, gets its memory.
        self._device_buffer = device_buffer = torch.empty_like(self._up, device=device)
        packed = Packed(device_buffer[:header_bytes].view(torch.int64), ((0, texts, longest),), exact=texts == 1)
        tokens = device_buffer[header_bytes:].view(torch.int32)

        def steps() -> None:
            device_buffer.copy_(self._up, non_blocking=True)
            self._vectors.copy_(encoder(tokens, packed), non_blocking=True)

        self._replay = _record_graph(steps, device, pool) if pinned else steps

    def __call__(self, tokens: Tokens) -> NDArray[np.float32]:
        begin, end, count = tokens.offsets[0], tokens.offsets[-1], len(tokens)
        self._offsets[: count + 1] = tokens.offsets - begin
        self._offsets[count + 1 :] = end - begin
        self._ids[: end - begin] = tokens.ids[begin:end]
        self._replay()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        vectors: NDArray[np.float32] = self._vectors[:count].numpy().copy()
        return vectors


def _record_graph(steps: Replay, device: Any, pool: Any) -> Replay:
    """Record the steps as a CUDA graph, after two runs that compile kernels and allocate memory."""
    with recording, torch.cuda.device(device):
        stream = get_recording_stream(device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            steps()
            steps()
        torch.cuda.current_stream().wait_stream(stream)
        play: Replay = record_graph(steps, device, pool).replay
    return play
