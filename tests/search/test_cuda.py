"""Search on a GPU answers as search on a CPU does: interpreted kernels where there is no GPU.

python -m pytest tests/search/test_cuda.py
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.search.reference import assert_exact, nearest
from tests.search.test_exact import METRICS, clustered

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline import Index  # noqa: E402
from ridgeline.errors import InputError  # noqa: E402
from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import finish as search_finish
from ridgeline.kernels.search import groups as search_groups
from ridgeline.kernels.search import margin as search_margin
from ridgeline.kernels.search import settle as search_settle
from ridgeline.kernels.search import short as search_short
from ridgeline.kernels.search import sketch as search_sketch
from ridgeline.search import cuda_engine, replay  # noqa: E402
from ridgeline.search.cuda import Cuda  # noqa: E402
from ridgeline.search.cuda_steps import Steps  # noqa: E402
from ridgeline.search.engine import Ask  # noqa: E402
from ridgeline.search.replay import Replays  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda:0" if CUDA else "cpu"
LISTS = 8
SPECS = ("Flat", "SQ8", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ4")
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes in the interpreter
quick = settings(deadline=None, max_examples=40 if CUDA else 4, phases=PHASES, suppress_health_check=list(HealthCheck))
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def on_gpu(spec: str = "Flat", metric: str = "cosine", dtype: str = "float32", **more) -> Index:
    index = Index(spec, metric=metric, device="cpu", dtype=dtype, **more)
    index._place = Cuda(DEVICE)
    return index


def built(spec: str, metric: str, vectors, **more) -> Index:
    index = on_gpu(spec, metric, **more)
    if not index.trained:
        index.train(vectors)
    index.add(vectors)
    return index


# A query takes a second in the interpreter: there only some of it, on a GPU all.
SOME = [("Flat", "l2", 1), ("SQ8", "cosine", 2), ("IVF8,Flat", "l2", 2), ("IVF8,SQ8", "ip", 1), ("IVF8,PQ4", "l2", 2)]
EVERY = [(spec, metric, queries) for spec in SPECS for metric in METRICS for queries in (1, 20)]


@pytest.mark.parametrize(("spec", "metric", "queries"), EVERY if CUDA else SOME)
def test_over_all_lists_the_answer_is_exact_over_the_stored_values(spec: str, metric: str, queries: int):
    vectors, asked = clustered(301, 16), clustered(queries, 16, 1)
    index = built(spec, metric, vectors)
    stored = index.reconstruct(np.arange(301))
    if metric == "cosine":
        asked, metric = asked / np.linalg.norm(asked, axis=1, keepdims=True), "ip"
    assert_exact(index.search(asked, 10, nprobe=LISTS), asked, stored, 10, metric, tolerance=4e-6)


@pytest.mark.parametrize(
    ("base", "refine"),
    [(b, r) for b in SPECS for r in ("Flat", "SQ8")] if CUDA else [("SQ8", "Flat"), ("IVF8,PQ4", "SQ8")],
)
def test_refined_deep_enough_the_finer_values_decide(base: str, refine: str):
    vectors, asked = clustered(150, 16), clustered(2, 16, 1)
    index = built(f"{base},Refine({refine})", "l2", vectors)
    stored = index.reconstruct(np.arange(150))
    _, found = index.search(asked, 5, nprobe=LISTS, depth=16)
    wanted = nearest(asked, stored, 5, "l2")[1]
    assert np.mean(found == wanted) > (0.95 if "PQ" not in base else 0.6)


@quick
@given(st.sampled_from([0, 1, 2, 31, 65, 130]), st.integers(1, 5 if CUDA else 2), st.integers(1, 12),
       st.sampled_from(METRICS), st.sampled_from(["float32", "float16"]), st.integers(0, 9))  # fmt: skip
def test_flat_is_exact_for_all_sizes_also_with_rows_removed(count, queries, k, metric, dtype, seed):
    r = np.random.default_rng(seed)
    vectors = r.integers(-2, 3, (count, 7)).astype("f4")  # duplicates and zero vectors among them
    asked = r.standard_normal((queries, 7)).astype("f4")
    index = on_gpu("Flat", metric, dtype, dim=7)
    index.add(vectors)
    stored = index.reconstruct(np.arange(count)) if count else vectors
    if metric == "cosine":
        asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    assert_exact(index.search(asked, k), asked, stored, k, "ip" if metric == "cosine" else metric, tolerance=4e-6)
    if count > 2:
        index.remove([0])
        assert (index.search(asked, k)[1] != 0).all()


def test_equal_scores_go_by_id_whatever_the_order_of_rows(monkeypatch):
    if not CUDA:  # a minute in the interpreter otherwise
        monkeypatch.setattr(search_settle, "MOST", 64)
    vectors = np.ones((40, 8), "f4")
    ids = np.random.default_rng(0).permutation(1000)[:40]
    for spec in ("Flat", "IVF1,Flat"):
        index = on_gpu(spec, "ip")
        index.train(vectors)
        index.add(vectors, ids=ids)
        for queries in (1, 2) if CUDA or spec == "Flat" else (1,):
            found = index.search(np.ones((queries, 8), "f4"), 10)[1]
            assert (found == np.sort(ids)[:10]).all()


@pytest.mark.parametrize("spec", ["SQ8", "IVF4,PQ2,Refine(Flat)", *(["Flat", "IVF4,Flat"] if CUDA else [])])
def test_rows_added_in_parts_answer_like_rows_added_at_once(spec: str):
    vectors, asked = clustered(200, 8), clustered(1, 8, 1)
    whole, parts = on_gpu(spec, "l2"), on_gpu(spec, "l2")
    for index in (whole, parts):
        if not index.trained:
            index.train(vectors)
    whole.add(vectors)
    for at in range(0, 200, 67):
        parts.add(vectors[at : at + 67])
    a, b = (i.search(asked, 8, nprobe=4) for i in (whole, parts))
    np.testing.assert_array_equal(a[1], b[1])
    np.testing.assert_allclose(a[0], b[0], rtol=1e-5, atol=1e-5)
    index = parts
    index.remove(list(range(0, 200, 2)))  # enough to be swept away
    assert (index.search(asked, 8, nprobe=4)[1] % 2 == 1).all()
    assert len(index) == 100


@pytest.mark.parametrize(
    ("spec", "metric"),
    [("Flat", "cosine"), ("SQ8", "l2"), ("IVF4,SQ8", "cosine"), ("IVF4,PQ2,Refine(SQ8)", "l2")],
)
def test_what_a_gpu_saved_a_cpu_reads_and_the_other_way_round(spec: str, metric: str, tmp_path):
    vectors, asked = clustered(150, 16), clustered(1, 16, 1)
    gpu = built(spec, metric, vectors)
    gpu.save(tmp_path / "gpu")
    cpu = Index.load(tmp_path / "gpu", verify=True, device="cpu")
    np.testing.assert_allclose(cpu.reconstruct(np.arange(150)), gpu.reconstruct(np.arange(150)), atol=1e-6)
    a, b = (i.search(asked, 5, nprobe=4, depth=8) for i in (gpu, cpu))
    assert len(set(a[1][0]) & set(b[1][0])) >= 4
    cpu.save(tmp_path / "cpu")
    again = Index.load(tmp_path / "cpu", device="cpu")
    again._place = Cuda(DEVICE)
    engine = again._place.restored(cpu._state.engine.recipe, cpu._state.engine.arrays())
    np.testing.assert_allclose(engine.vectors(np.arange(150)).cpu().numpy(), gpu.reconstruct(np.arange(150)), atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", ["Flat", "IVF4,SQ8", "SQ8,Refine(Flat)"])
def test_all_rows_within_a_radius_are_found_in_order(spec: str, metric: str):
    vectors, asked = clustered(150, 8), clustered(4, 8, 1)
    index = built(spec, metric, vectors)
    stored = index.reconstruct(np.arange(150)).astype("f8")
    q = asked / np.linalg.norm(asked, axis=1, keepdims=True) if metric == "cosine" else asked
    score = ((q[:, None] - stored[None]) ** 2).sum(2) if metric == "l2" else q @ stored.T
    radius = float(np.median(score))
    limits, scores, ids = index.range_search(asked, radius, nprobe=4)
    for number in range(4):
        mine = ids[limits[number] : limits[number + 1]]
        near = score[number] < radius if metric == "l2" else score[number] > radius
        clear = np.abs(score[number] - radius) > 1e-5
        if "Refine" not in spec:
            assert set(mine[clear[mine]]) == set(np.flatnonzero(near & clear))
        told = scores[limits[number] : limits[number + 1]]
        assert (np.diff(told) >= 0).all() if metric == "l2" else (np.diff(told) <= 0).all()


def test_filters_hold_inside_the_scan():
    vectors = clustered(200, 8)
    for spec in ("Flat", "IVF4,Flat"):
        index = on_gpu(spec)
        index.train(vectors)
        index.add(vectors, meta={"year": np.arange(200) % 100})
        _, found = index.search(vectors[:1], 12, where="year >= 90", nprobe=4)
        assert (found % 100 >= 90).all()
        _, found = index.search(vectors[:1], 30, where=[5, 6, 7], nprobe=4)
        assert set(found[0]) == {5, 6, 7, -1}


def test_tensors_come_back_as_tensors_of_their_device():
    vectors = torch.from_numpy(clustered(50, 8)).to(DEVICE)
    index = built("Flat", "cosine", vectors)
    scores, ids = index.search(vectors[:2].double(), 3)
    assert scores.device == ids.device == vectors.device
    assert (ids[:, 0].cpu() == torch.arange(2)).all()
    vectors.zero_()  # the index keeps its own
    assert abs(np.linalg.norm(index.reconstruct([1])[0]) - 1) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_queries_and_vectors_that_are_not_finite_are_refused_with_their_row(dtype):
    index = on_gpu("Flat", "ip", dtype)
    vectors = np.ones((2, 4), "f4")
    vectors[1, 2] = np.nan
    with pytest.raises(InputError, match="row 1 of the vectors holds nan in column 2"):
        index.add(vectors)
    index.add(np.ones((5, 4), "f4"))
    with pytest.raises(InputError, match="row 1 of the queries holds nan in column 2"):
        index.search(vectors, 2)
    if dtype == "float16":
        with pytest.raises(InputError, match="beyond float16"):
            index.add(np.full((1, 4), 1e6, "f4"))


def test_recall_is_measured_and_reached_on_a_gpu_too():
    vectors = clustered(600 if CUDA else 100, 8)
    index = built("IVF8,Flat" if CUDA else "IVF2,Flat", "cosine", vectors)
    curve = index.measure_recall(sample=20 if CUDA else 2, k=5)
    assert max(p.recall for p in curve.points) >= 0.99
    assert index.search(vectors[:1], 5, recall=0.9)[1].shape == (1, 5)


@pytest.mark.skipif(not CUDA, reason="Triton's interpreter has no threads")
def test_threads_search_while_rows_come():
    vectors = clustered(64, 8)
    index = built("Flat", "cosine", vectors)
    counts, wrong = {64, 96, 128}, []

    def look():
        for _ in range(20):
            found = index.search(vectors[:1], 128)[1]
            if int((found >= 0).sum()) not in counts:
                wrong.append(found)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        index.add(clustered(32, 8, 2))
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
def test_a_recorded_search_answers_as_the_first_one_did_and_sees_what_was_added():
    vectors = torch.from_numpy(clustered(5_000, 32)).cuda()
    index = built("Flat", "cosine", vectors)
    for asked in (vectors[:1], vectors[:33]):
        first = index.search(asked, 10)
        for _ in range(4):
            again = index.search(asked, 10)
            assert torch.equal(first[0], again[0])
            assert torch.equal(first[1], again[1])
        other = index.search(vectors[100 : 100 + len(asked)], 10)
        assert (other[1][:, 0].cpu() == torch.arange(100, 100 + len(asked))).all()
        scores, ids = index.search(asked * float("nan"), 10)
        assert scores.isnan().all()
        assert (ids == -1).all()
    index.add(vectors[:1] * 2)
    assert 5_000 in index.search(vectors[:1], 10)[1][0].tolist()
    index.remove([0])
    for _ in range(3):
        assert 0 not in index.search(vectors[:1], 10)[1][0].tolist()


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    "spec", ["Flat", "SQ8", "SQ8,Refine(Flat)", "IVF64,Flat", "IVF64,SQ8", "IVF64,SQ8,Refine(Flat)"]
)
def test_one_query_finds_the_same_by_three_launches_as_by_many(spec: str, metric: str, early: bool, monkeypatch):
    vectors = torch.from_numpy(clustered(30_000, 48)).cuda()
    asked = torch.from_numpy(clustered(12, 48, 1)).cuda()
    index = built(spec, metric, vectors, dtype="float16")
    for k, nprobe in ((10, 4), (40, 1), (1, 60)):
        with monkeypatch.context() as before:
            before.setattr(search_short, "fits", lambda *_: False)
            wanted = [index.search(q[None], k, nprobe=nprobe) for q in asked]
        index._state.doors.clear()
        index._state.engine.replays._kept.clear()
        monkeypatch.setattr(cuda_engine.CudaEngine, "_early", early)
        for q, (scores, ids) in zip(asked, wanted, strict=True):
            got = index.search(q[None], k, nprobe=nprobe)
            torch.testing.assert_close(got[0], scores, rtol=1e-5, atol=1e-6)
            assert (got[1] == ids).double().mean() >= (0.9 if "Refine" in spec else 1.0)
        assert index._state.doors


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", [*SPECS, "SQ8,Refine(Flat)", "IVF8,PQ4,Refine(SQ8)"])
def test_a_recorded_search_reads_nothing_that_was_given_back(spec: str, metric: str):
    vectors = torch.from_numpy(clustered(5_000, 32)).cuda()
    index = built(spec, metric, vectors)
    first = index.search(vectors[:33], 10)
    for _ in range(4):
        again = index.search(vectors[:33], 10)
        assert torch.equal(first[0], again[0])
        assert torch.equal(first[1], again[1])
        waste = [
            torch.full((size,), float("nan"), device="cuda") for size in (8, 32, 128, 512, 2048) for _ in range(40)
        ]
        del waste


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("early", [False, True])
def test_a_recorded_search_takes_a_query_of_any_kind_on_any_stream(early: bool, monkeypatch):
    monkeypatch.setattr(cuda_engine.CudaEngine, "_early", early)
    vectors = torch.from_numpy(clustered(5_000, 32)).cuda()
    index = built("IVF16,Flat", "cosine", vectors)
    spread = torch.zeros(40, 65, device="cuda")
    spread[:, 1::2] = vectors[:40]
    for turn in range(40):
        for query in (vectors[turn], vectors[turn].double(), vectors[turn].half(), spread[turn, 1::2]):
            assert int(index.search(query[None], 3)[1][0, 0]) == turn
        assert int(index.search(vectors[turn][None].cpu().numpy(), 3)[1][0, 0]) == turn
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found = []
    for turn in range(300):
        with torch.cuda.stream(streams[turn % 3]):
            found.append(index.search(vectors[turn][None], 3)[1])
    torch.cuda.synchronize()
    assert [int(f[0, 0]) for f in found] == list(range(300))


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("early", [False, True])
def test_a_thousand_searches_in_a_row_are_not_mixed_up(early: bool, monkeypatch):
    """Nothing is waited for between them: each has the query, the counters and the room of the one before."""
    monkeypatch.setattr(cuda_engine.CudaEngine, "_early", early)
    vectors = torch.from_numpy(clustered(20_000, 32)).cuda()
    for spec in ("Flat", "SQ8,Refine(Flat)", "IVF64,Flat"):
        index = built(spec, "cosine", vectors)
        found = [index.search(vectors[n][None], 5)[1] for n in range(1000)]
        assert [int(f[0, 0]) for f in found] == list(range(1000)), spec


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("spec", ["Flat", "SQ8,Refine(Flat)", "IVF16,Flat"])
def test_a_recorded_search_takes_numpy_and_still_refuses_what_is_not_finite(spec: str):
    vectors = clustered(5_000, 32)
    index = built(spec, "cosine", vectors)
    kept = []
    for turn in range(50):
        for query in (vectors[turn][None], vectors[turn][None].astype("f8"), vectors[turn].tolist()):
            scores, ids = index.search([query] if isinstance(query, list) else query, 3)
            assert ids[0, 0] == turn
            assert abs(scores[0, 0] - 1) < 1e-4
            kept.append((turn, ids))
    assert index._state.doors
    assert all(ids[0, 0] == turn for turn, ids in kept)  # each has an answer of its own
    bad = vectors[:1].copy()
    bad[0, 7] = np.nan
    with pytest.raises(InputError, match="row 0 of the queries holds nan in column 7"):
        index.search(bad, 3)
    with pytest.raises(InputError, match="holds inf in column 2"):
        index.search(np.where(np.arange(32) == 2, 1e60, 0.5)[None], 3)
    index.remove([3])
    assert index.search(vectors[3][None], 3)[1][0, 0] != 3


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are many tiles."""
    monkeypatch.setattr(search_groups, "FEWEST_TILES", 30)
    monkeypatch.setattr(search_finish, "FEWEST_LINES", 32)
    monkeypatch.setattr(search_bytes, "TILE", 16)
    monkeypatch.setattr(search_sketch, "TILE", 16)
    monkeypatch.setattr(replay, "TRIED", 3)


def steps_of(index: Index, ask: Ask, early: bool = False) -> Steps:
    engine = index._state.engine
    return Steps(engine.stored, engine.refiner, engine.recipe.metric, ask, engine._limits(ask), early)


@pytest.mark.parametrize("metric", METRICS if CUDA else ["l2"])
def test_half_of_each_byte_finds_what_the_bytes_find(metric: str, small_tiles):
    vectors = clustered(900, 24)
    index = built("SQ8,Refine(Flat)", metric, vectors)
    replays, steps = Replays(), steps_of(index, Ask(5, depth=2))
    asked = torch.from_numpy(clustered(3, 24, 1)).to(DEVICE)
    halves = replays._sketched(asked[:1], steps)
    assert halves.sketch is not None
    assert replays.nbytes == halves.sketch.numel() * 4
    assert replays._sketched(asked[:1], steps).sketch is halves.sketch  # made once
    for query in asked:
        one, other = steps.room(DEVICE), steps.room(DEVICE)
        steps.short(query[None], one)
        halves.short(query[None], other)
        assert torch.equal(one[1], other[1])
        torch.testing.assert_close(one[0], other[0])


def test_a_sketch_that_says_too_little_is_left(small_tiles, monkeypatch):
    """All rows lie within the margin: every answer would need the bytes as well."""
    monkeypatch.setattr(search_margin, "LONGEST", 64)
    monkeypatch.setattr(replay, "TRIED", 1)
    index = built("SQ8,Refine(Flat)", "l2", np.ones((500, 24), np.float32))
    replays, steps = Replays(), steps_of(index, Ask(5, depth=2))
    query = torch.ones((1, 24), device=DEVICE)
    assert replays._sketched(query, steps) is steps
    assert replays._sketched(query, steps) is steps
    assert replays.nbytes == 0


@pytest.mark.parametrize("spec", ["Flat", "SQ8", "SQ8,Refine(SQ8)", "IVF8,SQ8,Refine(Flat)"])
def test_only_bytes_in_the_order_of_their_rows_with_finer_values_are_sketched(spec: str, small_tiles):
    index = built(spec, "cosine", clustered(900, 24))
    steps = steps_of(index, Ask(5, depth=2))
    assert Replays()._sketched(torch.ones((1, 24), device=DEVICE), steps) is steps


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_a_recorded_search_by_halves_of_bytes_finds_the_best_that_are_left(metric: str, early: bool, monkeypatch):
    monkeypatch.setattr(cuda_engine.CudaEngine, "_early", early)
    monkeypatch.setattr(replay, "suffices", lambda steps: True)  # of rows as near as these too few would be settled
    vectors = torch.from_numpy(clustered(300_000, 48)).cuda()
    asked = torch.from_numpy(clustered(50, 48, 1)).cuda()
    index = built("SQ8,Refine(Flat)", metric, vectors, dtype="float16")
    index.remove(list(range(0, 300_000, 10)))  # too few to be swept away: they are masked
    wanted = index.search(asked, 10)[1]
    got = torch.cat([index.search(q[None], 10)[1] for q in asked])
    assert index._state.engine.replays.nbytes > 0
    assert (got % 10 != 0).all()
    assert (got == wanted).double().mean() >= 0.99


def test_of_vectors_that_must_not_be_written_nothing_is_said():
    vectors = clustered(40, 16)
    vectors.flags.writeable = False  # as those of a file that is mapped
    torch.set_warn_always(True)  # else torch speaks of it once
    try:
        index = built("Flat", "l2", vectors)
        assert index.search(vectors[:1], 1)[1].item() == 0
    finally:
        torch.set_warn_always(False)
