"""A recording has the vectors of the encoder; without a GPU its steps run one by one.

python -m pytest tests/embed/test_cuda_graphs.py
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
from ridgeline.embed.cuda_graphs import SmallBatchReplay, round_up_size, split_for_recordings  # noqa: E402
from ridgeline.embed.encoder import Encoder, Head  # noqa: E402
from ridgeline.embed.inputs import are_few  # noqa: E402
from ridgeline.embed.layers_gpu import GpuLayers  # noqa: E402
from ridgeline.embed.tokens import Tokens  # noqa: E402
from ridgeline.embed.weights import read_encoder  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory):
    folder = tiny.make(tmp_path_factory.mktemp("models") / "two-heads", num_attention_heads=2)  # 16 deep
    with Embedder(folder, device="cpu", dtype="float32") as embedder_model:
        yield embedder_model


def make_replay(embedder, **more):
    layers = GpuLayers(embedder.config, DEVICE, torch.float32)
    assert layers.by_offsets
    return SmallBatchReplay(
        Encoder(embedder.config, layers, Head((), None, True), read_encoder(embedder.config)), DEVICE
    )


@pytest.fixture(scope="module")
def replays(embedder):
    return make_replay(embedder)


def test_texts_of_all_lengths_share_recordings_without_leaking(replays, embedder):
    long = " ".join(["a dog runs"] * 6)
    for text in (long, "a", "a dog", long, "", "cat " * 3, "a"):
        vectors = replays(embedder.tokenize([text]))
        assert vectors.shape == (1, embedder.dim)
        np.testing.assert_allclose(vectors[0], embedder.encode([text])[0], atol=3e-6)
    assert {shape[:2] for shape in replays._recordings} == {(16, 1), (32, 1)}


@pytest.mark.slow
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.booleans())
@settings(max_examples=12, deadline=None)
def test_several_texts_have_the_vectors_of_single_ones(replays, embedder, words, cut):
    texts = [" ".join(["a dog runs"] * n) for n in words]
    tokens = embedder.tokenize(["cat", *texts])
    tokens = Tokens(tokens.ids, tokens.offsets[1:]) if cut else tokens  # offsets need not begin at 0
    expected = embedder.encode(texts if cut else ["cat", *texts])
    np.testing.assert_allclose(replays(tokens), expected, atol=3e-6)


@pytest.mark.parametrize("pooling", ["cls", "max", "mean"])
def test_unused_texts_read_no_tokens(tmp_path, pooling):
    folder = tiny.make(tmp_path / "m", num_attention_heads=2, pooling=pooling)
    with Embedder(folder, device="cpu", dtype="float32") as embedder_model:
        texts = ["a dog runs a dog runs a dog", "a dog runs a dog"]  # 16 tokens: the recording is full
        tokens = embedder_model.tokenize(texts)
        np.testing.assert_allclose(make_replay(embedder_model)(tokens), embedder_model.encode(texts), atol=3e-6)


def test_vectors_do_not_share_memory_with_the_recording(replays, embedder):
    first = replays(embedder.tokenize(["a dog"]))
    first_vectors = first.copy()
    replays(embedder.tokenize(["cat"]))
    np.testing.assert_array_equal(first, first_vectors)


@pytest.mark.slow
def test_threads_take_turns(replays, embedder):
    texts = ["a dog", "cat", "a dog runs", "a"]
    expected_vectors = embedder.encode(texts)
    tokens = [embedder.tokenize([text]) for text in texts]
    wrong: list[int] = []

    def ask(k: int) -> None:
        for _ in range(5):
            if np.abs(replays(tokens[k])[0] - expected_vectors[k]).max() > 3e-6:
                wrong.append(k)

    team = [threading.Thread(target=ask, args=(k,)) for k in range(4)]
    for member in team:
        member.start()
    for member in team:
        member.join()
    assert not wrong


def test_sizes_double():
    assert [round_up_size(n) for n in (1, 15, 16, 17, 32, 33, 256, 257)] == [16, 16, 16, 32, 32, 64, 256, 512]


def make_tokens(*lengths, first=0):
    return Tokens(np.zeros(first + sum(lengths), np.int32), np.cumsum([first, *lengths]))


def test_batches_are_split_into_parts_that_fit_a_recording():
    for lengths, parts in (
        ([5], [1]),
        ([32] * 512, [512]),
        ([8] * 1025, [1024, 1]),
        ([512] * 33, [32, 1]),
        ([16_384] * 4, [1] * 4),
        ([9_000, 9_000, 7_000], [1, 2]),
        ([0, 0, 16_384, 0, 1], [4, 1]),
    ):
        assert [len(part) for part in split_for_recordings(make_tokens(*lengths))] == parts
    assert all(split_for_recordings(make_tokens(*lengths)) is None for lengths in ([], [16_385], [8] * 8193))


@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=12), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_the_parts_of_a_batch_follow_each_other(lengths, first):
    tokens = make_tokens(*lengths, first=first)
    parts = split_for_recordings(tokens)
    if sum(lengths) > 65_536:
        assert parts is None
        return
    assert [n for part in parts for n in part.lengths] == lengths
    assert all(part.offsets[-1] - part.offsets[0] <= 16_384 for part in parts)
    assert [int(part.offsets[0]) for part in parts] == [first, *(int(part.offsets[-1]) for part in parts[:-1])]


def test_some_thousand_short_texts_are_few_and_long_ones_are_not():
    assert all(map(are_few, (["a"] * 4096, ["word " * 500] * 1024, [])))
    # the last one has wrong values, which the other way names
    assert not any(map(are_few, (["a"] * 4097, ["word " * 500] * 1025, iter(["a"]), [1] * 1025)))


def test_the_embedder_replays_small_batches_and_streams_the_rest(embedder, replays, monkeypatch):
    """If the device records, `encode`, `encode_tokens` and `encode_one` use the recordings first."""
    calls: list[int] = []

    def replay(tokens):
        calls.append(len(tokens))
        return replays(tokens)

    texts, progress_calls = ["a dog", "cat", "a dog runs"], []
    expected = embedder.encode(texts)
    monkeypatch.setattr(Embedder, "_can_record", True)
    monkeypatch.setattr(embedder, "_replay", replay)
    np.testing.assert_allclose(
        embedder.encode(texts, progress=lambda *x: progress_calls.append(x)), expected, atol=3e-6
    )
    np.testing.assert_allclose(embedder.encode_one("cat"), expected[1], atol=3e-6)
    np.testing.assert_allclose(embedder.encode(iter(texts)), expected, atol=3e-6)
    np.testing.assert_allclose(embedder.encode(texts, batch_tokens=4), expected, atol=3e-6)
    assert (calls, progress_calls) == ([3, 1], [(3, 3)])


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="no CUDA device here")
def test_a_recording_writes_to_no_memory_of_other_tensors(embedder):
    fresh = make_replay(embedder)
    texts = ["a dog runs", "a cat"]
    tokens = embedder.tokenize(texts)
    first = fresh(tokens)
    [recording_made] = fresh._recordings.values()
    others = [torch.full((len(recording_made._up),), 7, dtype=torch.uint8, device=DEVICE) for _ in range(200)]
    np.testing.assert_array_equal(fresh(tokens), first)
    assert all(bool((tensor == 7).all()) for tensor in others)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="no CUDA device here")
def test_recordings_succeed_while_other_threads_load_and_release_models(embedder):
    stop, failures = threading.Event(), []

    def load_models():
        while not stop.is_set():
            try:
                with Embedder(embedder.folder, device="cuda") as other:
                    other.encode(["a dog", "a cat runs"])
                torch.cuda.empty_cache()
            except Exception as error:  # the test says which
                failures.append(error)
                return

    threads = [threading.Thread(target=load_models) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            fresh = make_replay(embedder)
            for count in (1, 2, 9, 40, 100, 500, 900):
                tokens = embedder.tokenize(["a dog runs"] * count)
                np.testing.assert_allclose(fresh(tokens), embedder.encode(["a dog runs"] * count), atol=1e-5)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
