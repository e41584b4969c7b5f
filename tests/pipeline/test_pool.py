"""Pools of workers: order, bounds, ownership, deaths, errors, clean-up.

python -m pytest tests/pipeline/test_pool.py
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline import pool_jobs as jobs

from ridgeline.errors import ChunkError, InputError, WorkerError
from ridgeline.machine import Placement, topology
from ridgeline.pipeline import pool
from ridgeline.pipeline.shared_memory import INLINE, make_connection, pack, receive, send

unplaced_pool = partial(pool, place=None)


@pytest.fixture(scope="module")
def pools():
    """Open pools of one, two and three workers that return their chunk."""
    pools = {n: unplaced_pool(jobs.make_echo, ["cpu"] * n) for n in (1, 2, 3)}
    for workers in pools.values():
        workers.__enter__()
    yield pools
    for workers in pools.values():
        workers.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def check_no_memory_leak():
    """Checks that the test releases the memory of all payloads."""
    before = count_payloads()
    yield
    gc.collect()
    assert count_payloads() == before


def count_payloads():
    """Payloads that this process has open or mapped (/dev/shm is not compared: other processes use it)."""
    return sum("ridgeline-payload" in name for name in list_open_files("self"))


def list_open_files(pid):
    """The targets of the file descriptors of a process, and its mapped files."""
    names = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            names.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    with open(f"/proc/{pid}/maps") as maps:
        return names + maps.read().splitlines()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:  # the process may end between open and read
        return False


def wait_for_exit(pids, seconds):
    until = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    return not any(map(alive, pids))


arrays = st.builds(
    lambda n, kind, seed, order: np.asarray(
        np.random.default_rng(seed).integers(0, 100, (n, 3)).astype(kind), order=order
    ),
    st.sampled_from([0, 1, 7, INLINE // 24 - 8, INLINE // 12, 40_000]),
    st.sampled_from(["f4", "f8", "i8", "u1", "?"]),
    st.integers(0, 9),
    st.sampled_from("CF"),
)
texts = st.one_of(st.text(max_size=20), st.integers(1, 4).map(lambda k: "ä" * 30_000 * k))
values = st.recursive(
    st.none() | st.integers() | texts | arrays, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


def is_same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(is_same, a, b))
    return type(a) is type(b) and a == b


@settings(deadline=None, max_examples=25)
@given(chunks=st.lists(values, max_size=12))
def test_any_number_of_workers_returns_the_same_results_in_order(pools, chunks):
    for workers in pools.values():
        assert is_same(list(workers.map(iter(chunks))), chunks)


@settings(deadline=None, max_examples=60)
@given(value=values)
def test_a_payload_can_be_sent_twice_and_is_the_same_each_time(value):
    local, peer = make_connection()
    payload = pack(value)
    try:
        for _ in range(2):
            send(local, ("word", 1), payload)
            header, received = receive(peer)
            unpacked = received.unpack(exclusive=False)
            received.close()
            assert header == ("word", 1)
            assert is_same(unpacked, value)
            if isinstance(unpacked, np.ndarray):
                assert unpacked.flags.writeable
                unpacked[:] = 0  # a private copy
    finally:
        payload.close()
        local.close()
        peer.close()


@settings(deadline=None, max_examples=8)
@given(pauses=st.lists(st.sampled_from([0.0, 0.002, 0.02]), max_size=20))
def test_results_keep_their_order_when_workers_overtake_each_other(pauses):
    workers = SLEEPERS[0]
    results = list(workers.map(enumerate(pauses)))
    assert [index for index, _ in results] == list(range(len(pauses)))


SLEEPERS = []


@pytest.fixture(scope="module", autouse=True)
def start_sleepers():
    with unplaced_pool(jobs.make_sleeper, ["cpu"] * 3) as workers:
        SLEEPERS.append(workers)
        yield
    SLEEPERS.clear()


def test_chunks_are_pulled_only_as_far_as_depth_allows(pools):
    pulled = []

    def source():
        for k in count():
            pulled.append(k)
            yield np.zeros(40_000)

    results = pools[2].map(source())
    assert pulled == []
    for delivered in range(1, 20):
        next(results)
        assert len(pulled) - delivered <= 2 * 3
    results.close()


def test_a_slow_chunk_limits_the_number_of_pulled_chunks():
    pulled = []

    def source():
        for k in count():
            pulled.append(k)
            yield k, 0.0 if k else 0.3

    results = SLEEPERS[0].map(source())
    next(results)
    results.close()
    assert len(pulled) == 3 * 3


def test_after_leaving_an_endless_source_the_pool_runs_another_map(pools):
    for _ in range(3):
        for result in pools[3].map(count()):
            if result == 5:
                break
    assert list(pools[3].map("abc")) == ["a", "b", "c"]


def test_results_arrive_before_a_slow_source_ends(pools):
    pulled = []

    def slow_source():
        for k in range(12):
            pulled.append(k)
            yield k
            time.sleep(0.02)

    pulled_at_result = [len(pulled) for _ in pools[2].map(slow_source())]
    assert all(count - index <= 2 * 3 for index, count in enumerate(pulled_at_result))


def test_a_source_may_reuse_one_buffer(pools):
    buffer = np.zeros(30_000)

    def source():
        for k in range(12):
            buffer[:] = k
            yield buffer

    assert [set(r) for r in pools[2].map(source())] == [{k} for k in range(12)]


def test_thousands_of_results_need_no_file_descriptors_and_are_writable(pools):
    before = len(os.listdir("/proc/self/fd"))
    results = list(pools[2].map(np.full(INLINE // 8 + 1, k) for k in range(1500)))
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    for k, result in enumerate(results):
        assert result[0] == k
        result += 1
    assert all(r[-1] == k + 1 for k, r in enumerate(results))


def test_results_outlive_the_pool():
    with unplaced_pool(jobs.make_doubler, ["cpu"]) as workers:
        results = list(workers.map([np.arange(100_000)] * 2))
    gc.collect()
    assert np.array_equal(results[1], np.arange(100_000) * 2)


def test_an_idle_worker_takes_over_a_chunk_that_waits_behind_a_slow_one():
    # The first worker gets chunk 0 (slow) and chunk 3, which waits behind it.
    results = list(SLEEPERS[0].map(enumerate([1.5, 0.01, 0.01, 0.01, 0.01, 0.01])))
    assert [index for index, _ in results] == list(range(6))
    pids = [pid for _, pid in results]
    assert pids.count(pids[0]) == 1, "the worker of the slow chunk computes nothing else"


def test_workers_are_placed_before_the_factory_runs_and_share_no_cpu():
    n = min(2, len(topology().usable_cpus))
    with pool(jobs.make_cpu_reporter, n if not topology().gpus else ["cpu"] * n) as workers:
        reported = {tuple(c) for _ in range(5) for _, f, c in workers.map(range(8)) if f == c}
        stats = workers.stats()
    cpus = [cpu for s in stats for cpu in s.cpus]
    assert len(cpus) == len(set(cpus)) > 0
    assert reported == {s.cpus for s in stats}


def test_a_given_placement_is_used():
    cpu = topology().usable_cpus[-1]
    with pool(jobs.make_cpu_reporter, "cpu", place=[Placement(cpus=(cpu,))]) as workers:
        assert list(workers.map([0])) == [("cpu", [cpu], [cpu])]


def test_the_stats_count_the_work_of_each_worker():
    with unplaced_pool(
        jobs.make_sleeper, ["cpu"] * 2
    ) as workers:  # not the shared pool: another test may have left a chunk in it
        pids = {pid for _, pid in workers.map((k, 0.01) for k in range(12))}
        after = workers.stats()
    assert pids == {s.pid for s in after}
    assert sum(s.chunks for s in after) == 12
    assert sum(s.busy_s for s in after) >= 0.12
    assert {s.restarts for s in after} == {0}


def test_entering_a_pool_again_counts_no_restart():
    workers = unplaced_pool(jobs.make_doubler, np.int64(1) if not topology().gpus else ["cpu"])
    for _ in range(2):
        with workers:
            list(workers.map([1, 2]))
    assert [(s.chunks, s.restarts) for s in workers.stats()] == [(4, 0)]


def test_chunks_of_dead_workers_are_repeated(tmp_path):
    deaths = {2: "kill", 5: "segv", 6: "exit", 9: "fork"}
    with unplaced_pool(jobs.Deadly(tmp_path), ["cpu"] * 2) as workers:
        assert list(workers.map((k, deaths.get(k)) for k in range(14))) == [k * 10 for k in range(14)]
        assert sum(s.restarts for s in workers.stats()) == 4


def test_a_repeated_chunk_is_unchanged(tmp_path):
    chunk = {"array": np.arange(50_000), "mark": str(tmp_path / "died")}
    with unplaced_pool(jobs.make_scribbler, ["cpu"]) as workers:
        (result,) = workers.map([chunk])
    assert np.array_equal(result, np.arange(50_000))


def test_a_worker_that_another_process_kills_is_replaced(pools):
    workers = pools[2]
    results = workers.map(np.full(20_000, k) for k in range(40))
    first = [next(results)[0] for _ in range(5)]
    os.kill(workers.stats()[0].pid, signal.SIGKILL)
    assert first + [r[0] for r in results] == list(range(40))


@pytest.mark.parametrize(("how", "words"), [("kill", "SIGKILL"), ("exit", "code 3"), ("hang", "no answer within 3")])
def test_the_error_for_a_chunk_that_ends_its_workers_has_its_number(how, words):
    results = []
    with unplaced_pool(jobs.Deadly(), ["cpu"] * 2, tries=1, timeout=3.0 if how == "hang" else None) as workers:
        with pytest.raises(ChunkError, match=f"chunk 4: .*{words}") as caught:
            results.extend(workers.map((k, how if k == 4 else None) for k in range(100)))
        assert caught.value.index == 4
        assert results == [0, 10, 20, 30]
        assert list(workers.map([(1, None)])) == [10]


def test_an_error_comes_after_the_results_before_it_with_its_traceback():
    with unplaced_pool(jobs.make_failing, ["cpu"] * 2) as workers:
        for chunk, kind, words in ((3, "KeyError", "no such word"), (5, "", "pickle"), (7, "SystemExit", "enough")):
            results = []
            with pytest.raises(ChunkError, match=f"chunk 2: .*{words}") as caught:
                results.extend(workers.map([0, 1, chunk, 4, 4, 4, 4, 4]))
            assert results == [0, 1]
            assert kind in caught.value.kind
            assert "pool_jobs.py" in caught.value.trace or chunk == 5
            assert caught.value.trace in "".join(caught.value.__notes__)


def test_an_error_of_the_source_has_its_chunk_number(pools):
    def source():
        yield 1
        raise ValueError("damaged page")

    results = pools[2].map(source())
    assert next(results) == 1
    with pytest.raises(ChunkError, match="chunk 1: the source raised ValueError: damaged page") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ChunkError, match="chunk 0: it cannot be sent"):
        next(pools[2].map([lambda: None]))


@pytest.mark.parametrize(
    ("factory", "words"),
    [(jobs.fail_in_factory, "OSError: no model for cpu"), (jobs.die_in_factory, "SIGKILL.*, 2 times")],
)
def test_the_error_of_a_failed_start_has_the_reason(factory, words):
    with pytest.raises(WorkerError, match=f"worker 0 .*{words}"), unplaced_pool(factory, ["cpu"]):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": ["tpu"]}, "no device 'tpu'"),
        ({"devices": []}, "no worker"),
        ({"devices": ["cuda:99"]}, "no GPU 99"),
        ({"devices": ["cpu", "cuda:0"]}, "not of both"),
        ({"depth": 0}, "depth is 0"),
        ({"tries": 0}, "tries is 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"place": "near"}, "place is 'near'"),
        ({"devices": "cpu", "place": []}, "0 places for 1"),
        ({"devices": ["cpu"] * 10_000, "place": "auto"}, "ask for"),
        ({"factory": lambda device: None}, "top of a module"),
        ({"devices": 1.5}, "devices is 1.5; give names, a count, or 'auto'"),
        ({"devices": [3]}, "no device 3"),
        ({"place": 5}, "place is 5; give 'auto', None, or a Placement"),
        ({"place": ["near"]}, "place has 'near'; give a Placement"),
        ({"tries": "a"}, "tries is 'a'; give 1 or more"),
        ({"depth": 1.5}, "depth is 1.5; give 1 or more"),
        ({"timeout": "a"}, "timeout is 'a'; give seconds"),
        ({"start_timeout": None}, "start_timeout is None; give seconds"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        pool(**{"factory": jobs.make_doubler, "devices": ["cpu"], **arguments})


def test_a_pool_runs_one_map_at_a_time_and_only_while_it_is_open(pools):
    first = pools[1].map(count())
    next(first)
    with pytest.raises(InputError, match="another map"):
        next(pools[1].map([1]))
    first.close()
    assert list(pools[1].map([1])) == [1]
    workers = unplaced_pool(jobs.make_doubler, ["cpu"])
    with pytest.raises(InputError, match="with statement"):
        next(workers.map([1]))
    with workers:
        late = workers.map(count())
        next(late)
    with pytest.raises(InputError, match="closed"):
        next(late)


def start_parent(how):
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.pipeline.pool_scripts", how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    if how == "idle":
        assert parent.stdout.readline() == "idle\n"
    assert all(map(alive, pids))
    return parent, pids


@pytest.mark.parametrize(
    ("how", "sent"),
    [
        *(("busy", sent) for sent in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)),
        ("idle", signal.SIGKILL),
        *(pytest.param("idle", sent, marks=pytest.mark.slow) for sent in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_no_worker_outlives_its_parent(how, sent):
    parent, pids = start_parent(how)
    # A worker releases its last payload shortly after its result, and gets its first shortly after it is ready.
    deadline = time.monotonic() + 20
    while True:
        of_workers = [name for pid in pids for name in list_open_files(pid)]
        of_parent = list_open_files(parent.pid)
        has_payload = any("ridgeline-payload" in name for name in of_workers)
        if has_payload == (how == "busy") or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    try:
        os.killpg(parent.pid, sent)  # as a terminal does
        assert wait_for_exit(pids, 20)
        _, stderr = parent.communicate(timeout=20)
    finally:
        parent.kill()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()
    assert parent.returncode == -sent
    assert stderr.count("Traceback") == (1 if sent == signal.SIGINT else 0)
    # The kernel frees memory without a name: nothing can stay in /dev/shm.
    assert has_payload == (how == "busy")
    assert not any("/dev/shm/" in name for name in of_workers + of_parent)


SCRIPT = """
from dataclasses import dataclass
from ridgeline.pipeline import pool

@dataclass
class Pair:
    a: int

def factory(device):
    return lambda pair: Pair(pair.a + 1)

GUARD
    with pool(factory, ["cpu"], place=None) as workers:
        print(list(workers.map([Pair(1), Pair(2)])))
"""


def test_a_script_may_define_the_function(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("GUARD", "if __name__ == '__main__':"))
    process = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=20)
    assert process.stdout == "[Pair(a=2), Pair(a=3)]\n", process.stderr
    path.write_text(SCRIPT.replace("GUARD", "if True:"))
    process = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=20)
    assert "put the rest under if __name__ == '__main__'" in process.stderr
    assert process.returncode == 1


def test_the_output_of_workers_goes_to_stderr():
    code = (
        "from tests.pipeline import pool_jobs\nfrom ridgeline.pipeline import pool\n"
        "with pool(pool_jobs.make_printer, ['cpu'], place=None) as workers:\n"
        "    print(sum(r[0] for r in workers.map([1, 2])))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert process.stdout == "3\n"
    assert process.stderr.count("noise") == 2
