"""The clock: what it counts, what it costs, how many calls a sample needs."""

from __future__ import annotations

import sys
import time

import pytest

from ridgeline.errors import InputError, MissingExtra
from ridgeline.machine.clock import CpuTimer, batch_for, clock_cost_ns, now_ns, timer


class Ticks:
    """A timer on which every call lasts the same, without waiting for it."""

    def __init__(self, ns_per_call: int) -> None:
        self.ns_per_call = ns_per_call

    def time(self, step, calls: int) -> int:
        return self.ns_per_call * calls

    def flush(self) -> None: ...


def test_a_step_runs_as_often_as_asked_and_its_time_is_counted():
    calls = []
    before = now_ns()
    took = CpuTimer().time(lambda: calls.append(time.sleep(0.002)), 5)
    assert len(calls) == 5
    assert 10_000_000 <= took <= now_ns() - before


def test_no_calls_take_next_to_no_time():
    assert 0 <= CpuTimer().time(lambda: time.sleep(1), 0) < 100_000_000


def test_reading_the_clock_costs_something_and_not_much():
    assert 1 < clock_cost_ns(200) < 100_000


@pytest.mark.parametrize(("ns", "wanted", "calls"), [(1000, 1000, 1), (1000, 1001, 2), (10, 1000, 128), (5000, 1, 1)])
def test_a_sample_holds_enough_calls_by_doubling(ns: int, wanted: int, calls: int):
    assert batch_for(Ticks(ns), lambda: None, wanted) == calls


def test_a_call_that_was_preempted_is_not_taken_for_a_long_one():
    class Preempted(Ticks):
        looks = 0

        def time(self, step, calls):
            self.looks += 1
            return super().time(step, calls) + (5_000_000 if self.looks == 1 else 0)

    assert batch_for(Preempted(10), lambda: None, 1000) == 128
    slow = Preempted(200_000_000)
    assert batch_for(slow, lambda: None, 1000) == 1
    assert slow.looks == 1, "a step that long is not doubted: looking again would cost"


def test_doubling_ends_at_the_most_calls_allowed():
    assert batch_for(Ticks(0), lambda: None, 10**9, most=64) == 64


def test_flushing_writes_twice_the_cache_each_time():
    small = CpuTimer(cache_bytes=1 << 12)
    small.flush()
    first = bytes(small._evictor[:8])
    small.flush()
    assert small._evictor.nbytes == 2 << 12
    assert bytes(small._evictor[:8]) != first


def test_the_clock_of_the_cpu_is_the_default():
    assert isinstance(timer(), CpuTimer)


@pytest.mark.parametrize("device", ["tpu", "cud", "cudaX", "CPU", ""])
def test_a_device_without_a_clock_is_named_with_those_that_have_one(device: str):
    with pytest.raises(InputError, match=f"no device '{device}'.*cpu, cuda, cuda:N"):
        timer(device)


def test_timing_a_gpu_without_torch_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'ridgeline\[torch\]'"):
        timer("cuda:1")


@pytest.mark.gpu
def test_a_gpu_is_timed_by_its_own_clock():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    clock = timer("cuda")
    a = torch.randn(4096, 4096, device="cuda")
    one, ten = (min(clock.time(lambda: a @ a, n) for _ in range(3)) for n in (1, 10))
    assert 5 < ten / one < 15
    clock.flush()
