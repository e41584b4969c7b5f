"""Points over the faulty subjects, and a folder to run them in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.lab import Work
from ridgeline.lab.experiment import Point, open_folder
from ridgeline.machine import topology

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def beside(tmp_path, monkeypatch):
    """Children find the subjects; whatever they leave is in this test's own folder."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def point():
    node = topology().memory_nodes[0]

    def make(subject: str = "good", n: int = 1, **changes) -> Point:
        given = {"timeout_s": 120.0, "work": Work(10, "images", flops=100, bytes={"staged": 40, "staged_back": 20})}
        return Point(
            "made", f"{subject}{n}", f"experiment_faults:{subject}", {"model": f"{subject}{n}", "n": n}, node, node,
            **{**given, **changes},
        )  # fmt: skip

    return make


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path / "outputs", "made", False, "")
