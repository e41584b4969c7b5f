"""Intervals cover the true latency and bandwidth of each direction about as often as they state.

python -m pytest tests/lab/study/test_transfers.py
"""

from __future__ import annotations

import random

from tests.lab.study.sample_rows import row

from ridgeline.lab.study import Columns, study, tabulate
from ridgeline.lab.study.transfers import fit_transfers


def make_rows(rng, noise=0.03):
    rows = []
    for dim in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        run = row(rng, samples=0, dim=dim, heads=dim // 64, mlp_dim=4 * dim, h2d_bytes=150e3 * dim, d2h_bytes=2e3 * dim)
        h2d, d2h = 8e-6 + run["h2d_bytes"] / 50e9, 12e-6 + run["d2h_bytes"] / 20e9
        rows.append(
            run | {"h2d_seconds": h2d * rng.lognormvariate(0, noise), "d2h_seconds": d2h * rng.lognormvariate(0, noise)}
        )
    return rows


def test_both_directions_have_their_true_latency_and_bandwidth():
    rng, covered, trials = random.Random(1), 0, 60
    for _ in range(trials):
        up, down = fit_transfers(tabulate(make_rows(rng), Columns()))
        assert (up.way, down.way) == ("to the device", "back")
        for way, latency, rate in ((up, 8e-6, 50e9), (down, 12e-6, 20e9)):
            covered += way.latency.low <= latency <= way.latency.high
            covered += way.bandwidth.low <= rate <= way.bandwidth.high
    assert covered / (4 * trials) >= 0.9


def test_the_section_says_which_bytes_grow_with_the_model():
    rows = [r | {"h2d_bytes": 1e6} for r in make_rows(random.Random(2))]
    growth = study(rows).findings["Transfers"]["growth"]
    assert "Bytes to the device do not grow along dim." in growth
    assert "Bytes back grow by the power 1 along dim." in growth


def test_the_section_says_that_there_were_no_transfers():
    assert "nothing went over a bus" in study([row(random.Random(3), h2d_bytes=0, d2h_bytes=None)]).markdown
