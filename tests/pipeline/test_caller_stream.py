"""The current CUDA stream: read and set by number if torch can, else by its public calls."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from ridgeline.pipeline.gpu_stream import CallerStream, make_stream_setter  # noqa: E402


class FakeGpus:
    """Fake torch state: the current stream of each device, and the current device."""

    def __init__(self, monkeypatch, *, numbers: bool):
        self.streams = {0: (10, 0, 1), 1: (11, 1, 1)}
        self.device = 0
        self.objects_made = 0
        monkeypatch.setattr(torch.cuda, "current_device", lambda: self.device)
        monkeypatch.setattr(torch.cuda, "set_device", lambda n: setattr(self, "device", n))
        monkeypatch.setattr(torch.cuda, "current_stream", self.current)
        monkeypatch.setattr(torch.cuda, "set_stream", lambda s: self.set(s.stream_id, s.device_index, s.device_type))
        for name, call in (("_cuda_getCurrentStream", self.streams.get), ("_cuda_setStream", self.set)):
            if numbers:
                monkeypatch.setattr(torch._C, name, call, raising=False)
            else:
                monkeypatch.delattr(torch._C, name, raising=False)

    def set(self, stream_id, device_index, device_type):
        self.streams[device_index] = (stream_id, device_index, device_type)
        self.device = device_index

    def current(self, device):
        self.objects_made += 1
        return make_stream(self.streams[device.index])


def make_stream(numbers):
    return SimpleNamespace(**dict(zip(("stream_id", "device_index", "device_type"), numbers, strict=True)))


@pytest.mark.parametrize("numbers", [True, False])
def test_the_stream_and_the_device_of_the_caller_are_restored(monkeypatch, numbers):
    gpus = FakeGpus(monkeypatch, numbers=numbers)
    caller, select_ours = CallerStream(torch.device("cuda", 1)), make_stream_setter(make_stream((77, 1, 1)))
    for numbers_now in ((11, 1, 1), (11, 1, 1), (12, 1, 1)):  # the caller may change its stream between batches
        gpus.streams[1] = numbers_now
        assert caller.get() == make_stream(numbers_now)
        select_ours()
        assert (gpus.streams[1], gpus.device) == ((77, 1, 1), 1)
        caller.restore()
        assert (gpus.streams, gpus.device) == ({0: (10, 0, 1), 1: numbers_now}, 0)


def test_an_unchanged_stream_is_read_as_an_object_only_once(monkeypatch):
    gpus = FakeGpus(monkeypatch, numbers=True)
    caller = CallerStream(torch.device("cuda", 0))
    for _ in range(5):
        caller.get()
        caller.restore()
    assert gpus.objects_made == 1
