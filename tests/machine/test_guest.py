"""Topology and placement on a machine that really has two nodes: a QEMU guest, booted once.

    make test-numa

Few hosts of developers and CI have a second NUMA node, and on one node every binding looks right. The guest
costs a minute or two, so it boots only when asked for: by `-m numa`, or by "qemu" in RIDGELINE_REQUIRE,
which also turns a missing QEMU from a skip into a failure.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from .guest.boot import GuestFailed, boot
from .guest.image import Unavailable

pytestmark = [pytest.mark.numa, pytest.mark.xdist_group("guest")]

DEFAULT, PREFERRED, BIND, INTERLEAVE = 0, 1, 2, 3  # MPOL_* of <linux/mempolicy.h>
EVERYWHERE = [0, 1, 2, 3]
PAGES = 2048  # of 4 KiB in the probe's 8 MiB

Report = dict[str, Any]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    required = "qemu" in os.environ.get("RIDGELINE_REQUIRE", "").split(",")
    if not required and "numa" not in request.config.getoption("-m"):
        pytest.skip("boots a guest; ask for it: make test-numa")
    try:
        seen = boot()
    except Unavailable as missing:
        (pytest.fail if required else pytest.skip)(str(missing))
    except GuestFailed as failure:
        pytest.fail(str(failure), pytrace=False)
    broken = {name: look for name, look in seen.items() if isinstance(look, dict) and "traceback" in look}
    assert not broken, "\n".join(f"{name}: {look['traceback']}" for name, look in broken.items())
    return seen


def test_the_topology_has_two_nodes_with_their_cpus_and_memory(report: Report):
    nodes = report["topology"]["nodes"]
    assert [(n["id"], n["cpus"]) for n in nodes] == [(0, [0, 1]), (1, [2, 3])]
    # The kernel keeps a part of each 512 MiB for itself.
    assert all(400 << 20 < n["memory_bytes"] <= 512 << 20 for n in nodes)


def test_the_distances_are_those_of_the_firmware(report: Report):
    distances = [n["distances"] for n in report["topology"]["nodes"]]
    assert distances == [{"0": 10, "1": 21}, {"0": 21, "1": 10}]


def test_every_cpu_knows_its_node_and_package(report: Report):
    cpus = report["topology"]["cpus"]
    assert [(c["id"], c["node"]) for c in cpus] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    packages = [c["package"] for c in cpus]
    assert packages[0] == packages[1] != packages[2] == packages[3]


def test_a_nic_behind_node_one_says_so_and_one_without_a_node_says_nothing(report: Report):
    kernel = report["sysfs"]["nics"]
    assert sorted(n["numa_node"] for n in kernel.values()) == [-1, 1], "the guest is not as it was meant"
    nics = {n["name"]: (n["pci"], n["node"]) for n in report["topology"]["nics"]}
    assert nics == {
        name: (told["pci"], None if told["numa_node"] < 0 else told["numa_node"]) for name, told in kernel.items()
    }


def test_a_nic_tells_its_speed_or_that_it_has_none(report: Report):
    speeds = {n["node"]: n["speed"] for n in report["topology"]["nics"]}
    assert speeds == {1: 10_000, None: None}


@pytest.mark.parametrize(("node", "cpus"), [(0, [0, 1]), (1, [2, 3])])
def test_bound_to_a_node_cpus_and_fresh_memory_are_that_nodes(report: Report, node: int, cpus: list[int]):
    seen = report[f"bind {node}"]
    assert (seen["cpus"], seen["mode"], seen["nodes"]) == (cpus, BIND, [node])
    assert seen["pages"] == seen["numa_maps"] == {str(node): PAGES}
    assert seen["said"]["cpus"] == cpus
    assert seen["said"]["memory_nodes"] == [node]
    assert set(seen["said"]["page_nodes"]) == {node}


@pytest.mark.parametrize("name", ["local 1", "preferred 1"])
def test_softer_policies_also_give_memory_of_the_node(report: Report, name: str):
    seen = report[name]
    assert seen["cpus"] == [2, 3]
    assert seen["pages"] == seen["numa_maps"] == {"1": PAGES}
    assert set(seen["said"]["page_nodes"]) == {1}


def test_cpus_of_one_node_can_be_given_memory_of_the_other(report: Report):
    seen = report["across"]
    assert seen["cpus"] == [0]
    assert seen["pages"] == seen["numa_maps"] == {"1": PAGES}
    assert set(seen["said"]["page_nodes"]) == {1}


def test_interleave_deals_pages_evenly_over_both_nodes(report: Report):
    seen = report["interleave"]
    assert (seen["cpus"], seen["mode"], seen["nodes"]) == (EVERYWHERE, INTERLEAVE, [0, 1])
    assert seen["pages"] == seen["numa_maps"] == {"0": PAGES // 2, "1": PAGES // 2}
    assert set(seen["said"]["page_nodes"]) == {0, 1}


def test_a_thread_started_while_placed_stands_there_too(report: Report):
    seen = report["thread"]
    assert (seen["cpus"], seen["mode"], seen["nodes"]) == ([2, 3], BIND, [1])
    assert seen["pages"] == {"1": PAGES}


def test_leaving_restores_cpus_and_policy(report: Report):
    assert report["before"] == {"cpus": EVERYWHERE, "mode": DEFAULT, "nodes": []}
    assert report["after"] == report["before"]


def test_an_exception_restores_them_as_well(report: Report):
    assert report["after an error"] == report["before"]


def test_a_callers_own_cpus_and_policy_come_back(report: Report):
    seen = report["over an own policy"]
    assert seen["before"] == {"cpus": [1, 2], "mode": PREFERRED, "nodes": [1]}
    assert (seen["inside"]["cpus"], seen["inside"]["pages"]) == ([1], {"0": PAGES})
    assert seen["after"] == seen["before"]


def test_a_node_that_is_not_there_is_refused_by_its_number(report: Report):
    refused = report["no such node"]
    assert "node 7" in (refused.pop("error") or "accepted")
    assert refused == report["before"]


def test_a_plan_of_two_ranks_gives_each_a_node_of_its_own(report: Report):
    first, second = report["plan"]
    assert (first["node"], first["cpus"], first["pages"]) == (0, [0, 1], {"0": PAGES})
    assert (second["node"], second["cpus"], second["pages"]) == (1, [2, 3], {"1": PAGES})


def test_an_experiment_runs_near_and_far_and_its_rows_name_the_right_nodes(report: Report):
    rows = {(row["device_node"], row["numa_node"]): row for row in report["experiment"]["rows"]}
    assert {place: row["error"] for place, row in rows.items()} == dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)])
    assert {place: row["distance"] for place, row in rows.items()} == {(0, 0): 10, (0, 1): 21, (1, 0): 21, (1, 1): 10}
    for (cpus, node), row in rows.items():
        lies, own = row["lane"]["lies"], {0: {0, 1}, 1: {2, 3}}[cpus]
        assert set(lies["staging"]) == set(lies["answers"]) == {str(node)}, "by the kernel's own word"
        assert set(lies["beside"]) == {str(cpus)}
        assert set(row["lane"]["cpus"]) == set(row["seat"]["cpus"]) <= own
        assert len(row["seat"]["cpus"]) == 1, "two workers share a node's two CPUs without sharing one"
        assert row["throughput"] > 0
