"""Device names on machines with and without GPUs.

python -m pytest tests/machine/test_device_name.py
"""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from ridgeline.errors import InputError, MissingExtra
from ridgeline.machine import device_name
from ridgeline.machine.device_name import has_cuda_build, resolve_device


@pytest.fixture
def gpus(monkeypatch):
    """Returns a function that sets the number of GPUs."""
    return lambda count: monkeypatch.setattr(device_name, "count_gpus", lambda: count)


@pytest.mark.parametrize(
    ("count", "name", "device"),
    [
        (0, "cpu", "cpu"),
        (2, "cpu", "cpu"),
        (2, "cpu:0", "cpu"),
        (0, "auto", "cpu"),
        (2, "auto", "cuda"),
        (2, "cuda", "cuda"),
        (2, "cuda:1", "cuda:1"),
        (2, "cuda:01", "cuda:1"),
    ],
)
def test_a_valid_name_resolves_to_a_device(gpus, count, name, device):
    gpus(count)
    assert resolve_device(name) == device


@pytest.mark.parametrize(
    "name", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cpu:1", "auto:0", "CPU", "meta", 0, None]
)
def test_an_invalid_name_is_an_error(gpus, name):
    gpus(2)
    with pytest.raises(InputError, match=f"there is no device '{name}'.* There are: auto, cpu, cuda, cuda:N."):
        resolve_device(name)


def test_a_missing_gpu_is_an_error(gpus):
    gpus(2)
    with pytest.raises(InputError, match="device cuda:2: there are 2 GPUs here, counted from 0"):
        resolve_device("cuda:2")
    gpus(0)
    with pytest.raises(InputError, match="device cuda:0: this process sees no GPU; use cpu"):
        resolve_device("cuda:0")


def test_a_torch_device_resolves_like_its_name(gpus):
    torch = pytest.importorskip("torch")
    gpus(4)
    assert [resolve_device(torch.device(*d)) for d in (("cpu",), ("cuda",), ("cuda", 3))] == ["cpu", "cuda", "cuda:3"]


def test_without_torch_only_the_cpu_resolves(monkeypatch):
    monkeypatch.setattr(device_name, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert resolve_device("auto") == "cpu"
    with pytest.raises(MissingExtra, match="device cuda"):
        resolve_device("cuda")


def test_torch_is_imported_only_where_a_driver_exists(tmp_path):
    code = (
        "import sys; from pathlib import Path; from ridgeline.machine import device_name as d; "
        "d.DRIVERS = tuple(Path(p) for p in sys.argv[1:]); print(d.resolve_device('auto'), 'torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    assert subprocess.check_output([*command, str(tmp_path / "none")], text=True) == "cpu False\n"
    assert subprocess.check_output([*command, str(tmp_path)], text=True).endswith(" True\n")


@pytest.mark.parametrize(
    ("version", "cuda"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n", False),
        ("__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n", True),
        ("cuda = '11.8'\nhip = None\n", True),
        ("cuda = None\nhip = '6.2'\n", False),
        (None, False),
    ],
)
def test_the_build_of_torch_is_read_without_importing_it(version, cuda, tmp_path, monkeypatch):
    if version is not None:
        (tmp_path / "version.py").write_text(version)
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(device_name, "find_spec", lambda name: spec)
    assert has_cuda_build() is cuda
    monkeypatch.setattr(device_name, "find_spec", lambda name: None)
    assert not has_cuda_build()


def test_the_build_of_the_torch_that_is_installed():
    torch = pytest.importorskip("torch")
    assert has_cuda_build() is (torch.version.cuda is not None)
