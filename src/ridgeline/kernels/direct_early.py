"""A launch that may begin before the kernel ahead of it in the stream has ended (programmatic dependent launch).

The kernel must wait by itself (`gdc_wait`) before it touches what the one ahead writes. `native.Launch` has no launch
attributes, so this one goes to the driver through ctypes, with everything but the addresses laid out beforehand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MOST_OWN = 4  # pointers a compiler may add
NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class Config(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared")),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(Attribute)),
        ("many", ctypes.c_uint),
    ]


class Early:
    """As `native.Launch`."""

    def __init__(
        self,
        function: int,
        programs: int,
        threads: int,
        shared: int,
        parameters: Sequence[tuple[int, int, int]],
        library: str = "libcuda.so.1",
    ) -> None:
        driver = ctypes.CDLL(library)
        self._launch = driver.cuLaunchKernelEx
        self._set_context = driver.cuCtxSetCurrent
        self._context = ctypes.c_void_p()
        if driver.cuCtxGetCurrent(ctypes.byref(self._context)):
            raise RuntimeError("no CUDA context is current")
        info, count = driver.cuFuncGetParamInfo, 0
        at, size = ctypes.c_size_t(), ctypes.c_size_t()
        while not info(ctypes.c_void_p(function), ctypes.c_size_t(count), ctypes.byref(at), ctypes.byref(size)):
            wanted = parameters[count][0] if count < len(parameters) else 8
            if size.value != wanted or count >= len(parameters) + MOST_OWN:
                raise RuntimeError(f"the kernel's parameter {count} is not what was said")
            count += 1
        if count < len(parameters):
            raise RuntimeError("the kernel has fewer parameters than were said")
        self._values = (ctypes.c_int64 * count)(*(value for _, _, value in parameters))
        first = ctypes.addressof(self._values)
        self._places = (ctypes.c_void_p * count)(*(first + 8 * k for k in range(count)))
        self._slots = [(slot, k) for k, (_, slot, _) in enumerate(parameters) if slot >= 0]
        self._attribute = Attribute(SERIALIZATION, b"", 1, b"")
        self._config = Config(programs, 1, 1, threads, 1, 1, shared, None, ctypes.pointer(self._attribute), 1)
        self._given = (ctypes.byref(self._config), ctypes.c_void_p(function), self._places, None)

    def __call__(self, stream: int, *addresses: int | None) -> None:
        for slot, place in self._slots:
            to = addresses[slot]
            if to is not None:
                self._values[place] = to
        self._config.stream = stream
        error = self._launch(*self._given)
        if error == NO_CONTEXT and not self._set_context(self._context):
            error = self._launch(*self._given)
        if error:
            raise RuntimeError(f"the CUDA driver refused the launch with error {error}")
