"""Timers: what they count, what reading the clock costs, how many calls a sample needs."""

from __future__ import annotations

import sys
import time

import pytest

from ridgeline.errors import InputError, MissingExtra
from ridgeline.machine.clock import CpuTimer, choose_calls, make_timer, measure_clock_cost_ns, now_ns


class Ticks:
    """A fake timer on which every call lasts the same."""

    def __init__(self, ns_per_call: int) -> None:
        self.ns_per_call = ns_per_call

    def time(self, step, calls: int) -> int:
        return self.ns_per_call * calls

    def flush(self) -> None: ...


def test_a_timer_runs_a_step_the_given_number_of_times_and_counts_its_time():
    calls = []
    before = now_ns()
    measured_ns = CpuTimer().time(lambda: calls.append(time.sleep(0.002)), 5)
    outer_ns = now_ns() - before
    assert len(calls) == 5
    assert measured_ns >= 5 * 2_000_000
    assert outer_ns >= measured_ns


def test_zero_calls_run_no_step():
    calls: list[None] = []
    assert CpuTimer().time(lambda: calls.append(None), 0) >= 0
    assert not calls


def test_reading_the_clock_has_a_cost():
    assert measure_clock_cost_ns(200) > 1


@pytest.mark.parametrize(
    ("ns", "at_least_ns", "calls"), [(1000, 1000, 1), (1000, 1001, 2), (10, 1000, 128), (5000, 1, 1)]
)
def test_a_sample_holds_enough_calls_by_doubling(ns: int, at_least_ns: int, calls: int):
    assert choose_calls(Ticks(ns), lambda: None, at_least_ns) == calls


def test_a_preempted_call_does_not_count_as_a_long_call():
    class Preempted(Ticks):
        samples = 0

        def time(self, step, calls):
            self.samples += 1
            return super().time(step, calls) + (5_000_000 if self.samples == 1 else 0)

    assert choose_calls(Preempted(10), lambda: None, 1000) == 128
    slow = Preempted(200_000_000)
    assert choose_calls(slow, lambda: None, 1000) == 1
    assert slow.samples == 1, "a step this long is not measured again: that would take too long"


def test_doubling_ends_at_the_largest_allowed_number_of_calls():
    assert choose_calls(Ticks(0), lambda: None, 10**9, most=64) == 64


def test_each_flush_writes_twice_the_cache_size():
    small = CpuTimer(cache_bytes=1 << 12)
    small.flush()
    first = bytes(small._flush_buffer[:8])
    small.flush()
    assert small._flush_buffer.nbytes == 2 << 12
    assert bytes(small._flush_buffer[:8]) != first


def test_the_timer_of_the_cpu_is_the_default():
    assert isinstance(make_timer(), CpuTimer)


@pytest.mark.parametrize("device", ["tpu", "cud", "cudaX", "CPU", ""])
def test_the_error_for_an_unknown_device_lists_the_valid_names(device: str):
    with pytest.raises(InputError, match=f"no device '{device}'.*cpu, cuda, cuda:N"):
        make_timer(device)


def test_the_error_for_a_gpu_timer_without_torch_names_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[torch\]'"):
        make_timer("cuda:1")


@pytest.mark.gpu
def test_a_gpu_timer_uses_the_clock_of_the_gpu():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    clock = make_timer("cuda")
    a = torch.randn(4096, 4096, device="cuda")
    one, ten = (min(clock.time(lambda: a @ a, n) for _ in range(3)) for n in (1, 10))
    assert 5 < ten / one < 15
    clock.flush()
