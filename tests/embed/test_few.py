"""Texts through a recording are the texts through the encoder; played step by step where there is no GPU.

python -m pytest tests/embed/test_few.py
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.embed import tiny  # noqa: E402

from ridgeline.embed import Embedder  # noqa: E402
from ridgeline.embed.encoder import Encoder, Head  # noqa: E402
from ridgeline.embed.layers_gpu import GpuLayers  # noqa: E402
from ridgeline.embed.small_batch import FewTexts, are_few, size_for  # noqa: E402
from ridgeline.embed.tokens import Tokens  # noqa: E402
from ridgeline.embed.weights import read_encoder  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    folder = tiny.make(tmp_path_factory.mktemp("models") / "two-heads", num_attention_heads=2)  # 16 deep
    with Embedder(folder, device="cpu", dtype="float32") as made:
        yield made


def few_of(embedder, **more):
    layers = GpuLayers(embedder.config, DEVICE, torch.float32)
    assert layers.by_offsets
    return FewTexts(Encoder(embedder.config, layers, Head((), None, True), read_encoder(embedder.config)), DEVICE)


@pytest.fixture(scope="module")
def few(embedder):
    return few_of(embedder)


def test_texts_of_every_length_share_few_recordings_and_none_sees_the_one_before(few, embedder):
    long = " ".join(["a dog runs"] * 6)
    for text in (long, "a", "a dog", long, "", "cat " * 3, "a"):
        found = few(embedder.tokenize([text]))
        assert found.shape == (1, embedder.dim)
        np.testing.assert_allclose(found[0], embedder.encode([text])[0], atol=3e-6)
    assert {shape[:2] for shape in few._recordings} == {(16, 1), (32, 1)}


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.booleans())
@settings(max_examples=12, deadline=None)
def test_several_texts_come_out_as_each_alone(few, embedder, words, cut):
    texts = [" ".join(["a dog runs"] * n) for n in words]
    tokens = embedder.tokenize(["cat", *texts])
    tokens = Tokens(tokens.ids, tokens.offsets[1:]) if cut else tokens  # offsets need not begin at 0
    want = embedder.encode(texts if cut else ["cat", *texts])
    np.testing.assert_allclose(few(tokens), want, atol=3e-6)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean"])
def test_texts_that_are_not_there_read_nothing(tmp_path, pooling):
    folder = tiny.make(tmp_path / "m", num_attention_heads=2, pooling=pooling)
    with Embedder(folder, device="cpu", dtype="float32") as made:
        texts = ["a dog runs a dog runs a dog", "a dog runs a dog"]  # 16 tokens: the recording is full
        tokens = made.tokenize(texts)
        np.testing.assert_allclose(few_of(made)(tokens), made.encode(texts), atol=3e-6)


def test_vectors_are_the_callers_own(few, embedder):
    first = few(embedder.tokenize(["a dog"]))
    kept = first.copy()
    few(embedder.tokenize(["cat"]))
    np.testing.assert_array_equal(first, kept)


def test_threads_take_turns(few, embedder):
    texts = ["a dog", "cat", "a dog runs", "a"]
    wanted = embedder.encode(texts)
    tokens = [embedder.tokenize([text]) for text in texts]
    wrong: list[int] = []

    def ask(k: int) -> None:
        for _ in range(5):
            if np.abs(few(tokens[k])[0] - wanted[k]).max() > 3e-6:
                wrong.append(k)

    team = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong


def test_sizes_double():
    assert [size_for(n) for n in (1, 15, 16, 17, 32, 33, 256, 257)] == [16, 16, 16, 32, 32, 64, 256, 512]


def test_many_texts_and_long_ones_are_not_few():
    def of(*lengths):
        return Tokens(np.zeros(sum(lengths), np.int32), np.cumsum([0, *lengths]))

    assert all(map(are_few, (of(5), of(*[32] * 512), of(*[512] * 32))))
    assert not any(map(are_few, (of(), of(*[8] * 513), of(*[512] * 33))))


def test_the_embedder_plays_few_texts_and_streams_the_rest(embedder, few, monkeypatch):
    """Where its device records: `encode`, `encode_tokens` and `encode_one` ask the recordings first."""
    asked: list[int] = []

    def played(tokens):
        asked.append(len(tokens))
        return few(tokens) if are_few(tokens) else None

    texts, told = ["a dog", "cat", "a dog runs"], []
    want = embedder.encode(texts)
    monkeypatch.setattr(Embedder, "_records", True)
    monkeypatch.setattr(embedder, "_played", played)
    np.testing.assert_allclose(embedder.encode(texts, progress=lambda *x: told.append(x)), want, atol=3e-6)
    np.testing.assert_allclose(embedder.encode_one("cat"), want[1], atol=3e-6)
    np.testing.assert_allclose(embedder.encode(iter(texts)), want, atol=3e-6)
    np.testing.assert_allclose(embedder.encode(texts, batch_tokens=4), want, atol=3e-6)
    assert (asked, told) == ([3, 1], [(3, 3)])
