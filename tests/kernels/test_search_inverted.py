"""Search in inverted lists against float64 NumPy: interpreted everywhere, compiled on a GPU.

python -m pytest tests/kernels/test_search_inverted.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.draws import choose_draws  # noqa: E402
from tests.kernels.reference_search import check  # noqa: E402
from tests.kernels.test_search_exact import CUDA, DEVICE, PHASES, array, make_rows, norms  # noqa: E402
from tests.kernels.test_search_exact import small as small_blocks  # noqa: E402, F401
from tests.kernels.test_search_scalar_codes import decode_codes  # noqa: E402

from ridgeline.kernels.search import inverted_lists as search_inverted_lists  # noqa: E402
from ridgeline.kernels.search import kmeans as search_kmeans  # noqa: E402
from ridgeline.kernels.search import product_codes as search_product_codes  # noqa: E402
from ridgeline.kernels.search import scalar_codes as search_scalar_codes  # noqa: E402
from ridgeline.kernels.search import search as search_search  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf in NumPy, inside the interpreter
quick = settings(deadline=None, max_examples=choose_draws(2, 5), phases=PHASES, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        for module in (search_inverted_lists, search_product_codes):
            monkeypatch.setattr(module, "LIST_TILE", 16)
        monkeypatch.setattr(search_inverted_lists, "LIST_BATCH_SHAPES", dict.fromkeys((1, 2, 4), (16, 32, 32, 4, 3)))


def build_lists(rows: torch.Tensor, lists: int, metric: str, seed: int):
    """Centres, starts, longest list, and the order of rows."""
    centres = search_kmeans.train_centres(rows, lists, metric=metric, rounds=2, seed=seed)
    list_ids, _ = search_kmeans.assign_centres(rows, centres, metric=metric)
    _, place, starts = search_kmeans.group_by_list(list_ids, lists)
    return centres, starts, int(starts.diff().max()), place


def find_lists(queries: torch.Tensor, centres: torch.Tensor, probes: int, metric: str) -> np.ndarray:
    q, c = array(queries), array(centres)
    score = q @ c.T if metric == "ip" else 2 * q @ c.T - (c * c).sum(1)
    return np.argsort(-score, 1, kind="stable")[:, :probes]


def has_list_ties(queries: torch.Tensor, centres: torch.Tensor, probes: int, metric: str) -> bool:
    """Say whether float32 rounding decides which list is the last one that a query looks into."""
    q, c = array(queries), array(centres)
    score = -np.sort(-(q @ c.T if metric == "ip" else 2 * q @ c.T - (c * c).sum(1)), 1)
    return bool((score[:, probes - 1] - score[:, probes] < 1e-4).any())


@quick
@given(st.sampled_from([1, 3, 17]), st.sampled_from([1, 5, 37]), st.data(), st.sampled_from(["ip", "l2"]))
def test_the_nearest_lists_are_found(many, lists, data, metric):
    probes = data.draw(st.integers(1, lists))
    queries, centres = make_rows(many, 20, torch.float32, 1), make_rows(lists, 20, torch.float32, 2)
    got = search_inverted_lists.find_nearest_lists(queries, centres, probes, metric=metric)
    assert (got.cpu().numpy() == find_lists(queries, centres, probes, metric)).all()


@pytest.mark.slow
@quick
@given(st.sampled_from([1, 40, 300]), st.sampled_from([1, 3, 20] if CUDA else [1, 9]), st.sampled_from([20, 64]),
       st.sampled_from([torch.float16, torch.float32]), st.sampled_from(["ip", "l2"]), st.sampled_from([1, 10]),
       st.booleans(), st.integers(0, 99))  # fmt: skip
@example(300, 3, 20, torch.float32, "l2", 10, True, 91)  # one list for each of several queries
def test_the_best_rows_of_the_nearest_lists_are_found(count, many, depth, dtype, metric, k, draw_mask, seed):
    rows = make_rows(count, depth, dtype, seed, copies=bool(seed % 2))
    queries = make_rows(many, depth, torch.float32, seed + 1)
    centres, starts, longest, place = build_lists(rows, 7, metric, seed)
    probes = seed % 7 + 1
    stored = rows[place]
    allowed = np.random.default_rng(seed).random(count) < 0.6 if draw_mask else np.ones(count, bool)
    got = search_search.search_lists(
        queries, centres, starts, longest, stored, k, probes, metric=metric, ids=place,
        bias=norms(stored) if metric == "l2" else None,
        allowed=torch.from_numpy(allowed).to(DEVICE)[place] if draw_mask else None,
    )  # fmt: skip
    row_lists = np.repeat(np.arange(7), starts.diff().cpu().numpy())
    list_ids = find_lists(queries, centres, probes, metric)
    assume(probes == 7 or not has_list_ties(queries, centres, probes, metric))  # one row: all centres are equal
    for q in range(many):
        seen = np.isin(row_lists, list_ids[q]) & allowed[place.cpu().numpy()]
        one = tuple(t[q : q + 1] for t in got)
        check(one, array(queries[q : q + 1]), array(stored), k, metric, seen, place.cpu().numpy(), tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("many", "metric"), [(1, "l2"), (2, "ip"), (2, "l2")])
def test_lists_of_codes_are_searched_and_refined(many, metric):
    rows, queries = make_rows(120, 24, torch.float32, 3), make_rows(many, 24, torch.float32, 4)
    centres, starts, longest, place = build_lists(rows, 5, metric, 0)
    grid = search_scalar_codes.fit_grid(rows)
    codes = search_scalar_codes.encode_scalar(rows, *grid)[place]
    x = decode_codes(codes, *grid, 24)
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    residual = {"metric": metric, "bias": bias, "ids": place, "grid": grid}
    names = place.cpu().numpy()
    got = search_search.search_lists(queries, centres, starts, longest, codes, 6, 5, **residual)
    check(got, array(queries), x, 6, metric, ids=names, tolerance=1e-5)
    got = search_search.search_lists(
        queries, centres, starts, longest, codes, 6, 5, **residual, refine=rows, places=place, candidates=32
    )
    check(got, array(queries), array(rows), 6, metric)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_product_codes_are_searched_as_decoded_values_and_refined(metric):
    rows, queries = make_rows(300, 24, torch.float32, 3), make_rows(3, 24, torch.float32, 4)
    centres, starts, longest, place = build_lists(rows, 5, metric, 0)
    row_lists = torch.repeat_interleave(torch.arange(5, device=DEVICE), starts.diff().long())
    residual = rows[place] - centres[row_lists]
    books = search_product_codes.train_codebooks(residual, 6, rounds=2)
    codes = search_product_codes.encode_product(residual, books)
    x = array(centres[row_lists] + search_product_codes.decode_product(codes, books))
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    given_too = {"metric": metric, "bias": bias, "ids": place, "books": books}
    got = search_search.search_lists(queries, centres, starts, longest, codes, 6, 5, **given_too)
    check(got, array(queries), x, 6, metric, ids=place.cpu().numpy(), tolerance=1e-5)
    got = search_search.search_lists(queries, centres, starts, longest, codes, 280, 5, **given_too)
    check(got, array(queries), x, 280, metric, ids=place.cpu().numpy(), tolerance=1e-5)
    got = search_search.search_lists(
        queries, centres, starts, longest, codes, 6, 5, **given_too, refine=rows, places=place, candidates=128
    )
    check(got, array(queries), array(rows), 6, metric)


def test_a_large_k_is_sorted_by_torch():
    rows, queries = make_rows(400, 16, torch.float16, 3), make_rows(2, 16, torch.float32, 4)
    centres, starts, longest, place = build_lists(rows, 4, "ip", 0)
    got = search_search.search_lists(queries, centres, starts, longest, rows[place], 300, 4, ids=place)
    check(got, array(queries), array(rows), 300)


def test_no_rows_give_no_results():
    queries, centres = make_rows(2, 8, torch.float32, 1), make_rows(3, 8, torch.float32, 2)
    none = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    values, numbers = search_search.search_lists(queries, centres, none, 0, make_rows(0, 8, torch.float16, 1), 5, 2)
    assert (numbers == -1).all()
    assert values.shape == (2, 5)
