"""Kernels launched once through Triton, and from then on directly.

Triton's own dispatch inspects every argument on every call and costs more than a small kernel. What it compiled is
kept with all parameters in place but the addresses that change.

    python -m pytest tests/kernels/test_direct.py
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ridgeline.native import Launch, launch_all

_noting = threading.local()


def launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Through Triton's dispatch; noted for whoever is listening (`Sequel`)."""
    compiled = kernel[(programs,)](*arguments, **options)
    told = getattr(_noting, "told", None)
    if told is not None:
        told.append((compiled, programs, arguments))


class Sequel:
    """The kernels that `work` launched through `launch`, to be launched again with other tensors in the place of some.

    `work` must do nothing on the GPU but that. `moving` are the tensors whose places others will take: of the same
    type and shape, contiguous, and as aligned, where the kernel is specialised on that.
    """

    def __init__(self, work: Callable[[], None], moving: Sequence[torch.Tensor], early: bool = False) -> None:
        _noting.told = []
        try:
            work()
            self._kept = _noting.told  # the code and the tensors that are launched
        finally:
            _noting.told = None
        self._launches: list[Any] = []
        more: list[int] = []  # launches that need another address than the first
        for turn, (compiled, programs, arguments) in enumerate(self._kept):
            slots = {place: which for which, t in enumerate(moving) for place, a in enumerate(arguments) if a is t}
            more += [turn] if any(which > 0 for which in slots.values()) else []
            # The first one must not begin before all that came earlier has ended.
            self._launches.append(direct(compiled, programs, arguments, slots, early and turn > 0))
        split = more[0] if more else len(self._launches)
        self._first, self._last = self._launches[:split], self._launches[split:]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that the kernels are given."""
        return [a for _, _, arguments in self._kept for a in arguments if isinstance(a, torch.Tensor)]

    def __call__(self, stream: int, *addresses: int) -> None:
        launch_all(self._launches, stream, *addresses)

    def begin(self, stream: int, address: int) -> None:
        """The launches that need the first address alone; the tensors of the others may be made meanwhile."""
        launch_all(self._first, stream, address)

    def end(self, stream: int, *addresses: int) -> None:
        """The launches from the first on that needs another."""
        launch_all(self._last, stream, *addresses)


def direct(
    compiled: Any, programs: int, arguments: Sequence[Any], slots: dict[int, int], early: bool = False
) -> Launch:
    """The compiled kernel, to be called with a stream and addresses; `slots`: which address goes to which argument.

    early: it may begin before the kernel ahead has ended; it waits for it by itself.
    """
    meta, given = compiled.metadata, parameters(compiled, arguments, slots)
    return Launch(compiled.function, programs, 32 * meta.num_warps, meta.shared, given, early=early)


def parameters(compiled: Any, arguments: Sequence[Any], slots: dict[int, int]) -> list[tuple[int, int, int]]:
    """(bytes, which address or -1, value) of every parameter the compiled kernel has."""
    meta = compiled.metadata
    if meta.global_scratch_size or getattr(meta, "profile_scratch_size", 0):
        raise RuntimeError("the kernel wants scratch memory, which Triton's own launch provides")
    found = []
    for place, (kind, given) in enumerate(zip(compiled.src.signature.values(), arguments, strict=True)):
        if kind.startswith("*"):
            slot = slots.get(place, -1)
            found.append((8, slot, 0 if slot >= 0 else _address(given)))
        elif kind == "fp32":
            found.append((4, -1, struct.unpack("<i", struct.pack("<f", given))[0]))
        elif kind != "constexpr":
            found.append((int(kind.lstrip("iu")) // 8, -1, int(given)))
    return found


def _address(tensor: torch.Tensor) -> int:
    """As the signed number that the parameter is given as."""
    at = int(tensor.data_ptr())
    return at - (1 << 64) if at >= 1 << 63 else at
