"""What a command sets before it begins, and how its options are told."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline import cli
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


def options(module: Path) -> Iterator[tuple[str, ast.Call]]:
    """Names of parameters, and what they say to typer.Option."""
    for one in ast.walk(ast.parse(module.read_text())):
        if isinstance(one, ast.arg) and one.annotation is not None:
            for call in ast.walk(one.annotation):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "typer.Option":
                    yield one.arg, call


def test_an_option_called_like_its_value_says_its_name():
    """Typer 0.27 makes --TIME of `time: Annotated[str, typer.Option(metavar="TIME")]`."""
    found = [(m.name, name, call) for m in sorted(Path(cli.__file__).parent.glob("*.py")) for name, call in options(m)]
    values = {(m, n): [k.value.value for k in c.keywords if k.arg == "metavar"] for m, n, c in found if not c.args}
    assert ("index.py", "metric") in values
    assert not [where for where, named in values.items() if named and named[0].lower() == where[1].replace("_", "-")]
