"""Search over one byte per element against float64 NumPy: interpreted everywhere, compiled on a GPU.

python -m pytest tests/kernels/test_search_scalar_codes.py
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
from tests.kernels.test_search_exact import CUDA, DEVICE, PHASES, array, make_rows  # noqa: E402
from tests.kernels.test_search_exact import small as small_blocks  # noqa: E402, F401

from ridgeline.kernels.search import scalar_codes as search_scalar_codes  # noqa: E402
from ridgeline.kernels.search import search as search_search  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf in NumPy, inside the interpreter

quick = settings(deadline=None, max_examples=choose_draws(3, 6), phases=PHASES, suppress_health_check=list(HealthCheck))


def decode_codes(codes: torch.Tensor, step: torch.Tensor, middle: torch.Tensor, depth: int) -> np.ndarray:
    return array(middle) + array(step) * array(codes[:, :depth])


def encode_codes(count: int, depth: int, seed: int, copies: bool = False):
    rows = make_rows(count, depth, torch.float32, seed, copies) + 0.3
    grid = search_scalar_codes.fit_grid(rows)
    return rows, search_scalar_codes.encode_scalar(rows, *grid), grid


@quick
@given(st.sampled_from([1, 2, 65, 300]), st.sampled_from([3, 16, 100, 384]), st.integers(0, 99))
def test_codes_are_within_half_a_step_and_padded_with_zeros(count, depth, seed):
    rows, codes, grid = encode_codes(count, depth, seed)
    assert codes.shape[1] % 16 == 0
    assert (codes[:, depth:] == 0).all()
    assert (np.abs(decode_codes(codes, *grid, depth) - array(rows)) <= 0.501 * array(grid[0]) + 1e-6).all()


@quick
@given(st.sampled_from([1, 63, 65, 300]), st.sampled_from([3, 16, 100, 384]), st.sampled_from([2, 3]),
       st.sampled_from(["ip", "l2"]), st.integers(0, 99))  # fmt: skip
def test_the_error_of_a_code_scan_is_below_the_bound(count, depth, terms, metric, seed):
    _, codes, grid = encode_codes(count, depth, seed)
    queries = make_rows(2, depth, torch.float32, seed + 1) * 10.0 ** (seed % 7 - 3)
    queries[1] *= 0 if seed % 2 else 1
    x = decode_codes(codes, *grid, depth)
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    scores, maxima = search_scalar_codes.scan_codes(
        search_scalar_codes.pack_queries(queries, *grid, metric, terms), codes, bias=bias
    )
    q = array(queries)
    want = compute_scores(q, x, "ip") * (2 if metric == "l2" else 1) - (0 if bias is None else (x * x).sum(1))
    step = np.abs(q * array(grid[0])).max(1) / (127 * 256.0 ** (terms - 1))
    size = np.abs(q * array(grid[0])).sum(1) * 128 + np.abs(q * array(grid[1])).sum(1) + (x * x).sum(1).max()
    tolerance = 2 * (step * 128 * depth + 3e-7 * size)
    assert (np.abs(array(scores) - want).max(1) <= tolerance + 1e-30).all()
    tile = search_scalar_codes.CODE_TILE
    for n in range(maxima.shape[1]):
        assert (maxima[:, n] == scores[:, n * tile : (n + 1) * tile].amax(1)).all()


@quick
@given(st.sampled_from([0, 1, 65, 300]), st.sampled_from([1, 2, 6] if CUDA else [1, 2]),
       st.sampled_from([8, 20, 100]), st.sampled_from([1, 10]), st.sampled_from(["ip", "l2"]), st.booleans(),
       st.booleans(),
       st.integers(0, 99))  # fmt: skip
def test_search_over_codes_is_exact_over_decoded_values(count, many, depth, k, metric, copies, batch, seed):
    _, codes, grid = encode_codes(max(1, count), depth, seed, copies)
    codes = codes[:count]
    queries = make_rows(many, depth, torch.float32, seed + 1)
    x = decode_codes(codes, *grid, depth)
    allowed = np.random.default_rng(seed).random(count) < 0.7
    rest = {"metric": metric, "allowed": torch.from_numpy(allowed).to(DEVICE), "grid": grid}
    if metric == "l2":
        rest["bias"] = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32)
    if batch:
        far = codes.float().norm(dim=1).amax().reshape(1) if count else torch.zeros(1)
        got = search_search.search_rows_batch(queries, codes, k, far, **rest)
    else:
        got = search_search.search_rows(queries, codes, k, **rest)
    check(got, array(queries), x, k, metric, allowed)


@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_candidates_are_refined_from_the_rows_themselves(many, metric):
    rows, codes, grid = encode_codes(120, 40, 1)
    half = rows.half()
    queries = make_rows(many, 40, torch.float32, 2)
    x = decode_codes(codes, *grid, 40)
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    rest = {"metric": metric, "bias": bias, "grid": grid, "refine": half, "candidates": 32}
    if many == 1:
        got = search_search.search_rows(queries, codes, 5, **rest)
    else:
        got = search_search.search_rows_batch(queries, codes, 5, torch.ones(1, device=DEVICE), **rest)
    check(got, array(queries), array(half), 5, metric)
