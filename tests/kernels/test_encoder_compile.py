"""The encoder kernels compile for a real GPU on machines without one, and use the matrix units.

python -m pytest tests/kernels/test_encoder_compile.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

# Without TRITON_INTERPRET, which must be set before triton is imported: hence a separate process.
PROGRAM = """
import json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ridgeline.kernels.encoder import layers  # noqa: E402

def compiled(kernel, types, constants, warps):
    names = [p.name for p in kernel.params]
    signature = {n: "constexpr" if n in constants else types[n] for n in names}
    attributes = {(k,): [["tt.divisibility", 16]] for k, n in enumerate(names) if signature[n].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps}).asm["ptx"]

found = {}
for dtype in ("fp16", "bf16"):
    row = {n: "*" + dtype for n in ("word", "position", "out", "x", "x_bias", "bias", "residual")}
    row |= {"weight": "*fp32", "bias": "*fp32", "ids": "*i32", "offsets": "*i64", "tokens": "i32", "texts": "i32",
            "epsilon": "fp32"}
    wide = {"WIDTH": 384, "BLOCK": 512, "ROWS": 4}
    found[f"embed {dtype}"] = compiled(layers._embed_tokens_kernel, row, {**wide, "positions": None}, 4)
    found[f"add_norm {dtype}"] = compiled(layers._add_and_normalize_kernel, row, wide, 4)
    gelu = {"WIDTH": 1536, "KIND": "gelu", "BLOCK": 512, "ROWS": 4}
    found[f"activate {dtype}"] = compiled(layers._activate_kernel, {**row, "bias": "*" + dtype}, gelu, 4)
    text = {"qkv": "*" + dtype, "offsets": "*i64", "out": "*" + dtype, "scale": "fp32", "hidden": "*" + dtype}
    for size in (16, 32, 64):
        shape = {"HEADS": 12, "DEPTH": 32, "QUERIES": size, "KEYS": size, "WIDEN": False}
        found[f"attention {dtype} {size}"] = compiled(layers._attend_kernel, text, shape, 1 if size < 64 else 4)
    pool = {**wide, "MODE": "mean", "UNIT": True}
    found[f"pool {dtype}"] = compiled(layers._pool_kernel, {**text, "out": "*fp32"}, pool, 4)
print(json.dumps({k: {"mma": "mma" in v, "wide": ".v4.b32" in v, "local": ".local" in v} for k, v in found.items()}))
"""


@pytest.mark.slow
def test_the_encoders_kernels_compile_for_hopper(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert len(facts) == 14
    for name, kernel_facts in facts.items():
        assert kernel_facts["wide"] or name.startswith("pool"), name  # 16 bytes at a time
        assert kernel_facts["mma"] == name.startswith("attention"), name
        assert not kernel_facts["local"], name
