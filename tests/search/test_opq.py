"""OPQ: a learnt rotation before PQ, against float64 NumPy and the FAISS library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.search import Index
from ridgeline.search.codecs import train_rotated_codec
from ridgeline.search.spec import parse_spec

DIM, ROWS = 24, 1500


def draw(count: int, seed: int) -> Any:
    """Vectors of which a few directions hold most of the variance, none along an axis."""
    axes = np.random.default_rng(9).standard_normal((12, DIM)) * np.geomspace(3, 0.3, 12)[:, None]
    random = np.random.default_rng(seed)
    return (random.standard_normal((count, 12)) @ axes + 0.1 * random.standard_normal((count, DIM))).astype(np.float32)


VECTORS, QUERIES = draw(ROWS, 0), draw(40, 1)


@pytest.fixture(scope="module", autouse=True)
def few_rounds() -> Iterator[None]:
    """The rotation is learnt in less time, and less well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ridgeline.search.codecs.OPQ_ROUNDS", 2)
        yield


@pytest.fixture(scope="module", params=["cosine", "ip", "l2"])
def built(request: Any) -> tuple[Index, Index]:
    out = []
    for spec in ("IVF8,PQ4", "OPQ4,IVF8,PQ4"):
        index = Index(spec, metric=request.param, device="cpu")
        index.train(VECTORS)
        index.add(VECTORS)
        out.append(index)
    return out[0], out[1]


def score(index: Index, vectors: Any) -> Any:
    q, x = QUERIES.astype(np.float64), vectors.astype(np.float64)
    if index.metric == "l2":
        return -((q[:, None] - x[None]) ** 2).sum(2)
    if index.metric == "cosine":
        q = q / np.linalg.norm(q, axis=1, keepdims=True)
    return q @ x.T


def measure(index: Index) -> float:
    vectors = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True) if index.metric == "cosine" else VECTORS
    truth = np.argsort(-score(index, vectors), 1)[:, :10]
    ids = index.search(QUERIES, 10, nprobe=8)[1]
    return float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids.tolist(), truth.tolist(), strict=True)]))


def test_the_rotation_finds_more_than_pq_alone(built: tuple[Index, Index]) -> None:
    plain, rotated = built
    assert rotated.spec == "OPQ4,IVF8,PQ4"
    assert measure(rotated) > measure(plain) + 0.03


def test_the_best_stored_values_are_found(built: tuple[Index, Index], tmp_path: Path) -> None:
    _, index = built
    index.save(tmp_path / "opq")
    truth = score(index, index.reconstruct(np.arange(ROWS)))
    for one in (index, Index.load(tmp_path / "opq", verify=True)):
        scores, ids = one.search(QUERIES, 10, nprobe=8)
        best = np.sort(truth, 1)[:, ::-1][:, :10]
        assert np.allclose(-scores if index.metric == "l2" else scores, best, rtol=1e-4, atol=1e-4)
        assert np.allclose(np.take_along_axis(truth, ids, 1), best, rtol=1e-5, atol=1e-5)
        assert (one.search(QUERIES[0], 10, nprobe=8)[1] == ids[0]).all()


def test_faiss_reads_it_and_gives_it_back(built: tuple[Index, Index], tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    _, index = built
    path = tmp_path / "opq.faiss"
    index.nprobe = 8
    index.export_faiss(path)
    queries = QUERIES / np.linalg.norm(QUERIES, axis=1, keepdims=True) if index.metric == "cosine" else QUERIES
    ids = index.search(QUERIES, 10)[1]
    theirs = faiss.read_index(str(path)).search(queries, 10)[1]
    again = Index.from_faiss(path)
    assert again.spec == "OPQ4,IVF8,PQ4"
    for other in (theirs, again.search(queries, 10)[1]):
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(ids.tolist(), other.tolist(), strict=True)]) > 0.98


def test_a_transform_that_is_no_rotation_is_refused() -> None:
    faiss = pytest.importorskip("faiss")
    for spec, name in (("PCA12,IVF8,Flat", "IndexPreTransform"), ("RR24,IVF8,Flat", "IndexIVFFlat")):
        index = faiss.index_factory(DIM, spec)
        index.train(VECTORS)
        index.add(VECTORS)
        with pytest.raises(InputError, match=name):
            Index.from_faiss(index)


def test_with_a_refiner_it_is_ranked_by_the_vectors() -> None:
    index = Index("OPQ4,IVF8,PQ4,Refine(Flat)", metric="l2", device="cpu")
    index.train(VECTORS)
    index.add(VECTORS)
    scores, ids = index.search(VECTORS[:50], 1, nprobe=8)
    assert (ids[:, 0] == np.arange(50)).all()
    assert not scores.any()


def test_the_rotation_keeps_lengths_and_products() -> None:
    vectors = draw(1200, 5)
    codec = train_rotated_codec(vectors, 6, 0)
    assert codec.rotation is not None
    assert np.allclose(codec.rotation.T @ codec.rotation, np.eye(DIM), atol=1e-5)
    codes = codec.encode(vectors)
    assert codes.shape == (1200, 6)
    products = codec.tables(QUERIES)[:, np.arange(6), codes].sum(2)
    assert np.allclose(products, QUERIES @ codec.decode(codes).T, atol=1e-3)


def test_the_parts_must_agree() -> None:
    assert str(parse_spec("opq8,ivf16,pq8")) == "OPQ8,IVF16,PQ8"
    for wrong in ("OPQ8,IVF16,PQ4", "OPQ8,IVF16,Flat", "OPQ8", "OPQ8,IVF16,RaBitQ2", "OPQ0,IVF16,PQ8"):
        with pytest.raises(InputError):
            parse_spec(wrong)
    assert Index("OPQ4,IVF8,PQ4").device == "cpu"
