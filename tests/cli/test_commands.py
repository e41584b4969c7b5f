"""What a command sets before it begins."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ridgeline.cli import SPINS, command


@pytest.mark.parametrize(("name", "patient"), [("recommend", True), ("audit", True), ("embed", True), ("bench", False)])
def test_threads_of_a_service_sleep_soon_and_those_of_a_measurement_as_they_are(name, patient, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    command(name)
    assert os.environ["GOMP_SPINCOUNT"] == "5"  # whoever has set it is right
    monkeypatch.delenv("GOMP_SPINCOUNT")
    command(name)
    assert os.environ.get("GOMP_SPINCOUNT") == (SPINS if patient else None)


def test_it_is_set_before_torch_is_there():
    code = "import sys; from ridgeline.cli import command; command('recommend'); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
