"""The current stream, read and set by its numbers where torch lets us, by its public calls where not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from ridgeline.pipeline.current import Caller, turn  # noqa: E402


class Gpus:
    """torch's own record of what is current: a stream per device, and a device."""

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
        return stream_of(self.streams[device.index])


def stream_of(numbers):
    return SimpleNamespace(**dict(zip(("stream_id", "device_index", "device_type"), numbers, strict=True)))


@pytest.mark.parametrize("numbers", [True, False])
def test_the_caller_has_its_stream_and_its_device_back(monkeypatch, numbers):
    gpus = Gpus(monkeypatch, numbers=numbers)
    caller, to_ours = Caller(torch.device("cuda", 1)), turn(stream_of((77, 1, 1)))
    for mine in ((11, 1, 1), (11, 1, 1), (12, 1, 1)):  # the caller may have turned to another one in between
        gpus.streams[1] = mine
        assert caller.stream() == stream_of(mine)
        to_ours()
        assert (gpus.streams[1], gpus.device) == ((77, 1, 1), 1)
        caller.back()
        assert (gpus.streams, gpus.device) == ({0: (10, 0, 1), 1: mine}, 0)


def test_a_stream_that_stays_is_made_an_object_of_once(monkeypatch):
    gpus = Gpus(monkeypatch, numbers=True)
    caller = Caller(torch.device("cuda", 0))
    for _ in range(5):
        caller.stream()
        caller.back()
    assert gpus.objects_made == 1
