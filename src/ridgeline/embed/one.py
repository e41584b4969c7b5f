"""One text on a GPU: the launches are recorded once per size and played back, so that only the GPU's own time is left.

A text goes up and its vector comes back in the same recording: one small copy, the encoder, one small copy.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ridgeline.embed.encoder import Encoder
from ridgeline.embed.layers import Packed

SMALLEST = 16  # tokens; sizes double from here to the model's limit
HEAD = 16  # bytes of two int64 offsets, before the tokens

Play = Callable[[], None]


def size_for(tokens: int) -> int:
    """The recording that holds so many tokens.

    >>> [size_for(n) for n in (1, 16, 17, 100)]
    [16, 16, 32, 128]
    """
    return max(SMALLEST, 1 << (tokens - 1).bit_length())


class OneText:
    """token numbers [n] → vector float32 [dim], by recordings that are made when first needed."""

    def __init__(self, encoder: Encoder, device: Any) -> None:
        self.encoder, self.device = encoder, device
        self._recordings: dict[int, _Recording] = {}
        self._lock = threading.Lock()  # a recording has one place for the text and one for the vector

    def __call__(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        size = size_for(len(ids))
        with self._lock:
            if size not in self._recordings:
                self._recordings[size] = _Recording(self.encoder, self.device, size)
            return self._recordings[size](ids)


class _Recording:
    def __init__(self, encoder: Encoder, device: Any, size: int) -> None:
        pinned = device.type == "cuda"
        self._up = torch.zeros(HEAD + 4 * size, dtype=torch.uint8, pin_memory=pinned)
        self._offsets = self._up[:HEAD].view(torch.int64).numpy()
        self._ids = self._up[HEAD:].view(torch.int32).numpy()
        self._offsets[:] = 0, size
        self._vector = torch.empty(1, encoder.dim, pin_memory=pinned)
        there = torch.empty_like(self._up, device=device)
        packed = Packed(there[:HEAD].view(torch.int64), ((0, 1, size),))
        tokens = there[HEAD:].view(torch.int32)

        def steps() -> None:
            there.copy_(self._up, non_blocking=True)
            self._vector.copy_(encoder(tokens, packed), non_blocking=True)

        self._play = _recorded(steps, device) if pinned else steps
        self._wait: Callable[[], None] = torch.cuda.current_stream(device).synchronize if pinned else lambda: None

    def __call__(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        self._offsets[1] = len(ids)
        self._ids[: len(ids)] = ids
        self._play()
        self._wait()
        vector: NDArray[np.float32] = self._vector[0].numpy().copy()
        return vector


def _recorded(steps: Play, device: Any) -> Play:
    """The steps as a CUDA graph; played twice before, so that everything is compiled and has its memory."""
    with torch.cuda.device(device):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            steps()
            steps()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            steps()
    play: Play = graph.replay
    return play
