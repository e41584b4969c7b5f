"""The vector cache: equal to new vectors, each text encoded once, damaged blocks encoded again.

python -m pytest tests/recommend/test_vector_cache.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import StoreError
from ridgeline.recommend import item_vectors as item_vectors


class Counted:
    """An embedder that remembers what it was asked; a text's vector follows from its letters."""

    device, dtype, dim, max_tokens, prompt = "cpu", "float32", 3, 64, ""

    def __init__(self, folder, turn: float = 0.0) -> None:
        self.folder, self.turn, self.encoded_texts = folder, turn, []
        self.fails_at: int | None = None

    def encode(self, texts):
        self.encoded_texts += list(texts)
        if self.fails_at is not None and len(self.encoded_texts) >= self.fails_at:
            raise KeyboardInterrupt
        vectors = np.array([[len(t) + 1, sum(map(ord, t)) % 97, 1 + self.turn] for t in texts], np.float32)
        vectors = vectors.reshape(-1, 3)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def encoder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@settings(max_examples=30, deadline=None)
@given(lists=st.lists(st.lists(st.text(max_size=4), max_size=12), min_size=1, max_size=4), block=st.integers(1, 5))
def test_cached_vectors_equal_new_ones(tmp_path_factory, lists, block):
    folder = tmp_path_factory.mktemp("m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(item_vectors, "CACHE_BLOCK", block)
        for texts in lists:
            fresh = Counted(folder)
            vectors = item_vectors.encode_cached(fresh, texts, base=folder / "cache")
            assert (vectors == Counted(folder).encode(texts)).all()
            assert len(fresh.encoded_texts) <= len(set(texts)) + item_vectors.CHECKED_TEXTS


def test_only_new_texts_are_encoded_and_an_interruption_loses_one_block(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(item_vectors, "CACHE_BLOCK", 10)
    texts = [f"film {n}" for n in range(45)]
    stopped = Counted(encoder)
    stopped.fails_at = 31
    with pytest.raises(KeyboardInterrupt):
        item_vectors.encode_cached(stopped, texts, base=tmp_path / "cache")
    again = Counted(encoder)
    item_vectors.encode_cached(again, texts, base=tmp_path / "cache")
    assert set(texts[30:]) <= set(again.encoded_texts)
    assert len(again.encoded_texts) == 15 + item_vectors.CHECKED_TEXTS
    more = Counted(encoder)
    item_vectors.encode_cached(more, [*texts, "one more"], base=tmp_path / "cache")
    assert "one more" in more.encoded_texts
    assert len(more.encoded_texts) == 1 + item_vectors.CHECKED_TEXTS


def test_each_encoder_has_its_cache_and_a_changed_encoder_clears_it(encoder, tmp_path):
    texts = [f"film {n}" for n in range(20)]
    item_vectors.encode_cached(Counted(encoder), texts, base=tmp_path / "cache")
    turned = Counted(encoder, turn=5.0)  # the same files, other vectors: as after a change of the code
    assert (
        item_vectors.encode_cached(turned, texts, base=tmp_path / "cache") == Counted(encoder, 5.0).encode(texts)
    ).all()
    (encoder / "config.json").write_text("{} ")
    other = Counted(encoder)
    item_vectors.encode_cached(other, texts, base=tmp_path / "cache")
    assert other.encoded_texts == texts


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 torn", None])
def test_a_damaged_block_is_encoded_again(encoder, tmp_path, damage):
    texts = ["a", "b", "c"]
    item_vectors.encode_cached(Counted(encoder), texts, base=tmp_path / "cache")
    (block,) = (tmp_path / "cache").glob("*/*.npz")
    block.write_bytes(block.read_bytes()[:-30] if damage is None else damage)
    again = Counted(encoder)
    assert (item_vectors.encode_cached(again, texts, base=tmp_path / "cache") == Counted(encoder).encode(texts)).all()
    assert again.encoded_texts == texts


def test_the_oldest_blocks_are_deleted_beyond_the_limit(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(item_vectors, "MAX_CACHE_BYTES", 4_000)
    for part in range(12):
        item_vectors.encode_cached(Counted(encoder), [f"{part} {n}" for n in range(40)], base=tmp_path / "cache")
    blocks = list((tmp_path / "cache").glob("*/*.npz"))
    assert 1 <= len(blocks) < 12
    last = Counted(encoder)
    item_vectors.encode_cached(last, [f"11 {n}" for n in range(40)], base=tmp_path / "cache")
    assert len(last.encoded_texts) == item_vectors.CHECKED_TEXTS


def test_without_a_writable_cache_vectors_are_encoded(encoder, tmp_path, monkeypatch):
    def full(*_, **__):
        raise StoreError("the disk is full")

    monkeypatch.setattr(item_vectors.store, "publish", full)
    assert len(item_vectors.encode_cached(Counted(encoder), ["a", "b"], base=tmp_path / "cache")) == 2


def test_a_gpu_uses_no_cache(encoder, tmp_path):
    fast = Counted(encoder)
    fast.device = "cuda"
    item_vectors.encode_cached(fast, ["a"], base=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
