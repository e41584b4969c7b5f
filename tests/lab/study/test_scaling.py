"""Laws, predictions, regimes, limits and crossovers of a make_run whose truth is known.

python -m pytest tests/lab/study/test_scaling.py
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from tests.draws import choose_draws
from tests.lab.study.sample_rows import row

from ridgeline.errors import InputError
from ridgeline.lab.judge import mean_error
from ridgeline.lab.study import Columns, study, tabulate
from ridgeline.lab.study.scaling import fit_laws, interpolate_amounts, predict_unseen
from ridgeline.lab.study.table import find_all_sweeps
from ridgeline.lab.study.transfers import find_crossovers, fit_crossover
from ridgeline.machine import Ceiling, Ceilings

LIMITS = Ceilings(
    "cuda:0",
    "made",
    (
        Ceiling("matmul", 5e5, 5e5, "GFLOP/s", dtype="float16", how="torch"),
        Ceiling("read", 4e3, 4e3, "GB/s", bytes=1 << 28, threads=1),
        Ceiling("h2d", 50, 50, "GB/s", bytes=1 << 28, how="pinned"),
        Ceiling("d2h", 50, 50, "GB/s", bytes=1 << 28, how="pinned"),
    ),
)


def make_run(rng, depth, *, noise=0.02, slow=1.0, **changes):
    """Return a run: layers of 1 GFLOP per image at 250 TFLOP/s, 4 µs to launch; images of 300 kB at 50 GB/s."""
    batch = changes.get("batch_size", 32)
    flops, up, down = batch * depth * 1e9, batch * 300e3, batch * 2e3
    stages = [1e-5 + up / 50e9, 1e-5 + depth * 4e-6 + slow * flops / 250e12, 1e-5 + down / 50e9]
    h2d, run, d2h = (s * rng.lognormvariate(0, noise) for s in stages)
    result = row(rng, 1.03 * max(h2d, run, d2h), noise=noise, depth=depth, model=f"d{depth}", flops=flops,
                 h2d_bytes=up, d2h_bytes=down, parameters=depth * 1e6, **changes)  # fmt: skip
    return result | {"h2d_seconds": h2d, "compute_seconds": run, "d2h_seconds": d2h}


DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
CROSSING = (32 * 300e3 / 50e9) / (4e-6 + 32e9 / 250e12)  # both stages have the same 10 µs of latency


def make_sweep(rng, **more):
    return [make_run(rng, depth, **more) for depth in DEPTHS]


def section(rows, title, **more):
    return next(s for s in study(rows, **more).sections if s.title == title)


def test_held_out_error_is_small_and_unseen_points_are_predicted():
    rng = random.Random(1)
    findings = study([r for b in (8, 32) for r in make_sweep(rng, batch_size=b)]).findings["Scaling laws"]
    (setting,) = findings["settings"]
    assert setting["laws"][0]["held_out_error"] < 0.06
    errors = [one["held_out_error"] for one in setting["laws"]]
    assert errors == sorted(errors)
    assert {one["held_out_points"] for one in setting["laws"]} == {18}
    points = [p for p in findings["predictions"] if p["column"] == "depth"]
    assert {p["at"] for p in points} >= {5.0, 7.0, 10.0, 14.0, 20.0, 48.0}
    assert all(p["seconds"]["low"] <= p["seconds"]["value"] <= p["seconds"]["high"] for p in points)
    assert {p["at"] for p in points if p["beyond"]} == {48.0}


def test_predictions_cover_what_is_measured_later():
    covered = total = 0
    for seed in range(choose_draws(10, 25)):
        rng = random.Random(seed)
        table = tabulate(make_sweep(rng), Columns())
        for p in predict_unseen(table, fit_laws(table), find_all_sweeps(table)):
            later = make_run(rng, p.at)["batch_seconds"]
            covered += p.seconds.low <= later <= p.seconds.high
            total += 1
    assert covered / total >= 0.88


def test_a_study_predicts_any_point():
    rng = random.Random(11)
    result = study([r for d, s in (("float16", 1.0), ("float32", 8.0)) for r in make_sweep(rng, dtype=d, slow=s)])
    new = make_run(rng, 10, noise=0.0, slow=8.0)
    names = ("flops", "h2d_bytes", "d2h_bytes", "parameters", "depth", "dim", "image_size", "batch_size")
    full = result.predict({n: new[n] for n in names}, dtype="float32")
    assert full.low <= new["batch_seconds"] <= full.high
    bare = result.predict({n: new[n] for n in names[:3]}, dtype="float32")
    assert bare.value == pytest.approx(new["batch_seconds"], rel=0.3), "a simpler law needs fewer amounts"
    for amounts, setting, words in (
        ({"colour": 1.0}, {"dtype": "float32"}, "no law can predict from colour"),
        ({}, {}, "2 settings have a law"),
        ({}, {"dtype": "int8"}, "There are laws for: float16; float32"),
        ({}, {"colour": 1}, "'colour' is no part of a setting"),
    ):
        with pytest.raises(InputError, match=words):
            result.predict(amounts, **setting)


def test_amounts_that_are_polynomials_of_the_size_are_interpolated_exactly():
    def flops(dim):
        return 7e6 * dim + 3e4 * dim**2

    rows = [row(random.Random(0), dim=d, heads=d // 64, mlp_dim=4 * d, flops=flops(d), h2d_bytes=1e6, d2h_bytes=64 * d)
            for d in (64, 128, 256, 512, 1024)]  # fmt: skip
    table = tabulate(rows, Columns())
    (sweep,) = find_all_sweeps(table)
    for dim in (90, 724, 2048):
        amounts = interpolate_amounts(sweep, dim, Columns())
        assert amounts["flops"] == pytest.approx(flops(dim), rel=1e-9)
        assert (amounts["dim"], amounts["bytes"]) == (dim, pytest.approx(1e6 + 64 * dim))


def test_laws_are_compared_on_points_that_all_of_them_can_predict():
    """A power law cannot predict a control without arithmetic, and must not gain by that."""
    rng = random.Random(13)
    control = make_run(rng, 0, noise=0.0)
    (one,) = fit_laws(
        tabulate([*make_sweep(rng), control | {"batch_seconds": 2.5 * control["batch_seconds"]}], Columns())
    )
    unpredicted = {law.name: [i for i, r in enumerate(ratios) if math.isnan(r)] for law, ratios in one.laws}
    assert unpredicted["k·FLOPs^p·bytes^q"] == [9]
    assert unpredicted["the slowest stage"] == []
    shared = [mean_error(ratios[:9]) for _, ratios in one.laws]
    assert shared == sorted(shared)
    assert [mean_error(ratios) for _, ratios in one.laws] != sorted(mean_error(ratios) for _, ratios in one.laws)


def test_every_setting_has_its_own_laws():
    rng = random.Random(2)
    rows = [r for d, s in (("float16", 1.0), ("float32", 8.0)) for r in make_sweep(rng, dtype=d, slow=s)]
    settings = study(rows).findings["Scaling laws"]["settings"]
    assert [s["setting"]["dtype"] for s in settings] == ["float16", "float32"]
    assert all(s["laws"][0]["held_out_error"] < 0.06 for s in settings)


def test_the_section_says_that_points_or_flops_are_missing():
    rng = random.Random(3)
    assert "Too few points for a law" in section([make_run(rng, 4)], "Scaling laws").sentences[0]
    bare = [{k: v for k, v in r.items() if k not in ("flops", "h2d_bytes", "d2h_bytes")} for r in make_sweep(rng)]
    assert "no row has both a time and FLOPs or bytes" in section(bare, "Scaling laws").sentences[0]


def test_the_interval_covers_the_true_crossover():
    covered, trials = 0, 60
    for seed in range(trials):
        table = tabulate(make_sweep(random.Random(seed), noise=0.04), Columns())
        ((_, one),) = find_crossovers(table, find_all_sweeps(table))
        assert (one.below, one.above, one.column, one.inside) == ("transfer", "compute", "depth", True)
        covered += (one.low or 0) <= CROSSING <= (one.high or math.inf)
        assert one.at == pytest.approx(CROSSING, rel=0.25)
    assert covered / trials >= 0.9


def test_the_interval_covers_the_crossover_of_a_true_power_as_stated():
    covered, trials, rng = 0, 300, random.Random(4)
    for _ in range(trials):
        crossover = fit_crossover(
            [(x, (x / 300) ** 1.7 * rng.lognormvariate(0, 0.1)) for x in (64, 128, 256, 384, 768, 1024)]
        )
        covered += (crossover.low or 0) <= 300 <= (crossover.high or math.inf)
    assert 0.9 <= covered / trials < 1


def test_an_interval_from_resampled_residuals_would_be_too_narrow():
    """Why the interval inverts a test: with six sizes a resampled interval covers the truth far less often."""
    rng, x = np.random.default_rng(5), np.log([64, 128, 256, 384, 768, 1024])
    design, grid = np.vander(x - x.mean(), 3), np.linspace(x.min() - 0.7, x.max() + 0.7, 400)
    fit, curves = np.linalg.pinv(design), np.vander(grid - x.mean(), 3)
    inverted = resampled = 0
    for _ in range(100):
        y = 1.7 * (x - math.log(300)) + rng.normal(0, 0.1, 6)
        crossover = fit_crossover(list(zip(np.exp(x), np.exp(y), strict=True)))
        inverted += (crossover.low or 0) <= 300 <= (crossover.high or math.inf)
        level = design @ fit @ y
        again = level + rng.choice((y - level) * math.sqrt(6 / 3), (300, 6))
        zeros = grid[np.abs(again @ fit.T @ curves.T).argmin(axis=1)]
        low, high = np.percentile(zeros, [2.5, 97.5])
        resampled += low <= math.log(300) <= high
    assert inverted >= 90 > resampled


def test_a_missing_crossover_and_one_beyond_the_sweep_are_reported():
    assert fit_crossover([(x, 10.0 * x) for x in (1, 2, 4)]).at is None
    beyond = fit_crossover([(x, x / 12) for x in (1, 2, 4, 8)])
    assert beyond.at == pytest.approx(12, rel=0.01)
    assert not beyond.inside
    rows = make_sweep(random.Random(5), slow=100.0)
    assert "every size is compute-bound" in section(rows, "Where compute overtakes transfers").sentences[0]


def test_without_transfers_or_sweeps_there_is_no_crossover():
    rows = [r | {"h2d_seconds": None, "d2h_seconds": 0.0} for r in make_sweep(random.Random(6))]
    assert "both a transfer and a compute time" in section(rows, "Where compute overtakes transfers").sentences[0]
    assert (
        "No sweep over a size"
        in section(make_sweep(random.Random(6))[:2], "Where compute overtakes transfers").sentences[0]
    )


def test_every_run_has_its_limit():
    rows = [make_run(random.Random(7), depth, noise=0.0) for depth in (1, 24)]
    rows.append(make_run(random.Random(7), 24, noise=0.0, slow=30.0))  # far below every ceiling
    rows.append(rows[1] | {"batch_seconds": 1.0})  # far slower than its slowest stage
    rows.append(rows[1] | {"parameters": 4e10, "model": "wide"})  # weights that take longer to read than to use
    runs = study(rows, ceilings=LIMITS).findings["What limits it"]["runs"]
    assert [r["bound"] for r in runs] == ["transfer", "compute", "overhead", "overhead", "memory"]
    light = runs[0]
    assert light["floors_s"]["up"] == pytest.approx(32 * 300e3 / 50e9)
    assert light["floors_s"]["compute"] == pytest.approx(32e9 / 500e12)
    assert 0 < light["transfer_share"] < 1
    assert max(r["share_of_limit"] for r in runs if r["bound"] != "memory") <= 1


def test_the_roofline_is_drawn_with_ceilings_only():
    rows = make_sweep(random.Random(8))
    assert "Roofline of cuda" in section(rows, "What limits it", ceilings={"cuda:0": LIMITS}).markup
    bare = section(rows, "What limits it")
    assert "Roofline of" not in bare.markup
    assert "No ceilings are known" in bare.sentences[1]
    assert {r["bound"] for r in bare.findings["runs"]} == {"transfer", "compute"}


def test_rows_may_have_their_own_ceilings():
    columns = {"ceiling_compute": 500e12, "ceiling_pcie": 50e9, "ceiling_pcie_back": 50e9}
    by_argument, by_rows = (
        study(rows, ceilings=limits).findings["What limits it"]["runs"]
        for rows, limits in (
            (make_sweep(random.Random(8)), LIMITS),
            ([r | columns for r in make_sweep(random.Random(8))], None),
        )
    )
    for one, other in zip(by_argument, by_rows, strict=True):
        assert one["bound"] == other["bound"]
        assert {k: v for k, v in one["floors_s"].items() if k != "memory"} == other["floors_s"]


@pytest.mark.parametrize(
    ("power", "regime", "rate"),
    [
        (0.0, "flat", "rising"),
        (0.5, "sub-linear", "rising"),
        (1.0, "linear", "saturated"),
        (1.5, "super-linear", "falling"),
    ],
)
def test_regimes_are_named_by_the_exponent(power, regime, rate):
    rng = random.Random(9)
    rows = [row(rng, 1e-4 * b**power, noise=0.01, batch_size=b, flops=b * 1e9) for b in (1, 4, 16, 64, 256)]
    (one,) = study(rows).findings["Regimes"]["stretches"]
    assert (one["regime"], one["rate"], one["start"], one["end"]) == (regime, rate, 1, 256)
    assert one["exponent"] == pytest.approx(power, abs=0.03)


def test_a_bend_separates_two_regimes():
    rng = random.Random(10)
    rows = [row(rng, max(1e-3, 1e-4 * x), noise=0.005, dim=x, heads=x // 2, mlp_dim=4 * x, flops=None, model=f"w{x}")
            for x in (2, 4, 8, 10, 20, 40, 80)]  # fmt: skip
    flat, linear = study(rows).findings["Regimes"]["stretches"]
    assert (flat["regime"], flat["end"], linear["regime"], linear["work"]) == ("flat", 10, "linear", "dim")
