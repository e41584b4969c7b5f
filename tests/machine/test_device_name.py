"""Names of devices, where there are GPUs and where there are none.

python -m pytest tests/machine/test_device_name.py
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from ridgeline.errors import InputError, MissingExtra
from ridgeline.machine import device_name
from ridgeline.machine.device_name import device_named


@pytest.fixture
def gpus(monkeypatch):
    """Says how many there are."""
    return lambda count: monkeypatch.setattr(device_name, "gpus_ready", lambda: count)


@pytest.mark.parametrize(
    ("count", "name", "means"),
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
def test_what_a_name_means(gpus, count, name, means):
    gpus(count)
    assert device_named(name) == means


@pytest.mark.parametrize(
    "name", ["gpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda:1:2", "cpu:1", "auto:0", "CPU", "meta", 0, None]
)
def test_what_is_no_name(gpus, name):
    gpus(2)
    with pytest.raises(InputError, match=f"there is no device '{name}'.* There are: auto, cpu, cuda, cuda:N."):
        device_named(name)


def test_what_is_not_here(gpus):
    gpus(2)
    with pytest.raises(InputError, match="device cuda:2: there are 2 GPUs here, counted from 0"):
        device_named("cuda:2")
    gpus(0)
    with pytest.raises(InputError, match="device cuda:0: no GPU is to be seen here; use cpu"):
        device_named("cuda:0")


def test_a_torch_device_is_as_good_as_its_name(gpus):
    torch = pytest.importorskip("torch")
    gpus(4)
    assert [device_named(torch.device(*d)) for d in (("cpu",), ("cuda",), ("cuda", 3))] == ["cpu", "cuda", "cuda:3"]


def test_without_torch(monkeypatch):
    monkeypatch.setattr(device_name, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert device_named("auto") == "cpu"
    with pytest.raises(MissingExtra, match="device cuda"):
        device_named("cuda")


def test_torch_is_imported_only_where_a_driver_is(tmp_path):
    code = (
        "import sys; from pathlib import Path; from ridgeline.machine import device_name as d; "
        "d.DRIVERS = tuple(Path(p) for p in sys.argv[1:]); print(d.device_named('auto'), 'torch' in sys.modules)"
    )
    ask = [sys.executable, "-c", code]
    assert subprocess.check_output([*ask, str(tmp_path / "none")], text=True) == "cpu False\n"
    assert subprocess.check_output([*ask, str(tmp_path)], text=True).endswith(" True\n")
