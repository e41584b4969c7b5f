"""Latency and bandwidth of each way are the true ones, about as often as their intervals say.

python -m pytest tests/lab/study/test_transfer.py
"""

from __future__ import annotations

import random

from tests.lab.study.made import row

from ridgeline.lab.study import Columns, study
from ridgeline.lab.study.table import tabulate
from ridgeline.lab.study.transfer import ways


def moved(rng, noise=0.03):
    rows = []
    for dim in (64, 128, 256, 512, 1024, 2048, 4096, 8192):
        made = row(
            rng, samples=0, dim=dim, heads=dim // 64, mlp_dim=4 * dim, h2d_bytes=150e3 * dim, d2h_bytes=2e3 * dim
        )
        h2d, d2h = 8e-6 + made["h2d_bytes"] / 50e9, 12e-6 + made["d2h_bytes"] / 20e9
        rows.append(
            made
            | {"h2d_seconds": h2d * rng.lognormvariate(0, noise), "d2h_seconds": d2h * rng.lognormvariate(0, noise)}
        )
    return rows


def test_both_ways_have_their_latency_and_bandwidth():
    rng, held, trials = random.Random(1), 0, 60
    for _ in range(trials):
        up, down = ways(tabulate(moved(rng), Columns()))
        assert (up.way, down.way) == ("to the device", "back")
        for way, latency, rate in ((up, 8e-6, 50e9), (down, 12e-6, 20e9)):
            held += way.latency.low <= latency <= way.latency.high
            held += way.bandwidth.low <= rate <= way.bandwidth.high
    assert held / (4 * trials) >= 0.9


def test_what_grows_with_the_model_is_said():
    rows = [r | {"h2d_bytes": 1e6} for r in moved(random.Random(2))]
    said = study(rows).findings["Transfers"]["growth"]
    assert "Bytes to the device do not grow along dim." in said
    assert "Bytes back grow by the power 1 along dim." in said


def test_without_transfers_that_is_said():
    assert "nothing went over a bus" in study([row(random.Random(3), h2d_bytes=0, d2h_bytes=None)]).markdown
