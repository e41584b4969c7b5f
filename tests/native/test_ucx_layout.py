"""The declarations of UCX's interface beside its own headers, where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow  # a compiler runs for a second
@pytest.mark.skipif(not Path("/usr/include/ucp/api/ucp.h").is_file(), reason="needs the headers of UCX: libucx-dev")
def test_our_declarations_have_the_layout_of_the_headers_of_ucx():
    compiler = shutil.which("g++") or pytest.skip("needs g++")
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{HERE.parents[1] / 'native'}", str(HERE / "ucx_layout.cpp")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
