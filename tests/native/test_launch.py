"""native.Launch against a CUDA driver of our own that writes down what it is asked.

python -m pytest tests/native/test_launch.py
"""

from __future__ import annotations

import ctypes

import pytest
from tests.native.driver import driver, read

from ridgeline.native import Launch, launch_all

__all__ = ["driver"]

PARAMETERS = [(8, 0, 0), (4, -1, -7), (8, -1, 1 << 40), (8, 2, 0)]  # then one pointer of the kernel's own


def test_addresses_and_constants_arrive_where_the_kernel_reads_them(driver: str):
    launch = Launch(0xF00D, 12, 64, 1024, PARAMETERS, driver)
    launch(0xCAFE, 111, None, 333)
    assert read(driver, "seen") == [111, (1 << 32) - 7, 1 << 40, 333, 0]
    assert read(driver, "asked", ctypes.c_uint) == [12, 1, 64, 1024, 0]
    assert read(driver, "stream_seen", count=1) == [0xCAFE]
    assert read(driver, "function_seen", count=1) == [0xF00D]
    launch(0, (1 << 64) - 1)  # what is not said again stays
    assert read(driver, "seen") == [(1 << 64) - 1, (1 << 32) - 7, 1 << 40, 333, 0]


def test_a_launch_that_may_begin_early_says_so(driver: str):
    Launch(0xF00D, 12, 64, 1024, PARAMETERS, driver)(0xCAFE, 111, None, 333)
    assert read(driver, "early_seen", ctypes.c_uint, 1) == [0]
    Launch(0xF00D, 12, 64, 1024, PARAMETERS, driver, early=True)(0xBEEF, 111, None, 333)
    assert read(driver, "early_seen", ctypes.c_uint, 1) == [161]
    assert read(driver, "seen") == [111, (1 << 32) - 7, 1 << 40, 333, 0]
    assert read(driver, "asked", ctypes.c_uint) == [12, 1, 64, 1024, 0]
    assert read(driver, "stream_seen", count=1) == [0xBEEF]


def test_several_are_launched_one_after_the_other(driver: str):
    before = read(driver, "launches", ctypes.c_uint, 1)[0]
    launch_all([Launch(k, k, 32, 0, PARAMETERS, driver) for k in (1, 2, 3)], 7, 5, None, 6)
    assert read(driver, "launches", ctypes.c_uint, 1) == [before + 3]
    assert read(driver, "seen") == [5, (1 << 32) - 7, 1 << 40, 6, 0]
    assert read(driver, "function_seen", count=1) == [3]
    launch_all([], 7)


def test_a_kernel_with_other_parameters_is_refused(driver: str):
    with pytest.raises(RuntimeError, match="parameter 1"):
        Launch(1, 1, 32, 0, [(8, 0, 0), (8, -1, 0)], driver)
    with pytest.raises(RuntimeError, match="fewer"):
        Launch(1, 1, 32, 0, [*PARAMETERS, (8, 3, 0), (8, 4, 0)], driver)
    with pytest.raises(RuntimeError, match="no CUDA driver"):
        Launch(1, 1, 32, 0, PARAMETERS, "libthere-is-none.so")


def test_the_drivers_refusal_and_a_wrong_address_are_errors(driver: str):
    launch = Launch(1, 1, 32, 0, PARAMETERS, driver)
    with pytest.raises((TypeError, RuntimeError)):
        launch(0, "here")
    answer = ctypes.c_int.in_dll(ctypes.CDLL(driver), "answer")
    answer.value = 700
    try:
        with pytest.raises(RuntimeError, match="700"):
            launch(0, 1)
    finally:
        answer.value = 0


def test_a_thread_without_a_context_gets_the_one_of_the_kernel(driver: str):
    launch = Launch(1, 1, 32, 0, PARAMETERS, driver)
    context = ctypes.c_void_p.in_dll(ctypes.CDLL(driver), "context")
    context.value = None
    launch(0, 5)
    assert context.value == 77
    assert read(driver, "seen")[0] == 5
