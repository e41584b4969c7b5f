"""Launch compiled Triton kernels again without Triton's dispatch.

Triton's dispatch inspects every argument on every call and takes longer than a small kernel runs. The first launch
goes through Triton. `LaunchSequence` then keeps the compiled kernels with all parameters filled in, except the
addresses that change from call to call.

    python -m pytest tests/kernels/test_launch.py
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ridgeline.native import Launch, launch_all

_recorder = threading.local()  # .launches: the list that `launch_kernel` appends to; None while nothing is recorded


def launch_kernel(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    """Launch `kernel` with a grid of `programs` through Triton; a `LaunchSequence` under construction records it."""
    compiled = kernel[(programs,)](*arguments, **options)
    launches = getattr(_recorder, "launches", None)
    if launches is not None:
        launches.append((compiled, programs, arguments))


class LaunchSequence:
    """The kernels that `work` launched with `launch_kernel`, ready to be launched again with other tensors.

    work     calls `launch_kernel` and does nothing else on the GPU
    moving   the tensors that later calls replace; a replacement has the same type and shape, is contiguous, and has
             the same alignment where the kernel is specialised on it
    early    each kernel but the first may start before its predecessor ends, and waits for it on the GPU
             (programmatic dependent launch)
    """

    def __init__(self, work: Callable[[], None], moving: Sequence[torch.Tensor], early: bool = False) -> None:
        _recorder.launches = []
        try:
            work()
            self._recorded = _recorder.launches  # keeps the code and the tensors of the launches alive
        finally:
            _recorder.launches = None
        self._launches: list[Any] = []
        later: list[int] = []  # launches that need more than the first address
        for turn, (compiled, programs, arguments) in enumerate(self._recorded):
            slots = {place: which for which, t in enumerate(moving) for place, a in enumerate(arguments) if a is t}
            later += [turn] if any(which > 0 for which in slots.values()) else []
            # The first kernel must wait for all earlier work on the stream.
            self._launches.append(make_launch(compiled, programs, arguments, slots, early and turn > 0))
        split = later[0] if later else len(self._launches)
        self._first, self._last = self._launches[:split], self._launches[split:]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensor arguments of the kernels."""
        return [a for _, _, arguments in self._recorded for a in arguments if isinstance(a, torch.Tensor)]

    def __call__(self, stream: int, *addresses: int) -> None:
        launch_all(self._launches, stream, *addresses)

    def begin(self, stream: int, address: int) -> None:
        """Launch the kernels that need the first address only; the caller can allocate the other tensors meanwhile."""
        launch_all(self._first, stream, address)

    def end(self, stream: int, *addresses: int) -> None:
        """Launch the remaining kernels, from the first one that needs another address."""
        launch_all(self._last, stream, *addresses)


def make_launch(
    compiled: Any, programs: int, arguments: Sequence[Any], slots: dict[int, int], early: bool = False
) -> Launch:
    """Return the compiled kernel as a function of a stream and addresses.

    slots   argument position → index of the address that replaces it
    early   the kernel may start before its predecessor ends, and waits for it on the GPU
    """
    meta, parameters = compiled.metadata, pack_parameters(compiled, arguments, slots)
    return Launch(compiled.function, programs, 32 * meta.num_warps, meta.shared, parameters, early=early)


def pack_parameters(compiled: Any, arguments: Sequence[Any], slots: dict[int, int]) -> list[tuple[int, int, int]]:
    """Return (bytes, index of the address or -1, value) for every parameter of the compiled kernel."""
    meta = compiled.metadata
    if meta.global_scratch_size or getattr(meta, "profile_scratch_size", 0):
        raise RuntimeError("the kernel needs scratch memory, which only Triton's launch provides")
    parameters = []
    for place, (kind, argument) in enumerate(zip(compiled.src.signature.values(), arguments, strict=True)):
        if kind.startswith("*"):
            slot = slots.get(place, -1)
            parameters.append((8, slot, 0 if slot >= 0 else _signed_address(argument)))
        elif kind == "fp32":
            parameters.append((4, -1, struct.unpack("<i", struct.pack("<f", argument))[0]))
        elif kind != "constexpr":
            parameters.append((int(kind.lstrip("iu")) // 8, -1, int(argument)))
    return parameters


def _signed_address(tensor: torch.Tensor) -> int:
    address = int(tensor.data_ptr())
    return address - (1 << 64) if address >= 1 << 63 else address
