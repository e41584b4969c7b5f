"""Search over one byte per element against float64 NumPy: interpreted everywhere, compiled where there is a GPU.

python -m pytest tests/kernels/test_search_bytes.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.reference_search import check, scores_of  # noqa: E402
from tests.kernels.test_search_exact import CUDA, DEVICE, PHASES, array, made  # noqa: E402
from tests.kernels.test_search_exact import small as small_blocks  # noqa: E402, F401

from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import exact as search_exact

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf through NumPy, behind the interpreter

quick = settings(deadline=None, max_examples=6, phases=PHASES, suppress_health_check=list(HealthCheck))


def decoded(codes: torch.Tensor, step: torch.Tensor, middle: torch.Tensor, depth: int) -> np.ndarray:
    return array(middle) + array(step) * array(codes[:, :depth])


def coded(count: int, depth: int, seed: int, copies: bool = False):
    rows = made(count, depth, torch.float32, seed, copies) + 0.3
    grid = search_bytes.grid_of(rows)
    return rows, search_bytes.encode(rows, *grid), grid


@quick
@given(st.sampled_from([1, 2, 65, 300]), st.sampled_from([3, 16, 100, 384]), st.integers(0, 99))
def test_codes_are_half_a_step_off_at_most_and_padded_with_zeros(count, depth, seed):
    rows, codes, grid = coded(count, depth, seed)
    assert codes.shape[1] % 16 == 0
    assert (codes[:, depth:] == 0).all()
    assert (np.abs(decoded(codes, *grid, depth) - array(rows)) <= 0.501 * array(grid[0]) + 1e-6).all()


@quick
@given(st.sampled_from([1, 63, 65, 300]), st.sampled_from([3, 16, 100, 384]), st.sampled_from([2, 3]),
       st.sampled_from(["ip", "l2"]), st.integers(0, 99))  # fmt: skip
def test_the_scan_of_codes_is_as_near_as_its_terms_say(count, depth, terms, metric, seed):
    _, codes, grid = coded(count, depth, seed)
    queries = made(2, depth, torch.float32, seed + 1) * 10.0 ** (seed % 7 - 3)
    queries[1] *= 0 if seed % 2 else 1
    x = decoded(codes, *grid, depth)
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    scores, maxima = search_bytes.scan(search_bytes.words_of(queries, *grid, metric, terms), codes, bias=bias)
    q = array(queries)
    want = scores_of(q, x, "ip") * (2 if metric == "l2" else 1) - (0 if bias is None else (x * x).sum(1))
    step = np.abs(q * array(grid[0])).max(1) / (127 * 256.0 ** (terms - 1))
    size = np.abs(q * array(grid[0])).sum(1) * 128 + np.abs(q * array(grid[1])).sum(1) + (x * x).sum(1).max()
    room = 2 * (step * 128 * depth + 3e-7 * size)
    assert (np.abs(array(scores) - want).max(1) <= room + 1e-30).all()
    tile = search_bytes.TILE
    for n in range(maxima.shape[1]):
        assert (maxima[:, n] == scores[:, n * tile : (n + 1) * tile].amax(1)).all()


@quick
@given(st.sampled_from([0, 1, 65, 300]), st.sampled_from([1, 2, 6] if CUDA else [1, 2]),
       st.sampled_from([8, 20, 100]), st.sampled_from([1, 10]), st.sampled_from(["ip", "l2"]), st.booleans(),
       st.booleans(),
       st.integers(0, 99))  # fmt: skip
def test_search_over_codes_is_exact_over_what_they_stand_for(count, many, depth, k, metric, copies, batch, seed):
    _, codes, grid = coded(max(1, count), depth, seed, copies)
    codes = codes[:count]
    queries = made(many, depth, torch.float32, seed + 1)
    x = decoded(codes, *grid, depth)
    allowed = np.random.default_rng(seed).random(count) < 0.7
    rest = {"metric": metric, "allowed": torch.from_numpy(allowed).to(DEVICE), "grid": grid}
    if metric == "l2":
        rest["bias"] = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32)
    if batch:
        far = codes.float().norm(dim=1).amax().reshape(1) if count else torch.zeros(1)
        got = search_exact.many(queries, codes, k, far, **rest)
    else:
        got = search_exact.one(queries, codes, k, **rest)
    check(got, array(queries), x, k, metric, allowed)


@pytest.mark.parametrize("many", [1, 2])
@pytest.mark.parametrize("metric", ["ip", "l2"])
def test_candidates_are_refined_from_the_rows_themselves(many, metric):
    rows, codes, grid = coded(120, 40, 1)
    half = rows.half()
    queries = made(many, 40, torch.float32, 2)
    x = decoded(codes, *grid, 40)
    bias = torch.from_numpy(-(x * x).sum(1)).to(DEVICE, torch.float32) if metric == "l2" else None
    rest = {"metric": metric, "bias": bias, "grid": grid, "refine": half, "candidates": 32}
    if many == 1:
        got = search_exact.one(queries, codes, 5, **rest)
    else:
        got = search_exact.many(queries, codes, 5, torch.ones(1, device=DEVICE), **rest)
    check(got, array(queries), array(half), 5, metric)
