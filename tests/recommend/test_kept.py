"""Vectors that are kept: the same as fresh ones, each text encoded once, nothing believed that is damaged.

python -m pytest tests/recommend/test_kept.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import StoreError
from ridgeline.recommend import vector_cache as kept


class Counted:
    """An embedder that remembers what it was asked; a text's vector follows from its letters."""

    device, dtype, dim, max_tokens, prompt = "cpu", "float32", 3, 64, ""

    def __init__(self, folder, turn: float = 0.0) -> None:
        self.folder, self.turn, self.asked = folder, turn, []
        self.fails_at: int | None = None

    def encode(self, texts):
        self.asked += list(texts)
        if self.fails_at is not None and len(self.asked) >= self.fails_at:
            raise KeyboardInterrupt
        found = np.array([[len(t) + 1, sum(map(ord, t)) % 97, 1 + self.turn] for t in texts], np.float32)
        found = found.reshape(-1, 3)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture
def encoder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@settings(max_examples=30, deadline=None)
@given(lists=st.lists(st.lists(st.text(max_size=4), max_size=12), min_size=1, max_size=4), block=st.integers(1, 5))
def test_kept_vectors_are_the_fresh_ones(tmp_path_factory, lists, block):
    folder = tmp_path_factory.mktemp("m")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept, "BLOCK", block)
        for texts in lists:
            fresh = Counted(folder)
            found = kept.encode_kept(fresh, texts, base=folder / "kept")
            assert (found == Counted(folder).encode(texts)).all()
            assert len(fresh.asked) <= len(set(texts)) + kept.CHECKED


def test_only_what_is_new_is_encoded_and_a_stop_loses_one_block(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "BLOCK", 10)
    texts = [f"film {n}" for n in range(45)]
    stopped = Counted(encoder)
    stopped.fails_at = 31
    with pytest.raises(KeyboardInterrupt):
        kept.encode_kept(stopped, texts, base=tmp_path / "kept")
    again = Counted(encoder)
    kept.encode_kept(again, texts, base=tmp_path / "kept")
    assert set(texts[30:]) <= set(again.asked)
    assert len(again.asked) == 15 + kept.CHECKED
    more = Counted(encoder)
    kept.encode_kept(more, [*texts, "one more"], base=tmp_path / "kept")
    assert "one more" in more.asked
    assert len(more.asked) == 1 + kept.CHECKED


def test_another_encoder_has_its_own_and_one_that_changed_is_not_believed(encoder, tmp_path):
    texts = [f"film {n}" for n in range(20)]
    kept.encode_kept(Counted(encoder), texts, base=tmp_path / "kept")
    turned = Counted(encoder, turn=5.0)  # the same files, other vectors: as after a change of the code
    assert (kept.encode_kept(turned, texts, base=tmp_path / "kept") == Counted(encoder, 5.0).encode(texts)).all()
    (encoder / "config.json").write_text("{} ")
    other = Counted(encoder)
    kept.encode_kept(other, texts, base=tmp_path / "kept")
    assert other.asked == texts


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 torn", None])
def test_a_torn_block_is_made_again(encoder, tmp_path, damage):
    texts = ["a", "b", "c"]
    kept.encode_kept(Counted(encoder), texts, base=tmp_path / "kept")
    (block,) = (tmp_path / "kept").glob("*/*.npz")
    block.write_bytes(block.read_bytes()[:-30] if damage is None else damage)
    again = Counted(encoder)
    assert (kept.encode_kept(again, texts, base=tmp_path / "kept") == Counted(encoder).encode(texts)).all()
    assert again.asked == texts


def test_the_oldest_go_when_there_are_too_many(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "MOST", 4_000)
    for part in range(12):
        kept.encode_kept(Counted(encoder), [f"{part} {n}" for n in range(40)], base=tmp_path / "kept")
    blocks = list((tmp_path / "kept").glob("*/*.npz"))
    assert 1 <= len(blocks) < 12
    last = Counted(encoder)
    kept.encode_kept(last, [f"11 {n}" for n in range(40)], base=tmp_path / "kept")
    assert len(last.asked) == kept.CHECKED


def test_where_nothing_can_be_kept_vectors_are_made_all_the_same(encoder, tmp_path, monkeypatch):
    def full(*_, **__):
        raise StoreError("the disk is full")

    monkeypatch.setattr(kept.store, "publish", full)
    assert len(kept.encode_kept(Counted(encoder), ["a", "b"], base=tmp_path / "kept")) == 2


def test_a_gpu_keeps_nothing(encoder, tmp_path):
    fast = Counted(encoder)
    fast.device = "cuda"
    kept.encode_kept(fast, ["a"], base=tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
