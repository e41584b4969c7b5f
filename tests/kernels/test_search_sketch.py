"""One query over a sketch: interpreted everywhere, compiled on a GPU.

python -m pytest tests/kernels/test_search_sketch.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.draws import choose_draws  # noqa: E402
from tests.kernels.reference_search import check, compute_scores  # noqa: E402
from tests.kernels.test_search_exact import CUDA, DEVICE, PHASES, array, make_rows, norms  # noqa: E402
from tests.kernels.test_search_one_query import draw_mask, empty  # noqa: E402
from tests.kernels.test_search_scalar_codes import decode_codes, encode_codes  # noqa: E402

from ridgeline.kernels.search import one_query as search_one_query  # noqa: E402
from ridgeline.kernels.search import queries as search_queries  # noqa: E402
from ridgeline.kernels.search import rescore as search_rescore  # noqa: E402
from ridgeline.kernels.search import scalar_codes as search_scalar_codes  # noqa: E402
from ridgeline.kernels.search import top_k as search_top_k  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf in NumPy, inside the interpreter
quick = settings(
    deadline=None,
    max_examples=60 if CUDA else choose_draws(2, 8),
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a few rows many tiles, several programs and several rounds of each loop."""
    monkeypatch.setattr(search_top_k, "MIN_TILES_FOR_GROUPS", 30)
    monkeypatch.setattr(search_scalar_codes, "CODE_TILE", 16)
    monkeypatch.setattr(search_scalar_codes, "SKETCH_TILE", 16)
    monkeypatch.setattr(search_rescore, "MARGIN_PROGRAMS", 3)
    monkeypatch.setattr(search_rescore, "MARGIN_TILES_PER_PROGRAM", 16)
    monkeypatch.setattr(search_rescore, "MARGIN_TILES_PER_STEP", 16)
    monkeypatch.setattr(search_rescore, "MARGIN_SLOTS", 4)
    monkeypatch.setattr(search_rescore, "MARGIN_CAPACITY", 64)


def unpack_sketch(sketch: torch.Tensor, count: int) -> np.ndarray:
    """The upper halves of codes [N, …] in the order of the rows."""
    both = in_order(sketch.cpu().numpy().view(np.uint8), count)
    return np.concatenate([both & 15, both >> 4], 1)


def in_order(of_places: np.ndarray, count: int) -> np.ndarray:
    """[tiles, TILE, …] → [N, …]."""
    return of_places.swapaxes(0, 1).reshape(-1, *of_places.shape[2:])[:count]


@pytest.mark.parametrize("depth", [3, 16, 40, 100, 384])
def test_a_sketch_is_the_upper_half_of_each_code(depth, monkeypatch):
    monkeypatch.setattr(search_scalar_codes, "SKETCH_TILES_PER_STEP", 2)
    _, codes, _ = encode_codes(50, depth, 1)
    sketch = search_scalar_codes.build_sketch(codes)
    assert sketch.shape[1:] == (16, search_scalar_codes.count_sketch_words(codes.shape[1]))
    assert sketch.shape[2] % 4 == 0
    assert (unpack_sketch(sketch, 50)[:, :depth] == (codes.cpu().numpy()[:, :depth].astype(int) + 128) // 16).all()


@quick
@given(st.sampled_from([1, 63, 65, 300]), st.sampled_from([3, 16, 40, 100, 384]), st.sampled_from(["ip", "l2"]),
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_the_sketch_scan_matches_its_definition(count, depth, metric, filtered, seed):
    _, codes, grid = encode_codes(count, depth, seed)
    queries = make_rows(1, depth, torch.float32, seed + 1) * 10.0 ** (seed % 7 - 3)
    allowed = draw_mask(count, seed) if filtered else None
    x = decode_codes(codes, *grid, depth)
    bias = norms(torch.from_numpy(x)).to(DEVICE) if metric == "l2" else None
    sketch = search_scalar_codes.build_sketch(codes)
    digits = search_scalar_codes.allocate_digits(sketch)
    search_queries.prepare_one_query(queries, False, grid, metric=metric, digits=digits)
    tiles = len(sketch)
    scores, maxima = torch.empty((1, tiles * 16), device=DEVICE), torch.empty((1, tiles), device=DEVICE)
    search_scalar_codes.scan_sketch(digits, sketch, count, (scores, maxima), bias=bias, allowed=allowed)
    factor = 2 if metric == "l2" else 1
    middle = array(grid[1]) + array(grid[0]) * (16.0 * unpack_sketch(sketch, count)[:, :depth] - 120.5)
    want = factor * compute_scores(array(queries), middle, "ip")[0] - (0 if bias is None else (x * x).sum(1))
    q = factor * array(queries)[0] * array(grid[0])
    unit = (np.abs(q).max() or 1.0) / 127
    size = 256 * np.abs(q).sum() + np.abs(factor * array(queries)[0] * array(grid[1])).sum() + (x * x).sum(1).max()
    got = in_order(scores[0].cpu().numpy().reshape(tiles, 16), count)
    valid = np.ones(count, bool) if allowed is None else allowed.cpu().numpy()
    assert (np.abs(got - want)[valid] <= 0.51 * unit * 128 * depth + 1e-6 * size).all()
    assert (got[~valid] == -np.inf).all()
    assert torch.equal(maxima[0], scores.view(tiles, 16).amax(1))
    spread = np.sqrt(21.25 * (q * q).sum() + depth * 5419 / 12 * unit**2)
    np.testing.assert_allclose(float(digits[1][2]), search_scalar_codes.SKETCH_MARGIN * spread, rtol=1e-5)


def search_by_sketch(queries, rows, k, *, metric="ip", allowed=None, ids=None, unit=False, times=1):
    grid = search_scalar_codes.fit_grid(rows)
    codes = search_scalar_codes.encode_scalar(rows, *grid)
    decoded_rows = decode_codes(codes, *grid, rows.shape[1])
    bias = norms(torch.from_numpy(decoded_rows)).to(DEVICE) if metric == "l2" else None
    out = empty(k)
    done = None
    for _ in range(times):
        _, done = search_one_query.search_sketch_one_query(
            queries, unit, codes, out, sketch=search_scalar_codes.build_sketch(codes), grid=grid, refine=rows,
            candidates=16, metric=metric, bias=bias, allowed=allowed, ids=ids,
        )  # fmt: skip
    return out, bool(done.item())


@pytest.mark.slow
@quick
@given(st.sampled_from([700, 1501]), st.sampled_from([20, 100]), st.sampled_from([1, 10, 13]),
       st.sampled_from(["ip", "l2"]), st.booleans(), st.booleans(), st.integers(0, 99))  # fmt: skip
def test_the_best_rows_are_found_with_and_without_overflow(monkeypatch, count, depth, k, metric, wide, filtered, seed):
    """With a margin that includes every row the codes are scanned; with a long list all rows are rescored."""
    monkeypatch.setattr(search_scalar_codes, "SKETCH_MARGIN", 1e6 if wide else 8.0)
    monkeypatch.setattr(search_rescore, "MARGIN_CAPACITY", 64 if wide else 2048)
    rows, queries = make_rows(count, depth, torch.float32, seed), make_rows(1, depth, torch.float32, seed + 1)
    allowed = draw_mask(count, seed) if filtered else None
    out, done = search_by_sketch(queries, rows, k, metric=metric, allowed=allowed)
    assert done is not wide
    if wide:  # most candidates of the codes are the best rows
        order = np.argsort(-compute_scores(array(queries), array(rows), metric)[0])
        best = [n for n in order if allowed is None or allowed[n]][:k]
        assert len(set(out[1][0].tolist()) & set(best)) >= 0.9 * k
    else:
        check(out, array(queries), array(rows), k, metric, None if allowed is None else allowed.cpu().numpy())


@pytest.mark.slow
def test_a_long_list_is_ranked_in_blocks_and_counters_are_reset(monkeypatch):
    monkeypatch.setattr(search_rescore, "MARGIN_CAPACITY", 2048)
    rows, queries = make_rows(900, 24, torch.float32, 3), make_rows(1, 24, torch.float32, 4)
    grid = search_scalar_codes.fit_grid(rows)
    codes = search_scalar_codes.encode_scalar(rows, *grid)
    sketch = search_scalar_codes.build_sketch(codes)
    digits = search_scalar_codes.allocate_digits(sketch)
    monkeypatch.setattr(search_scalar_codes, "SKETCH_MARGIN", 1e6)
    (prepared, norm), _ = search_queries.prepare_one_query(queries, False, grid, digits=digits)
    scores, maxima, groups = search_one_query.allocate_scores(len(sketch) * 16, 16, codes.device)
    for _ in range(2):
        out = empty(10)
        search_scalar_codes.scan_sketch(digits, sketch, 900, (scores, maxima), groups=groups)
        done = search_rescore.rescore_within_margin(
            prepared, norm, rows, scores, maxima, groups, digits[1], out, tile=16, candidate_count=16
        )
        assert done.item() == 1
        check(out, array(queries), array(rows), 10)
        assert (groups == search_top_k.EMPTY_GROUP.value).all()


@pytest.mark.parametrize("wrong", [float("nan"), pytest.param(float("inf"), marks=pytest.mark.slow)])
def test_a_query_that_is_not_finite_has_no_results(wrong):
    query = torch.ones(1, 24, device=DEVICE)
    query[0, 3] = wrong
    out, _ = search_by_sketch(query, make_rows(700, 24, torch.float32, 1), 4)
    assert (out[1] == -1).all()
    assert out[0].isnan().all()


def test_fewer_rows_than_k_are_padded():
    allowed = torch.zeros(700, dtype=torch.bool, device=DEVICE)
    allowed[[3, 400]] = True
    rows, queries = make_rows(700, 24, torch.float32, 1), make_rows(1, 24, torch.float32, 2)
    out, done = search_by_sketch(queries, rows, 5, allowed=allowed)
    assert done
    assert sorted(out[1][0].tolist()) == [-1, -1, -1, 3, 400]
    check(out, array(queries), array(rows), 5, "ip", allowed.cpu().numpy())


@pytest.mark.slow
def test_of_equal_rows_the_lower_ids_come_first():
    """If the list overflows, the codes are scanned; otherwise it is ranked."""
    rows = make_rows(700, 24, torch.float32, 1)
    rows[100:130] = rows[5] * 4
    names = torch.arange(1000, 300, -1, device=DEVICE)
    out, done = search_by_sketch(rows[5:6].clone(), rows, 4, ids=names)
    assert done
    assert out[1].tolist() == [[871, 872, 873, 874]]
    out, done = search_by_sketch(torch.ones(1, 24, device=DEVICE), torch.ones(700, 24, device=DEVICE), 4)
    assert not done
    assert out[1].tolist() == [[0, 1, 2, 3]]
