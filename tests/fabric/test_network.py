"""Ranks connected by TCP, alone and together with shared memory: the same results and errors as on one host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import numpy as np
import pytest
from tests.fabric import ranks as jobs
from tests.fabric import ranks_communicator, ranks_network

from ridgeline import fabric
from ridgeline.errors import InputError

pytestmark = pytest.mark.ranks

TCP, UDP = (fabric.FabricConfig(transport=name) for name in ("tcp", "udp"))
WITHOUT_NODES = {op: [a for a in names if a != "hierarchical"] for op, names in fabric.ALGORITHMS.items()}


@pytest.mark.parametrize(("ranks", "hosts", "streams"), [(3, 2, 2)])
def test_collectives_of_several_hosts_equal_numpy(ranks, hosts, streams):
    config = fabric.FabricConfig(streams=streams)
    assert fabric.spawn(ranks_network.find_wrong_results, ranks, args=(7,), hosts=hosts, config=config) == [[]] * ranks


def test_collectives_over_udp_equal_numpy():
    assert fabric.spawn(ranks_network.find_wrong_results, 2, args=(8,), config=UDP, timeout=100) == [[]] * 2


def test_connections_with_a_short_round_trip_hold_little_data():
    """More would leave the caches before it is read. The kernel doubles what it is asked for, up to its own limit."""
    most = int(Path("/proc/sys/net/core/wmem_max").read_text())
    for sizes in fabric.spawn(ranks_network.get_send_buffers, 2, config=TCP):
        assert sizes.count(2 * min(512 << 10, most)) >= 2, sizes  # calls and messages


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "streams"), [(3, 2), (5, 1)])
def test_all_calls_over_udp_equal_numpy(ranks, streams):
    config = fabric.FabricConfig(transport="udp", streams=streams)
    algorithms = {op: [None, *names] for op, names in WITHOUT_NODES.items()}
    counts = [0, 1, 3, 5000, 300_003]
    assert fabric.spawn(jobs.find_wrong_moves, ranks, args=(counts, algorithms), config=config) == [[]] * ranks
    assert fabric.spawn(jobs.find_wrong_hurried_calls, ranks, args=(300, ranks), config=config) == [[]] * ranks
    for seed in range(3):
        assert fabric.spawn(ranks_network.find_wrong_results, ranks, args=(seed,), config=config) == [[]] * ranks


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "hosts", "streams"), [(2, 1, 1), (4, 2, 3), (5, 3, 1), (4, 4, 2)])
def test_all_calls_of_several_hosts_equal_numpy(ranks, hosts, streams):
    config = fabric.FabricConfig(streams=streams, transport="tcp" if hosts == 1 else "auto")
    options = {"hosts": hosts, "config": config, "timeout": 300}
    rng, cases = np.random.default_rng(ranks), []
    for _ in range(80):
        dtype = str(rng.choice(["float16", "float32", "float64", "int8", "int32", "int64", "uint8"]))
        algorithm = rng.choice([None, *WITHOUT_NODES["all_reduce"]])
        layout, count = str(rng.choice(["", "strided", "out of place"])), int(rng.choice([0, 1, 5000, 400_003]))
        cases.append((count, dtype, str(rng.choice(["sum", "min", "max", "avg"])), algorithm, layout))
    assert fabric.spawn(jobs.find_wrong_reductions, ranks, args=(cases,), **options) == [[]] * ranks
    counts = [0, 1, 3, 5000, 300_003]
    algorithms = {op: [None, *names] for op, names in WITHOUT_NODES.items()}
    assert fabric.spawn(jobs.find_wrong_moves, ranks, args=(counts, algorithms), **options) == [[]] * ranks
    assert fabric.spawn(jobs.find_wrong_hurried_calls, ranks, args=(300, ranks), **options) == [[]] * ranks
    for seed in range(3):
        assert fabric.spawn(ranks_network.find_wrong_results, ranks, args=(seed,), **options) == [[]] * ranks


@pytest.mark.slow
def test_overlapping_arrays_give_what_separate_ones_give_over_tcp():
    rng = np.random.default_rng(3)
    cases = []
    for seed in range(200):
        name = str(rng.choice(["all_reduce", "reduce_scatter", "reduce", "all_gather", "all_to_all"]))
        algorithms = [None, None, *WITHOUT_NODES.get(name, [])]
        count = int(rng.choice([1, 7, 3_000, 40_000]))
        cases.append((name, count, "plain", algorithms[rng.integers(len(algorithms))], seed))
    assert fabric.spawn(ranks_communicator.find_wrong_overlaps, 3, args=(cases,), config=TCP) == [[]] * 3


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_rank_that_is_killed_is_named_by_all_others(transport):
    config = fabric.FabricConfig(transport=transport)
    results = fabric.spawn(jobs.stop_rank, 3, args=("kill",), on_error="collect", hosts=2, timeout=60, config=config)
    assert isinstance(results[1], fabric.RankError)
    for rank in (0, 2):
        error, next_error = results[rank]
        assert "rank 1 died" in error
        assert "all_reduce #" in error
        assert "within" not in error
        assert "has failed: rank 1 died" in next_error


@pytest.mark.slow
def test_a_rank_that_is_stopped_is_named_at_the_deadline():
    results = fabric.spawn(jobs.stop_rank, 3, args=("stop",), on_error="collect", hosts=2, timeout=60)
    for rank in (0, 2):
        error, _ = results[rank]
        assert re.search(r"rank 1 did not come .* within the timeout of 1.5 s|gave up waiting for rank 1", error), error


@pytest.mark.slow
@pytest.mark.parametrize("what", ["dtype", "op", "reduction", "algorithm", "root", "length of much"])
def test_the_error_for_different_calls_over_tcp_names_both_and_the_ranks_can_go_on(what):
    errors = fabric.spawn(jobs.make_different_calls, 3, args=(what,), hosts=2, timeout=60)
    for message in errors:
        assert "rank 1 calls" in message


@pytest.mark.slow
def test_refused_arguments_raise_on_all_hosts_before_data_moves():
    rows = fabric.spawn(ranks_communicator.refuse_in_one_rank, 3, hosts=2, timeout=60)
    for rank, results in enumerate(rows):
        for name, error, total in results:
            assert total == 3.0, (rank, name)
            assert name == "all" or "Error: " in error, (rank, name, error)


def test_ranks_that_call_different_things_can_go_on():
    for message, total in fabric.spawn(ranks_network.differ_then_agree, 2, hosts=2, timeout=60):
        assert "rank 0 calls all_reduce #0 of 6 float32 (sum)" in message
        assert "rank 1 calls all_reduce #0 of 7 float32 (sum)" in message
        assert "rank 1 sent another length or type" in message or "no error" in message
        assert total == 2.0


def test_stats_tell_the_transport_and_the_bytes_of_each_pair():
    for rank, stats in enumerate(fabric.spawn(ranks_network.get_stats, 3, hosts=2, timeout=60)):
        assert stats["strangers"] == 0
        near = {0: 1, 1: 0}
        for peer, row in stats["peers"].items():
            assert row["transport"] == ("shm" if near.get(rank) == peer else "tcp")
            assert row["streams"] == 1
            assert row["ops"]["all_reduce"]["calls"] == 3
            # each rank sends a third to the two others, and its sums to both: 4/3 of the array each way, half with one
            assert row["ops"]["all_reduce"]["sent"] == pytest.approx(3 * 300_000 * 4 * 2 / 3, rel=0.01)
            assert row["bytes"] > 3 * 300_000 * 4


@pytest.mark.slow
def test_a_part_of_a_split_communicator_goes_on_after_the_failure_of_another():
    assert fabric.spawn(ranks_network.fail_in_one_part, 4, hosts=2, timeout=60) == ["ok", "ok", "failed", "failed"]


@pytest.mark.slow
def test_a_forked_child_cannot_use_the_connections_of_its_parent():
    for error, total in fabric.spawn(ranks_network.use_in_forked_child, 2, hosts=2, timeout=60):
        assert "was forked from rank" in error
        assert total == 2.0


def test_abort_ends_the_calls_of_all_ranks():
    waiting, aborting, later = fabric.spawn(ranks_communicator.abort_in_one_rank, 3, hosts=3, timeout=60)
    for text in (waiting, later):
        assert "has failed: rank 1 aborted it; its last call was" in text
    assert "rank 1 aborted it" in aborting


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["auto", "tcp", "udp"])
def test_after_a_kill_at_a_random_point_no_rank_hangs_and_no_sum_is_wrong(transport):
    config = fabric.FabricConfig(transport=transport)
    for seed in range(20):
        hosts = 2 if transport == "auto" else 1
        results = fabric.spawn(
            ranks_network.die_at_random, 3, args=(seed,), on_error="collect", hosts=hosts, config=config, timeout=60
        )
        assert isinstance(results[2], fabric.RankError)
        for rank in (0, 1):
            assert "rank 2 died" in results[rank], (seed, rank, results[rank])


HAS_NAMESPACES = (
    os.geteuid() == 0
    and subprocess.run(["sh", "-c", "command -v ip && unshare -n true"], capture_output=True, check=False).returncode
    == 0
)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NAMESPACES, reason="network namespaces need root and ip (iproute2)")
def test_ranks_in_network_namespaces_meet_by_environment_variables():
    tag = f"rlt{uuid.uuid4().hex[:6]}"
    names = [f"{tag}{k}" for k in range(2)]
    job = textwrap.dedent("""
        import numpy as np
        from ridgeline import fabric
        comm = fabric.init(timeout=20)
        x = np.full(200_000, comm.rank + 1.0, "f4")
        comm.all_reduce(x)
        print(x[0], {r: v["transport"] for r, v in comm.stats()["peers"].items()})
    """)

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    ranks = []
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for k, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.211.3.{k + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")  # ranks of one host reach their own address through it
        for rank, name in enumerate([names[0], names[0], names[1]]):
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": "3",
                "RIDGELINE_FABRIC_RENDEZVOUS": "10.211.3.1:4321",
                "RIDGELINE_FABRIC_SECRET": "a test",
                "RIDGELINE_FABRIC_INTERFACE": "eth0",
            }
            command = ["ip", "netns", "exec", name, sys.executable, "-c", job]
            ranks.append(subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True))
        out = [rank.communicate(timeout=60)[0].strip() for rank in ranks]
        assert out == ["6.0 {1: 'shm', 2: 'tcp'}", "6.0 {0: 'shm', 2: 'tcp'}", "6.0 {0: 'tcp', 1: 'tcp'}"]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_more_hosts_than_ranks_and_unknown_transports_are_refused():
    with pytest.raises(InputError, match=r"hosts is 3; 2 ranks can be on 1 to 2\."):
        fabric.spawn(jobs.get_stats, 2, hosts=3)
    with pytest.raises(InputError, match="no transport 'tpc'; did you mean 'tcp'"):
        fabric.FabricConfig(transport="tpc")
    with pytest.raises(InputError, match="streams is 0"):
        fabric.FabricConfig(streams=0)
    with pytest.raises(InputError, match=r"\[fe80::1%eth0\]:4444"):
        fabric.FabricConfig(rendezvous="[fe80::1]:4444")
    with pytest.raises(InputError, match="ports is '45000-'"):
        fabric.FabricConfig(ports="45000-")
    with pytest.raises(InputError, match="ports is '9-3'"):
        fabric.FabricConfig(ports="9-3")
