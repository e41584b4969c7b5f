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

from ridgeline.embed import Embedder, embedder  # noqa: E402
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_kernels_match_the_reference(name: str, invariant: bool, tmp_path, monkeypatch):
    how = LAYOUTS[name]
    folder = tiny.make(tmp_path / name, **how)

    def load(config, device, dtype, width, normalize, batch_invariant):
        layers = GpuLayers(config, torch.device("cuda" if CUDA else "cpu"), torch.float32, invariant)
        return Encoder(config, layers, Head((), width, normalize), read_encoder(config))

    monkeypatch.setattr(embedder, "_load_encoder", load)
    with Embedder(folder, device="cuda" if CUDA else "cpu", dtype="float32") as loaded:
        vectors = loaded.encode(TEXTS)
    expected = Reference(folder, how.get("prefix", "")).encode(TEXTS, how.get("pooling") or "mean")
    np.testing.assert_allclose(vectors, expected, atol=3e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["mpnet", "albert", "modernbert", "nomic", "gte", "deberta", "qwen3-window", "gemma3"])
@pytest.mark.parametrize("invariant", [False, True])
def test_the_layers_match_the_reference_of_every_family(name: str, invariant: bool, tmp_path, monkeypatch):
    folder = reference_families.make(tmp_path / name, name)

    def load(config, device, dtype, width, normalize, batch_invariant):
        layers = GpuLayers(config, torch.device("cuda" if CUDA else "cpu"), torch.float32, invariant)
        assert not layers.by_offsets
        return Encoder(config, layers, Head((), width, normalize), read_encoder(config))

    monkeypatch.setattr(embedder, "_load_encoder", load)
    with Embedder(folder, device="cuda" if CUDA else "cpu", dtype="float32") as loaded:
        tokens = loaded.tokenize(TEXTS[:6])
        actual = loaded.encode_tokens(tokens, output="tokens")
    reference = reference_families.FamilyReference(folder)
    for i in range(len(tokens)):
        expected = reference.compute_hidden(tokens[i].tolist())
        np.testing.assert_allclose(actual[i], expected, atol=2e-5 * np.abs(expected).max())
