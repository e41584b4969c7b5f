"""Compiling, pools and recommendations of studies whose truth is known.

python -m pytest tests/lab/study/test_advice.py
"""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.study.sample_rows import row, two_nodes

from ridgeline.lab.study import Columns, study
from ridgeline.lab.study.advice import advise
from ridgeline.lab.study.compilation import compare_compiled, fit_size_trend
from ridgeline.lab.study.table import tabulate


def section(rows, title):
    return next(s for s in study(rows).sections if s.title == title)


def make_compiled_rows(rng, sizes, speedup, *, cost=10.0, noise=0.01):
    """Return each size with and without compiling; the time without is 1 ms for every GFLOP."""
    rows = []
    for size, node in itertools.product(sizes, (0, 1)):
        for mode, seconds in (("", 1e-3 * size), ("default", 1e-3 * size / speedup(size))):
            changes = {"flops": size * 1e9, "depth": size, "model": f"d{size}", "numa_node": node, "compile_mode": mode}
            rows.append(row(rng, seconds, noise=noise, compile_seconds=cost if mode else None, **changes))
    return rows


def test_speed_up_and_break_even_are_the_true_ones():
    results = compare_compiled(
        tabulate(make_compiled_rows(random.Random(1), (1, 2, 4, 8), lambda _: 1.25, noise=0.0), Columns())
    )
    assert len(results) == 8
    for g in results:
        assert g.speedup.value == pytest.approx(1.25, rel=0.02)
        assert g.speedup.low <= 1.25 <= g.speedup.high
        saved = 1e-3 * g.what["depth"] * (1 - 1 / 1.25)
        assert g.break_even == pytest.approx(10.0 / saved, rel=0.1)


def test_compiling_never_pays_where_it_is_slower():
    rows = make_compiled_rows(random.Random(2), (1, 2, 4), lambda _: 0.9)
    assert all(g.break_even is None for g in compare_compiled(tabulate(rows, Columns())))
    compiling = section(rows, "Compiling")
    assert "it never pays" in " ".join(compiling.sentences)
    assert "never" in {r[-1] for r in compiling.grids[0].rows}


def test_a_larger_gain_of_small_models_is_detected():
    rows = make_compiled_rows(random.Random(3), (1, 2, 4, 8, 16, 32), lambda size: 1 + 1 / size, noise=0.005)
    trend = fit_size_trend(compare_compiled(tabulate(rows, Columns())))
    assert trend.slope < 0
    assert trend.p < 0.001
    assert "Speed-up by compiling" in section(rows, "Compiling").markup
    flat = make_compiled_rows(random.Random(4), (1, 2, 4, 8, 16, 32), lambda _: 1.3, noise=0.01)
    assert abs(fit_size_trend(compare_compiled(tabulate(flat, Columns()))).slope) < 0.02


def test_the_section_says_that_nothing_was_compiled_or_compared():
    assert "Nothing was compiled" in section([row(random.Random(5))], "Compiling").sentences[0]
    rows = [row(random.Random(5), compile_mode="default", depth=1), row(random.Random(5), depth=2)]
    assert "nothing to compare" in section(rows, "Compiling").sentences[0]


def test_pools_are_compared_and_peak_memory_is_split_into_fixed_and_per_item():
    rng = random.Random(6)
    rows = [
        row(rng, 1e-4 * batch * slow, noise=0.005, batch_size=batch, memory_size_mb=pool, peak_memory=5e8 + 3e6 * batch)
        for batch in (8, 16, 32, 64, 128, 256, 512)
        for pool, slow in ((256, 1.2), (512, 1.0))
    ]
    findings = study(rows).findings["Pool and memory"]
    (one,) = findings["pool"]
    assert (one["base"], one["other"], one["ratio"]["n"]) == (256, 512, 7)
    assert one["ratio"]["value"] == pytest.approx(1 / 1.2, rel=0.02)
    assert [
        pytest.approx(3e6) == per_item and pytest.approx(5e8) == rest for _, per_item, rest in findings["peak"]
    ] == [True] * 2
    assert "was not varied" in section(rows[::2], "Pool and memory").sentences[0]


def test_the_penalty_of_a_far_node_is_given_for_each_pool():
    rng = random.Random(7)
    small, large = (two_nodes(rng, {"a": factor}, noise=0.0) for factor in (1.5, 1.1))
    rows = [r | {"memory_size_mb": 128} for r in small] + [r | {"memory_size_mb": 2048} for r in large]
    penalties = {c["within"]: c["ratio"]["value"] for c in study(rows).findings["Pool and memory"]["pressure"]}
    assert penalties == {"pool 128 MB": pytest.approx(1.5, rel=0.02), "pool 2048 MB": pytest.approx(1.1, rel=0.02)}


def make_choice_rows(rng, noise=0.0):
    """Return rows whose rate is best with float16, compiled, batch 64 and near; other levels cost known factors."""
    rows = []
    for dtype, mode, batch, node in itertools.product(("float16", "float32"), ("", "default"), (1, 8, 64), (0, 1)):
        seconds = (
            (50e-6 + 10e-6 * batch) * (3 if dtype == "float32" else 1) * (1 if mode else 1.4) * (1.25 if node else 1)
        )
        run = row(rng, seconds, noise=noise, within=0.0, dtype=dtype, compile_mode=mode, batch_size=batch,
                  numa_node=node, distance=10 + 11 * node)  # fmt: skip
        rows.append(run | {"h2d_seconds": seconds / 4, "compute_seconds": seconds, "d2h_seconds": seconds / 4})
    return rows


def test_the_best_way_and_the_cost_of_each_wrong_choice_are_the_true_ones():
    advice = {a.goal: a for a in advise(tabulate(make_choice_rows(random.Random(8)), Columns()))}
    fast, quick = advice["throughput"], advice["latency"]
    shared = {"numa_node": 0, "dtype": "float16", "compile_mode": "default"}
    assert fast.settings.items() >= {**shared, "batch_size": 64}.items()
    assert quick.settings.items() >= {**shared, "batch_size": 1}.items()
    costs = {w.choice: (w.level, w.cost) for w in fast.wrong}
    per_item = [(50 + 10 * b) / b for b in (1, 64)]
    assert costs == {
        "dtype": ("float32", pytest.approx(3)),
        "compile_mode": ("none", pytest.approx(1.4)),
        "placement": ("GPU 0 from node 1", pytest.approx(1.25)),
        "batch_size": ("1", pytest.approx(per_item[0] / per_item[1])),
    }
    assert fast.worst == pytest.approx(3 * 1.4 * 1.25 * per_item[0] / per_item[1])
    assert quick.latency == pytest.approx(1.5 * 60e-6)
    assert "batch_size" not in {w.choice for w in quick.wrong}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_measured_point_is_faster_than_the_recommended_one_by_more_than_a_tie(data):
    times = data.draw(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=12))
    rows = [{"model": "m", "batch_size": 1, "ring": i, "batch_seconds": t} for i, t in enumerate(times)]
    fast, _ = advise(tabulate(rows, Columns()))
    assert fast.rate >= 1 / min(times) / 1.05 * (1 - 1e-9)


def test_sizes_with_one_name_are_separate_models():
    """A sweep over depth=2,4 does not change the name: the deeper model is not a wrong choice of the other."""
    rows = [row(random.Random(1), 1e-3 * d * slow, within=0.0, depth=d, dtype=t)
            for d in (2, 4) for t, slow in (("float16", 1.0), ("float32", 2.0))]  # fmt: skip
    advice = {(a.model, a.goal): a for a in advise(tabulate(rows, Columns()))}
    assert {model for model, _ in advice} == {"depth 2", "depth 4"}
    assert advice["depth 2", "throughput"].worst == pytest.approx(2)


def test_of_equal_options_the_near_and_uncompiled_one_is_recommended():
    rng = random.Random(9)
    rows = [
        row(rng, 1e-3 * t, within=0.0, compile_mode=mode, numa_node=node, distance=10 + 11 * node)
        for t, mode, node in ((1.0, "default", 1), (1.02, "default", 0), (1.03, "", 0), (1.01, "", 1))
    ]
    fast, _ = advise(tabulate(rows, Columns()))
    assert (fast.settings["numa_node"], fast.settings.get("compile_mode")) == (0, None)


def test_the_recommendation_leads_the_page_and_warns_of_small_types():
    result = study(make_choice_rows(random.Random(10), noise=0.005))
    assert result.sections[0].title == "Recommendation"
    assert "check the answers" in result.markdown
    assert result.recommendation["throughput"][0]["settings"]["batch_size"] == 64
    assert "What a wrong choice costs" in result.page("t")


def test_one_option_gives_no_choice_and_no_runs_give_no_recommendation():
    assert "nothing to choose" in study([row(random.Random(11))]).sections[0].sentences[0]
    two = study([row(random.Random(11), model="b", ring=r) for r in (1, 2)] + [row(random.Random(11))])
    assert any("only one way was run" in s for s in two.sections[0].sentences)
    assert "nothing to recommend" in study([]).sections[0].sentences[0]
    assert study([]).recommendation == {"throughput": [], "latency": [], "pairings": [], "next": []}


def test_next_points_lie_where_the_study_is_least_sure():
    rng = random.Random(12)
    sizes = (1, 2, 4, 8, 16)
    rows = [
        row(rng, 1e-5 + 1e-4 * d, noise=0.15, depth=d, model=f"d{d}", flops=d * 1e9, h2d_bytes=1e6 * d)
        | {"h2d_seconds": 5e-4 * rng.lognormvariate(0, 0.2), "compute_seconds": 1e-4 * d * rng.lognormvariate(0, 0.2)}
        for d in sizes
    ]
    next_points = study(rows).recommendation["next"]
    assert next_points
    assert all(p["at"] not in sizes for p in next_points if p["column"] == "depth")
    assert any("law's 95 % interval" in p["why"] for p in next_points)
    assert any("crossover" in p["why"] for p in next_points)
    repeats = study(two_nodes(rng, {"a": 1.5}, batches=(8,))).recommendation["next"]
    assert any("3 times over" in p["what"] and "2 pairs" in p["why"] for p in repeats)
