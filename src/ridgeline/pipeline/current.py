"""Which CUDA stream is current: read and set by its numbers, one call each.

torch.cuda.current_stream makes an object every time and torch.cuda.set_stream asks one for three properties; of a
small batch that would be a good part of what it costs its host. Where torch has no such calls, its public ones do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

Turn = Callable[[], object]  # makes its stream the current one, and the stream's device with it


def turn(stream: Any) -> Turn:
    import torch

    by_numbers = getattr(torch._C, "_cuda_setStream", None)
    if by_numbers is None:
        return partial(torch.cuda.set_stream, stream)
    names = ("stream_id", "device_index", "device_type")
    return partial(by_numbers, **{name: getattr(stream, name) for name in names})


class Caller:
    """The stream and the device that are current where a batch is handed in, to be current again afterwards."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda, self._device = torch.cuda, device
        self._numbers = getattr(torch._C, "_cuda_getCurrentStream", None)
        self._known: Any = None
        self._stream: Any = None
        self._turn: Turn | None = None
        self._was: Any = None

    def stream(self) -> Any:
        """The caller's current stream; asked once for every batch, since it may be another one each time."""
        self._was = self._cuda.current_device()
        told = self._numbers(self._device.index) if self._numbers is not None else None
        if told is None or told != self._known:
            self._stream = self._cuda.current_stream(self._device)
            self._known, self._turn = told, turn(self._stream)
        return self._stream

    def back(self) -> None:
        """As it was when `stream` was asked."""
        if self._turn is not None:
            self._turn()
        if self._was != self._device.index:  # a stream brings its device with it
            self._cuda.set_device(self._was)
