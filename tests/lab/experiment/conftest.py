"""Points with faulty subjects, and a folder to run them in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ridgeline.lab import Work
from ridgeline.lab.experiment import Point, open_folder
from ridgeline.machine import topology

FOLDER = Path(__file__).parent


@pytest.fixture(autouse=True)
def import_subjects(tmp_path, monkeypatch):
    """Child processes can import the subjects; their files are in the folder of the test."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def point():
    node = topology().memory_nodes[0]

    def make(subject: str = "good", n: int = 1, **changes) -> Point:
        defaults = {"timeout_s": 120.0, "work": Work(10, "images", flops=100, bytes={"staged": 40, "staged_back": 20})}
        return Point(
            "synthetic", f"{subject}{n}", f"faulty_subjects:{subject}", {"model": f"{subject}{n}", "n": n}, node, node,
            **{**defaults, **changes},
        )  # fmt: skip

    return make


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path / "outputs", "synthetic", False, "")
