"""Several workers have the vectors of one encoder, in order, also when a worker dies.

python -m pytest tests/embed/test_embedder_pool.py
"""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

pytest.importorskip("torch")

from ridgeline.embed import EmbedderPool
from ridgeline.errors import ChunkError, InputError

WORDS = ("a", "dog", "cat", "runs", "the")


@pytest.fixture(scope="module")
def two(folder):
    with EmbedderPool(folder, devices=["cpu", "cpu"], chunk=50, dtype="float32") as make_pool:
        yield make_pool


def make_texts(count: int) -> list[str]:
    return [" ".join(WORDS[(k + j) % 5] for j in range(1 + k % 7)) for k in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 50, 333])
def test_two_workers_match_one_encoder(two, embedder, count: int):
    texts = make_texts(count)
    vectors = two.encode(iter(texts))
    assert vectors.shape == (count, embedder.dim)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, embedder.encode(texts), atol=2e-6)


@pytest.mark.slow  # quick: `test_pool.py` for dead workers, `cli/test_embed.py` for vectors of several devices
def test_no_text_is_lost_when_a_worker_dies(two, embedder):
    texts, blocks = make_texts(600), []
    for k, block in enumerate(two.encode_blocks(texts)):
        if k == 2:
            os.kill(two.stats()[0].pid, signal.SIGKILL)
        blocks.append(block)
    np.testing.assert_allclose(np.concatenate(blocks), embedder.encode(texts), atol=2e-6)
    assert sum(worker.restarts for worker in two.stats()) >= 1


@pytest.mark.slow
def test_bad_input_is_named(two, tmp_path):
    with pytest.raises(InputError, match="text 1 is 3"):
        two.encode(["a", 3])
    with pytest.raises(InputError, match="one str"):
        two.encode("a dog")
    with pytest.raises(ChunkError, match="surrogate"):
        two.encode(["a", "\ud800"])
    with pytest.raises(InputError, match="nowhere"):
        EmbedderPool(tmp_path / "nowhere", devices=1)


@pytest.mark.slow
def test_messages_count_all_texts(two):
    texts = make_texts(120)
    texts[77] = "dog " * 2000
    with pytest.warns(UserWarning, match="text 77 reaches the limit"):
        two.encode(texts)
    texts[77], texts[103] = "a dog", "a \ud800 dog"
    with pytest.raises(ChunkError, match="text 103 holds"):
        two.encode(texts)


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [0, -1, 1.5, "all", None])
def test_a_chunk_of_no_texts_is_refused_at_once(folder, chunk):
    with pytest.raises(InputError, match=r"chunk is .*; give 1 text or more"):
        EmbedderPool(folder, devices=["cpu"], chunk=chunk)
