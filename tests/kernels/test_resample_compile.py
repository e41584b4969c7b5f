"""The resampler compiles for a real GPU on machines without one, and reads frames 16 bytes at a time.

python -m pytest tests/kernels/test_resample_compile.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

# Without TRITON_INTERPRET, which must be settled before triton is imported: hence a process of its own.
PROGRAM = """
import json, re, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ridgeline.kernels.resample import kernel as resample_kernel, resample

KERNEL = resample_kernel.resample
TYPES = {"bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "int64": "i64", "bool": "u8"}

def empty(*shape, dtype):
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

def arguments(kind, dtype, clock, depth, outside):
    values, times = empty(256, 100, depth, dtype=dtype), empty(256, 100, dtype=clock)
    at, out, mask = empty(256, 50, dtype=clock), empty(256, 50, depth, dtype=dtype), empty(256, 50, dtype="bool")
    (launch,) = resample._plan(values, times, at, out, mask, None, ((0, depth, kind),), outside, 2.0)
    return [values, times, at, out, mask, *[None] * 5, *launch.fixed], launch.options

def source(given):  # specialised as Triton's dispatch does
    signature, constants, attributes = {}, {}, {}
    for place, (parameter, x) in enumerate(zip(KERNEL.params, given, strict=True)):
        free = not parameter.do_not_specialize
        if x is None or parameter.is_constexpr or (x is not True and not torch.is_tensor(x) and x == 1 and free):
            signature[parameter.name], constants[parameter.name] = "constexpr", x
        elif torch.is_tensor(x):
            signature[parameter.name] = "*" + TYPES[str(x.dtype).removeprefix("torch.")]
            attributes[(place,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = "i32" if abs(x) < 2**31 else "i64"
            if free and x % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=KERNEL, signature=signature, constexprs=constants, attrs=attributes)

found = []
for case in json.loads(sys.argv[1]):
    given, options = arguments(*case)
    ptx = triton.compile(source(given), target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    assert ".target sm_90" in ptx, ptx[:500]
    loads = len(re.findall(r"ld\\.global\\S*\\.v(4\\.b32|2\\.b64)", ptx))
    stores = set(re.findall(r"st\\.global\\S*", ptx)) - {"st.global.b8"}
    found.append({"loads": loads, "stores": sorted(stores), "local": ".local" in ptx})
print(json.dumps(found))
"""
CASES = {
    "linear": [["linear", "bfloat16", "float32", 32, "clamp"], ["linear", "float32", "int64", 8, "nan"]],
    "held": [["previous", "float32", "float64", 32, "extrapolate"], ["nearest", "bfloat16", "int64", 64, "clamp"]],
    "angle": [["angle", "float32", "float64", 32, "clamp"]],
    "slerp": [["slerp", "bfloat16", "float32", 32, "clamp"], ["slerp", "float32", "float64", 32, "nan"]],
    "cubic": [["cubic", "bfloat16", "float32", 32, "clamp"], ["cubic", "float64", "float64", 32, "extrapolate"]],
}


@pytest.mark.slow
@pytest.mark.parametrize("group", CASES)
def test_the_resampler_compiles_for_hopper_with_wide_accesses_and_no_spills_to_memory(group, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", PROGRAM, json.dumps(CASES[group])]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    for report in json.loads(done.stdout.splitlines()[-1]):
        assert report["loads"] >= 1, report
        assert report["stores"] in (["st.global.v4.b32"], ["st.global.v2.b64"]), report
        assert not report["local"], report
