"""The package `ridgeline`: a light import, and exactly the public names it promises."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import ridgeline

PUBLIC = [
    "Embedder",
    "Index",
    "Ledger",
    "Placement",
    "Recommender",
    "Reranker",
    "RidgelineError",
    "Stream",
    "Topology",
    "TrajectoryDataset",
    "__version__",
    "align",
    "audit",
    "bulk",
    "ceilings",
    "claims",
    "collate",
    "embed",
    "errors",
    "fabric",
    "lab",
    "machine",
    "pipeline",
    "placed",
    "plan",
    "race",
    "recommend",
    "resample",
    "search",
    "serve",
    "store",
    "stream",
    "topology",
    "trajectory",
    "web",
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True)


def count_modules(code: str) -> int:
    done = run("-c", f"import sys; {code}; print(len(sys.modules))")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_importing_loads_few_modules():
    """A light import loads no more modules than asyncio does; the CPU time is a matter of `ridgeline bench`."""
    assert count_modules("import ridgeline") < count_modules("import asyncio")


@pytest.mark.parametrize("module", ["ridgeline", "ridgeline.machine"])
def test_importing_brings_no_heavy_library(module: str):
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = set(run("-c", code).stdout.split())
    assert module in loaded
    assert not loaded & {"torch", "numpy", "rich", "typer", "triton", "pynvml", "ridgeline.native"}


def test_the_command_line_brings_no_torch():
    code = "import sys; from ridgeline.cli import *; [load_command(name) for name in COMMANDS]; print(*sys.modules)"
    loaded = set(run("-c", code).stdout.split())
    assert "ridgeline.cli.machine" in loaded
    assert not loaded & {"torch", "triton"}


def test_the_public_names_are_these():
    assert ridgeline.__all__ == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads(name: str):
    assert getattr(ridgeline, name) is not None


def test_a_star_import_gives_every_public_name():
    names: dict[str, object] = {}
    exec("from ridgeline import *", names)
    assert set(PUBLIC) <= set(names)


def test_dir_lists_the_public_names():
    assert dir(ridgeline) == PUBLIC


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'ridgeline' has no attribute 'no_such'"):
        ridgeline.no_such  # noqa: B018
    with pytest.raises(AttributeError, match=r"'ridgeline\.machine' has no attribute 'no_such'"):
        ridgeline.machine.no_such  # noqa: B018


PARTS = [
    "audit",
    "bulk",
    "claims",
    "embed",
    "fabric",
    "lab",
    "machine",
    "pipeline",
    "recommend",
    "search",
    "serve",
    "store",
    "trajectory",
    "web",
]


@pytest.mark.parametrize("part", PARTS)
def test_every_public_name_of_a_part_loads(part: str):
    module = getattr(ridgeline, part)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in (*PARTS, "errors", "__version__")])
def test_every_top_name_has_a_docstring_and_a_signature(name: str):
    value = getattr(ridgeline, name)
    assert inspect.getdoc(value)
    assert inspect.signature(value) is not None
    assert str(inspect.getsourcefile(value)).endswith(".py")


def test_the_version_is_that_of_the_distribution():
    from importlib.metadata import version

    assert ridgeline.__version__ == version("ridgeline")
    answer = run("-m", "ridgeline", "--version")
    assert (answer.returncode, answer.stdout) == (0, f"ridgeline {ridgeline.__version__}\n")
    assert re.fullmatch(r"\d+\.\d+\.\d+", ridgeline.__version__)
