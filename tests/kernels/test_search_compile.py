"""The search kernels compile for a real GPU on machines without one: wide loads, matrix units, dp4a, no spills.

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

# Without TRITON_INTERPRET, which must be set before triton is imported: hence a separate process. Kernels are compiled
# instead of launched, with the arguments of the launch.
PROGRAM = """
import json, re, sys
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from ridgeline.kernels.search import (
    inverted_lists, one_query, product_codes, queries as query_kernels, rescore, scalar_codes, scan, search, top_k,
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
for module in (scan, scalar_codes, product_codes, inverted_lists, top_k, rescore, query_kernels):
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
    "_scan_rows_kernel", "_select_tiles_kernel", "_rescore_candidates_kernel", "_prepare_queries_kernel",
    "_tile_maxima_kernel", "_score_tiles_kernel", "_pack_queries_kernel", "_scan_codes_kernel", "_scan_lists_kernel",
    "_list_maxima_kernel", "_scan_product_codes_kernel", "_prepare_one_query_kernel", "_prepare_and_probe_kernel",
    "_rescore_one_query_kernel", "_scan_sketch_kernel", "_rescore_within_margin_kernel", "_rescan_codes_kernel",
]  # fmt: skip


def compile_kernels(calls: str, kernels: str, folder: object) -> dict[str, list[dict[str, bool]]]:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(folder)
    command = [sys.executable, "-c", PROGRAM, calls, kernels, json.dumps(KERNELS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert sorted(facts) == sorted(kernels.split(",")), facts.keys()
    for name, kernel_facts in facts.items():
        assert not any(t["local"] for t in kernel_facts), name
        assert all(t["shared"] <= 227 * 1024 for t in kernel_facts), name
    return facts


@pytest.mark.slow
def test_scans_read_sixteen_bytes_at_a_time(tmp_path):
    calls = """
search.search_rows(one, rows, 10)
search.search_rows(one, rows, 10, metric="l2", bias=norms, allowed=allowed)
search.search_rows(one, empty(1000, 384, dtype="float32"), 10)
search.search_rows(one, codes, 10, grid=grid)
for probes, tiles in ((16, 94), (1, 1)):
    inverted_lists.scan_lists(one, rows, empty(1, probes, dtype="int64"), starts, tiles)
"""  # search_lists takes this scan only for a large k
    facts = compile_kernels(
        calls, "_scan_rows_kernel,_scan_codes_kernel,_scan_lists_kernel,_pack_queries_kernel", tmp_path
    )
    for name in ("_scan_rows_kernel", "_scan_codes_kernel", "_scan_lists_kernel"):
        assert all(t["wide"] for t in facts[name]), name
    assert all(t["dp4a"] for t in facts["_scan_codes_kernel"])


@pytest.mark.slow
def test_best_tiles_and_rows_compile(tmp_path):
    calls = """
search.search_lists(one, centres, starts, 3000, codes, 10, 16, ids=ids, grid=grid, refine=rows, places=places,
                       candidates=32)
"""
    compile_kernels(
        calls,
        "_select_tiles_kernel,_rescore_candidates_kernel",
        tmp_path,
    )


@pytest.mark.slow
def test_many_queries_meet_rows_on_the_matrix_units(tmp_path):
    calls = """
search.search_rows_batch(queries, rows, 10, longest)
search.search_rows_batch(queries, rows.bfloat16(), 10, longest, metric="l2", bias=norms, allowed=allowed)
search.search_rows_batch(queries, rows.float(), 10, longest)
search.search_rows_batch(queries, codes, 10, longest, grid=grid)
search.search_rows_batch(queries[:9], rows, 10, longest)
search.search_lists(queries, centres, starts, 3000, rows, 10, 16, ids=ids)
search.search_lists(queries, centres, starts, 3000, parts, 10, 16, ids=ids, books=books)
"""
    facts = compile_kernels(
        calls,
        "_prepare_queries_kernel,_tile_maxima_kernel,_score_tiles_kernel,_list_maxima_kernel,_scan_product_codes_kernel",
        tmp_path,
    )
    assert [t["wgmma"] for t in facts["_tile_maxima_kernel"]] == [True] * 4 + [
        False
    ]  # nine queries are too few for wgmma
    assert all(t["mma"] for t in facts["_tile_maxima_kernel"] + facts["_list_maxima_kernel"])
    for name in (
        "_tile_maxima_kernel",
        "_score_tiles_kernel",
        "_list_maxima_kernel",
    ):
        assert all(t["wide"] for t in facts[name]), name


SHORT = """
answer = empty(1, 10, dtype="float32"), empty(1, 10, dtype="int64")
for early in (False, True):
    one_query.search_rows_one_query(one, True, rows, answer, early=early)
    one_query.search_rows_one_query(one, True, codes, answer, grid=grid, refine=rows, candidates=32, early=early)
    one_query.search_lists_one_query(one, True, centres, starts, 3000, rows, 1, answer, ids=ids, early=early)
one_query.search_rows_one_query(one.half(), False, rows, answer, metric="l2", allowed=allowed, ids=ids, candidates=32)
one_query.search_lists_one_query(one, False, centres, starts, 3000, codes, 64, answer, metric="l2", bias=norms,
                                 grid=grid, ids=ids)
"""


@pytest.mark.slow
def test_one_query_in_three_launches_compiles(tmp_path):
    facts = compile_kernels(
        SHORT,
        "_prepare_queries_kernel,_prepare_one_query_kernel,_prepare_and_probe_kernel,_rescore_one_query_kernel",
        tmp_path,
    )
    assert [t["early"] for t in facts["_rescore_one_query_kernel"]] == [False] * 3 + [True] * 3 + [False] * 2
    assert all(
        t["waits"] == t["early"] for t in facts["_rescore_one_query_kernel"]
    )  # before the first access to memory
    for name in ("_prepare_queries_kernel", "_prepare_one_query_kernel", "_prepare_and_probe_kernel"):
        assert not any(t["early"] for t in facts[name])  # the first kernel does not wait


@pytest.mark.slow
def test_a_scan_that_may_begin_early_waits_and_still_reads_sixteen_bytes_at_a_time(tmp_path):
    facts = compile_kernels(SHORT, "_scan_rows_kernel,_scan_codes_kernel,_scan_lists_kernel", tmp_path)
    for kernel_facts in facts.values():
        assert all(t["wide"] for t in kernel_facts)
        assert sum(t["early"] for t in kernel_facts) == sum(t["waits"] for t in kernel_facts) == 1


@pytest.mark.slow
def test_one_query_over_a_sketch_compiles(tmp_path):
    calls = """
answer = empty(1, 10, dtype="float32"), empty(1, 10, dtype="int64")
sketch = empty(15625, 64, 48, dtype="int32")
million, finer = empty(1000000, 384, dtype="int8"), empty(1000000, 384)
for early in (False, True):
    one_query.search_sketch_one_query(one, True, million, answer, sketch=sketch, grid=grid, refine=finer, candidates=32,
                          early=early)
many, bias = empty(1000000, dtype="uint8"), empty(1000000, dtype="float32")
one_query.search_sketch_one_query(one, False, million, answer, sketch=sketch, grid=grid, refine=finer, candidates=32,
                      metric="l2", bias=bias, allowed=many, ids=empty(1000000, dtype="int64"))
"""
    facts = compile_kernels(
        calls,
        "_prepare_one_query_kernel,_scan_sketch_kernel,_rescore_within_margin_kernel,_rescan_codes_kernel,_rescore_one_query_kernel",
        tmp_path,
    )
    for name in ("_scan_sketch_kernel", "_rescan_codes_kernel"):
        assert all(t["wide"] and t["dp4a"] for t in facts[name]), name
    for name in (
        "_scan_sketch_kernel",
        "_rescore_within_margin_kernel",
        "_rescan_codes_kernel",
        "_rescore_one_query_kernel",
    ):
        assert [t["early"] for t in facts[name]] == [t["waits"] for t in facts[name]] == [False, True, False], name
    assert all(t["rounded"] for t in facts["_rescore_within_margin_kernel"])


@pytest.mark.slow
def test_a_sum_that_is_compared_is_the_same_in_every_thread(tmp_path):
    """A product must be rounded before it is added to the sum of another thread: no instruction may do both."""
    calls = """
small, bias = empty(301, 16, dtype="float32"), empty(301, dtype="float32")
few, out = empty(1, 16, dtype="float32"), (empty(1, 10, dtype="float32"), empty(1, 10, dtype="int64"))
for metric in ("ip", "l2"):
    search.search_rows(few, small, 10, metric=metric, bias=bias)
    search.search_rows_batch(empty(20, 16, dtype="float32"), small, 10, longest, metric=metric, bias=bias)
    one_query.search_rows_one_query(few, False, small, out, metric=metric)
    narrow = centres[:, :16].contiguous()
    one_query.search_lists_one_query(few, False, narrow, starts, 300, small, 4, out, metric=metric)
"""
    kernels = (
        "_scan_rows_kernel,_rescore_candidates_kernel,_score_tiles_kernel,"
        "_scan_lists_kernel,_prepare_and_probe_kernel,_rescore_one_query_kernel"
    )
    for name, kernel_facts in compile_kernels(calls, kernels, tmp_path).items():
        assert all(t["rounded"] for t in kernel_facts), name
