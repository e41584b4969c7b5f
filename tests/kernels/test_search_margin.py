"""One query by half of each code: interpreted everywhere, compiled where there is a GPU.

python -m pytest tests/kernels/test_search_margin.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.reference_search import check, scores_of  # noqa: E402
from tests.kernels.test_search_bytes import coded, decoded  # noqa: E402
from tests.kernels.test_search_exact import CUDA, DEVICE, PHASES, array, made, norms  # noqa: E402
from tests.kernels.test_search_short import empty, some  # noqa: E402

from ridgeline.kernels.search import begin as search_begin
from ridgeline.kernels.search import bytes as search_bytes
from ridgeline.kernels.search import finish as search_finish
from ridgeline.kernels.search import groups as search_groups
from ridgeline.kernels.search import margin as search_margin
from ridgeline.kernels.search import short as search_short
from ridgeline.kernels.search import sketch as search_sketch

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf through NumPy, behind the interpreter
quick = settings(deadline=None, max_examples=60 if CUDA else 8, phases=PHASES, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows have many tiles, several programs and several rounds of each loop."""
    monkeypatch.setattr(search_finish, "FEWEST_LINES", 32)
    monkeypatch.setattr(search_groups, "FEWEST_TILES", 30)
    monkeypatch.setattr(search_bytes, "TILE", 16)
    monkeypatch.setattr(search_sketch, "TILE", 16)
    monkeypatch.setattr(search_margin, "PROGRAMS", 3)
    monkeypatch.setattr(search_margin, "EACH", 16)
    monkeypatch.setattr(search_margin, "TILES", 16)
    monkeypatch.setattr(search_margin, "SLOTS", 4)
    monkeypatch.setattr(search_margin, "LONGEST", 64)


def unpacked(sketch: torch.Tensor, count: int) -> np.ndarray:
    """Halves [N, …] in the order of the rows."""
    both = in_order(sketch.cpu().numpy().view(np.uint8), count)
    return np.concatenate([both & 15, both >> 4], 1)


def in_order(of_places: np.ndarray, count: int) -> np.ndarray:
    """[tiles, TILE, …] → [N, …]."""
    return of_places.swapaxes(0, 1).reshape(-1, *of_places.shape[2:])[:count]


@pytest.mark.parametrize("depth", [3, 16, 40, 100, 384])
def test_a_sketch_is_the_upper_half_of_each_code(depth, monkeypatch):
    monkeypatch.setattr(search_sketch, "AT_ONCE", 2)
    _, codes, _ = coded(50, depth, 1)
    sketch = search_sketch.sketch_of(codes)
    assert sketch.shape[1:] == (16, search_sketch.words_for(codes.shape[1]))
    assert sketch.shape[2] % 4 == 0
    assert (unpacked(sketch, 50)[:, :depth] == (codes.cpu().numpy()[:, :depth].astype(int) + 128) // 16).all()


@quick
@given(st.sampled_from([1, 63, 65, 300]), st.sampled_from([3, 16, 40, 100, 384]), st.sampled_from(["ip", "l2"]),
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_the_scan_of_halves_is_what_they_say(count, depth, metric, filtered, seed):
    _, codes, grid = coded(count, depth, seed)
    queries = made(1, depth, torch.float32, seed + 1) * 10.0 ** (seed % 7 - 3)
    allowed = some(count, seed) if filtered else None
    x = decoded(codes, *grid, depth)
    bias = norms(torch.from_numpy(x)).to(DEVICE) if metric == "l2" else None
    sketch = search_sketch.sketch_of(codes)
    digits = search_sketch.digits_for(sketch)
    search_begin.prepare(queries, False, grid, metric=metric, digits=digits)
    tiles = len(sketch)
    scores, maxima = torch.empty((1, tiles * 16), device=DEVICE), torch.empty((1, tiles), device=DEVICE)
    search_sketch.scan(digits, sketch, count, (scores, maxima), bias=bias, allowed=allowed)
    factor = 2 if metric == "l2" else 1
    middle = array(grid[1]) + array(grid[0]) * (16.0 * unpacked(sketch, count)[:, :depth] - 120.5)
    want = factor * scores_of(array(queries), middle, "ip")[0] - (0 if bias is None else (x * x).sum(1))
    q = factor * array(queries)[0] * array(grid[0])
    unit = (np.abs(q).max() or 1.0) / 127
    size = 256 * np.abs(q).sum() + np.abs(factor * array(queries)[0] * array(grid[1])).sum() + (x * x).sum(1).max()
    got = in_order(scores[0].cpu().numpy().reshape(tiles, 16), count)
    there = np.ones(count, bool) if allowed is None else allowed.cpu().numpy()
    assert (np.abs(got - want)[there] <= 0.51 * unit * 128 * depth + 1e-6 * size).all()
    assert (got[~there] == -np.inf).all()
    assert torch.equal(maxima[0], scores.view(tiles, 16).amax(1))
    spread = np.sqrt(21.25 * (q * q).sum() + depth * 5419 / 12 * unit**2)
    np.testing.assert_allclose(float(digits[1][2]), search_sketch.MARGIN * spread, rtol=1e-5)


def searched(queries, rows, k, *, metric="ip", allowed=None, ids=None, unit=False, times=1):
    grid = search_bytes.grid_of(rows)
    codes = search_bytes.encode(rows, *grid)
    near = decoded(codes, *grid, rows.shape[1])
    bias = norms(torch.from_numpy(near)).to(DEVICE) if metric == "l2" else None
    out = empty(k)
    done = None
    for _ in range(times):
        _, done = search_short.sketched(
            queries, unit, codes, out, sketch=search_sketch.sketch_of(codes), grid=grid, refine=rows, candidates=16,
            metric=metric, bias=bias, allowed=allowed, ids=ids,
        )  # fmt: skip
    return out, bool(done.item())


@quick
@given(st.sampled_from([700, 1501]), st.sampled_from([20, 100]), st.sampled_from([1, 10, 13]),
       st.sampled_from(["ip", "l2"]), st.booleans(), st.booleans(), st.integers(0, 99))  # fmt: skip
def test_the_best_rows_are_found_whichever_way_it_goes(monkeypatch, count, depth, k, metric, wide, filtered, seed):
    """With a margin that takes in every row the codes are scanned, and with a long list all rows are settled."""
    monkeypatch.setattr(search_sketch, "MARGIN", 1e6 if wide else 8.0)
    monkeypatch.setattr(search_margin, "LONGEST", 64 if wide else 2048)
    rows, queries = made(count, depth, torch.float32, seed), made(1, depth, torch.float32, seed + 1)
    allowed = some(count, seed) if filtered else None
    out, done = searched(queries, rows, k, metric=metric, allowed=allowed)
    assert done is not wide
    if wide:  # of the codes' candidates most are the best
        order = np.argsort(-scores_of(array(queries), array(rows), metric)[0])
        best = [n for n in order if allowed is None or allowed[n]][:k]
        assert len(set(out[1][0].tolist()) & set(best)) >= 0.9 * k
    else:
        check(out, array(queries), array(rows), k, metric, None if allowed is None else allowed.cpu().numpy())


def test_a_list_that_is_long_enough_is_ranked_in_blocks_and_all_is_set_back_for_the_next_query(monkeypatch):
    monkeypatch.setattr(search_margin, "LONGEST", 2048)
    rows, queries = made(900, 24, torch.float32, 3), made(1, 24, torch.float32, 4)
    grid = search_bytes.grid_of(rows)
    codes = search_bytes.encode(rows, *grid)
    sketch = search_sketch.sketch_of(codes)
    digits = search_sketch.digits_for(sketch)
    monkeypatch.setattr(search_sketch, "MARGIN", 1e6)
    (ready, norm), _ = search_begin.prepare(queries, False, grid, digits=digits)
    scores, maxima, groups = search_short.room_for(len(sketch) * 16, 16, 16, codes.device)
    for _ in range(2):
        out = empty(10)
        search_sketch.scan(digits, sketch, 900, (scores, maxima), groups=groups)
        done = search_margin.settle(ready, norm, rows, scores, maxima, groups, digits[1], out, tile=16, wanted=16)
        assert done.item() == 1
        check(out, array(queries), array(rows), 10)
        assert (groups == search_groups.LOWEST.value).all()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_a_query_that_is_not_finite_finds_nothing(wrong):
    query = torch.ones(1, 24, device=DEVICE)
    query[0, 3] = wrong
    out, _ = searched(query, made(700, 24, torch.float32, 1), 4)
    assert (out[1] == -1).all()
    assert out[0].isnan().all()


def test_fewer_rows_than_asked_for_are_padded():
    allowed = torch.zeros(700, dtype=torch.bool, device=DEVICE)
    allowed[[3, 400]] = True
    rows, queries = made(700, 24, torch.float32, 1), made(1, 24, torch.float32, 2)
    out, done = searched(queries, rows, 5, allowed=allowed)
    assert done
    assert sorted(out[1][0].tolist()) == [-1, -1, -1, 3, 400]
    check(out, array(queries), array(rows), 5, "ip", allowed.cpu().numpy())


def test_of_equal_rows_the_lower_names_come_first():
    """More than the list holds: the codes are scanned; fewer: they are ranked."""
    rows = made(700, 24, torch.float32, 1)
    rows[100:130] = rows[5] * 4
    names = torch.arange(1000, 300, -1, device=DEVICE)
    out, done = searched(rows[5:6].clone(), rows, 4, ids=names)
    assert done
    assert out[1].tolist() == [[871, 872, 873, 874]]
    out, done = searched(torch.ones(1, 24, device=DEVICE), torch.ones(700, 24, device=DEVICE), 4)
    assert not done
    assert out[1].tolist() == [[0, 1, 2, 3]]
