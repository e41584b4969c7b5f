"""Commands run near their GPU and say so."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from ridgeline.cli.placement import stay_near
from ridgeline.machine import NearGpu


@pytest.fixture
def machine(monkeypatch):
    """A machine with a GPU 1 near node 1; yields the numbers of the GPUs that were asked for."""
    asked = []

    @contextmanager
    def place(gpu: int):
        asked.append(gpu)
        yield NearGpu(1, (4, 5), f"runs on CPUs 4-5 of node 1, near GPU {gpu}.")

    monkeypatch.setattr("ridgeline.machine.placed_near_gpu", place)
    monkeypatch.setattr("ridgeline.machine.resolve_device", lambda device: {"auto": "cuda"}.get(device, device))
    return asked


@pytest.mark.parametrize(("device", "gpu"), [("cuda:1", 1), ("cuda", 0), ("auto", 0)])
def test_a_command_on_a_gpu_runs_near_it_and_says_so_once(machine, capsys, device, gpu):
    with stay_near(device, place=True, quiet=False) as near:
        assert near == {"node": 1, "cpus": [4, 5], "reason": f"runs on CPUs 4-5 of node 1, near GPU {gpu}."}
    assert machine == [gpu]
    assert capsys.readouterr().err == f"runs on CPUs 4-5 of node 1, near GPU {gpu}.\n"


@pytest.mark.parametrize(("device", "place"), [("cpu", True), ("cuda:1", False)])
def test_a_command_on_a_cpu_or_with_no_place_stays_where_it_is(machine, capsys, device, place):
    with stay_near(device, place, quiet=False) as near:
        assert near is None
    assert (machine, capsys.readouterr().err) == ([], "")
