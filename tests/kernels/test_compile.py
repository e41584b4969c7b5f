"""Every kernel compiles for a real GPU on machines without one.

The interpreter accepts what the compiler refuses (annotations, for one), so it is not a sufficient test.

    python -m pytest tests/kernels/test_compile.py
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

# Without TRITON_INTERPRET, which must be set before triton is imported: hence a separate process.
PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ridgeline.kernels import bandwidth  # noqa: E402

def ptx(kernel, signature, constants):
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]

text = ptx(bandwidth.{kernel}, {signature}, {{"BLOCK": 4096}})
assert ".target sm_90" in text, text[:500]
print("ld.global.v4" in text or "ld.global.L" in text, len(text))
"""
SIGNATURES = {
    "_read": {"source": "*i32", "out": "*i32", "count": "i64", "BLOCK": "constexpr"},
}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", SIGNATURES)
def test_a_kernel_compiles_for_hopper(kernel, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    program = PROGRAM.format(kernel=kernel, signature=SIGNATURES[kernel])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
