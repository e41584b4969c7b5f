"""One text through a recording is the text through the encoder; played step by step where there is no GPU.

python -m pytest tests/embed/test_one.py
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.embed import tiny  # noqa: E402

from ridgeline.embed import Embedder  # noqa: E402
from ridgeline.embed.encoder import Encoder, Head  # noqa: E402
from ridgeline.embed.layers_gpu import GpuLayers  # noqa: E402
from ridgeline.embed.one import OneText, size_for  # noqa: E402
from ridgeline.embed.weights import read_encoder  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    folder = tiny.make(tmp_path_factory.mktemp("models") / "two-heads", num_attention_heads=2)  # 16 deep
    with Embedder(folder, device="cpu", dtype="float32") as made:
        yield made


@pytest.fixture(scope="module")
def one(embedder):
    layers = GpuLayers(embedder.config, DEVICE, torch.float32)
    assert layers.by_offsets
    return OneText(Encoder(embedder.config, layers, Head((), None, True), read_encoder(embedder.config)), DEVICE)


def test_texts_of_every_length_share_few_recordings_and_none_sees_the_one_before(one, embedder):
    long = " ".join(["a dog runs"] * 6)
    for text in (long, "a", "a dog", long, "", "cat " * 3, "a"):
        tokens = embedder.tokenize([text])
        found = one(tokens.ids)
        assert found.shape == (embedder.dim,)
        np.testing.assert_allclose(found, embedder.encode([text])[0], atol=3e-6)
    assert set(one._recordings) == {16, 32}


def test_a_vector_is_the_callers_own(one, embedder):
    first = one(embedder.tokenize(["a dog"]).ids)
    kept = first.copy()
    one(embedder.tokenize(["cat"]).ids)
    np.testing.assert_array_equal(first, kept)


def test_threads_take_turns(one, embedder):
    texts = ["a dog", "cat", "a dog runs", "a"]
    wanted = embedder.encode(texts)
    tokens = [embedder.tokenize([text]).ids for text in texts]
    wrong: list[int] = []

    def ask(k: int) -> None:
        for _ in range(5):
            if np.abs(one(tokens[k]) - wanted[k]).max() > 3e-6:
                wrong.append(k)

    team = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong


def test_sizes_double():
    assert [size_for(n) for n in (1, 15, 16, 17, 32, 33, 256, 257)] == [16, 16, 16, 32, 32, 64, 256, 512]
