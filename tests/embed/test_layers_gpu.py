"""The layers of a GPU match the reference; without a GPU the kernels are interpreted.

python -m pytest tests/embed/test_layers_gpu.py
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()
pytest.importorskip("triton")

from tests.embed import reference_families, tiny  # noqa: E402
from tests.embed.tiny import TEXTS, Reference  # noqa: E402

from ridgeline.embed import Embedder, Tokens, embedder  # noqa: E402
from ridgeline.embed.encoder import Encoder, Head  # noqa: E402
from ridgeline.embed.layers_gpu import GpuLayers  # noqa: E402
from ridgeline.embed.weights import read_encoder  # noqa: E402

LAYOUTS = {
    "bert-mean": {"pooling": "mean"},
    "bert-deep-heads": {"pooling": "mean", "num_attention_heads": 2},  # heads of 16: attention uses the kernel too
    "bert-max": {"pooling": "max"},
    "bert-relu": {"hidden_act": "relu"},
    "xlm-roberta-cls": {"kind": "xlm-roberta", "pooling": "cls"},
}


DEVICE = "cuda" if CUDA else "cpu"
FAMILIES = [name for name in reference_families.MODELS if name not in ("albert-groups", "nomic-hub", "gte-hub")]


@pytest.fixture
def load(monkeypatch):
    """Embedder(folder) with the layers of a GPU, in float32."""

    def load_folder(folder, invariant):
        def load_encoder(config, device, dtype, width, normalize, batch_invariant):
            layers = GpuLayers(config, torch.device(DEVICE), torch.float32, invariant)
            return Encoder(config, layers, Head((), width, normalize), read_encoder(config))

        monkeypatch.setattr(embedder, "_load_encoder", load_encoder)
        return Embedder(folder, device=DEVICE, dtype="float32")

    return load_folder


@pytest.mark.slow  # interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_kernels_match_the_reference(name: str, invariant: bool, tmp_path, load):
    how = LAYOUTS[name]
    folder = tiny.make(tmp_path / name, **how)
    texts = TEXTS[:8]
    with load(folder, invariant) as loaded:
        vectors = loaded.encode(texts)
        if invariant:
            assert_same_bits(loaded, texts, vectors)
    expected = Reference(folder, how.get("prefix", "")).encode(texts, how.get("pooling") or "mean")
    np.testing.assert_allclose(vectors, expected, atol=3e-6)


def assert_same_bits(loaded: Embedder, texts: list[str], together: np.ndarray) -> None:
    np.testing.assert_array_equal(np.concatenate([loaded.encode([text]) for text in texts]), together)
    np.testing.assert_array_equal(loaded.encode(texts[::-1], batch_tokens=20)[::-1], together)


@pytest.mark.slow  # interpreted
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_layers_match_the_reference_of_every_family(name: str, invariant: bool, tmp_path, load):
    folder, texts = reference_families.make(tmp_path / name, name), TEXTS[:5]
    with load(folder, invariant) as loaded:
        tokens = loaded.tokenize(texts)
        outputs = loaded.encode_tokens(tokens, output=("dense", "tokens"))
        if invariant:
            assert_same_bits(loaded, texts, outputs["dense"])
    reference = reference_families.FamilyReference(folder)
    for i in range(len(tokens)):
        expected = reference.compute_hidden(tokens[i].tolist())
        np.testing.assert_allclose(outputs["tokens"][i], expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_recorded_batch_has_the_bits_of_its_texts(tmp_path, load):
    """A recorded graph knows its texts on the device only; the interpreter runs its steps as they are."""
    from ridgeline.embed.cuda_graphs import SmallBatchReplay

    folder = tiny.make(tmp_path / "m", num_hidden_layers=1, num_attention_heads=2, limit=38)
    with load(folder, True) as loaded:
        tokens = loaded.tokenize(["the cat", "a dog " * 12, "the red cat runs " * 8])
        replay = SmallBatchReplay(loaded._encoder, loaded._device)
        together = replay(tokens)
        for i in range(len(tokens)):
            alone = Tokens(tokens[i], np.array([0, len(tokens[i])]))
            np.testing.assert_array_equal(replay(alone)[0], together[i])
            np.testing.assert_array_equal(loaded.encode_tokens(alone, batch_tokens=50)[0], together[i])


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="this machine has no CUDA device")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["bert", *FAMILIES])
def test_a_text_has_the_same_bits_in_any_batch_on_a_gpu(name: str, dtype: str, tmp_path):
    long = {"max_position_embeddings": 200}
    make = tiny.make if name == "bert" else lambda folder, **how: reference_families.make(folder, name, **how)
    folder = make(tmp_path / name, **({"limit": 190} if name == "bert" else {}), **long)
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(tiny.WORDS[:17], size=random.integers(0, 180))) for _ in range(60)] + TEXTS
    with (
        Embedder(folder, device="cuda", dtype=dtype, batch_invariant=True) as loaded,
        Embedder(folder, device="cuda", dtype=dtype) as fastest,
        Embedder(folder, device="cpu", dtype="float32") as reference,
    ):
        together, expected = loaded.encode(texts), reference.encode(texts)
        for vectors in (together, fastest.encode(texts), fastest.encode(texts, batch_tokens=500)):
            assert (vectors * expected).sum(1).min() > 0.995
        np.testing.assert_array_equal(np.stack([loaded.encode(text) for text in texts]), together)
        np.testing.assert_array_equal(loaded.encode(texts[::-1], batch_tokens=500)[::-1], together)
        np.testing.assert_array_equal(loaded.encode(texts, output=("dense", "tokens"))["dense"], together)
        np.testing.assert_array_equal(loaded.encode_tokens(loaded.tokenize(texts * 40))[-len(texts) :], together)


def test_the_library_multiplies_most_rows_at_once_where_the_bits_agree(tmp_path, monkeypatch):
    config = Embedder(tiny.make(tmp_path / "tiny"), device="cpu").config
    layers = {t: GpuLayers(config, torch.device(DEVICE), t, True) for t in (torch.float16, torch.float32)}
    refused: set[int] = set()
    monkeypatch.setattr(GpuLayers, "_library_agrees", lambda _self, _weight, _bias, size, _add: size not in refused)

    def sizes(dtype, rows):
        return layers[dtype]._choose_library_sizes(None, None, rows)

    assert sizes(torch.float16, 131_066) == [122_880]
    assert sizes(torch.float16, 8_191) == []
    assert sizes(torch.float32, 131_066) == [122_880, 4_096, 2_048, 1_024]
    refused |= {122_880, 32_768}
    assert sizes(torch.float16, 131_066) == [65_536, 16_384, 8_192]
