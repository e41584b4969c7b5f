"""The stub that mypy reads says what the built extension says."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import ridgeline


def meaning(text: str) -> str:
    """A stub without its layout: formatters may break its lines."""
    tree = ast.parse(text)
    for part in ast.walk(tree):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            part.value = inspect.cleandoc(part.value)
    return ast.dump(tree)


def test_the_stub_is_what_the_extension_gives_now(tmp_path: Path):
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "ridgeline.native", "-O", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    retained = Path(ridgeline.__file__).with_name("native.pyi").read_text()
    assert meaning(retained) == meaning((tmp_path / "native.pyi").read_text()), "make stubs writes it anew"
