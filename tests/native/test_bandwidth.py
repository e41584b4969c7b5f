"""The bandwidth loops of every instruction set against NumPy, and the spin against its closed form."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline import native

ISAS = native.instruction_sets()
SIZES = [0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 4097, 65_536 + 3]
OFFSETS = [0, 1, 8, 16, 63]
WORD = 0x0123456789ABCDEF

every_isa = pytest.mark.parametrize("isa", ISAS)
every_store = pytest.mark.parametrize("streaming", [False, True], ids=["plain", "streaming"])


def make_aligned(size: int, offset: int = 0, guard: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """(whole, part): `part` starts `offset` bytes after a 64-byte boundary, with guard bytes around it."""
    complete = np.random.default_rng(size + offset).integers(0, 256, size + offset + 2 * guard + 64, np.uint8)
    start = -complete.ctypes.data % 64 + guard + offset
    return complete, complete[start : start + size]


def words_xor(data: np.ndarray) -> int:
    padded = np.zeros(-(-data.size // 8) * 8, np.uint8)
    padded[: data.size] = data
    return int(np.bitwise_xor.reduce(padded.view(np.uint64))) if padded.size else 0


def repeat_words(word: int, size: int) -> np.ndarray:
    return np.frombuffer((word.to_bytes(8, "little") * (size // 8 + 1))[:size], np.uint8)


@every_isa
@pytest.mark.parametrize("offset", OFFSETS)
def test_read_is_the_xor_of_all_words(isa: str, offset: int):
    for size in SIZES:
        _, data = make_aligned(size, offset)
        assert native.read(data, isa=isa) == words_xor(data), size


@every_isa
@every_store
@pytest.mark.parametrize("offset", OFFSETS)
def test_write_fills_the_buffer_and_nothing_around_it(isa: str, streaming: bool, offset: int):
    for size in SIZES:
        complete, part = make_aligned(size, offset)
        expected = complete.copy()
        start = part.ctypes.data - complete.ctypes.data if size else 0
        expected[start : start + size] = repeat_words(WORD, size)
        native.write(part, WORD, streaming=streaming, isa=isa)
        assert np.array_equal(complete, expected), size


@every_isa
@every_store
@pytest.mark.parametrize("offset", OFFSETS)
def test_copy_copies_and_touches_nothing_else(isa: str, streaming: bool, offset: int):
    for size in SIZES:
        complete, target = make_aligned(size, offset)
        source = np.random.default_rng(1).integers(0, 256, size + 1, np.uint8)[1:]
        expected = complete.copy()
        start = target.ctypes.data - complete.ctypes.data if size else 0
        expected[start : start + size] = source
        native.copy(target, source, streaming=streaming, isa=isa)
        assert np.array_equal(complete, expected), size


@every_isa
@every_store
@pytest.mark.parametrize("offset", [0, 8, 56])
def test_triad_is_that_of_numpy(isa: str, streaming: bool, offset: int):
    random = np.random.default_rng(2)
    for count in [0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 1001]:
        complete, raw = make_aligned(8 * count, offset)
        before = complete.copy()
        target, a, b = raw.view(np.float64), random.standard_normal(count), random.standard_normal(count)
        native.triad(target, a, b, 3.0, streaming=streaming, isa=isa)
        # A compiler may fuse the product and the sum: one rounding less than NumPy.
        np.testing.assert_allclose(target, a + 3.0 * b, rtol=0, atol=8 * np.finfo(float).eps)
        start = raw.ctypes.data - complete.ctypes.data if count else 0
        assert np.array_equal(complete[:start], before[:start])
        assert np.array_equal(complete[start + 8 * count :], before[start + 8 * count :])


@every_isa
def test_triad_carries_nan_and_infinity(isa: str):
    b = np.array([np.nan, np.inf, -np.inf, 0.0] * 9)
    out = np.empty_like(b)
    native.triad(out, np.ones_like(b), b, 0.5, isa=isa)
    np.testing.assert_array_equal(out, 1.0 + 0.5 * b)


@given(st.binary(max_size=700), st.integers(0, 63))
def test_all_instruction_sets_read_the_same(data: bytes, offset: int):
    view = np.frombuffer(bytes(offset) + data, np.uint8)[offset:]
    assert {native.read(view, isa=isa) for isa in ISAS} == {words_xor(view)}


def test_the_weakest_set_is_there_and_the_chosen_one_is_among_them():
    assert ISAS[0] == "baseline"
    assert native.chosen_instruction_set() in ISAS


def test_the_environment_forces_a_set_and_a_wrong_name_is_refused():
    ask = [sys.executable, "-c", "from ridgeline import native; print(native.chosen_instruction_set())"]
    for isa in ISAS:
        message = subprocess.run(ask, env={**os.environ, "RIDGELINE_ISA": isa}, capture_output=True, text=True)
        assert message.stdout.strip() == isa
    wrong = subprocess.run(ask, env={**os.environ, "RIDGELINE_ISA": "mmx"}, capture_output=True, text=True)
    assert "instruction set 'mmx' is not on this CPU; there are: baseline" in wrong.stderr


def test_wrong_arguments_are_refused():
    ten, nine = np.zeros(10, np.uint8), np.zeros(9, np.uint8)
    with pytest.raises(ValueError, match="lengths differ: 10 and 9"):
        native.copy(ten, nine)
    with pytest.raises(ValueError, match="lengths differ: 3 and 4"):
        native.triad(np.zeros(3), np.zeros(3), np.zeros(4), 1.0)
    with pytest.raises(ValueError, match="instruction set 'sse' is not on this CPU; there are: baseline"):
        native.read(ten, isa="sse")
    with pytest.raises(ValueError, match="no access mix 'scatter'; there are: read, write, copy, triad"):
        native.time_mix("scatter", 4096, [-1])
    with pytest.raises(ValueError, match="at least one CPU"):
        native.time_mix("read", 4096, [])
    for how in ({"passes": 0}, {"repeats": 0}, {"repeats": -1}):
        with pytest.raises(ValueError, match="must be 1 or more"):
            native.time_mix("read", 4096, [-1], **how)
    with pytest.raises(RuntimeError, match="not enough memory for 1125899906842624 bytes"):
        native.time_mix("read", 1 << 50, [-1, -1])


@pytest.mark.parametrize("wrong", [np.zeros(8, np.int32), np.zeros((2, 4), np.uint8), np.zeros(16, np.uint8)[::2], [1]])
def test_a_buffer_of_the_wrong_kind_is_refused(wrong):
    with pytest.raises(TypeError):
        native.read(wrong)


def test_a_read_only_buffer_is_read_and_never_written():
    frozen = np.frombuffer(bytes(64), np.uint8)
    assert native.read(frozen) == 0
    with pytest.raises(TypeError):
        native.write(frozen, WORD)


@pytest.mark.parametrize("mix", ["read", "write", "copy", "triad"])
@pytest.mark.parametrize("size", [0, 1, 64, 4096, 100_001])
def test_every_mix_is_timed_once_per_round(mix: str, size: int):
    for streaming in (False, True):
        rounds = native.time_mix(mix, size, [-1, -1], passes=2, repeats=3, streaming=streaming)
        assert len(rounds) == 3
        assert all(ns >= 0 for ns in rounds)


def test_more_passes_take_longer():
    one, many = (min(native.time_mix("read", 1 << 16, [-1], passes=n, repeats=5)) for n in (10, 1000))
    assert many > 10 * one


def test_pinning_to_a_cpu_that_is_not_there_is_an_error_not_a_silent_run_elsewhere():
    free = next(
        c
        for c in range(9999)
        if c not in os.sched_getaffinity(0) and not os.path.exists(f"/sys/devices/system/cpu/cpu{c}")
    )
    for cpu in (free, 1023, 1024, 100_000, 2**31 - 1):
        with pytest.raises(ValueError, match=f"CPU {cpu} cannot be used"):
            native.time_mix("read", 4096, [min(os.sched_getaffinity(0)), cpu])


def test_timing_threads_leave_the_caller_where_it_was():
    before = os.sched_getaffinity(0)
    native.time_mix("read", 4096, sorted(before))
    assert os.sched_getaffinity(0) == before


A, C, M = 6364136223846793005, 1442695040888963407, 1 << 64


def skip_ahead(steps: int, seed: int) -> int:
    """x → A·x + C, `steps` times: A^n·x + C·(A^n − 1)/(A − 1), the quotient taken before the modulus."""
    power = pow(A, steps, M * (A - 1))
    return (power * seed + C * ((power - 1) // (A - 1))) % M


@given(st.integers(0, 5000), st.integers(0, M - 1))
def test_the_spin_ends_where_its_closed_form_says(steps: int, seed: int):
    assert native.spin(steps, seed) == skip_ahead(steps, seed)


def test_a_long_spin_ends_there_too_and_takes_its_time():
    start = time.perf_counter()
    assert native.spin(10_000_000) == skip_ahead(10_000_000, 1)
    assert time.perf_counter() - start > 0.001


def test_other_threads_run_on_while_a_loop_spins():
    """Holding the GIL would keep this thread from counting until the spin is over."""
    done = threading.Event()
    spinner = threading.Thread(target=lambda: (native.spin(150_000_000), done.set()))
    turns = 0
    spinner.start()
    while not done.is_set():
        turns += 1
        time.sleep(0.001)
    spinner.join()
    assert turns > 5
