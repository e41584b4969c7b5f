"""Topology and placement on a machine with two real nodes: a QEMU guest, booted once.

    make test-numa

Few hosts of developers and CI have a second NUMA node, and on one node every binding seems correct. The guest takes a
minute or two, so it boots only with `-m numa`, or with "qemu" in RIDGELINE_REQUIRE; the latter also turns a missing
QEMU from a skip into a failure.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from .guest.boot import GuestFailed, boot
from .guest.image import Unavailable

pytestmark = pytest.mark.numa

DEFAULT, PREFERRED, BIND, INTERLEAVE = 0, 1, 2, 3  # MPOL_* of <linux/mempolicy.h>
EVERYWHERE = [0, 1, 2, 3]
PAGES = 2048  # of 4 KiB in the probe's 8 MiB

Report = dict[str, Any]


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> Report:
    required = "qemu" in os.environ.get("RIDGELINE_REQUIRE", "").split(",")
    if not required and "numa" not in request.config.getoption("-m"):
        pytest.skip("boots a guest; run it with: make test-numa")
    try:
        observed = boot()
    except Unavailable as missing:
        (pytest.fail if required else pytest.skip)(str(missing))
    except GuestFailed as failure:
        pytest.fail(str(failure), pytrace=False)
    broken = {
        name: observation
        for name, observation in observed.items()
        if isinstance(observation, dict) and "traceback" in observation
    }
    assert not broken, "\n".join(f"{name}: {observation['traceback']}" for name, observation in broken.items())
    return observed


def test_the_topology_has_two_nodes_with_their_cpus_and_memory(report: Report):
    nodes = report["topology"]["nodes"]
    assert [(n["id"], n["cpus"]) for n in nodes] == [(0, [0, 1]), (1, [2, 3])]
    # The kernel keeps a part of each 512 MiB for itself.
    assert all(400 << 20 < n["memory_bytes"] <= 512 << 20 for n in nodes)


def test_the_distances_are_those_of_the_firmware(report: Report):
    distances = [n["distances"] for n in report["topology"]["nodes"]]
    assert distances == [{"0": 10, "1": 21}, {"0": 21, "1": 10}]


def test_every_cpu_has_its_node_and_package(report: Report):
    cpus = report["topology"]["cpus"]
    assert [(c["id"], c["node"]) for c in cpus] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    packages = [c["package"] for c in cpus]
    assert packages[0] == packages[1] != packages[2] == packages[3]


def test_a_nic_has_the_node_of_the_firmware_or_none(report: Report):
    kernel = report["sysfs"]["nics"]
    assert sorted(n["numa_node"] for n in kernel.values()) == [-1, 1], "the guest is not configured as intended"
    nics = {n["name"]: (n["pci"], n["node"]) for n in report["topology"]["nics"]}
    assert nics == {
        name: (nic["pci"], None if nic["numa_node"] < 0 else nic["numa_node"]) for name, nic in kernel.items()
    }


def test_a_nic_has_a_speed_or_none(report: Report):
    speeds = {n["node"]: n["speed"] for n in report["topology"]["nics"]}
    assert speeds == {1: 10_000, None: None}


@pytest.mark.parametrize(("node", "cpus"), [(0, [0, 1]), (1, [2, 3])])
def test_a_binding_gives_cpus_and_fresh_memory_of_the_node(report: Report, node: int, cpus: list[int]):
    observed = report[f"bind {node}"]
    assert (observed["cpus"], observed["mode"], observed["nodes"]) == (cpus, BIND, [node])
    assert observed["pages"] == observed["numa_maps"] == {str(node): PAGES}
    assert observed["placed"]["cpus"] == cpus
    assert observed["placed"]["memory_nodes"] == [node]
    assert set(observed["placed"]["page_nodes"]) == {node}


@pytest.mark.parametrize("name", ["local 1", "preferred 1"])
def test_softer_policies_also_give_memory_of_the_node(report: Report, name: str):
    observed = report[name]
    assert observed["cpus"] == [2, 3]
    assert observed["pages"] == observed["numa_maps"] == {"1": PAGES}
    assert set(observed["placed"]["page_nodes"]) == {1}


def test_cpus_of_one_node_can_be_given_memory_of_the_other(report: Report):
    observed = report["across"]
    assert observed["cpus"] == [0]
    assert observed["pages"] == observed["numa_maps"] == {"1": PAGES}
    assert set(observed["placed"]["page_nodes"]) == {1}


def test_interleave_deals_pages_evenly_over_both_nodes(report: Report):
    observed = report["interleave"]
    assert (observed["cpus"], observed["mode"], observed["nodes"]) == (EVERYWHERE, INTERLEAVE, [0, 1])
    assert observed["pages"] == observed["numa_maps"] == {"0": PAGES // 2, "1": PAGES // 2}
    assert set(observed["placed"]["page_nodes"]) == {0, 1}


def test_a_thread_started_while_placed_is_placed_too(report: Report):
    observed = report["thread"]
    assert (observed["cpus"], observed["mode"], observed["nodes"]) == ([2, 3], BIND, [1])
    assert observed["pages"] == {"1": PAGES}


def test_leaving_restores_cpus_and_policy(report: Report):
    assert report["before"] == {"cpus": EVERYWHERE, "mode": DEFAULT, "nodes": []}
    assert report["after"] == report["before"]


def test_an_exception_restores_them_as_well(report: Report):
    assert report["after an error"] == report["before"]


def test_the_cpus_and_policy_of_the_caller_are_restored(report: Report):
    observed = report["over a custom policy"]
    assert observed["before"] == {"cpus": [1, 2], "mode": PREFERRED, "nodes": [1]}
    assert (observed["inside"]["cpus"], observed["inside"]["pages"]) == ([1], {"0": PAGES})
    assert observed["after"] == observed["before"]


def test_the_error_for_a_missing_node_has_its_number(report: Report):
    refused = report["no such node"]
    assert "node 7" in (refused.pop("error") or "accepted")
    assert refused == report["before"]


def test_a_plan_of_two_ranks_gives_each_a_separate_node(report: Report):
    first, second = report["plan"]
    assert (first["node"], first["cpus"], first["pages"]) == (0, [0, 1], {"0": PAGES})
    assert (second["node"], second["cpus"], second["pages"]) == (1, [2, 3], {"1": PAGES})


def test_an_experiment_runs_near_and_far_and_its_rows_name_the_right_nodes(report: Report):
    rows = {(row["device_node"], row["numa_node"]): row for row in report["experiment"]["rows"]}
    assert {place: row["error"] for place, row in rows.items()} == dict.fromkeys([(0, 0), (0, 1), (1, 0), (1, 1)])
    assert {place: row["distance"] for place, row in rows.items()} == {(0, 0): 10, (0, 1): 21, (1, 0): 21, (1, 1): 10}
    for (cpus, node), row in rows.items():
        lies, cpus_of_node = row["lane"]["lies"], {0: {0, 1}, 1: {2, 3}}[cpus]
        assert set(lies["staging"]) == set(lies["answers"]) == {str(node)}, "as the kernel reports"
        assert set(lies["beside"]) == {str(cpus)}
        assert set(row["lane"]["cpus"]) == set(row["seat"]["cpus"]) <= cpus_of_node
        assert len(row["seat"]["cpus"]) == 1, "two workers share a node's two CPUs without sharing one"
        assert row["throughput"] > 0
