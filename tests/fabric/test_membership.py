"""Life after a death: the survivors go on in a smaller communicator, and new ranks join it."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.fabric import ranks_network as jobs

from ridgeline import fabric
from ridgeline.errors import FabricError, InputError
from ridgeline.fabric import FabricConfig, hosts
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.membership import make_world
from ridgeline.fabric.network_rendezvous import meet

pytestmark = pytest.mark.ranks

LONG_S = 60.0


def check_survivors(results: list, dead: list[int]) -> None:
    survivors = [rank for rank in range(len(results)) if rank not in dead]
    for rank, result in enumerate(results):
        if rank in dead:
            assert isinstance(result, fabric.RankError)
            continue
        first, rows, _ = result
        left = list(range(len(results)))
        assert first == rank
        for victim, (number, size, total, ones, message) in zip(dead, rows, strict=False):
            assert f"rank {left.index(victim)} " in message
            left.remove(victim)
            assert (number, size) == (left.index(rank), len(left))
            assert total == sum(r + 1 for r in left)
            assert ones == size
    assert len(survivors) >= 2


def test_survivors_on_several_hosts_go_on_after_two_deaths():
    results = fabric.spawn(
        jobs.shrink_after_death, 4, args=([0, 2], "kill"), hosts=2, on_error="collect", timeout=LONG_S
    )
    check_survivors(results, [0, 2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "on", "dead", "how"),
    [(4, 1, [3, 1], "kill"), (3, 3, [1], "kill"), (4, 2, [3], "kill"), (3, 1, [0], "stop"), (4, 2, [0], "stop")],
)
def test_survivors_go_on_in_the_order_of_their_ranks(ranks, on, dead, how):
    results = fabric.spawn(
        jobs.shrink_after_death, ranks, args=(dead, how), hosts=on, on_error="collect", timeout=LONG_S
    )
    check_survivors(results, dead)
    if (ranks, on, dead) == (4, 2, [3]):
        transports = {p: row["transport"] for p, row in results[0][2].items()}
        assert transports == {1: "shm", 2: "tcp"}


@pytest.mark.slow
@pytest.mark.parametrize("on", [1, 2])
def test_a_rank_that_is_left_alone_gets_an_error(on):
    alone, _ = fabric.spawn(jobs.shrink_alone, 2, hosts=on, on_error="collect", timeout=LONG_S)
    assert alone == "shrink: rank 0 is the only one left of 2; start ranks again."


@pytest.mark.slow
@pytest.mark.parametrize("on", [1, 2])
def test_shrink_without_a_failure_ends_the_old_communicator(on):
    first, second, last = fabric.spawn(jobs.shrink_without_failure, 3, hosts=on, on_error="collect", timeout=LONG_S)
    assert first == (0, 2, 2.0)
    assert second == (1, 2, 2.0)
    assert "has failed" in last[0]


@pytest.fixture
def three(monkeypatch):
    """Three ranks in threads, which met over the network."""
    monkeypatch.setenv("RIDGELINE_FABRIC_SECRET", "of the tests")
    config = FabricConfig(transport="tcp")
    at = hosts.Address(f"@ridgeline-test-{os.getpid()}-{random.random()}", 0)
    pool, deadline = ThreadPoolExecutor(8), time.monotonic() + LONG_S

    def start(rank: int) -> Communicator:
        return Communicator(make_world(meet(rank, 3, at, b"of the tests", config, LONG_S), deadline), config)

    comms = list(pool.map(start, range(3)))
    yield pool, comms, config
    for comm in comms:
        comm.close()
    pool.shutdown()


def test_new_ranks_join_and_get_the_numbers_after_the_old_ones(three):
    pool, comms, config = three
    assert comms[1].address == comms[0].address
    joining = [pool.submit(fabric.join, comms[2].address, config=config, timeout=LONG_S) for _ in range(2)]
    grown = list(pool.map(lambda comm: comm.grow(2, timeout=LONG_S), comms)) + [job.result() for job in joining]
    assert sorted(comm.rank for comm in grown) == [0, 1, 2, 3, 4]
    for comm, total in zip(grown, pool.map(lambda comm: comm.all_reduce(np.full(3, comm.rank))[0], grown), strict=True):
        assert (comm.size, total) == (5, 10)
    assert [x[0] for x in pool.map(lambda comm: comm.all_reduce(np.ones(1)), comms)] == [3.0] * 3  # the old one stays
    for comm in grown:
        comm.close()


def test_a_communicator_goes_on_if_no_new_rank_comes(three):
    pool, comms, _ = three

    def grow(comm: Communicator) -> str:
        try:
            comm.grow(1, timeout=0.5)
        except FabricError as error:
            return str(error)
        return "no error"

    errors = list(pool.map(grow, comms))
    assert "0 of 1 new ranks came to 127.0.0.1:" in errors[0]
    assert all(error.startswith("grow: ") for error in errors), errors
    assert [x[0] for x in pool.map(lambda comm: comm.all_reduce(np.ones(1)), comms)] == [3.0] * 3


def test_a_new_rank_with_other_settings_is_refused(three):
    pool, comms, _ = three
    growing = [pool.submit(comm.grow, 1, timeout=LONG_S) for comm in comms]
    with pytest.raises(FabricError, match=r"rank 0 has streams=1, the new rank on .* has streams=2"):
        fabric.join(comms[0].address, config=FabricConfig(transport="tcp", streams=2), timeout=LONG_S)
    joined = fabric.join(comms[0].address, config=FabricConfig(transport="tcp"), timeout=LONG_S)
    grown = [job.result() for job in growing]
    assert joined.rank == 3
    for comm in (*grown, joined):
        comm.close()


def test_grow_refuses_wrong_arguments_and_ranks_without_an_address(three):
    _, comms, _ = three
    with pytest.raises(InputError, match="count is 0"):
        comms[0].grow(0)
    with pytest.raises(InputError, match="timeout is -1"):
        comms[0].grow(1, timeout=-1)
    with pytest.raises(InputError, match="timeout is 0"):
        comms[0].shrink(timeout=0)
    (error,) = fabric.spawn(jobs.ask_for_address, 1)
    assert "start these with RIDGELINE_FABRIC_RENDEZVOUS" in error
