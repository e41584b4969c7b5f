"""The front door: light to open, and exactly the names it promises behind it."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

import ridgeline

PUBLIC = [
    "Embedder",
    "Index",
    "Placement",
    "RidgelineError",
    "Topology",
    "TrajectoryDataset",
    "__version__",
    "ceilings",
    "collate",
    "embed",
    "errors",
    "fabric",
    "lab",
    "machine",
    "placed",
    "plan",
    "resample",
    "search",
    "topology",
    "trajectory",
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


def seconds(code: str) -> float:
    start = time.perf_counter()
    assert run("-c", code).returncode == 0
    return time.perf_counter() - start


def test_importing_costs_less_than_a_fifth_of_a_second():
    # In turn, and the best of each: other work on the machine slows both alike.
    bare, ours = zip(*((seconds("pass"), seconds("import ridgeline")) for _ in range(5)), strict=True)
    assert min(ours) - min(bare) < 0.2


@pytest.mark.parametrize("module", ["ridgeline", "ridgeline.machine"])
def test_importing_brings_no_heavy_library(module: str):
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = set(run("-c", code).stdout.split())
    assert module in loaded
    assert not loaded & {"torch", "numpy", "rich", "typer", "triton", "pynvml", "ridgeline.native"}


def test_the_command_line_brings_no_torch():
    code = "import sys; from ridgeline.cli import *; [command(name) for name in COMMANDS]; print(*sys.modules)"
    loaded = set(run("-c", code).stdout.split())
    assert "ridgeline.cli.machine" in loaded
    assert not loaded & {"torch", "triton"}


def test_the_public_names_are_these():
    assert ridgeline.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name: str):
    assert getattr(ridgeline, name) is not None


def test_a_star_import_gives_them_all():
    names: dict[str, object] = {}
    exec("from ridgeline import *", names)
    assert set(PUBLIC) <= set(names)


def test_dir_lists_the_public_names():
    assert dir(ridgeline) == sorted(PUBLIC)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'ridgeline' has no attribute 'no_such'"):
        ridgeline.no_such  # noqa: B018
    with pytest.raises(AttributeError, match=r"'ridgeline\.machine' has no attribute 'no_such'"):
        ridgeline.machine.no_such  # noqa: B018


def test_every_name_of_the_machine_is_there():
    for name in ridgeline.machine.__all__:
        assert getattr(ridgeline.machine, name) is not None


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert ridgeline.__version__ == version("ridgeline")
    said = run("-m", "ridgeline", "--version")
    assert (said.returncode, said.stdout) == (0, f"ridgeline {ridgeline.__version__}\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+", ridgeline.__version__)
