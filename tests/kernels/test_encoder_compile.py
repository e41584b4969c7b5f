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
from ridgeline.kernels.encoder import attention, layers, products  # noqa: E402

def compiled(kernel, types, constants, warps, stages=3):
    names = [p.name for p in kernel.params]
    signature = {n: "constexpr" if n in constants else types[n] for n in names}
    attributes = {(k,): [["tt.divisibility", 16]] for k, n in enumerate(names) if signature[n].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]

found = {}
for dtype in ("fp16", "bf16"):
    row = {n: "*" + dtype for n in ("word", "position", "out", "x", "x_bias", "bias", "residual")}
    row |= {"weight": "*fp32", "bias": "*fp32", "ids": "*i32", "offsets": "*i64", "tokens": "i32", "texts": "i32",
            "epsilon": "fp32"}
    wide = {"WIDTH": 384, "BLOCK": 512, "ROWS": 4}
    found[f"embed {dtype}"] = compiled(layers._embed_tokens_kernel, row, {**wide, "positions": None}, 4)
    norm = {**wide, "RMS": False, "inner_weight": None, "inner_bias": None, "total": None}
    found[f"add_norm {dtype}"] = compiled(layers._add_and_normalize_kernel, row, norm, 4)
    gelu = {"WIDTH": 1536, "KIND": "gelu", "BLOCK": 512, "ROWS": 4}
    found[f"activate {dtype}"] = compiled(layers._activate_kernel, {**row, "bias": "*" + dtype}, gelu, 4)
    text = {"qkv": "*" + dtype, "offsets": "*i64", "out": "*" + dtype, "scale": "fp32", "hidden": "*" + dtype,
            "first_text": "i32", "blocks": "i32"}
    for size in (16, 32, 64):
        shape = {"HEADS": 12, "KEY_HEADS": 12, "WIDTH": 32, "BLOCK": 32, "QUERIES": size, "KEYS": size, "ABOVE": 0,
                 "LIMIT": size, "CAUSAL": False, "WINDOW": -1, "REACH": 0, "SPAN": 0, "WIDEN": False, "bias": None,
                 "distance_rows": None, "by_query": None, "by_key": None, "STAGES": 3}
        found[f"attention {dtype} {size}"] = compiled(attention._attend_kernel, text, shape, 1 if size < 64 else 4)
    for name, limits in {"long": {"LIMIT": 1 << 30}, "window": {"LIMIT": 1 << 30, "WINDOW": 64}}.items():
        found[f"attention {dtype} {name}"] = compiled(attention._attend_kernel, text, {**shape, **limits}, 4)
    pool = {**wide, "MODE": "mean", "UNIT": True}
    found[f"pool {dtype}"] = compiled(layers._pool_kernel, {**text, "out": "*fp32"}, pool, 4)
    heads = {"HEADS": 12, "KEY_HEADS": 4, "HALF": 32, "BLOCK": 32, "TOKENS": 4, "PARTS": 8}
    turn = {"query_norm": "*fp32", "key_norm": "*fp32", "positions": "*i64", "cosine": "*fp32", "sine": "*fp32"}
    found[f"heads {dtype}"] = compiled(layers._prepare_heads_kernel, {**row, **turn}, heads, 4)
    for name in ("LARGE_TILE", "NARROW_TILE", "SMALL_TILE", "SMALL_GATED_TILE"):
        tile = getattr(products, name)
        boxes = {"x": (tile.tokens, tile.step), "weight": (tile.columns, tile.step),
                 "out": (tile.tokens, tile.columns // 2)}
        types = {n: f"tensordesc<{dtype}[{a},{b}]>" for n, (a, b) in boxes.items()}
        product = {"WIDTH": 2304, "DEPTH": 768, "KIND": "gelu_16", "GATED": "GATED" in name,
                   "ADD": name == "LARGE_TILE", "TOKENS": tile.tokens, "COLUMNS": tile.columns, "STEP": tile.step,
                   "WIDEN": False}
        found[f"product {dtype} {name}"] = compiled(
            products._linear_kernel, {**types, "bias": "*" + dtype, "tokens": "i32"}, product, tile.warps, tile.stages)
print(json.dumps({k: {"mma": "mma" in v, "wide": ".v4.b32" in v, "local": ".local" in v} for k, v in found.items()}))
"""


@pytest.mark.slow
def test_the_encoders_kernels_compile_for_hopper(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert len(facts) == 28
    for name, kernel_facts in facts.items():
        assert kernel_facts["wide"] or name.startswith(("pool", "product")), name  # 16 bytes at a time
        assert kernel_facts["mma"] == name.startswith(("attention", "product")), name
        assert not kernel_facts["local"], name
