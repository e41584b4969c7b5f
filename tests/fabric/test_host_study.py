"""Hosts as network namespaces: what is refused, what is predicted, and a study, where root may make namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric.host_tuning import interpolate, predict_all_reduce


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"hosts": 1}, "hosts is 1"),
        ({"rate": "fast"}, "rate is 'fast'"),
        ({"delay": "10"}, "delay is '10'"),
        ({"loss": 2.0}, "loss is 2.0"),
        ({"reorder": -0.1}, "reorder is -0.1"),
        ({"ranks": 0}, "ranks is 0"),
        ({"sizes": [6]}, "sizes is"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_made(options, text):
    with pytest.raises(InputError, match=text):
        fabric.study_hosts(**options)


@given(
    latency=st.floats(1e-6, 1e-2),
    rate=st.floats(1e5, 1e10),
    hosts=st.integers(2, 16),
    nbytes=st.integers(1 << 14, 1 << 26),
)
def test_a_network_of_one_latency_and_one_rate_is_predicted_exactly(latency, rate, hosts, nbytes):
    messages = {n: latency + n / rate for n in (1, 1 << 12, 1 << 20, 1 << 24)}
    expected = 2 * latency + (1 + 2 * (hosts - 1) / hosts * nbytes) / rate
    assert predict_all_reduce(nbytes, hosts, messages) == pytest.approx(expected, rel=1e-6)
    assert interpolate(1 << 12, messages) == pytest.approx(messages[1 << 12])


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_study_measures_what_its_links_allow_and_leaves_nothing(transport):
    if os.geteuid() or not shutil.which("tc") or not os.access("/dev/net/tun", os.W_OK):
        pytest.skip("making network namespaces needs root and iproute2")
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    study = fabric.study_hosts(2, rate="500mbit", sizes=[4 << 10, 1 << 20, 4 << 20], transport=transport)
    after = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert before == after
    assert len(study.rows) == 3
    # 4 MB leave each host in each direction; tbf lets a short burst through at once
    assert study.rows[-1].measured > 4e6 / 62.5e6 * 0.9
    assert study.median_error < 0.5
