"""Ranks connected by UCX, over its tcp and its shared-memory transports: results, errors, and a host without UCX."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.fabric import ranks as jobs
from tests.fabric import ranks_network

from ridgeline import fabric, native
from ridgeline.errors import InputError
from ridgeline.fabric import diagnosis, hosts, network_rendezvous

UCX = fabric.FabricConfig(transport="ucx")
PROBLEM = native.find_ucx_problem()
needs_ucx = pytest.mark.skipif(bool(PROBLEM), reason=f"needs libucx0: {PROBLEM}")
WITHOUT_NODES = {op: [None, *(a for a in names if a != "hierarchical")] for op, names in fabric.ALGORITHMS.items()}
BY_TRANSPORT = pytest.mark.parametrize("transports", ["tcp,self", "posix,self"])


@needs_ucx
@pytest.mark.ranks
@BY_TRANSPORT
def test_collectives_over_ucx_equal_numpy(monkeypatch, transports):
    monkeypatch.setenv("UCX_TLS", transports)
    assert fabric.spawn(ranks_network.find_wrong_results, 2, args=(9,), config=UCX, timeout=100) == [[]] * 2


@needs_ucx
@pytest.mark.slow
@pytest.mark.ranks
@BY_TRANSPORT
@pytest.mark.parametrize(("ranks", "streams"), [(3, 2), (5, 1)])
def test_all_calls_over_ucx_equal_numpy(monkeypatch, transports, ranks, streams):
    monkeypatch.setenv("UCX_TLS", transports)
    config = fabric.FabricConfig(transport="ucx", streams=streams)
    counts = [0, 1, 3, 5000, 300_003, 2_000_003]
    assert fabric.spawn(jobs.find_wrong_moves, ranks, args=(counts, WITHOUT_NODES), config=config) == [[]] * ranks
    assert fabric.spawn(jobs.find_wrong_hurried_calls, ranks, args=(300, ranks), config=config) == [[]] * ranks
    for seed in range(3):
        assert fabric.spawn(ranks_network.find_wrong_results, ranks, args=(seed,), config=config) == [[]] * ranks


def send_ahead(comm) -> tuple[float, str]:
    """Rank 0 sends more than the streams hold, rank 1 begins late; returns the sum of what came."""
    import time

    x, total = np.empty(3_000_000, "f4"), 0.0
    for k in range(6):
        x[:] = k
        if comm.rank == 0:
            comm.send(x, 1)
        else:
            time.sleep(0.1)
            comm.recv(x, 0)
            total += float(x[0] + x[-1])
    time.sleep(0.2 * comm.rank)
    comm.barrier()
    return total, comm.stats()["peers"][1 - comm.rank]["transport"]


@needs_ucx
@pytest.mark.slow
@pytest.mark.ranks
def test_a_sender_that_is_ahead_waits_and_nothing_is_lost():
    assert fabric.spawn(send_ahead, 2, config=UCX, timeout=60) == [(0.0, "ucx"), (30.0, "ucx")]


@needs_ucx
@pytest.mark.ranks
def test_a_rank_that_is_killed_is_named_over_ucx_and_the_others_go_on(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    results = fabric.spawn(
        ranks_network.shrink_after_death, 3, args=([1], "kill"), on_error="collect", config=UCX, timeout=60
    )
    for rank, new_rank in ((0, 0), (2, 1)):
        first, [(number, size, total, part, message)], peers = results[rank]
        assert (first, number, size, total, part) == (rank, new_rank, 2, 4.0, 2.0)
        assert "rank 1 died" in message
        assert "all_reduce #" in message
        assert peers[1 - new_rank]["transport"] == "ucx"


@needs_ucx
@pytest.mark.slow
@pytest.mark.ranks
@BY_TRANSPORT
def test_after_a_kill_at_a_random_point_no_rank_hangs_and_no_sum_is_wrong(monkeypatch, transports):
    monkeypatch.setenv("UCX_TLS", transports)
    for seed in range(10):
        results = fabric.spawn(ranks_network.die_at_random, 3, args=(seed,), on_error="collect", config=UCX, timeout=60)
        assert isinstance(results[2], fabric.RankError)
        for rank in (0, 1):
            assert "rank 2 died" in results[rank], (seed, rank, results[rank])


def test_a_host_without_ucx_is_named_in_one_sentence(monkeypatch):
    problem = "libucp.so.0 cannot be opened (no such file)"
    monkeypatch.setattr(network_rendezvous, "find_ucx_problem", lambda: problem)
    monkeypatch.setattr(diagnosis, "find_ucx_problem", lambda: problem)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "RIDGELINE_FABRIC_SECRET": "a test"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"^transport ucx: libucp.so.0 cannot .*; install UCX .* or choose tcp\.$"):
        fabric.init(config=fabric.FabricConfig(transport="ucx", rendezvous="127.0.0.1:41999"), timeout=5)
    (finding,) = (f for f in fabric.doctor() if f.what == "transport ucx")
    assert finding.ok
    assert problem in finding.value


def test_ucx_uses_the_chosen_interface_and_the_rdma_devices_behind_it(monkeypatch, tmp_path):
    monkeypatch.delenv("UCX_NET_DEVICES", raising=False)
    for device, interface in (("mlx5_0", "eth0"), ("mlx5_1", "eth1"), ("mlx5_2", "eth0")):
        (tmp_path / "sys/class/infiniband" / device / "device/net" / interface).mkdir(parents=True)
    assert hosts.list_ucx_devices("eth0", str(tmp_path)) == "eth0,mlx5_0:1,mlx5_2:1"
    assert hosts.list_ucx_devices("eth7", str(tmp_path)) == "eth7"
    assert not hosts.list_ucx_devices("", str(tmp_path))
    monkeypatch.setenv("UCX_NET_DEVICES", "mlx5_1:1")
    assert not hosts.list_ucx_devices("eth0", str(tmp_path))


def list_listening_ports(_comm) -> list[int]:
    """Ports on which this process listens for connections of IPv4."""
    files = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    sockets = {os.readlink(file) for file in files if file.is_socket()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return [int(row[1].partition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]


@needs_ucx
@pytest.mark.slow
@pytest.mark.ranks
def test_ucx_listens_on_the_ports_that_are_allowed(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.delenv("UCX_TCP_PORT_RANGE", raising=False)
    config = fabric.FabricConfig(transport="ucx", ports="46500-46531")
    for ports in fabric.spawn(list_listening_ports, 2, config=config, timeout=60):
        assert len(ports) > 1
        assert all(46500 <= port <= 46531 for port in ports), ports


@needs_ucx
@pytest.mark.slow
@pytest.mark.ranks
def test_a_forked_child_that_ends_leaves_the_connections_of_its_parent(monkeypatch):
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    for error, total in fabric.spawn(ranks_network.use_in_forked_child, 2, args=(True,), config=UCX, timeout=60):
        assert "was forked from rank" in error
        assert total == 2.0
