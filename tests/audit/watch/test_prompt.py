"""Short turns and objects set aside last as long as a watcher does; on a GPU few texts go one by one."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from ridgeline.audit.watch import encoding as encoders
from ridgeline.audit.watch import scheduling as module
from ridgeline.audit.watch.scheduling import SWITCH_S, WHOLE_S, Tidy, prompt, set_aside


def test_a_process_is_as_before_once_it_is_over():
    before = sys.getswitchinterval()
    with prompt():
        assert sys.getswitchinterval() == pytest.approx(SWITCH_S)
        set_aside()
        assert gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == pytest.approx(before)
    assert gc.get_freeze_count() == 0


class Ring:
    """Garbage that only a collection finds, once it is let go."""

    def __init__(self):
        self.itself = self


def test_what_is_learnt_is_set_aside_and_rings_that_were_are_found_in_the_end(monkeypatch):
    clock = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    with prompt():
        tidy, short, long = Tidy(), Ring(), Ring()
        gone = [weakref.ref(short), weakref.ref(long)]
        tidy.now_and_then()
        assert gc.get_freeze_count() == 0  # not yet
        clock[0] += 1.5
        del short
        kept = [[n] for n in range(5_000)]
        tidy.now_and_then()
        assert gc.get_freeze_count() >= len(kept)
        assert not any(one is kept[7] for one in gc.get_objects())  # what no collection looks at
        assert gone[0]() is None
        del long
        clock[0] += 1.5
        tidy.now_and_then()
        assert gone[1]() is not None
        clock[0] += WHOLE_S
        tidy.now_and_then()
        assert gone[1]() is None
        assert gc.get_freeze_count() >= len(kept)
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_what_is_encoded_is_the_same_whichever_way_it_goes(device, monkeypatch):
    asked = {"one": 0, "many": 0}

    def vector(text: str) -> np.ndarray:
        return np.array([len(text), text.count("e")], np.float32)

    def one(text):
        asked["one"] += 1
        return vector(text)

    def many(texts):
        asked["many"] += 1
        return np.stack([vector(text) for text in texts])

    fake = SimpleNamespace(device=device, encode_one=one, encode=many)
    monkeypatch.setattr("ridgeline.embed.Embedder", lambda model, device: fake)
    encode = encoders.encoder("any", device)
    for count in (1, encoders.FEW, encoders.FEW + 1):
        texts = ["tree" * n for n in range(1, count + 1)]
        assert (encode(texts) == [vector(text) for text in texts]).all()
    if device == "cpu":
        assert asked == {"one": 0, "many": 3}
    else:  # and some of each before the first, so that everything is compiled
        assert asked["one"] > 1 + encoders.FEW
        assert asked["many"] > 1
