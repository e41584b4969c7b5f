"""Kernels launched again without Triton, against a CUDA driver of our own that writes down what it is asked.

python -m pytest tests/kernels/test_direct.py
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline.kernels import direct  # noqa: E402
from ridgeline.kernels.direct_early import Early  # noqa: E402

# The types are laid out as the driver's own header has them.
DRIVER = r"""
#include <stddef.h>
#include <string.h>
typedef union { char pad[64]; int programmaticStreamSerializationAllowed; } Value;
typedef struct { int id; char pad[8 - sizeof(int)]; Value value; } Attribute;
typedef struct {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void *hStream; Attribute *attrs; unsigned numAttrs;
} Config;
static const size_t sizes[] = {8, 4, 8, 8, 8};
size_t count = 5;
unsigned long long asked[8], seen[5];
int answer = 0;
void *context = (void *)77;
int cuCtxGetCurrent(void **c) { *c = context; return 0; }
int cuCtxSetCurrent(void *c) { context = c; return 0; }
int cuFuncGetParamInfo(void *f, size_t i, size_t *offset, size_t *size) {
  if (i >= count) return 1;
  *offset = 8 * i, *size = sizes[i];
  return 0;
}
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
  asked[0] = c->gridDimX, asked[1] = c->gridDimY * c->gridDimZ * c->blockDimY * c->blockDimZ, asked[2] = c->blockDimX;
  asked[3] = c->sharedMemBytes, asked[4] = (unsigned long long)c->hStream, asked[5] = (unsigned long long)f;
  asked[6] = c->numAttrs * 100 + c->attrs->id, asked[7] = c->attrs->value.programmaticStreamSerializationAllowed;
  for (size_t i = 0; i < count; ++i) { seen[i] = 0; memcpy(&seen[i], params[i], sizes[i]); }
  if (!context) return 201;
  return extra ? 1 : answer;
}
"""
PARAMETERS = [(8, 0, 0), (4, -1, -7), (8, -1, 1 << 40), (8, 2, 0)]  # then one pointer of the kernel's own


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "driver.so", folder / "driver.c"], check=True)
    return str(folder / "driver.so")


def read(driver: str, name: str, count: int) -> list[int]:
    return list((ctypes.c_ulonglong * count).in_dll(ctypes.CDLL(driver), name))


def test_a_launch_that_may_begin_early_says_so_and_brings_its_parameters(driver: str):
    launch = Early(1 << 50, 123, 64, 4096, PARAMETERS, driver)
    top = (1 << 64) - 16
    launch(1 << 45, 1 << 44, 5, top)
    assert read(driver, "asked", 8) == [123, 1, 64, 4096, 1 << 45, 1 << 50, 106, 1]
    assert read(driver, "seen", 5) == [1 << 44, (1 << 32) - 7, 1 << 40, top, 0]
    launch(0, 48, 5, None)
    assert read(driver, "asked", 8)[4] == 0
    assert read(driver, "seen", 5)[::3] == [48, top]


def test_a_thread_without_a_context_gets_that_of_the_launch_and_errors_are_told(driver: str):
    launch = Early(1, 1, 32, 0, PARAMETERS, driver)
    context = ctypes.c_void_p.in_dll(ctypes.CDLL(driver), "context")
    context.value = None
    launch(0, 1, 2, 3)
    assert context.value == 77
    answer = ctypes.c_int.in_dll(ctypes.CDLL(driver), "answer")
    answer.value = 700
    with pytest.raises(RuntimeError, match="error 700"):
        launch(0, 1, 2, 3)
    answer.value = 0


@pytest.mark.parametrize("wrong", [[(8, 0, 0)] * 6, [(4, 0, 0)], [(8, 0, 0), (8, -1, 0)]])
def test_parameters_that_the_kernel_does_not_have_are_refused(driver: str, wrong):
    with pytest.raises(RuntimeError, match="parameter"):
        Early(1, 1, 32, 0, wrong, driver)


class Kernel:
    """What Triton gives back, without a GPU."""

    def __init__(self, signature: dict[str, str]) -> None:
        meta = SimpleNamespace(num_warps=4, shared=64, global_scratch_size=0)
        self.compiled = SimpleNamespace(metadata=meta, function=9, src=SimpleNamespace(signature=signature))

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.compiled


def test_every_parameter_stands_as_the_kernel_reads_it():
    a, b = torch.ones(4), torch.ones(4)
    kernel = Kernel(
        {"a": "*fp32", "n": "i32", "x": "fp32", "none": "constexpr", "wide": "i64", "b": "*fp32", "C": "constexpr"}
    )
    arguments = (a, -3, 1.5, None, 1 << 40, b, 16)
    found = direct.parameters(kernel.compiled, arguments, {5: 1})
    assert found == [(8, -1, a.data_ptr()), (4, -1, -3), (4, -1, 0x3FC00000), (8, -1, 1 << 40), (8, 1, 0)]
    kernel.compiled.metadata.global_scratch_size = 8
    with pytest.raises(RuntimeError, match="scratch"):
        direct.parameters(kernel.compiled, arguments, {})


@pytest.mark.parametrize("early", [False, True])
def test_what_was_launched_once_is_launched_again_with_other_tensors(monkeypatch, early):
    made: list[tuple] = []

    def noted(kind):
        def make(compiled, programs, arguments, slots):
            return lambda stream, *addresses: made.append(
                (kind, programs, stream, {k: addresses[v] for k, v in slots.items()})
            )

        return make

    monkeypatch.setattr(direct, "direct", noted("plain"))
    monkeypatch.setattr(direct, "overlapping", noted("early"))
    kernel = Kernel({"a": "*fp32", "b": "*fp32"})
    moving, fixed = torch.ones(4), torch.ones(4)

    def work() -> None:
        direct.launch(kernel, 7, moving, fixed, num_warps=4)
        direct.launch(kernel, 8, fixed, moving)

    sequel = direct.Sequel(work, [moving], early)
    direct.launch(kernel, 9, fixed, fixed)  # no longer noted
    sequel(5, 1000)
    assert made == [("plain", 7, 5, {0: 1000}), ("early" if early else "plain", 8, 5, {1: 1000})]
    assert [t is moving for t in sequel.tensors] == [True, False, False, True]
