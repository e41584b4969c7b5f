"""Shared fixtures: a tiny encoder, and a model fitted on the demo's films."""

from __future__ import annotations

import pytest
from tests.embed import tiny

import ridgeline
from ridgeline.recommend import Recommender, demo


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """A tiny BERT: its vectors mean little, but they are real ones."""
    pytest.importorskip("torch")
    return tiny.make(tmp_path_factory.mktemp("models") / "tiny", limit=500, max_position_embeddings=512)


@pytest.fixture(scope="session")
def embedder(encoder):
    with ridgeline.Embedder(encoder, device="cpu") as instance:
        yield instance


@pytest.fixture(scope="session")
def model(embedder, encoder):
    instance = Recommender.fit(demo.draw_dataset(), embedder)
    instance.encoder = str(encoder)
    return instance


@pytest.fixture(scope="session")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    model.save(folder)
    return folder
