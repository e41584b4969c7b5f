"""Ranks of several hosts choose the algorithm that their measured network makes the fastest."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import fabric
from ridgeline.errors import FabricError, InputError
from ridgeline.fabric.config import FabricConfig
from ridgeline.fabric.host_tuning import Level, choose, find_choice, fit_level, make_network
from ridgeline.fabric.selection import AlgorithmChoice, describe_layout, get_tuning_path, make_program

HOSTS = ["a", "b", "a", "b"]
ROWS = [{"up_to": 1000, "algorithm": "direct"}, {"up_to": 1 << 62, "algorithm": "hierarchical"}]


@given(alpha=st.floats(1e-6, 1e-2), rate=st.floats(1e5, 1e10))
def test_the_line_of_a_level_is_found_again(alpha, rate):
    level = fit_level({n: alpha + n / rate for n in (1, 1 << 12, 1 << 20, 1 << 22)})
    assert level.alpha == pytest.approx(alpha + 1 / rate)
    assert level.beta == pytest.approx(rate, rel=0.01)


def test_a_slow_network_between_fast_hosts_chooses_the_hierarchical_way():
    fast, slow = Level(1e-6, 4e9, {}), Level(1e-4, 12.5e6, {})
    network, sizes = make_network(fast, slow, 2), [1 << 20, 1 << 24]
    names = ("direct", "ring", "hierarchical")
    seconds = {
        name: {
            n: fabric.predict(
                fabric.schedule("all_reduce", name, ranks=4, hosts=HOSTS), network=network, nbytes=n, hosts=HOSTS
            ).seconds
            for n in sizes
        }
        for name in names
    }
    # Out of each host: direct sends 2 n in all, hierarchical n.
    assert seconds["direct"][1 << 24] == pytest.approx(2 * (1 << 24) / 25e6, rel=0.05)
    assert seconds["hierarchical"][1 << 24] == pytest.approx((1 << 24) / 25e6, rel=0.05)
    assert find_choice(choose(seconds, sizes), 1 << 24) == "hierarchical"


def test_ranks_follow_the_table_for_their_layout_and_their_hosts():
    table = {"all_reduce": {"2,2": ROWS}}
    choice = AlgorithmChoice(FabricConfig(), 4, HOSTS, table)
    assert choice.native_up_to == 1000
    assert choice.get_name("all_reduce", None, 500) == "direct"
    assert choice.get_name("all_reduce", None, 5000) == "hierarchical"
    program = choice.get_program("all_reduce", None, 0, 0, 5000)
    assert program is make_program("all_reduce", "hierarchical", 4, 0, 0, tuple(HOSTS))
    assert set(program.rows[:, 1]) == {1, 2}  # its neighbour on the host, and the rank of its number on the other
    assert AlgorithmChoice(FabricConfig(), 4, ["a"] * 3 + ["b"], table).get_name("all_reduce", None, 5000) == "direct"
    configured = FabricConfig(collective_algorithm="ring")
    assert AlgorithmChoice(configured, 4, HOSTS, table).get_name("all_reduce", None, 1) == "ring"
    assert describe_layout(HOSTS) == "2,2"


def reduce_by_choice(comm) -> tuple:
    x = np.full(5000, comm.rank + 1.0)
    total = float(comm.all_reduce(x)[-1])
    return total, comm.stats()["ops"]["all_reduce"]["algorithms"], comm.algorithm("all_reduce", x.nbytes)


@pytest.mark.ranks
def test_the_table_of_rank_0_is_used_by_all_ranks_of_the_job(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = get_tuning_path()
    path.parent.mkdir(parents=True)
    rows = [{"up_to": 1 << 62, "algorithm": "leader_tree"}]
    path.write_text(json.dumps({"choice": {}, "hosts": {"auto": {"all_reduce": {"2,1": rows}}}}))
    results = fabric.spawn(reduce_by_choice, 3, hosts=2, timeout=60)
    assert results == [(6.0, {"leader_tree": 1}, "leader_tree")] * 3


def tune_here(comm) -> tuple:
    one = fabric.tune_hosts(comm, sizes=[4 << 10, 1 << 20], algorithms=["hierarchical", "leader_ring"])
    return one.layout, [(row.algorithm, row.bytes) for row in one.rows], one.get_regret(1 << 20) >= 1.0, one.rows


@pytest.mark.slow
@pytest.mark.ranks
def test_tuning_gives_all_ranks_the_same_result_and_saves_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    results = fabric.spawn(tune_here, 3, hosts=2, timeout=120)
    assert results[0] == results[1] == results[2]
    layout, pairs, has_regret, _ = results[0]
    assert layout == "2,1"
    assert pairs == [(name, n) for name in ("direct", "hierarchical", "leader_ring") for n in (4 << 10, 1 << 20)]
    assert has_regret
    assert "2,1" in json.loads(get_tuning_path().read_text())["hosts"]["auto"]["all_reduce"]


def tune_wrongly(comm) -> list[str]:
    errors = []
    for options in ({}, {"algorithms": ["rign"]}):
        try:
            fabric.tune_hosts(comm, **options)
        except (FabricError, InputError) as error:
            errors.append(str(error))
    return errors


@pytest.mark.ranks
def test_ranks_of_one_host_and_unknown_algorithms_are_refused():
    for errors in fabric.spawn(tune_wrongly, 2, timeout=60):
        assert "all ranks are on one host" in errors[0]
        assert "did you mean 'ring'" in errors[1]
