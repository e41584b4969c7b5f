"""The workload serve: requests over HTTP by the two loops, the bound, and the peers' commands."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ridgeline.errors import InputError
from ridgeline.lab import OURS, Case
from ridgeline.machine import Placement
from ridgeline.workloads import _serve_peers as peers
from ridgeline.workloads.serve import BASE, IN_PROCESS, workload

pytest.importorskip("torch")
pytest.importorskip("starlette")

SMALL = {**BASE, "clients": 3, "texts": 2, "tokens": 8}


def make_case(**change):
    return Case({**SMALL, **change}, "cpu")


@pytest.fixture(scope="module")
def place():
    return Placement()


def needs_model():
    if not list(workload.cases("quick")):
        pytest.skip("the default model is not on this machine")


@pytest.mark.slow  # starts a server that loads torch
@pytest.mark.parametrize("change", [{}, {"loop": "open", "requests": 2, "rate": 200}])
def test_every_request_of_a_loop_gets_its_vectors(place, change):
    needs_model()
    case = make_case(**change)
    run = workload.prepare(case, OURS, place)
    try:
        for _ in range(2):
            run.reset()
            run.step()
        result, extras = run.result(), run.extras()
    finally:
        run.close()
    check = workload.check(case, result)
    assert check.ok, check
    requests = 3 * case["requests"]
    assert len(result["found"]) == 2 * requests
    assert len(extras["calls_ns"]) == 2 * requests
    assert all(ns > 0 for ns in extras["calls_ns"])
    assert len(extras["generator_cpu_ns"]) == len(extras["server_cpu_ns"]) == 2
    assert min(extras["generator_cpu_ns"]) > 0


@pytest.mark.slow
def test_the_bound_encodes_the_same_texts_and_wrong_vectors_fail_the_check(place):
    needs_model()
    case = make_case()
    run = workload.prepare(case, IN_PROCESS, place)
    run.step()
    result = run.result()
    assert workload.check(case, result).ok
    assert len(run.extras()["server_cpu_ns"]) == 1
    run.close()
    shuffled = {**result, "found": np.roll(result["found"], 1, axis=0)}
    assert not workload.check(case, shuffled).ok


def test_work_counts_the_texts_of_all_clients():
    needs_model()
    assert workload.work(make_case(requests=5)).items == 3 * 5 * 2


@pytest.mark.parametrize(("change", "words"), [({"loop": "half"}, "closed, open"), ({"loop": "open"}, "rate is 0")])
def test_a_case_that_cannot_be_is_refused(place, change, words):
    needs_model()
    with pytest.raises(InputError, match=words):
        workload.prepare(make_case(**change), IN_PROCESS, place)


def test_peers_are_listed_or_say_how_to_be_installed(tmp_path):
    case = make_case()
    names = {*workload.contenders(case), *workload.missing(case)}
    assert names == {OURS, IN_PROCESS, *peers.NAMES}
    for name in peers.NAMES:
        command = peers.make_command(name, tmp_path, "cpu", "float32")
        assert command[0] == sys.executable
        assert 1024 < int(command[-1]) < 65536
        assert str(tmp_path) in command
    with pytest.raises(InputError, match="nosuch"):
        peers.make_command("nosuch", tmp_path, "cpu", "float32")
