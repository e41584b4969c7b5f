"""One query over lists on a CPU: by one native call what the ordinary way finds, and the same words for what is wrong.

python -m pytest tests/search/test_one_query.py
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.search.test_exact import METRICS, clustered

from ridgeline import Index, native
from ridgeline.errors import InputError
from ridgeline.search.cpu import CpuEngine
from ridgeline.search.one_query import OnLists

ISAS = native.instruction_sets()


def inverted(vectors, metric: str, lists: int = 9, **more) -> Index:
    index = Index(f"IVF{lists},Flat", metric=metric, device="cpu", **more)
    index.train(vectors)
    index.add(vectors)
    return index


def doors(index: Index) -> list:
    return list(index._state.doors.values())


def clearly_chosen(index: Index, query, nprobe: int) -> bool:
    """Whether no two lists are as near as the last that is looked at: of those either may be."""
    centres = index._state.engine.family.centres.astype(np.float64)
    near = np.sort(centres @ query[0] - (centres**2).sum(1) / 2 * (index.metric == "l2"))[::-1]
    return nprobe >= len(near) or near[nprobe - 1] - near[nprobe] > 1e-4 * np.abs(near).max()


@settings(max_examples=60, deadline=None)
@given(
    metric=st.sampled_from(METRICS),
    count=st.integers(9, 400),
    dim=st.integers(1, 70),
    k=st.integers(1, 40),
    nprobe=st.integers(1, 12),
    coarse=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_asked_again_a_query_finds_what_it_found_by_the_ordinary_way(metric, count, dim, k, nprobe, coarse, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, dim)).astype(np.float32)
    if coarse:  # many equal rows and scores
        vectors = np.round(vectors)
    index = inverted(vectors, metric)
    for _ in range(3):
        query = np.round(rng.standard_normal((1, dim)), 1 if coarse else 9).astype(np.float32)
        assume(clearly_chosen(index, query, nprobe))
        index._state.doors.clear()
        scores, ids = index.search(query, k, nprobe=nprobe)
        assert len(doors(index)) == 1
        again, found = index.search(query, k, nprobe=nprobe)
        assert again.dtype == scores.dtype == np.float32
        assert found.dtype == ids.dtype == np.int64
        assert np.array_equal(found, ids)
        assert np.allclose(again, scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [1, 3, 8, 31, 64, 97])
def test_every_instruction_set_finds_the_same(isa, dim):
    rng = np.random.default_rng(dim)
    vectors, query = (
        rng.standard_normal((300, dim)).astype(np.float32),
        rng.standard_normal((1, dim)).astype(np.float32),
    )
    index = inverted(vectors, "l2")
    index.search(query, 12, nprobe=4)
    (door,) = doors(index)
    own = door.__closure__
    search = next(cell.cell_contents for cell in own if isinstance(cell.cell_contents, OnLists))._search
    scores, rows = np.empty(12, np.float32), np.empty(12, np.int64)
    assert search(query[0], scores, rows, isa)
    wanted = index.search(np.repeat(query, 2, 0), 12, nprobe=4)  # two queries take the other way
    assert np.array_equal(rows, wanted[1][0])
    assert np.allclose(scores, wanted[0][0], rtol=1e-6)


def test_ids_of_the_callers_own_and_rows_that_are_added_and_removed():
    vectors = clustered(600, 24)
    index = inverted(vectors[:500], "cosine")
    query = vectors[3:4]
    for _ in range(2):
        assert index.search(query, 3)[1][0, 0] == 3
    index.remove([3])
    for _ in range(2):
        assert 3 not in index.search(query, 3)[1]
    index.add(vectors[500:], ids=np.arange(9_000, 9_100))
    for _ in range(2):
        assert index.search(vectors[550:551], 3, nprobe=9)[1][0, 0] == 9_050
        assert 3 not in index.search(query, 3, nprobe=9)[1]


def test_an_index_from_files_is_asked_the_same_way(tmp_path):
    vectors = clustered(500, 24)
    inverted(vectors, "cosine").save(tmp_path / "index")
    index = Index.load(tmp_path / "index", device="cpu")
    wanted = index.search(np.repeat(vectors[9:10], 2, 0), 6)
    for _ in range(2):
        scores, ids = index.search(vectors[9:10], 6)
        assert np.array_equal(ids[0], wanted[1][0])
        assert np.allclose(scores[0], wanted[0][0], rtol=1e-6)
    assert len(doors(index)) == 1


def test_several_threads_ask_at_once():
    vectors = clustered(3_000, 200)
    index = inverted(vectors, "l2", 12)
    wanted = index.search(vectors[:40], 5, nprobe=6)[1]
    index.search(vectors[:1], 5, nprobe=6)
    with ThreadPoolExecutor(6) as crew:
        found = list(crew.map(lambda k: index.search(vectors[k : k + 1], 5, nprobe=6)[1][0], [*range(40)] * 5))
    assert np.array_equal(found, np.tile(wanted, (5, 1)))


def test_queries_of_other_types_and_layouts():
    vectors = clustered(400, 20)
    index = inverted(vectors, "ip")
    wanted = index.search(np.repeat(vectors[7:8], 2, 0), 5)
    for query in (
        vectors[7:8].astype(np.float64),
        np.asfortranarray(np.repeat(vectors[7:8], 2, 0))[:1],
        np.repeat(vectors[7:8], 2, 1)[:, ::2],
    ):
        for _ in range(2):
            scores, ids = index.search(query, 5)
            assert np.array_equal(ids[0], wanted[1][0])
            assert np.allclose(scores[0], wanted[0][0], rtol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
def test_what_is_not_finite_is_named_and_what_is_large_is_found(metric):
    vectors = clustered(300, 16)
    index = inverted(vectors, metric)
    index.search(vectors[:1], 4)
    for bad in (np.nan, np.inf):
        query = vectors[:1].copy()
        query[0, 5] = bad
        with pytest.raises(InputError, match=r"row 0 of the queries holds .* in column 5"):
            index.search(query, 4)
    index.search(vectors[:1].astype(np.float64), 4)
    with pytest.raises(InputError, match=r"row 0 of the queries holds inf in column 0"):
        index.search(np.full((1, 16), 1e300), 4)
    large = vectors[:1] * np.float32(1e34)
    wanted = index.search(np.repeat(large, 2, 0), 4)
    for _ in range(2):
        scores, ids = index.search(large, 4)
        assert np.array_equal(ids[0], wanted[1][0])
        assert np.allclose(scores[0], wanted[0][0], rtol=1e-6)
    for _ in range(2):
        assert index.search(np.zeros((1, 16), np.float32), 4)[1].shape == (1, 4)


@pytest.mark.parametrize("spec", ["IVF9,SQ8", "IVF9,PQ4", "IVF9,Flat,Refine(Flat)", "Flat"])
def test_other_indexes_and_filters_keep_the_ordinary_way(spec):
    vectors = clustered(400, 16)
    index = Index(spec, metric="l2", device="cpu")
    index.train(vectors)
    index.add(vectors)
    index.search(vectors[:1], 5)
    assert not doors(index)
    lists = inverted(vectors, "l2")
    allowed = np.zeros(400, bool)
    allowed[::2] = True
    for _ in range(2):
        assert (lists.search(vectors[1:2], 5, where=allowed)[1] % 2 == 0).all()
    assert not doors(lists)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", ["IVF9,Flat", "IVF9,SQ8", "IVF9,PQ4", "IVF9,PQ4,Refine(Flat)"])
def test_lists_read_by_one_call_give_what_lists_read_one_by_one_give(spec, metric):
    """Alone a query goes through `Lists.probe`, beside another through blocks; two segments, a filter or none."""
    vectors = clustered(900, 16)
    index = Index(spec, metric=metric, device="cpu")
    index.train(vectors)
    index.add(vectors[:800])
    index.add(vectors[800:])
    assert len(index._state.engine.family.segments) == 2
    allowed = np.arange(900) % 3 > 0
    for row in range(0, 900, 90):
        query = vectors[row : row + 1] + np.float32(0.01)
        for where in (None, allowed):
            wanted = index.search(np.repeat(query, 2, 0), 7, nprobe=4, where=where)
            scores, ids = index.search(query, 7, nprobe=4, where=where)
            assert np.array_equal(ids[0], wanted[1][0])
            assert np.allclose(scores[0], wanted[0][0], rtol=1e-6, atol=1e-6)


def test_the_native_call_refuses_what_does_not_fit():
    centres, values = np.zeros((2, 4), np.float32), np.zeros((3, 4), np.float32)
    offsets, rows = np.array([0, 1, 3]), np.arange(3)
    rest = (None, True, False, 1, 2, 1.0, 2.0**-24, 0.0, 1e30, 8)
    search = native.SingleQuery(centres, None, values, offsets, rows, *rest)
    with pytest.raises(ValueError, match="shapes do not fit"):
        search(np.zeros(3, np.float32), np.empty(2, np.float32), np.empty(2, np.int64))
    for wrong in (
        (centres[:, :3].copy(), None, values, offsets, rows),
        (centres, None, values, offsets, rows[:2].copy()),
        (centres, None, values, np.array([0, 1, 2]), rows),
        (centres, None, values, np.array([0, 4, 3]), rows),
        (centres, np.zeros(3, np.float32), values, offsets, rows),
    ):
        with pytest.raises(ValueError, match=r"fit|decrease|number of rows|wrong length"):
            native.SingleQuery(*wrong, *rest)


def test_engines_open_the_door_for_one_query_only():
    vectors = clustered(200, 8)
    index = inverted(vectors, "cosine")
    engine = index._state.engine
    assert isinstance(engine, CpuEngine)
    index.search(vectors[:2], 3)
    assert not doors(index)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("rows", "dim"), [(0, 4), (1, 1), (3, 7), (5, 64), (1_001, 33), (700, 384)])
def test_products_of_one_query_with_many_rows(isa, threads, rows, dim):
    rng = np.random.default_rng(rows)
    query, values = rng.standard_normal(dim).astype(np.float32), rng.standard_normal((rows, dim)).astype(np.float32)
    out = np.empty(rows, np.float32)
    native.dot_floats(query, values, out, threads, isa)
    assert np.allclose(out, values.astype(np.float64) @ query, atol=1e-4)
    with pytest.raises(ValueError, match="shapes do not fit"):
        native.dot_floats(query, values, np.empty(rows + 1, np.float32))
