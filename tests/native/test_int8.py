"""Products of bytes: all instructions of this CPU, and of an ARM CPU emulated by QEMU, give the same bits.

python -m pytest tests/native/test_int8.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from tests.native.encoder_reference import draw_embedding, draw_layer, draw_texts
from tests.native.test_float_encoder import build, run

from ridgeline.native import chosen_instruction_set, chosen_int8, int8_instructions

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "native"
LOOPS = ("-O3", "-fno-trapping-math")
X86 = {
    "baseline": (),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mprefer-vector-width=512"),
}
ARM_COMPILER = "aarch64-linux-gnu-g++"
HALF_FLOAT = ("encoder.cpp", "product.cpp", "attention.cpp", "embedding.cpp")  # compiled for half-precision arithmetic


def encode_in_bytes(isa, int8, seed, *, hidden=64, heads=2, width=32, inner=208):
    embedding = draw_embedding(seed, 50, hidden)
    layers = [draw_layer(seed + i, hidden, heads * width, inner) for i in range(2)]
    ids, offsets = draw_texts(seed, [1, 7, 16, 33, 90], 50)
    encoder = build(embedding, layers, heads, width, "gelu", in_bytes=True, isa=isa, int8=int8)
    return run(encoder, ids, offsets, hidden).view(np.uint32)


@pytest.mark.parametrize("hidden", [16, 64, 80, 144])
@pytest.mark.parametrize("int8", ["vnni", "avx-vnni", "amx", "sdot"])
def test_an_encoder_has_the_bits_of_plain_sums(int8, hidden):
    isa = next((isa for isa in ("avx512", "avx2", "baseline") if int8 in list_int8(isa)), None)
    if isa is None:
        pytest.skip(f"this CPU has no {int8}")
    expected = encode_in_bytes(isa, "plain", 5, hidden=hidden, width=16)
    np.testing.assert_array_equal(encode_in_bytes(isa, int8, 5, hidden=hidden, width=16), expected)


def list_int8(isa):
    try:
        return int8_instructions(isa)
    except ValueError:  # this CPU lacks the set
        return []


def test_instructions_of_another_cpu_are_refused():
    missing = next(name for name in ("sdot", "amx") if name not in int8_instructions())
    with pytest.raises(ValueError, match=f"int8 instructions '{missing}' are not on this CPU; there are: plain"):
        encode_in_bytes("", missing, 1)


def test_the_environment_chooses_the_instructions():
    command = [sys.executable, "-c", "from ridgeline.native import chosen_int8; print(chosen_int8())"]
    for name in int8_instructions():
        environment = {**os.environ, "RIDGELINE_INT8": name, "PYTHONPATH": os.pathsep.join(sys.path)}
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert result.stdout.strip() == name
    if "RIDGELINE_INT8" not in os.environ:
        assert chosen_int8() == int8_instructions(chosen_instruction_set())[-1]


def compile_program(compiler, folder, sets):
    """Compile int8_products.cpp with the loops of each set; return the program."""
    include = f"-I{NATIVE}"
    objects = []
    for name, flags in sets.items():
        objects.append(folder / f"{name}.o")
        source = NATIVE / "encoder/float_loops.cpp"
        run_tool(
            compiler, "-std=c++17", *LOOPS, *flags, f"-DRIDGELINE_ISA={name}", include, "-c", source, "-o", objects[-1]
        )
    objects.append(folder / "dot.o")
    dot = ("-march=armv8.2-a+dotprod",) if compiler == ARM_COMPILER else ()
    run_tool(compiler, "-std=c++17", "-O3", *dot, include, "-c", NATIVE / "encoder/int8_dot.cpp", "-o", objects[-1])
    sources = [ROOT / "tests/native/int8_products.cpp", NATIVE / "encoder/int8_instructions.cpp"]
    sources.append(NATIVE / "threads/instruction_set.cpp")
    program = folder / "int8_products"
    run_tool(compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-static", include, *sources, *objects, "-o", program)
    return program


def run_tool(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.slow  # a compiler runs for some seconds
def test_products_of_bytes_equal_sums_term_by_term(tmp_path):
    compiler = shutil.which("g++") or pytest.skip("needs g++")
    if os.uname().machine != "x86_64":
        pytest.skip("needs an x86 CPU; ARM is tested under QEMU")
    output = run_tool(compile_program(compiler, tmp_path, X86))
    assert "emulated tiles" in output
    assert "all the same bits" in output


@pytest.mark.slow  # a compiler and an emulator run for some seconds
@pytest.mark.parametrize(("cpu", "kinds"), [("max", "baseline:plain baseline:sdot"), ("cortex-a53", "baseline:plain")])
def test_products_of_bytes_on_an_arm_cpu_equal_sums_term_by_term(tmp_path, cpu, kinds):
    if not shutil.which(ARM_COMPILER) or not shutil.which("qemu-aarch64"):
        pytest.skip("needs g++-aarch64-linux-gnu and qemu-user")
    program = compile_program(ARM_COMPILER, tmp_path, {"baseline": ()})
    output = run_tool("qemu-aarch64", "-cpu", cpu, program)
    assert output.startswith(f"{kinds} emulated tiles")
    assert "all the same bits" in output


@pytest.mark.slow  # a compiler runs for a minute
def test_native_code_compiles_for_arm():
    if not shutil.which(ARM_COMPILER):
        pytest.skip("needs g++-aarch64-linux-gnu")
    nanobind = pytest.importorskip("nanobind")
    headers = [nanobind.include_dir(), sysconfig.get_paths()["include"], np.get_include()]
    cmake = (ROOT / "CMakeLists.txt").read_text()
    loops = cmake[cmake.index("add_library(loops_") : cmake.index("target_compile_definitions")]
    for source in sorted(NATIVE.rglob("*.cpp")):
        half = source.parent.name == "encoder" and source.name in HALF_FLOAT
        flags = ["-march=armv8-a+fp16"] if half else []
        flags += ["-march=armv8.2-a+dotprod"] if source.name == "int8_dot.cpp" else []
        flags += ["-DRIDGELINE_ISA=baseline"] if str(source.relative_to(ROOT)) in loops else []
        system = [word for header in headers for word in ("-isystem", header)]
        run_tool(
            ARM_COMPILER, "-std=c++17", "-fsyntax-only", "-Wall", "-Wextra", *flags, f"-I{NATIVE}", *system, source
        )
