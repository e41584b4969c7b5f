"""Predictions: never faster than the links, exact for a known formula, fast for thousands of ranks."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import schedules

from ridgeline import fabric
from ridgeline.errors import InputError
from ridgeline.fabric import Network, ProofError

PLAIN = Network("plain", None, 1e-6, 1e9)


def test_a_ring_takes_the_time_of_the_textbook_formula():
    n, size = 8, 8 << 20
    prediction = fabric.predict(fabric.schedule("all_reduce", "ring", ranks=n), network=PLAIN, nbytes=size)
    assert prediction.seconds == pytest.approx(2 * (n - 1) * (1e-6 + size / n / 1e9), rel=1e-6)
    assert prediction.wire_bytes == pytest.approx(2 * (n - 1) * size)
    assert prediction.busbw == pytest.approx(prediction.algbw * 2 * (n - 1) / n)


@given(schedules(least_ranks=2), st.sampled_from([0, 4096, 1 << 24]), st.sampled_from(["dgx-a100", "100gbe", "host"]))
@settings(max_examples=60, deadline=None)
def test_no_link_carries_more_than_its_bandwidth(plan, size, network):
    prediction = fabric.predict(plan, network=network, nbytes=size)
    assert prediction.seconds > 0
    assert prediction.busiest_share <= 1 + 1e-9
    assert prediction.kind == "predicted"


@given(schedules(least_ranks=2, most_ranks=6))
@settings(max_examples=30, deadline=None)
def test_a_schedule_read_from_json_moves_the_same_bytes(plan):
    copy = fabric.Schedule.from_json(plan.to_json())
    first, second = (fabric.predict(s, network=PLAIN, nbytes=1 << 20) for s in (plan, copy))
    assert second.wire_bytes == pytest.approx(first.wire_bytes)


def test_ranks_that_share_a_bus_share_its_bandwidth():
    wide = fabric.schedule("all_gather", "ring", ranks=4)
    alone = fabric.predict(wide, network=Network("a", None, 0.0, 1e9), nbytes=4 << 20)
    shared = fabric.predict(wide, network=Network("b", None, 0.0, 1e9, bus=1e9), nbytes=4 << 20)
    assert shared.seconds == pytest.approx(4 * alone.seconds)
    assert shared.busiest_link == "bus of node 0"


def test_a_tree_is_fastest_for_small_data_and_a_hierarchy_for_large():
    def seconds(name, size):
        return fabric.predict(fabric.schedule("all_reduce", name, ranks=64), network="dgx-a100", nbytes=size).seconds

    assert seconds("tree", 1024) < seconds("ring", 1024)
    assert seconds("hierarchical", 1 << 30) < seconds("ring", 1 << 30)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_of_several_nodes_uses_every_adapter(op):
    plan = fabric.schedule(op, "ring", ranks=16, network="dgx-a100")
    assert (plan.nodes, plan.channels) == (2, 8)
    assert fabric.prove(plan).chunks == 16 * 8
    many = fabric.predict(plan, network="dgx-a100", nbytes=1 << 32)
    one = fabric.predict(fabric.schedule(op, "ring", ranks=16), network="dgx-a100", nbytes=1 << 32)
    assert (one.channels, many.channels) == (1, 8)
    assert many.wire_bytes == pytest.approx(one.wire_bytes)
    assert 7 < one.seconds / many.seconds <= 8, "each adapter carries an eighth"
    copy = fabric.Schedule.from_json(plan.to_json())
    assert copy == plan
    assert fabric.predict(copy, network="dgx-a100", nbytes=1 << 20).channels == 8


@pytest.mark.parametrize(
    ("ranks", "network", "channels"),
    [
        (8, "dgx-a100", 1),  # one node
        (12, "dgx-a100", 1),  # a node in part
        (4, "100gbe", 1),  # one rank a node
        (8, {"base": "dgx-a100", "per_node": 4, "adapters": 2}, 2),
        (8, {"base": "dgx-a100", "per_node": 2}, 2),  # more adapters than ranks
    ],
)
def test_a_ring_has_as_many_channels_as_the_network_can_use(ranks, network, channels):
    plan = fabric.schedule("all_reduce", "ring", ranks=ranks, network=network)
    assert plan.channels == channels
    fabric.prove(plan)


def test_no_time_is_predicted_for_a_wrong_schedule():
    ring = fabric.schedule("all_reduce", "ring", ranks=4)
    with pytest.raises(ProofError, match="rank"):
        fabric.predict(ring.with_programs([p[:-1] for p in ring.programs]), network=PLAIN, nbytes=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ring", "tree", "recursive_doubling", "rabenseifner", "hierarchical"])
def test_sixteen_thousand_ranks_are_predicted(name):
    start = time.perf_counter()
    plan = fabric.schedule("all_reduce", name, ranks=16384, network="dgx-h100")
    assert fabric.predict(plan, network="dgx-h100", nbytes=1 << 30).seconds > 2 * (1 << 30) / 8 / 50e9 / 8
    assert time.perf_counter() - start < 60  # against a hang; second to five seconds on an idle machine


def test_a_network_is_read_from_yaml(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("base: 100gbe\nnic: 25e9  # second ports\n")
    plan = fabric.schedule("all_reduce", "ring", ranks=4)
    mine = fabric.predict(plan, network=file, nbytes=1 << 26)
    assert mine.network == "mine"
    assert mine.seconds <= fabric.predict(plan, network="100gbe", nbytes=1 << 26).seconds
    file.write_text("base: 100gbe\nnci: 25e9\n")
    with pytest.raises(InputError, match="did you mean 'nic'"):
        fabric.predict(plan, network=file, nbytes=1)
    with pytest.raises(InputError, match="no network 'dgx'"):
        fabric.predict(plan, network="dgx", nbytes=1)
