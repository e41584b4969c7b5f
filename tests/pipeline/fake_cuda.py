"""Fake CUDA streams, events and graphs on the CPU, so that the logic of the ring runs without a GPU.

Work is done at once, in the order in which it is queued; the tests check order, ownership, bounds and errors. The
overlap of copies is tested on a GPU (test_gpu.py).
"""

from __future__ import annotations

import time
from contextlib import contextmanager

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ridgeline.pipeline import gpu_stream


class Stream:
    instances: list[Stream] = []  # noqa: RUF012

    def __init__(self, device=None):
        self.drained = False
        Stream.instances.append(self)

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        assert event.time is not None, "waits for an event that was not recorded"

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
    """The recorded operations with their arguments."""

    def __init__(self):
        self.calls = []

    def replay(self):
        for call, args, kwargs, result in self.calls:
            for new, old in zip(tree_leaves(call(*args, **kwargs)), tree_leaves(result), strict=True):
                if hasattr(old, "copy_") and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@contextmanager
def graph(graph, stream=None, capture_error_mode="global"):
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, call, types, args=(), kwargs=None):
            result = call(*args, **(kwargs or {}))
            graph.calls.append((call, args, kwargs or {}, result))
            return result

    with Recorder():
        yield


def install(monkeypatch, torch):
    Stream.instances.clear()
    cuda_streams = tuple(Stream() for _ in range(3))
    current = [Stream()]  # the last one is current
    monkeypatch.setattr(gpu_stream, "_get_cuda_streams", lambda device: cuda_streams)
    for name in ("_cuda_setStream", "_cuda_getCurrentStream"):  # torch has them if it is built for CUDA
        monkeypatch.delattr(torch._C, name, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", CUDAGraph)
    monkeypatch.setattr(torch.cuda, "graph", graph)
    monkeypatch.setattr(torch.cuda, "set_stream", current.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    return cuda_streams, current
