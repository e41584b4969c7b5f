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
from ridgeline.fabric import host_study
from ridgeline.fabric.host_tuning import get_inline_limit, interpolate, predict_all_reduce


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
    hosts=st.integers(2, 32),
    nbytes=st.integers(1, 1 << 26),
)
def test_a_network_of_one_latency_and_one_rate_is_predicted_exactly(latency, rate, hosts, nbytes):
    limit = get_inline_limit(hosts, 8 << 10)
    messages = {n: latency + n / rate for n in (1, limit * (hosts - 1), 1 << 20, 1 << 24)}
    expected = latency + (hosts - 1) * nbytes / rate  # with the call
    if nbytes > limit:
        expected = 1.5 * latency + (0.5 + 2 * (hosts - 1) / hosts * nbytes) / rate
    assert predict_all_reduce(nbytes, hosts, messages) == pytest.approx(expected, rel=1e-6)
    assert interpolate(1 << 20, messages) == pytest.approx(messages[1 << 20])


def test_small_calls_are_predicted_from_exchanges_of_one_frame():
    messages = {1: 1e-4, 8192: 2e-4, 16384: 9e-4}  # the last one is sent after the call
    assert predict_all_reduce(8192, 2, messages) == pytest.approx(2e-4)
    assert predict_all_reduce(4096, 2, {1: 1e-4, 16384: 9e-4}) == pytest.approx(1e-4)


HAS_NAMESPACES = not os.geteuid() and bool(shutil.which("tc")) and os.access("/dev/net/tun", os.W_OK)
needs_namespaces = pytest.mark.skipif(not HAS_NAMESPACES, reason="network namespaces need root and iproute2")


@needs_namespaces
@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("has_netem", [True, False])
def test_packets_are_delayed_lost_doubled_and_reordered_with_netem_or_without(monkeypatch, has_netem):
    if not has_netem:
        monkeypatch.setattr(host_study, "_has_netem", lambda _: False)
    options = {"loss": 0.02, "duplicates": 0.02, "reorder": 0.05, "sizes": [4 << 10, 256 << 10], "transport": "udp"}
    study = fabric.study_hosts(2, delay="3ms", **options)
    assert study.emulation == "wire" if not has_netem else study.emulation in ("netem", "wire")
    assert all(row.measured > 3e-3 for row in study.rows)
    assert study.latency > 3e-3


@needs_namespaces
@pytest.mark.slow
@pytest.mark.ranks
def test_hierarchical_sends_a_fraction_of_the_data_between_hosts():
    study = fabric.study_hosts(
        2, ranks=2, rate="100mbit", sizes=[2 << 20], transport="auto", algorithms=["hierarchical"]
    )
    direct, hierarchical = study.rows
    # direct sends the data twice out of each host, hierarchical once; each link saves up a short burst
    assert direct.measured > 2 * 2.1e6 / 12.5e6 * 0.9
    assert hierarchical.predicted < 0.7 * direct.predicted
    assert study.get_chosen(2 << 20) == "hierarchical"
    assert study.inside is not None
    assert study.between.beta < study.inside.beta


@needs_namespaces
@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_study_measures_what_its_links_allow_and_leaves_nothing(transport):
    before = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    study = fabric.study_hosts(2, rate="500mbit", sizes=[4 << 10, 1 << 20, 4 << 20], transport=transport)
    after = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    assert before == after
    assert len(study.rows) == 3
    # 4 MB leave each host in each direction; tbf lets a short burst through at once
    assert study.rows[-1].measured > 4e6 / 62.5e6 * 0.9
    assert study.median_error < 0.5
