"""A CUDA driver of our own that writes down what it is asked."""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import pytest

DRIVER = r"""
#include <stddef.h>
#include <string.h>
// The types are laid out as the driver's own header has them.
typedef union { char pad[64]; int programmaticStreamSerializationAllowed; } Value;
typedef struct { int id; char pad[8 - sizeof(int)]; Value value; } Attribute;
typedef struct {
  unsigned gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
  void *hStream; Attribute *attrs; unsigned numAttrs;
} Config;
static const size_t sizes[] = {8, 4, 8, 8, 8};
size_t count = 5;
unsigned asked[5];
unsigned long long seen[5], stream_seen, function_seen;
unsigned early_seen, launches;
int answer = 0;
void *context = (void *)77;
int cuCtxGetCurrent(void **c) { *c = context; return 0; }
int cuCtxSetCurrent(void *c) { context = c; return 0; }
int cuFuncGetParamInfo(void *f, size_t i, size_t *offset, size_t *size) {
  if (i >= count) return 1;
  *offset = 8 * i, *size = sizes[i];
  return 0;
}
int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **params, void **extra) {
  function_seen = (unsigned long long)f, stream_seen = (unsigned long long)stream;
  asked[0] = x, asked[1] = y * z * by * bz, asked[2] = bx, asked[3] = shared, asked[4] = extra != 0;
  memset(seen, 0, sizeof seen);
  for (size_t i = 0; i < count; ++i) memcpy(&seen[i], params[i], sizes[i]);
  ++launches;
  if (!context) return 201;
  return answer;
}
int cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
  early_seen = c->numAttrs * 100 + c->attrs->id * 10 + c->attrs->value.programmaticStreamSerializationAllowed;
  return cuLaunchKernel(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ,
                        c->sharedMemBytes, c->hStream, params, extra);
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "driver.so", folder / "driver.c"], check=True)
    return str(folder / "driver.so")


def read(driver: str, name: str, kind: type = ctypes.c_ulonglong, count: int = 5) -> list[int]:
    return list((kind * count).in_dll(ctypes.CDLL(driver), name))
