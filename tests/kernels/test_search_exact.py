"""Exact search on the GPU against float64 NumPy: interpreted everywhere, compiled on a GPU.

python -m pytest tests/kernels/test_search_exact.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()
pytest.importorskip("triton")

from tests.kernels.reference_search import check  # noqa: E402

from ridgeline.kernels.search import queries as search_queries  # noqa: E402
from ridgeline.kernels.search import scan as search_scan  # noqa: E402
from ridgeline.kernels.search import search as search_search  # noqa: E402
from ridgeline.kernels.search import top_k as search_top_k  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf in NumPy, inside the interpreter
TYPES = [torch.float16, torch.bfloat16, torch.float32]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes in the interpreter
quick = settings(deadline=None, max_examples=8, phases=PHASES, suppress_health_check=list(HealthCheck))
counts = st.sampled_from([0, 1, 2, 63, 64, 65, 200, 700])


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:  # a few rows take several rounds
        monkeypatch.setattr(search_top_k, "SELECT_STEPS", {64: 64, 256: 256, 512: 512})
        monkeypatch.setattr(search_scan, "SCAN_TILE", 16)
        monkeypatch.setattr(search_scan, "BATCH_TILE", 16)
        monkeypatch.setattr(search_scan, "SMALL_BATCH_SHAPE", (16, 32, 32, 4, 4))
        monkeypatch.setattr(search_scan, "BATCH_SHAPES", dict.fromkeys((1, 2, 4), (32, 32, 32, 4, 3)))
        monkeypatch.setattr(search_scan, "RECOMPUTE_PROGRAMS", 3)


def make_rows(count: int, depth: int, dtype: torch.dtype, seed: int, copies: bool = False) -> torch.Tensor:
    r = np.random.default_rng(seed)
    x = r.standard_normal((count, depth))
    if copies and count:
        x = x[r.integers(0, max(1, count // 7), count)]
        x[r.random(count) < 0.1] = 0
    return torch.from_numpy(x).to(DEVICE, dtype)


def norms(x: torch.Tensor) -> torch.Tensor:
    return -x.double().square().sum(1).float()


def array(x: torch.Tensor | None) -> np.ndarray | None:
    return None if x is None else x.double().cpu().numpy()


@pytest.mark.slow
@quick
@given(counts, st.integers(1, 3), st.sampled_from([8, 20, 100, 384]), st.sampled_from(TYPES),
       st.sampled_from([1, 10, 13]), st.sampled_from(["ip", "l2"]), st.booleans(),
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_one_query_finds_the_best_rows(count, many, depth, dtype, k, metric, copies, draw_mask, seed):
    rows = make_rows(count, depth, dtype, seed, copies)
    queries = make_rows(many, depth, torch.float32, seed + 1)
    r = np.random.default_rng(seed)
    allowed = torch.from_numpy(r.random(count) < 0.6).to(DEVICE) if draw_mask else None
    bias = norms(rows) if metric == "l2" else None
    got = search_search.search_rows(queries, rows, k, metric=metric, bias=bias, allowed=allowed)
    check(got, array(queries), array(rows), k, metric, None if allowed is None else allowed.cpu().numpy())


def test_of_many_equal_rows_the_first_are_returned():
    rows = torch.ones(700, 16, device=DEVICE, dtype=torch.float16)
    values, numbers = search_search.search_rows(torch.ones(1, 16, device=DEVICE), rows, 10)
    assert numbers.tolist() == [list(range(10))]
    assert (values == 16).all()


def test_ids_replace_row_numbers_and_ties_go_to_the_lower_id():
    rows = torch.ones(12, 8, device=DEVICE)
    names = torch.arange(100, 88, -1, device=DEVICE)
    _, numbers = search_search.search_rows(torch.ones(1, 8, device=DEVICE), rows, 5, ids=names)
    assert numbers.tolist() == [[89, 90, 91, 92, 93]]


def test_rows_in_a_wider_store_are_read_by_their_stride():
    store = make_rows(90, 48, torch.float16, 3)
    queries = make_rows(1, 20, torch.float32, 4)
    check(search_search.search_rows(queries, store[:, 16:36], 7), array(queries), array(store[:, 16:36]), 7)


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_a_large_k_is_sorted_by_torch(metric):
    rows, queries = make_rows(400, 12, torch.float16, 5, copies=True), make_rows(2, 12, torch.float32, 6)
    bias = norms(rows) if metric == "l2" else None
    for k in (300, 500):
        got = search_search.search_rows(queries, rows, k, metric=metric, bias=bias)
        check(got, array(queries), array(rows), k, metric)


def test_sorted_rows_overflow_the_threshold_and_are_still_exact():
    """All the best tiles are in one group: more pass the threshold than the buffer holds."""
    rows = torch.zeros(1500, 8, device=DEVICE)
    rows[:, 0] = torch.linspace(1, 0, 1500)
    queries = torch.zeros(1, 8, device=DEVICE)
    queries[0, 0] = 1
    _, numbers = search_search.search_rows(queries, rows, 10)
    assert numbers.tolist() == [list(range(10))]


def longest(x: torch.Tensor) -> torch.Tensor:
    return x.float().norm(dim=1).amax().reshape(1) * 1.0001 if len(x) else torch.zeros(1, device=DEVICE)


@pytest.mark.slow
@quick
@given(st.sampled_from([1, 2, 63, 65, 250]), st.sampled_from([1, 5, 17] if CUDA else [1, 3]),
       st.sampled_from([8, 20, 100]), st.sampled_from(TYPES), st.sampled_from([1, 10, 13]),
       st.sampled_from(["ip", "l2"]), st.booleans(), st.booleans(), st.integers(0, 99))  # fmt: skip
def test_many_queries_find_the_best_rows(count, many, depth, dtype, k, metric, copies, draw_mask, seed):
    rows = make_rows(count, depth, dtype, seed, copies)
    queries = make_rows(many, depth, torch.float32, seed + 1) * 10.0 ** (seed % 9 - 4)
    r = np.random.default_rng(seed)
    allowed = torch.from_numpy(r.random(count) < 0.6).to(DEVICE) if draw_mask else None
    bias = norms(rows) if metric == "l2" else None
    got = search_search.search_rows_batch(queries, rows, k, longest(rows), metric=metric, bias=bias, allowed=allowed)
    check(got, array(queries), array(rows), k, metric, None if allowed is None else allowed.cpu().numpy())


@pytest.mark.slow
def test_rows_that_differ_only_in_rounded_digits_are_ranked_exactly():
    """In fp16 these queries are all ones, and every row scores 0: only the second pass is correct."""
    r = np.random.default_rng(0)
    signs = np.repeat([1.0, -1.0], 16)
    rows = torch.from_numpy(np.stack([r.permutation(signs) for _ in range(1000)])).to(DEVICE, torch.float16)
    queries = torch.from_numpy(1 + 2.0**-12 * r.choice([-1.0, 1.0], (4, 32))).to(DEVICE, torch.float32)
    queries[0] = rows[700].float()  # and one that is certified at once
    small, size, error = search_queries.round_queries(queries, search_queries.Rounding(torch.float16, longest(rows)))
    assert (small[1:] == 1).all()
    off = (queries - small.float() * size[:, None]).norm(dim=1) * longest(rows)
    assert (error >= off).all()
    check(
        search_search.search_rows_batch(queries, rows, 5, longest(rows)), array(queries), array(rows), 5, tolerance=1e-9
    )


def test_no_queries_give_no_results():
    rows = make_rows(30, 8, torch.float16, 1)
    values, numbers = search_search.search_rows_batch(make_rows(0, 8, torch.float32, 1), rows, 3, longest(rows))
    assert values.shape == numbers.shape == (0, 3)


@pytest.mark.slow
@pytest.mark.parametrize("many", [1, 5])
def test_far_from_the_origin_distances_are_still_exact(many):
    """The error of 2·q·x - |x|² in float32 is larger than the distance between rows."""
    rows = make_rows(500, 32, torch.float32, 7) * 0.01 + 300
    queries = make_rows(many, 32, torch.float32, 8) * 0.01 + 300
    if many == 1:
        got = search_search.search_rows(queries, rows, 5, metric="l2")
    else:
        got = search_search.search_rows_batch(queries, rows, 5, longest(rows), metric="l2", bias=norms(rows))
    check(got, array(queries), array(rows), 5, "l2", tolerance=1e-6)


@quick
@given(
    st.integers(1, 3), st.sampled_from([5, 90, 91, 400]), st.sampled_from([1, 10, 33]), st.integers(0, 9), st.booleans()
)
def test_slices_select_what_a_sort_does(queries: int, size: int, count: int, seed: int, equal: bool):
    r = np.random.default_rng(seed)
    scores = r.integers(0, 4, (queries, size)) if equal else r.standard_normal((queries, size))
    scores = np.where(r.random((queries, size)) < 0.2, -np.inf, scores).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_top_k, "MIN_SCORES_FOR_SLICES", 90)
        patch.setattr(search_top_k, "SLICES", 4)
        best, positions = search_top_k.select_best(torch.from_numpy(scores).to(DEVICE), count)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    expected = np.full((queries, count), -np.inf, np.float32)
    expected[:, : order.shape[1]] = np.take_along_axis(scores, order, 1)
    places = np.full((queries, count), -1)
    places[:, : order.shape[1]] = np.where(np.isfinite(np.take_along_axis(scores, order, 1)), order, -1)
    assert np.array_equal(best.cpu().numpy(), expected)
    assert np.array_equal(positions.cpu().numpy(), places)
