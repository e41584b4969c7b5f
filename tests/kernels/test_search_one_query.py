"""One query in three launches against float64 NumPy: interpreted everywhere, compiled on a GPU.

python -m pytest tests/kernels/test_search_one_query.py
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.draws import choose_draws  # noqa: E402
from tests.kernels.reference_search import check  # noqa: E402
from tests.kernels.test_search_exact import CUDA, DEVICE, PHASES, TYPES, array, make_rows, norms  # noqa: E402
from tests.kernels.test_search_inverted import build_lists, find_lists  # noqa: E402
from tests.kernels.test_search_scalar_codes import decode_codes  # noqa: E402

from ridgeline.kernels.search import inverted_lists as search_inverted_lists  # noqa: E402
from ridgeline.kernels.search import one_query as search_one_query  # noqa: E402
from ridgeline.kernels.search import queries as search_queries  # noqa: E402
from ridgeline.kernels.search import rescore as search_rescore  # noqa: E402
from ridgeline.kernels.search import scalar_codes as search_scalar_codes  # noqa: E402
from ridgeline.kernels.search import scan as search_scan  # noqa: E402
from ridgeline.kernels.search import top_k as search_top_k  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # -inf in NumPy, inside the interpreter
quick = settings(
    deadline=None,
    max_examples=60 if CUDA else choose_draws(5, 15),
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps so small that a few rows take both branches and several rounds."""
    monkeypatch.setattr(search_rescore, "TILE_STEP", 64)
    monkeypatch.setattr(search_top_k, "MIN_TILES_FOR_GROUPS", 100)
    monkeypatch.setattr(search_scan, "SCAN_TILE", 16)
    monkeypatch.setattr(search_scalar_codes, "CODE_TILE", 16)
    monkeypatch.setattr(search_inverted_lists, "LIST_TILE", 16)


def empty(k: int):
    """Result tensors with invalid values, to detect what is not written."""
    return (
        torch.full((1, k), 7e7, dtype=torch.float32, device=DEVICE),
        torch.full((1, k), -77, dtype=torch.int64, device=DEVICE),
    )


def draw_mask(count: int, seed: int, share: float = 0.6):
    return torch.from_numpy(np.random.default_rng(seed).random(count) < share).to(DEVICE)


@quick
@given(st.sampled_from([1, 2, 15, 17, 64, 200, 3000]), st.sampled_from([5, 20, 100]), st.sampled_from(TYPES),
       st.sampled_from([1, 2, 10, 13, 40, 60]), st.sampled_from(["ip", "l2"]), st.booleans(), st.booleans(),
       st.integers(0, 99))  # fmt: skip
def test_the_best_rows_are_found(count, depth, dtype, k, metric, copies, filtered, seed):
    rows, queries = make_rows(count, depth, dtype, seed, copies), make_rows(1, depth, torch.float32, seed + 1)
    allowed = draw_mask(count, seed) if filtered else None
    out = empty(k)
    search_one_query.search_rows_one_query(queries, False, rows, out, metric=metric, allowed=allowed)
    check(out, array(queries), array(rows), k, metric, None if allowed is None else allowed.cpu().numpy())


@pytest.mark.slow
@pytest.mark.parametrize("count", [100, 700, 3000])
@pytest.mark.parametrize("k", [1, 10, 60])
def test_of_many_equal_rows_the_first_are_returned(count, k):
    """More tiles and rows reach the threshold than the buffers hold."""
    rows = torch.ones(count, 16, device=DEVICE, dtype=torch.float16)
    out = empty(k)
    search_one_query.search_rows_one_query(torch.ones(1, 16, device=DEVICE), False, rows, out)
    assert out[1].tolist() == [list(range(k))]
    assert (out[0] == 16).all()
    rows[count // 2] = 2  # one better row
    search_one_query.search_rows_one_query(torch.ones(1, 16, device=DEVICE), False, rows, out)
    assert out[1].tolist() == [[count // 2, *[n for n in range(k) if n != count // 2][: k - 1]]]


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_sorted_rows_are_found(back):
    rows = torch.zeros(3000, 8, device=DEVICE)
    rows[:, 0] = torch.linspace(1, 0, 3000)
    rows = rows.flip(0).contiguous() if back else rows
    queries = torch.zeros(1, 8, device=DEVICE)
    queries[0, 0] = 1
    out = empty(10)
    search_one_query.search_rows_one_query(queries, False, rows, out)
    assert out[1].tolist() == [list(range(2999, 2989, -1)) if back else list(range(10))]


def test_the_best_rows_of_one_bucket_are_found():
    """Only every 32nd tile is allowed: all candidates are in one bucket, and most buckets are empty."""
    rows, queries = make_rows(16 * 32 * 5, 8, torch.float32, 3), make_rows(1, 8, torch.float32, 4)
    allowed = ((torch.arange(len(rows)) // 16) % 32 == 5).to(DEVICE)
    out = empty(10)
    search_one_query.search_rows_one_query(queries, False, rows, out, allowed=allowed)
    check(out, array(queries), array(rows), 10, "ip", allowed.cpu().numpy())


def test_ids_replace_row_numbers_and_ties_go_to_the_lower_id():
    rows, out = torch.ones(12, 8, device=DEVICE), empty(5)
    names = torch.arange(100, 88, -1, device=DEVICE)
    search_one_query.search_rows_one_query(torch.ones(1, 8, device=DEVICE), False, rows, out, ids=names)
    assert out[1].tolist() == [[89, 90, 91, 92, 93]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), pytest.param(float("-inf"), marks=pytest.mark.slow)])
@pytest.mark.parametrize("listed", [False, True])
def test_a_query_that_is_not_finite_has_no_results_and_the_next_one_has(wrong, listed):
    rows, out = make_rows(300, 8, torch.float32, 1), empty(4)
    centres, starts, longest, place = build_lists(rows, 5, "ip", 0)
    rows = rows[place]
    for finite in (False, True):
        query = torch.ones(1, 8, device=DEVICE)
        query[0, 3] = 1.0 if finite else wrong
        if listed:
            search_one_query.search_lists_one_query(query, True, centres, starts, longest, rows, 5, out)
        else:
            search_one_query.search_rows_one_query(query, True, rows, out)
        assert (out[1] >= 0).all() if finite else (out[1] == -1).all()
        assert out[0].isfinite().all() if finite else out[0].isnan().all()


@quick
@given(st.sampled_from([1, 65, 700]), st.sampled_from([6, 40]), st.sampled_from([1, 10]), st.sampled_from(["ip", "l2"]),
       st.booleans(), st.booleans(), st.integers(0, 99))  # fmt: skip
def test_codes_are_scanned_and_refined(count, depth, k, metric, refined, filtered, seed):
    rows, queries = make_rows(count, depth, torch.float32, seed), make_rows(1, depth, torch.float32, seed + 1)
    grid = search_scalar_codes.fit_grid(rows)
    codes = search_scalar_codes.encode_scalar(rows, *grid)
    decoded_rows = decode_codes(codes, *grid, depth)
    bias = norms(torch.from_numpy(decoded_rows)).to(DEVICE) if metric == "l2" else None
    allowed = draw_mask(count, seed) if filtered else None
    out = empty(k)
    options = {"refine": rows, "candidates": 64} if refined else {}
    search_one_query.search_rows_one_query(
        queries, False, codes, out, metric=metric, bias=bias, allowed=allowed, grid=grid, **options
    )
    stored = array(rows) if refined and count <= 65 else decoded_rows
    if refined and count > 65:  # the choice of refined rows is not exact: most are the best ones
        want = np.argsort(-(array(queries) @ array(rows).T) if metric == "ip" else
                          ((array(queries)[:, None] - array(rows)[None]) ** 2).sum(2))  # fmt: skip
        open_to = [n for n in want[0] if allowed is None or allowed[n]][:k]
        assert len(set(out[1][0].tolist()) & set(open_to)) >= 0.9 * k
    else:
        check(out, array(queries), stored, k, metric, None if allowed is None else allowed.cpu().numpy())


@quick
@given(st.sampled_from([1, 5, 37, 200]), st.data(), st.sampled_from(["ip", "l2"]), st.booleans())
def test_the_nearest_lists_are_found_and_the_counter_is_reset(lists, data, metric, copies):
    probes = data.draw(st.integers(1, min(lists, 64)))
    centres = make_rows(lists, 20, torch.float32, 2, copies)
    for seed in (1, 2):
        queries = make_rows(1, 20, torch.float32, seed)
        (prepared, norm), scan_query, got = search_queries.prepare_and_probe(
            queries, False, centres, probes, metric=metric
        )
        score = array(queries) @ array(centres).T
        if metric == "l2":
            score = -((array(queries)[:, None] - array(centres)[None]) ** 2).sum(2)
        nearest_lists = got.cpu().numpy()[0]
        assert len(set(nearest_lists)) == probes
        np.testing.assert_allclose(score[0][nearest_lists], -np.sort(-score[0])[:probes], rtol=1e-5, atol=1e-5)
        if not copies:
            assert (got.cpu().numpy() == find_lists(queries, centres, probes, metric)).all()
        assert scan_query is prepared
        assert torch.equal(prepared, queries)
        np.testing.assert_allclose(norm.cpu().numpy(), np.linalg.norm(array(queries), axis=1))


@pytest.mark.parametrize(
    ("unit", "metric"),
    [
        (True, "ip"),
        (False, "l2"),
        pytest.param(True, "l2", marks=pytest.mark.slow),
        pytest.param(False, "ip", marks=pytest.mark.slow),
    ],
)
def test_one_launch_prepares_a_query_like_two(unit, metric):
    queries, sample = make_rows(1, 39, torch.float32, 1).half(), make_rows(50, 39, torch.float32, 2)
    grid = search_scalar_codes.fit_grid(sample)
    (prepared, norm), words = search_queries.prepare_one_query(queries, unit, grid, metric=metric)
    expected, length, _ = search_queries.prepare_queries(queries, unit)
    assert torch.equal(prepared, expected)
    torch.testing.assert_close(norm, length, rtol=1e-15, atol=0)
    for got, want in zip(words, search_scalar_codes.pack_queries(expected, *grid, metric), strict=True):
        assert torch.equal(got, want)


@quick
@given(st.sampled_from([1, 40, 700]), st.sampled_from([20, 64]), st.sampled_from([1, 5, 30]), st.integers(1, 30),
       st.sampled_from([1, 10, 40]), st.sampled_from(["ip", "l2"]), st.sampled_from(["plain", "codes", "refined"]),
       st.booleans(), st.integers(0, 99))  # fmt: skip
def test_the_best_rows_of_the_nearest_lists_are_found(count, depth, lists, probes, k, metric, kind, filtered, seed):
    lists = min(lists, count)
    probes = min(lists, probes)
    rows, queries = make_rows(count, depth, torch.float32, seed), make_rows(1, depth, torch.float32, seed + 1)
    centres, starts, longest, place = build_lists(rows, lists, metric, seed)
    allowed = draw_mask(count, seed) if filtered else None
    options = {"ids": place, "allowed": None if allowed is None else allowed[place]}
    scanned, stored = rows[place], array(rows)
    if kind != "plain":
        grid = search_scalar_codes.fit_grid(rows)
        scanned = search_scalar_codes.encode_scalar(rows[place], *grid)
        options["grid"] = grid
        decoded_rows = decode_codes(scanned, *grid, depth)
        options["bias"] = norms(torch.from_numpy(decoded_rows)).to(DEVICE) if metric == "l2" else None
        back = np.empty_like(decoded_rows)
        back[place.cpu().numpy()] = decoded_rows
        stored = back
        if kind == "refined":
            options |= {"refine": rows, "places": place, "candidates": 64}
            stored = array(rows)
    out = empty(k)
    search_one_query.search_lists_one_query(
        queries, False, centres, starts, longest, scanned, probes, out, metric=metric, **options
    )
    probed = find_lists(queries, centres, probes, metric)[0]
    owner = np.empty(count, int)
    owner[place.cpu().numpy()] = np.repeat(np.arange(lists), starts.diff().cpu().numpy())
    inside = np.isin(owner, probed) & (True if allowed is None else allowed.cpu().numpy())
    if kind == "refined" and inside.sum() > 64:
        assert inside[out[1].cpu().numpy()].all()
        return
    check(out, array(queries), stored, k, metric, inside)


def test_groups_of_tiles_are_reset_for_the_next_scan():
    rows = make_rows(16 * 110, 8, torch.float32, 1)
    groups = search_top_k.allocate_groups(
        search_top_k.choose_group_count(110, search_rescore.ONE_QUERY_CAPACITY), rows.device
    )
    for seed in (2, 3):
        queries, out = make_rows(1, 8, torch.float32, seed), empty(10)
        prepared, norms, _ = search_queries.prepare_queries(queries, False)
        scores, maxima = search_scan.scan_rows(prepared, rows, groups=groups)
        assert sorted(groups.tolist())[-1] > search_top_k.EMPTY_GROUP.value
        search_rescore.rescore_one_query(
            prepared, norms, rows, scores, maxima, out, tile=16, candidate_count=16, groups=groups
        )
        check(out, array(queries), array(rows), 10, "ip", None)
        assert (groups == search_top_k.EMPTY_GROUP.value).all()
