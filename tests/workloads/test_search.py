"""The search workload: every contender is correct, a wrong neighbour fails, the data is reproducible.

python -m pytest tests/workloads/test_search.py
"""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.lab import Case, Profile
from ridgeline.lab.race import load_workload
from ridgeline.machine import Placement
from ridgeline.workloads import _search_gpu_peers as gpu
from ridgeline.workloads import _search_peers as peers
from ridgeline.workloads import get_reference
from ridgeline.workloads._search_data import (
    QUERY_TEMPLATES,
    ROW_TEMPLATES,
    draw_queries,
    draw_vectors,
    find_truth,
    generate_sentences,
)
from ridgeline.workloads.search import BASE

workload = load_workload(get_reference("search"))
SMALL = {"rows": 3_000, "dim": 32, "queries": 5}


def make_case(**change) -> Case:
    return Case({**BASE, **SMALL, **change}, "cpu")


def ran(case: Case, contender: str):
    run = workload.prepare(case, contender, Placement())
    for _ in range(2):
        run.reset()
        run.step()
    return run, run.result()


@pytest.mark.parametrize("recall", [1.0, 0.9])
@pytest.mark.parametrize(
    "contender",
    ["ridgeline", *(pytest.param(p, marks=pytest.mark.slow) if p == peers.FAST_SCAN else p for p in peers.NEEDS)],
)
def test_every_contender_is_correct_and_reports_its_settings(contender: str, recall: float):
    case = make_case(recall=recall)
    if contender not in ("ridgeline", *peers.list_peers("cpu", recall, case["rows"])):
        pytest.skip("takes no part here")
    if contender != "ridgeline" and not peers.is_available(contender):
        pytest.skip(f"{contender} is not installed")
    run, result = ran(case, contender)
    check = workload.check(case, result)
    assert check.ok, check
    assert check.quality["recall"] >= recall - 0.03
    assert run.settings
    assert run.extras()["build_seconds"] > 0
    run.close()


def test_on_a_gpu_every_recall_has_tuned_peers():
    assert peers.list_peers("cuda", 1.0, 10_000) == [peers.TORCH, *gpu.EXACT]
    assert peers.list_peers("cuda", 0.95, 10_000) == list(gpu.APPROXIMATE)
    # faiss-cpu has the module `faiss`, too, but nothing for a GPU.
    faiss = pytest.importorskip("faiss")
    assert peers.is_available(gpu.FAISS_GPU) == hasattr(faiss, "StandardGpuResources")


def test_torch_by_groups_finds_the_exact_neighbours():
    vectors, queries = draw_vectors("clustered", 3_001, 32), draw_queries("clustered", 9, 3_001, 32, 0)
    find, settings = gpu.build_torch_groups(vectors, "cpu")
    scores, rows = find(queries, 10)
    expected, best = find_truth(queries, vectors, 10)
    assert np.array_equal(rows.numpy(), expected)
    assert np.allclose(scores.numpy(), best, atol=1e-6)
    assert settings["group"] == 64
    assert find(queries, 3_001)[1].sort(1).values.tolist() == [list(range(3_001))] * 9


@pytest.mark.parametrize("bend", ["rows", "scores", "missing", "few"])
def test_a_wrong_result_fails_the_check(bend: str):
    case = make_case()
    result = dict(ran(case, "ridgeline")[1])
    rows, scores = result["rows"].copy(), result["scores"].copy()
    if bend == "rows":
        rows[2, 4] = (rows[2, 4] + 1) % 3_000
    elif bend == "scores":
        scores[2, 4] += 1e-3
    elif bend == "missing":
        rows[0, 9] = -1
    else:
        rows, scores = rows[:, :5], scores[:, :5]
    assert not workload.check(case, {**result, "rows": rows, "scores": scores}).ok


def test_too_little_recall_fails_the_check():
    case = make_case(recall=0.95)
    result = dict(ran(case, "ridgeline")[1])
    rows = result["sampled rows"].copy()
    rows[:, 5:] = -1
    check = workload.check(case, {**result, "sampled rows": rows})
    assert not check.ok
    assert check.quality["recall"] <= 0.5


def test_data_is_reproducible_and_queries_are_separate():
    one = draw_vectors("clustered", 700, 16)
    assert np.allclose(np.linalg.norm(one, axis=1), 1, atol=1e-6)
    # The recipe of the data: a change makes all records incomparable, so it must be intended.
    assert float(one[123, 7]) == pytest.approx(RECIPE, abs=1e-6)
    first, second, tuning = (draw_queries("clustered", 4, 700, 16, turn) for turn in (0, 1, -1))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, tuning)
    assert np.array_equal(first, draw_queries("clustered", 4, 700, 16, 0))


RECIPE = 0.14426028728485107


def test_queries_use_other_templates_than_rows():
    stored, requested = list(generate_sentences(50, False)), list(generate_sentences(50, True))
    assert len(set(stored)) == 50
    assert not set(ROW_TEMPLATES) & set(QUERY_TEMPLATES)
    assert stored == list(generate_sentences(50, False))
    assert not set(stored) & set(requested)


def test_the_truth_matches_a_plain_sort():
    queries, vectors = draw_queries("clustered", 6, 500, 8, 0), draw_vectors("clustered", 500, 8)
    scores = queries.astype(float) @ vectors.astype(float).T
    rows, best = find_truth(queries, vectors, 7)
    assert np.array_equal(rows, np.argsort(-scores, 1, kind="stable")[:, :7])
    assert np.array_equal(best, np.take_along_axis(scores, rows, 1))


def test_work_counts_each_vector_once():
    work = workload.work(make_case(queries=3))
    assert work.flops == 2 * 3_000 * 32 * 3
    assert work.bytes["memory"] == 4 * 32 * (3_000 + 3)
    assert workload.work(make_case(recall=0.9)).flops == 0


def test_the_sweep_covers_what_it_must():
    cases = list(workload.cases(Profile.FULL))
    assert len({c.label for c in cases}) == len(cases)
    for device, rows in (("cpu", 1_000_000), ("cuda", 10_000_000)):
        mine = [c for c in cases if c.device == device]
        assert min(c["rows"] for c in mine) == 1_000
        assert max(c["rows"] for c in mine) == rows
        assert {c["k"] for c in mine} >= {1, 10, 100}
        assert {1, 4096} <= {c["queries"] for c in mine}
        assert len({c["recall"] for c in mine}) >= 5
        assert {c["data"] for c in mine} == {"clustered", "texts"}
