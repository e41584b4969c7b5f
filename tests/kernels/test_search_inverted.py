"""Search in inverted lists against float64 NumPy: interpreted everywhere, compiled where there is a GPU.

python -m pytest tests/kernels/test_search_inverted.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.reference_search import check  # noqa: E402
from tests.kernels.test_search_bytes import decoded  # noqa: E402
from tests.kernels.test_search_exact import CUDA, DEVICE, PHASES, array, made, norms  # noqa: E402
from tests.kernels.test_search_exact import small as small_blocks  # noqa: E402, F401

from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import codes as search_codes
from ridgeline.kernels.search import inverted as search_inverted
from ridgeline.kernels.search import kmeans as search_kmeans
from ridgeline.kernels.search import lists as search_lists

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf through NumPy, behind the interpreter
quick = settings(deadline=None, max_examples=5, phases=PHASES, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    if not CUDA:
        for module in (search_lists, search_codes):
            monkeypatch.setattr(module, "TILE", 16)
        monkeypatch.setattr(search_inverted, "FEW", 1)
        monkeypatch.setattr(search_lists, "SHAPES", dict.fromkeys((1, 2, 4), (16, 32, 32, 4, 3)))


def inverted(rows: torch.Tensor, lists: int, metric: str, seed: int):
    """Centres, starts, longest list, and the order of rows."""
    centres = search_kmeans.train(rows, lists, metric=metric, rounds=2, seed=seed)
    near, _ = search_kmeans.assign(rows, centres, metric=metric)
    _, place, starts = search_kmeans.grouped(near, lists)
    return centres, starts, int(starts.diff().max()), place


def lists_of(queries: torch.Tensor, centres: torch.Tensor, probes: int, metric: str) -> np.ndarray:
    q, c = array(queries), array(centres)
    score = q @ c.T if metric == "ip" else 2 * q @ c.T - (c * c).sum(1)
    return np.argsort(-score, 1, kind="stable")[:, :probes]


@quick
@given(st.sampled_from([1, 3, 17]), st.sampled_from([1, 5, 37]), st.data(), st.sampled_from(["ip", "l2"]))
def test_the_nearest_lists_are_found(many, lists, data, metric):
    probes = data.draw(st.integers(1, lists))
    queries, centres = made(many, 20, torch.float32, 1), made(lists, 20, torch.float32, 2)
    got = search_lists.probe(queries, centres, probes, metric=metric)
    assert (got.cpu().numpy() == lists_of(queries, centres, probes, metric)).all()


@quick
@given(st.sampled_from([1, 40, 300]), st.sampled_from([1, 3, 20] if CUDA else [1, 9]), st.sampled_from([20, 64]),
       st.sampled_from([torch.float16, torch.float32]), st.sampled_from(["ip", "l2"]), st.sampled_from([1, 10]),
       st.booleans(), st.integers(0, 99))  # fmt: skip
@example(300, 3, 20, torch.float32, "l2", 10, True, 91)  # one list for each of several queries
def test_the_best_rows_of_the_nearest_lists_are_found(count, many, depth, dtype, metric, k, some, seed):
    rows = made(count, depth, dtype, seed, copies=bool(seed % 2))
    queries = made(many, depth, torch.float32, seed + 1)
    centres, starts, longest, place = inverted(rows, 7, metric, seed)
    probes = seed % 7 + 1
    stored = rows[place]
    allowed = np.random.default_rng(seed).random(count) < 0.6 if some else np.ones(count, bool)
    got = search_inverted.search(
        queries, centres, starts, longest, stored, k, probes, metric=metric, ids=place,
        bias=norms(stored) if metric == "l2" else None,
        allowed=torch.from_numpy(allowed).to(DEVICE)[place] if some else None,
    )  # fmt: skip
    own = np.repeat(np.arange(7), starts.diff().cpu().numpy())
    near = lists_of(queries, centres, probes, metric)
    for q in range(many):
        seen = np.isin(own, near[q]) & allowed[place.cpu().numpy()]
        one = tuple(t[q : q + 1] for t in got)
        check(one, array(queries[q : q + 1]), array(stored), k, metric, seen, place.cpu().numpy(), room=1e-5)


@pytest.mark.parametrize(("many", "metric"), [(1, "l2"), (2, "ip"), (2, "l2")])
def test_lists_of_codes_are_searched_and_refined(many, metric):
    rows, queries = made(120, 24, torch.float32, 3), made(many, 24, torch.float32, 4)
    centres, starts, longest, place = inverted(rows, 5, metric, 0)
    grid = search_bytes.grid_of(rows)
    codes = search_bytes.encode(rows, *grid)[place]
    x = decoded(codes, *grid, 24)
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    rest = {"metric": metric, "bias": bias, "ids": place, "grid": grid}
    names = place.cpu().numpy()
    got = search_inverted.search(queries, centres, starts, longest, codes, 6, 5, **rest)
    check(got, array(queries), x, 6, metric, ids=names, room=1e-5)
    got = search_inverted.search(
        queries, centres, starts, longest, codes, 6, 5, **rest, refine=rows, places=place, candidates=32
    )
    check(got, array(queries), array(rows), 6, metric)


@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_product_codes_are_searched_as_what_they_stand_for_and_refined(metric):
    rows, queries = made(300, 24, torch.float32, 3), made(3, 24, torch.float32, 4)
    centres, starts, longest, place = inverted(rows, 5, metric, 0)
    own = torch.repeat_interleave(torch.arange(5, device=DEVICE), starts.diff().long())
    rest = rows[place] - centres[own]
    books = search_kmeans.train_codes(rest, 6, rounds=2)
    codes = search_kmeans.encode(rest, books)
    x = array(centres[own] + search_kmeans.decode(codes, books))
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    given_too = {"metric": metric, "bias": bias, "ids": place, "books": books}
    got = search_inverted.search(queries, centres, starts, longest, codes, 6, 5, **given_too)
    check(got, array(queries), x, 6, metric, ids=place.cpu().numpy(), room=1e-5)
    got = search_inverted.search(queries, centres, starts, longest, codes, 280, 5, **given_too)
    check(got, array(queries), x, 280, metric, ids=place.cpu().numpy(), room=1e-5)
    got = search_inverted.search(
        queries, centres, starts, longest, codes, 6, 5, **given_too, refine=rows, places=place, candidates=128
    )
    check(got, array(queries), array(rows), 6, metric)


def test_a_large_k_is_sorted_by_torch():
    rows, queries = made(400, 16, torch.float16, 3), made(2, 16, torch.float32, 4)
    centres, starts, longest, place = inverted(rows, 4, "ip", 0)
    got = search_inverted.search(queries, centres, starts, longest, rows[place], 300, 4, ids=place)
    check(got, array(queries), array(rows), 300)


def test_no_rows_no_answers():
    queries, centres = made(2, 8, torch.float32, 1), made(3, 8, torch.float32, 2)
    none = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    values, numbers = search_inverted.search(queries, centres, none, 0, made(0, 8, torch.float16, 1), 5, 2)
    assert (numbers == -1).all()
    assert values.shape == (2, 5)
