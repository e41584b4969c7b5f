"""Short switches and frozen objects end with the watcher; a GPU encodes a few texts one by one."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from ridgeline.audit.watch import meaning as encoders
from ridgeline.audit.watch import scheduling as module
from ridgeline.audit.watch.scheduling import FULL_S, SWITCH_S, ObjectFreezer, freeze_objects, short_switches


def test_a_process_is_as_before_once_it_is_over():
    before = sys.getswitchinterval()
    with short_switches():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        freeze_objects()
        assert gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == pytest.approx(before)
    assert gc.get_freeze_count() == 0


class Ring:
    """Garbage that only a collection finds, once it is let go."""

    def __init__(self):
        self.itself = self


def test_learnt_objects_are_frozen_and_cycles_are_collected_later(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with short_switches():
        tidy, short, long = ObjectFreezer(), Ring(), Ring()
        gone = [weakref.ref(short), weakref.ref(long)]
        tidy.freeze_if_due()
        assert gc.get_freeze_count() == 0  # not yet
        clock[0] += 1.5
        del short
        retained = [[n] for n in range(5_000)]
        tidy.freeze_if_due()
        assert gc.get_freeze_count() >= len(retained)
        assert not any(one is retained[7] for one in gc.get_objects())  # what no collection looks at
        assert gone[0]() is None
        del long
        clock[0] += 1.5
        tidy.freeze_if_due()
        assert gone[1]() is not None
        clock[0] += FULL_S
        tidy.freeze_if_due()
        assert gone[1]() is None
        assert gc.get_freeze_count() >= len(retained)
    assert gc.get_freeze_count() == 0


def test_several_devices_share_large_batches_in_order(monkeypatch):
    class Pool:
        started: list[list[str]] = []  # noqa: RUF012
        chunks: list[int] = []  # noqa: RUF012

        def __init__(self, model, devices):
            self.started.append(devices)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def encode_chunks(self, chunks):
            for chunk in chunks:
                self.chunks.append(len(chunk))
                yield np.array([[len(text)] for text in chunk], np.float32)

    fake = SimpleNamespace(device="cpu", encode=lambda texts: np.array([[len(text)] for text in texts], np.float32))
    monkeypatch.setattr("ridgeline.embed.Embedder", lambda model, device: fake)
    monkeypatch.setattr("ridgeline.embed.EmbedderPool", Pool)
    encode = encoders.make_encoder("any", "cpu,cpu")
    for count in (1, encoders.SHARED_BATCH - 1, encoders.SHARED_BATCH + 1):
        assert encode(["x" * n for n in range(count)]).ravel().tolist() == list(range(count))
    assert Pool.started == [["cpu", "cpu"]]
    assert Pool.chunks == [33, 32], "small batches stay on the first device"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_single_and_batch_encoding_give_the_same_vectors(device, monkeypatch):
    calls = {"one": 0, "many": 0}

    def vector(text: str) -> np.ndarray:
        return np.array([len(text), text.count("e")], np.float32)

    def one(text):
        calls["one"] += 1
        return vector(text)

    def many(texts):
        calls["many"] += 1
        return np.stack([vector(text) for text in texts])

    fake = SimpleNamespace(device=device, encode_one=one, encode=many)
    monkeypatch.setattr("ridgeline.embed.Embedder", lambda model, device: fake)
    encode = encoders.make_encoder("any", device)
    for count in (1, encoders.SMALL_BATCH, encoders.SMALL_BATCH + 1):
        texts = ["tree" * n for n in range(1, count + 1)]
        assert (encode(texts) == [vector(text) for text in texts]).all()
    if device == "cpu":
        assert calls == {"one": 0, "many": 3}
    else:  # and some of each before the first, so that everything is compiled
        assert calls["one"] > 1 + encoders.SMALL_BATCH
        assert calls["many"] > 1
