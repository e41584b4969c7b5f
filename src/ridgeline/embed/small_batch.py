"""A few texts on a GPU: the launches are recorded once per size and played back: only the GPU's own time is left.

Texts go up and their vectors come back in the same recording: one copy, the encoder, one copy. A recording has room for
so many tokens and so many texts; a text that is not there has no tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.embed.encoder import Encoder
from ridgeline.embed.inputs import FEW
from ridgeline.embed.layers import Packed
from ridgeline.embed.tokens import Tokens

SMALLEST = 16  # tokens; sizes double from here
TEXTS = (1, 32, FEW)  # there are recordings for so many
MOST_TOKENS = 16_384  # beyond, a GPU is busy for longer than its launches take

Play = Callable[[], None]


def size_for(tokens: int) -> int:
    """The recording that holds so many tokens.

    >>> [size_for(n) for n in (1, 16, 17, 100)]
    [16, 16, 32, 128]
    """
    return max(SMALLEST, 1 << (tokens - 1).bit_length())


def are_few(tokens: Tokens) -> bool:
    return 0 < len(tokens) <= TEXTS[-1] and tokens.offsets[-1] - tokens.offsets[0] <= MOST_TOKENS


class FewTexts:
    """Tokens → vectors float32 [n, dim], by recordings that are made when first needed."""

    def __init__(self, encoder: Encoder, device: Any) -> None:
        self.encoder, self.device = encoder, device
        self._recordings: dict[tuple[int, int, int], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None  # they play in turn: one memory
        self._lock = threading.Lock()  # a recording has one place for the texts and one for the vectors

    def __call__(self, tokens: Tokens) -> NDArray[np.float32]:
        texts = next(room for room in TEXTS if room >= len(tokens))
        shape = size_for(int(tokens.offsets[-1] - tokens.offsets[0])), texts, size_for(int(tokens.lengths.max()))
        with self._lock:
            if shape not in self._recordings:
                self._recordings[shape] = _Recording(self.encoder, self.device, *shape, self._pool)
            return self._recordings[shape](tokens)


class _Recording:
    def __init__(self, encoder: Encoder, device: Any, size: int, texts: int, longest: int, pool: Any) -> None:
        pinned = device.type == "cuda"
        head = 8 * (texts + 1)  # bytes of the offsets, before the tokens
        self._device = device
        self._up = torch.zeros(head + 4 * size, dtype=torch.uint8, pin_memory=pinned)
        self._offsets = self._up[:head].view(torch.int64).numpy()
        self._ids = self._up[head:].view(torch.int32).numpy()
        self._offsets[:] = np.minimum(np.arange(texts + 1), size)
        self._vectors = torch.empty(texts, encoder.dim, pin_memory=pinned)
        there = torch.empty_like(self._up, device=device)
        packed = Packed(there[:head].view(torch.int64), ((0, texts, longest),))
        tokens = there[head:].view(torch.int32)

        def steps() -> None:
            there.copy_(self._up, non_blocking=True)
            self._vectors.copy_(encoder(tokens, packed), non_blocking=True)

        self._play = _recorded(steps, device, pool) if pinned else steps

    def __call__(self, tokens: Tokens) -> NDArray[np.float32]:
        begin, end, count = tokens.offsets[0], tokens.offsets[-1], len(tokens)
        self._offsets[: count + 1] = tokens.offsets - begin
        self._offsets[count + 1 :] = end - begin
        self._ids[: end - begin] = tokens.ids[begin:end]
        self._play()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        vectors: NDArray[np.float32] = self._vectors[:count].numpy().copy()
        return vectors


def _recorded(steps: Play, device: Any, pool: Any) -> Play:
    """The steps as a CUDA graph; played twice before, so that everything is compiled and has its memory."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            steps()
            steps()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            steps()
    play: Play = graph.replay
    return play
