"""CUDA's streams and events played on the CPU, so that the ring's own logic runs where there is no GPU.

Work is done at once, in the order it is queued; what is tested is order, ownership, bounds and errors. That copies
really overlap is tested on a GPU (test_gpu.py).
"""

from __future__ import annotations

import time
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.pipeline import overlapped


class Stream:
    made: list[Stream] = []  # noqa: RUF012

    def __init__(self, device=None):
        self.drained = False
        Stream.made.append(self)

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        assert event.time is not None, "waits for an event nobody recorded"

    def synchronize(self):
        self.drained = True


class Event:
    def __init__(self, enable_timing=False):
        self.time = None

    def record(self, stream):
        self.time = time.perf_counter()

    def synchronize(self):
        assert self.time is not None

    def elapsed_time(self, other):
        return (other.time - self.time) * 1e3


class CUDAGraph:
    """Operations as they were called, on the memory they were called with."""

    def __init__(self):
        self.calls = []

    def replay(self):
        for call, args, kwargs, left in self.calls:
            for new, old in zip(tree_leaves(call(*args, **kwargs)), tree_leaves(left), strict=True):
                if hasattr(old, "copy_") and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def graph(made, stream=None, capture_error_mode="global"):
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            left = call(*args, **(kwargs or {}))
            made.calls.append((call, args, kwargs or {}, left))
            return left

    with Recorder():
        yield


def install(monkeypatch, torch):
    Stream.made.clear()
    lanes = tuple(Stream() for _ in range(3))
    current = [Stream()]  # the last one is in force
    monkeypatch.setattr(overlapped, "_streams", lambda device: lanes)
    for by_numbers in ("_cuda_setStream", "_cuda_getCurrentStream"):  # torch has them where it is built for CUDA
        monkeypatch.delattr(torch._C, by_numbers, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "set_stream", current.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    return lanes, current
