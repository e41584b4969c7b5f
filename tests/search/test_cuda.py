"""Search on a GPU has the results of a CPU; without a GPU the kernels are interpreted.

python -m pytest tests/search/test_cuda.py
"""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.draws import choose_draws
from tests.search.reference import assert_exact, nearest
from tests.search.test_exact import METRICS, make_clusters

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline import Index  # noqa: E402
from ridgeline.errors import InputError  # noqa: E402
from ridgeline.kernels.search import rescore as search_rescore  # noqa: E402
from ridgeline.kernels.search import scalar_codes as search_scalar_codes  # noqa: E402
from ridgeline.kernels.search import top_k as search_top_k  # noqa: E402
from ridgeline.search import cuda, cuda_search  # noqa: E402
from ridgeline.search.cuda import CudaBackend  # noqa: E402
from ridgeline.search.cuda_search import ReplayCache, SearchPlan  # noqa: E402
from ridgeline.search.engine import SearchOptions  # noqa: E402

CUDA = torch.cuda.is_available()
DEVICE = "cuda:0" if CUDA else "cpu"
LISTS = 8
SPECS = ("Flat", "SQ8", "IVF8,Flat", "IVF8,SQ8", "IVF8,PQ4")
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes in the interpreter
quick = settings(
    deadline=None,
    max_examples=40 if CUDA else choose_draws(2, 4),
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def make_gpu_index(spec: str = "Flat", metric: str = "cosine", dtype: str = "float32", **more) -> Index:
    index = Index(spec, metric=metric, device="cpu", dtype=dtype, **more)
    index._backend = CudaBackend(DEVICE)
    return index


def build_index(spec: str, metric: str, vectors, **more) -> Index:
    index = make_gpu_index(spec, metric, **more)
    if not index.trained:
        index.train(vectors)
    index.add(vectors)
    return index


# A query takes a second in the interpreter: run all cases on a GPU only.
SOME = [("Flat", "l2", 1), ("SQ8", "cosine", 2), ("IVF8,Flat", "l2", 2), ("IVF8,SQ8", "ip", 1), ("IVF8,PQ4", "l2", 2)]
EVERY = [(spec, metric, queries) for spec in SPECS for metric in METRICS for queries in (1, 20)]


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "metric", "queries"), EVERY if CUDA else SOME)
def test_over_all_lists_the_result_is_exact_over_the_stored_values(spec: str, metric: str, queries: int):
    vectors, query_vectors = make_clusters(301, 16), make_clusters(queries, 16, 1)
    index = build_index(spec, metric, vectors)
    stored = index.reconstruct(np.arange(301))
    if metric == "cosine":
        query_vectors, metric = query_vectors / np.linalg.norm(query_vectors, axis=1, keepdims=True), "ip"
    assert_exact(index.search(query_vectors, 10, nprobe=LISTS), query_vectors, stored, 10, metric, tolerance=4e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "refine"),
    [(b, r) for b in SPECS for r in ("Flat", "SQ8")] if CUDA else [("SQ8", "Flat"), ("IVF8,PQ4", "SQ8")],
)
def test_with_enough_depth_the_refiner_decides(base: str, refine: str):
    vectors, query_vectors = make_clusters(150, 16), make_clusters(2, 16, 1)
    index = build_index(f"{base},Refine({refine})", "l2", vectors)
    stored = index.reconstruct(np.arange(150))
    _, found_rows = index.search(query_vectors, 5, nprobe=LISTS, depth=16)
    expected = nearest(query_vectors, stored, 5, "l2")[1]
    assert np.mean(found_rows == expected) > (0.95 if "PQ" not in base else 0.6)


@quick
@given(st.sampled_from([0, 1, 2, 31, 65, 130]), st.integers(1, 5 if CUDA else 2), st.integers(1, 12),
       st.sampled_from(METRICS), st.sampled_from(["float32", "float16"]), st.integers(0, 9))  # fmt: skip
def test_flat_is_exact_for_all_sizes_also_with_rows_removed(count, queries, k, metric, dtype, seed):
    r = np.random.default_rng(seed)
    vectors = r.integers(-2, 3, (count, 7)).astype("f4")  # duplicates and zero vectors among them
    query_vectors = r.standard_normal((queries, 7)).astype("f4")
    index = make_gpu_index("Flat", metric, dtype, dim=7)
    index.add(vectors)
    stored = index.reconstruct(np.arange(count)) if count else vectors
    if metric == "cosine":
        query_vectors /= np.linalg.norm(query_vectors, axis=1, keepdims=True)
    assert_exact(
        index.search(query_vectors, k), query_vectors, stored, k, "ip" if metric == "cosine" else metric, tolerance=4e-6
    )
    if count > 2:
        index.remove([0])
        assert (index.search(query_vectors, k)[1] != 0).all()


@pytest.mark.slow
def test_equal_scores_are_ordered_by_id(monkeypatch):
    if not CUDA:  # a minute in the interpreter otherwise
        monkeypatch.setattr(search_rescore, "MAX_CANDIDATES", 64)
        monkeypatch.setattr(cuda_search, "MAX_CANDIDATES", 64)
    vectors = np.ones((40, 8), "f4")
    ids = np.random.default_rng(0).permutation(1000)[:40]
    for spec in ("Flat", "IVF1,Flat"):
        index = make_gpu_index(spec, "ip")
        index.train(vectors)
        index.add(vectors, ids=ids)
        for queries in (1, 2) if CUDA or spec == "Flat" else (1,):
            found_rows = index.search(np.ones((queries, 8), "f4"), 10)[1]
            assert (found_rows == np.sort(ids)[:10]).all()


@pytest.mark.parametrize(
    "spec",
    ["SQ8", pytest.param("IVF4,PQ2,Refine(Flat)", marks=pytest.mark.slow), *(["Flat", "IVF4,Flat"] if CUDA else [])],
)
def test_rows_added_in_parts_match_rows_added_at_once(spec: str):
    vectors, query_vectors = make_clusters(200, 8), make_clusters(1, 8, 1)
    complete, parts = make_gpu_index(spec, "l2"), make_gpu_index(spec, "l2")
    for index in (complete, parts):
        if not index.trained:
            index.train(vectors)
    complete.add(vectors)
    for at in range(0, 200, 67):
        parts.add(vectors[at : at + 67])
    a, b = (i.search(query_vectors, 8, nprobe=4) for i in (complete, parts))
    np.testing.assert_array_equal(a[1], b[1])
    np.testing.assert_allclose(a[0], b[0], rtol=1e-5, atol=1e-5)
    index = parts
    index.remove(list(range(0, 200, 2)))  # enough to be dropped from the engine
    assert (index.search(query_vectors, 8, nprobe=4)[1] % 2 == 1).all()
    assert len(index) == 100


@pytest.mark.parametrize(
    ("spec", "metric"),
    [
        ("Flat", "cosine"),
        ("SQ8", "l2"),
        ("IVF4,SQ8", "cosine"),
        pytest.param("IVF4,PQ2,Refine(SQ8)", "l2", marks=pytest.mark.slow),
    ],
)
def test_a_cpu_reads_an_index_saved_on_a_gpu_and_the_reverse(spec: str, metric: str, tmp_path):
    vectors, query_vectors = make_clusters(150, 16), make_clusters(1, 16, 1)
    gpu = build_index(spec, metric, vectors)
    gpu.save(tmp_path / "gpu")
    cpu = Index.load(tmp_path / "gpu", verify=True, device="cpu")
    np.testing.assert_allclose(cpu.reconstruct(np.arange(150)), gpu.reconstruct(np.arange(150)), atol=1e-6)
    a, b = (i.search(query_vectors, 5, nprobe=4, depth=8) for i in (gpu, cpu))
    assert len(set(a[1][0]) & set(b[1][0])) >= 4
    cpu.save(tmp_path / "cpu")
    again = Index.load(tmp_path / "cpu", device="cpu")
    again._backend = CudaBackend(DEVICE)
    engine = again._backend.restore_engine(cpu._snapshot.engine.config, cpu._snapshot.engine.arrays())
    np.testing.assert_allclose(engine.vectors(np.arange(150)).cpu().numpy(), gpu.reconstruct(np.arange(150)), atol=1e-6)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", ["Flat", "IVF4,SQ8", "SQ8,Refine(Flat)"])
def test_all_rows_within_a_radius_are_found_in_order(spec: str, metric: str):
    vectors, query_vectors = make_clusters(150, 8), make_clusters(4, 8, 1)
    index = build_index(spec, metric, vectors)
    stored = index.reconstruct(np.arange(150)).astype("f8")
    q = query_vectors / np.linalg.norm(query_vectors, axis=1, keepdims=True) if metric == "cosine" else query_vectors
    score = ((q[:, None] - stored[None]) ** 2).sum(2) if metric == "l2" else q @ stored.T
    radius = float(np.median(score))
    limits, scores, ids = index.range_search(query_vectors, radius, nprobe=4)
    for number in range(4):
        mine = ids[limits[number] : limits[number + 1]]
        nearby = score[number] < radius if metric == "l2" else score[number] > radius
        clear = np.abs(score[number] - radius) > 1e-5
        if "Refine" not in spec:
            assert set(mine[clear[mine]]) == set(np.flatnonzero(nearby & clear))
        messages = scores[limits[number] : limits[number + 1]]
        assert (np.diff(messages) >= 0).all() if metric == "l2" else (np.diff(messages) <= 0).all()


def test_the_scan_respects_filters():
    vectors = make_clusters(200, 8)
    for spec in ("Flat", "IVF4,Flat"):
        index = make_gpu_index(spec)
        index.train(vectors)
        index.add(vectors, meta={"year": np.arange(200) % 100})
        _, found_rows = index.search(vectors[:1], 12, where="year >= 90", nprobe=4)
        assert (found_rows % 100 >= 90).all()
        _, found_rows = index.search(vectors[:1], 30, where=[5, 6, 7], nprobe=4)
        assert set(found_rows[0]) == {5, 6, 7, -1}


def test_results_are_tensors_on_the_device_of_the_query():
    vectors = torch.from_numpy(make_clusters(50, 8)).to(DEVICE)
    index = build_index("Flat", "cosine", vectors)
    scores, ids = index.search(vectors[:2].double(), 3)
    assert scores.device == ids.device == vectors.device
    assert (ids[:, 0].cpu() == torch.arange(2)).all()
    vectors.zero_()  # the index has a copy
    assert abs(np.linalg.norm(index.reconstruct([1])[0]) - 1) < 1e-5


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_queries_and_vectors_that_are_not_finite_are_refused_with_their_row(dtype):
    index = make_gpu_index("Flat", "ip", dtype)
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


@pytest.mark.slow
def test_recall_is_measured_and_reached_on_a_gpu():
    vectors = make_clusters(600 if CUDA else 100, 8)
    index = build_index("IVF8,Flat" if CUDA else "IVF2,Flat", "cosine", vectors)
    curve = index.measure_recall(sample=20 if CUDA else 2, k=5)
    assert max(p.recall for p in curve.points) >= 0.99
    assert index.search(vectors[:1], 5, recall=0.9)[1].shape == (1, 5)


@pytest.mark.skipif(not CUDA, reason="Triton's interpreter has no threads")
def test_threads_search_while_rows_are_added():
    vectors = make_clusters(64, 8)
    index = build_index("Flat", "cosine", vectors)
    counts, wrong = {64, 96, 128}, []

    def look():
        for _ in range(20):
            found_rows = index.search(vectors[:1], 128)[1]
            if int((found_rows >= 0).sum()) not in counts:
                wrong.append(found_rows)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        index.add(make_clusters(32, 8, 2))
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
def test_a_recorded_search_matches_the_first_one_and_sees_added_rows():
    vectors = torch.from_numpy(make_clusters(5_000, 32)).cuda()
    index = build_index("Flat", "cosine", vectors)
    for query_vectors in (vectors[:1], vectors[:33]):
        first = index.search(query_vectors, 10)
        for _ in range(4):
            again = index.search(query_vectors, 10)
            assert torch.equal(first[0], again[0])
            assert torch.equal(first[1], again[1])
        other = index.search(vectors[100 : 100 + len(query_vectors)], 10)
        assert (other[1][:, 0].cpu() == torch.arange(100, 100 + len(query_vectors))).all()
        scores, ids = index.search(query_vectors * float("nan"), 10)
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
def test_three_launches_match_many_for_one_query(spec: str, metric: str, early: bool, monkeypatch):
    vectors = torch.from_numpy(make_clusters(30_000, 48)).cuda()
    query_vectors = torch.from_numpy(make_clusters(12, 48, 1)).cuda()
    index = build_index(spec, metric, vectors, dtype="float16")
    for k, nprobe in ((10, 4), (40, 1), (1, 60)):
        with monkeypatch.context() as before:
            before.setattr(cuda_search, "can_search_one_query", lambda *_: False)
            expected = [index.search(q[None], k, nprobe=nprobe) for q in query_vectors]
        index._snapshot.fast_paths.clear()
        index._snapshot.engine.replays._recordings.clear()
        monkeypatch.setattr(cuda.CudaEngine, "_early", early)
        for q, (scores, ids) in zip(query_vectors, expected, strict=True):
            got = index.search(q[None], k, nprobe=nprobe)
            torch.testing.assert_close(got[0], scores, rtol=1e-5, atol=1e-6)
            assert (got[1] == ids).double().mean() >= (0.9 if "Refine" in spec else 1.0)
        assert index._snapshot.fast_paths


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("spec", [*SPECS, "SQ8,Refine(Flat)", "IVF8,PQ4,Refine(SQ8)"])
def test_a_recorded_search_reads_no_freed_memory(spec: str, metric: str):
    vectors = torch.from_numpy(make_clusters(5_000, 32)).cuda()
    index = build_index(spec, metric, vectors)
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
    monkeypatch.setattr(cuda.CudaEngine, "_early", early)
    vectors = torch.from_numpy(make_clusters(5_000, 32)).cuda()
    index = build_index("IVF16,Flat", "cosine", vectors)
    spread = torch.zeros(40, 65, device="cuda")
    spread[:, 1::2] = vectors[:40]
    for turn in range(40):
        for query in (vectors[turn], vectors[turn].double(), vectors[turn].half(), spread[turn, 1::2]):
            assert int(index.search(query[None], 3)[1][0, 0]) == turn
        assert int(index.search(vectors[turn][None].cpu().numpy(), 3)[1][0, 0]) == turn
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    found_rows = []
    for turn in range(300):
        with torch.cuda.stream(streams[turn % 3]):
            found_rows.append(index.search(vectors[turn][None], 3)[1])
    torch.cuda.synchronize()
    assert [int(f[0, 0]) for f in found_rows] == list(range(300))


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("early", [False, True])
def test_a_thousand_searches_in_a_row_stay_separate(early: bool, monkeypatch):
    """Nothing waits between them: each reuses the query tensor, the counters and the buffers of the one before."""
    monkeypatch.setattr(cuda.CudaEngine, "_early", early)
    vectors = torch.from_numpy(make_clusters(20_000, 32)).cuda()
    for spec in ("Flat", "SQ8,Refine(Flat)", "IVF64,Flat"):
        index = build_index(spec, "cosine", vectors)
        found_rows = [index.search(vectors[n][None], 5)[1] for n in range(1000)]
        assert [int(f[0, 0]) for f in found_rows] == list(range(1000)), spec


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("spec", ["Flat", "SQ8,Refine(Flat)", "IVF16,Flat"])
def test_a_recorded_search_takes_numpy_and_refuses_values_that_are_not_finite(spec: str):
    vectors = make_clusters(5_000, 32)
    index = build_index(spec, "cosine", vectors)
    copied = []
    for turn in range(50):
        for query in (vectors[turn][None], vectors[turn][None].astype("f8"), vectors[turn].tolist()):
            scores, ids = index.search([query] if isinstance(query, list) else query, 3)
            assert ids[0, 0] == turn
            assert abs(scores[0, 0] - 1) < 1e-4
            copied.append((turn, ids))
    assert index._snapshot.fast_paths
    assert all(ids[0, 0] == turn for turn, ids in copied)  # each has a different result
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
    """Make a few rows many tiles."""
    monkeypatch.setattr(search_top_k, "MIN_TILES_FOR_GROUPS", 30)
    monkeypatch.setattr(search_scalar_codes, "CODE_TILE", 16)
    monkeypatch.setattr(search_scalar_codes, "SKETCH_TILE", 16)
    monkeypatch.setattr(cuda_search, "SKETCH_SAMPLE", 3)


def make_plan(index: Index, options: SearchOptions, early: bool = False) -> SearchPlan:
    engine = index._snapshot.engine
    return SearchPlan(
        engine.stored, engine.refiner, engine.config.metric, options, engine._get_row_filter(options), early
    )


@pytest.mark.slow
@pytest.mark.parametrize("metric", METRICS if CUDA else ["l2"])
def test_a_sketch_finds_the_rows_that_the_codes_find(metric: str, small_tiles):
    vectors = make_clusters(900, 24)
    index = build_index("SQ8,Refine(Flat)", metric, vectors)
    replays, plan = ReplayCache(), make_plan(index, SearchOptions(5, depth=2))
    query_vectors = torch.from_numpy(make_clusters(3, 24, 1)).to(DEVICE)
    sketch_plan = replays._add_sketch(query_vectors[:1], plan)
    assert sketch_plan.sketch is not None
    assert replays.nbytes == sketch_plan.sketch.numel() * 4
    assert replays._add_sketch(query_vectors[:1], plan).sketch is sketch_plan.sketch  # made once
    for query in query_vectors:
        one, other = plan.allocate_result(DEVICE), plan.allocate_result(DEVICE)
        plan.launch_one_query(query[None], one)
        sketch_plan.launch_one_query(query[None], other)
        assert torch.equal(one[1], other[1])
        torch.testing.assert_close(one[0], other[0])


@pytest.mark.slow
def test_a_sketch_that_does_not_suffice_is_dropped(small_tiles, monkeypatch):
    """All rows are within the margin: every search would also need the codes."""
    monkeypatch.setattr(search_rescore, "MARGIN_CAPACITY", 64)
    monkeypatch.setattr(cuda_search, "SKETCH_SAMPLE", 1)
    index = build_index("SQ8,Refine(Flat)", "l2", np.ones((500, 24), np.float32))
    replays, plan = ReplayCache(), make_plan(index, SearchOptions(5, depth=2))
    query = torch.ones((1, 24), device=DEVICE)
    assert replays._add_sketch(query, plan) is plan
    assert replays._add_sketch(query, plan) is plan
    assert replays.nbytes == 0


@pytest.mark.parametrize("spec", ["Flat", "SQ8", "SQ8,Refine(SQ8)", "IVF8,SQ8,Refine(Flat)"])
def test_only_flat_byte_codes_with_a_refiner_have_a_sketch(spec: str, small_tiles):
    index = build_index(spec, "cosine", make_clusters(900, 24))
    plan = make_plan(index, SearchOptions(5, depth=2))
    assert ReplayCache()._add_sketch(torch.ones((1, 24), device=DEVICE), plan) is plan


@pytest.mark.skipif(not CUDA, reason="no CUDA device here")
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("metric", METRICS)
def test_a_recorded_search_by_sketch_finds_the_best_live_rows(metric: str, early: bool, monkeypatch):
    monkeypatch.setattr(cuda.CudaEngine, "_early", early)
    monkeypatch.setattr(cuda_search, "sketch_pays", lambda plan: True)  # these rows are too close for the sketch to pay
    vectors = torch.from_numpy(make_clusters(300_000, 48)).cuda()
    query_vectors = torch.from_numpy(make_clusters(50, 48, 1)).cuda()
    index = build_index("SQ8,Refine(Flat)", metric, vectors, dtype="float16")
    index.remove(list(range(0, 300_000, 10)))  # too few to be dropped: they are masked
    expected = index.search(query_vectors, 10)[1]
    got = torch.cat([index.search(q[None], 10)[1] for q in query_vectors])
    assert index._snapshot.engine.replays.nbytes > 0
    assert (got % 10 != 0).all()
    assert (got == expected).double().mean() >= 0.99


def test_read_only_vectors_cause_no_warning():
    vectors = make_clusters(40, 16)
    vectors.flags.writeable = False  # like those of a mapped file
    torch.set_warn_always(True)  # otherwise torch warns once
    try:
        index = build_index("Flat", "l2", vectors)
        assert index.search(vectors[:1], 1)[1].item() == 0
    finally:
        torch.set_warn_always(False)
