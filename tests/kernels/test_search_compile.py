"""The search kernels compile for a real GPU, on machines that have none: wide loads, matrix units, dp4a, no spills.

python -m pytest tests/kernels/test_search_compile.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")

# Without TRITON_INTERPRET, which must be settled before triton is imported: hence a process of its own. The kernels
# are caught where they would be launched, with the arguments they would be launched with.
PROGRAM = """
import json, re, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ridgeline.kernels import (
    search_batch, search_bytes, search_codes, search_exact, search_inverted, search_lists, search_scan, search_select,
    search_settle, search_begin, search_finish, search_margin, search_short, search_sketch,
)

TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "int64": "i64", "int32": "i32",
         "uint8": "u8", "int8": "i8"}
found = {}

def source(kernel, given):  # specialised as Triton's dispatch does
    signature, constants, attributes = {}, {}, {}
    for place, (parameter, x) in enumerate(zip(kernel.params, given, strict=True)):
        free = not parameter.do_not_specialize
        plain = isinstance(x, int) and not isinstance(x, bool)
        if x is None or parameter.is_constexpr or (plain and x == 1 and free):
            signature[parameter.name], constants[parameter.name] = "constexpr", x
        elif torch.is_tensor(x):
            signature[parameter.name] = "*" + TYPES[str(x.dtype).removeprefix("torch.")]
            attributes[(place,)] = [["tt.divisibility", 16]]
        elif isinstance(x, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32" if abs(x) < 2**31 else "i64"
            if free and x % 16 == 0:
                attributes[(place,)] = [["tt.divisibility", 16]]
    return ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)

class Caught:
    def __init__(self, name, kernel):
        self.name, self.kernel = name, kernel

    def __getitem__(self, grid):
        def launch(*given, **options):
            compiled = triton.compile(source(self.kernel, given), target=GPUTarget("cuda", 90, 32), options=options)
            ptx = compiled.asm["ptx"]
            found.setdefault(self.name, []).append({
                "wide": ".v4.b32" in ptx or ".v2.b64" in ptx or "cp.async.cg" in ptx, "wgmma": "wgmma" in ptx,
                "mma": "mma." in ptx, "dp4a": "dp4a" in ptx, "local": ".local" in ptx,
                "rounded": not re.search("(add|sub|mul)[.]f(32|64) ", ptx.replace("\\t", " ")),
                "shared": compiled.metadata.shared, "early": "griddepcontrol.wait" in ptx,
                "waits": -1 < ptx.find("griddepcontrol.wait") < min(ptx.find("ld.global"), ptx.find("st.global")),
            })
        return launch

class Left:  # to another test
    def __getitem__(self, grid):
        return lambda *given, **options: None

KERNELS = json.loads(sys.argv[3])
for module in (search_batch, search_bytes, search_codes, search_lists, search_scan, search_select, search_settle,
               search_begin, search_finish, search_margin, search_sketch):
    for name, kernel in list(vars(module).items()):
        if isinstance(kernel, triton.JITFunction) and name in KERNELS:
            setattr(module, name, Caught(name, kernel) if name in sys.argv[2].split(",") else Left())

def empty(*shape, dtype="float16"):
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")

one, queries = empty(1, 384, dtype="float32"), empty(1024, 384, dtype="float32")
rows, codes = empty(100000, 384), empty(100000, 384, dtype="int8")
norms, longest, allowed = empty(100000, dtype="float32"), empty(1, dtype="float32"), empty(100000, dtype="uint8")
ids, places = empty(100000, dtype="int64"), empty(100000, dtype="int64")
grid = (empty(384, dtype="float32"), empty(384, dtype="float32"))
centres, starts = empty(1024, 384, dtype="float32"), empty(1025, dtype="int32")
books, parts = empty(48, 256, 8, dtype="float32"), empty(100000, 48, dtype="uint8")
exec(sys.argv[1])
print(json.dumps(found))
"""
KERNELS = [
    "_scan", "_coarse", "_pick", "_settle", "_rounded", "_maxima", "_again", "_rescore", "_words", "_scan_bytes",
    "_probe", "_scan_lists", "_maxima_of_lists", "_scan_codes", "_prepare", "_nearest", "_finish",
    "_scan_halves", "_margin", "_scan_again",
]  # fmt: skip


def compiled(calls: str, kernels: str, folder: object) -> dict[str, list[dict[str, bool]]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-c", PROGRAM, calls, kernels, json.dumps(KERNELS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert sorted(found) == sorted(kernels.split(",")), found.keys()
    for name, told in found.items():
        assert not any(t["local"] for t in told), name
        assert all(t["shared"] <= 227 * 1024 for t in told), name
    return found


def test_scans_read_sixteen_bytes_at_a_time(tmp_path):
    calls = """
search_exact.one(one, rows, 10)
search_exact.one(one, rows, 10, metric="l2", bias=norms, allowed=allowed)
search_exact.one(one, empty(1000, 384, dtype="float32"), 10)
search_exact.one(one, codes, 10, grid=grid)
search_inverted.search(one, centres, starts, 3000, rows, 10, 16, ids=ids)
search_inverted.search(one, centres, starts, 30, rows, 10, 1, ids=ids)
"""
    found = compiled(calls, "_scan,_scan_bytes,_scan_lists,_words", tmp_path)
    for name in ("_scan", "_scan_bytes", "_scan_lists"):
        assert all(t["wide"] for t in found[name]), name
    assert all(t["dp4a"] for t in found["_scan_bytes"])


def test_best_tiles_and_rows_compile(tmp_path):
    calls = """
search_inverted.search(one, centres, starts, 3000, codes, 10, 16, ids=ids, grid=grid, refine=rows, places=places,
                       candidates=32)
"""
    compiled(calls, "_coarse,_pick,_settle,_probe", tmp_path)


def test_many_queries_meet_rows_on_the_matrix_units(tmp_path):
    calls = """
search_exact.many(queries, rows, 10, longest)
search_exact.many(queries, rows.bfloat16(), 10, longest, metric="l2", bias=norms, allowed=allowed)
search_exact.many(queries, rows.float(), 10, longest)
search_exact.many(queries, codes, 10, longest, grid=grid)
search_exact.many(queries[:9], rows, 10, longest)
search_inverted.search(queries, centres, starts, 3000, rows, 10, 16, ids=ids)
search_inverted.search(queries, centres, starts, 3000, parts, 10, 16, ids=ids, books=books)
"""
    found = compiled(calls, "_rounded,_maxima,_again,_rescore,_maxima_of_lists,_scan_codes", tmp_path)
    assert [t["wgmma"] for t in found["_maxima"]] == [True] * 4 + [False]  # nine queries are too few for it
    assert all(t["mma"] for t in found["_maxima"] + found["_maxima_of_lists"])
    for name in ("_maxima", "_again", "_rescore", "_maxima_of_lists"):
        assert all(t["wide"] for t in found[name]), name


SHORT = """
answer = empty(1, 10, dtype="float32"), empty(1, 10, dtype="int64")
for early in (False, True):
    search_short.flat(one, True, rows, answer, early=early)
    search_short.flat(one, True, codes, answer, grid=grid, refine=rows, candidates=32, early=early)
    search_short.lists(one, True, centres, starts, 3000, rows, 1, answer, ids=ids, early=early)
search_short.flat(one.half(), False, rows, answer, metric="l2", allowed=allowed, ids=ids, candidates=64)
search_short.lists(one, False, centres, starts, 3000, codes, 64, answer, metric="l2", bias=norms, grid=grid, ids=ids)
"""


def test_one_query_in_three_launches_compiles(tmp_path):
    found = compiled(SHORT, "_prepare,_nearest,_finish", tmp_path)
    assert [t["early"] for t in found["_finish"]] == [False] * 3 + [True] * 3 + [False] * 2
    assert all(t["waits"] == t["early"] for t in found["_finish"])  # before it touches anything
    assert not any(t["early"] for t in found["_prepare"] + found["_nearest"])  # the first waits for nothing


def test_a_scan_that_may_begin_early_waits_and_still_reads_sixteen_bytes_at_a_time(tmp_path):
    found = compiled(SHORT, "_scan,_scan_bytes,_scan_lists", tmp_path)
    for told in found.values():
        assert all(t["wide"] for t in told)
        assert sum(t["early"] for t in told) == sum(t["waits"] for t in told) == 1


def test_one_query_over_a_sketch_compiles(tmp_path):
    calls = """
answer = empty(1, 10, dtype="float32"), empty(1, 10, dtype="int64")
sketch = empty(15625, 64, 48, dtype="int32")
million, finer = empty(1000000, 384, dtype="int8"), empty(1000000, 384)
for early in (False, True):
    search_short.sketched(one, True, million, answer, sketch=sketch, grid=grid, refine=finer, candidates=32,
                          early=early)
many, bias = empty(1000000, dtype="uint8"), empty(1000000, dtype="float32")
search_short.sketched(one, False, million, answer, sketch=sketch, grid=grid, refine=finer, candidates=64,
                      metric="l2", bias=bias, allowed=many, ids=empty(1000000, dtype="int64"))
"""
    found = compiled(calls, "_prepare,_scan_halves,_margin,_scan_again,_finish", tmp_path)
    for name in ("_scan_halves", "_scan_again"):
        assert all(t["wide"] and t["dp4a"] for t in found[name]), name
    for name in ("_scan_halves", "_margin", "_scan_again", "_finish"):
        assert [t["early"] for t in found[name]] == [t["waits"] for t in found[name]] == [False, True, False], name
    assert all(t["rounded"] for t in found["_margin"])


def test_a_sum_that_is_compared_is_the_same_in_every_thread(tmp_path):
    """A product that is added to what another thread brings must have been rounded: no instruction may do both."""
    calls = """
small, bias = empty(301, 16, dtype="float32"), empty(301, dtype="float32")
few, out = empty(1, 16, dtype="float32"), (empty(1, 10, dtype="float32"), empty(1, 10, dtype="int64"))
for metric in ("ip", "l2"):
    search_exact.one(few, small, 10, metric=metric, bias=bias)
    search_exact.many(empty(20, 16, dtype="float32"), small, 10, longest, metric=metric, bias=bias)
    search_short.flat(few, False, small, out, metric=metric)
    search_short.lists(few, False, centres[:, :16].contiguous(), starts, 300, small, 4, out, metric=metric)
"""
    kernels = "_scan,_settle,_again,_rescore,_scan_lists,_nearest,_finish"
    for name, told in compiled(calls, kernels, tmp_path).items():
        assert all(t["rounded"] for t in told), name
