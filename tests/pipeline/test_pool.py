"""Pools of workers: order, bounds, ownership, deaths, errors, what is left behind.

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
from ridgeline.pipeline.shared import INLINE, line, pack, receive, send

# Several tests share a few workers: one process of xdist runs them all.
pytestmark = pytest.mark.xdist_group("pool")
crew = partial(pool, place=None)


@pytest.fixture(scope="module")
def crews():
    """Warm pools of one, two and three workers that give back what they get."""
    pools = {n: crew(jobs.echoed, ["cpu"] * n) for n in (1, 2, 3)}
    for workers in pools.values():
        workers.__enter__()
    yield pools
    for workers in pools.values():
        workers.__exit__(None, None, None)


@pytest.fixture(autouse=True)
def nothing_left():
    """No test leaves a parcel's memory behind."""
    before = memfds()
    yield
    gc.collect()
    assert memfds() == before


def memfds():
    """Parcels that this process holds open or mapped (others may use /dev/shm at any time: it is not compared)."""
    return sum("ridgeline-parcel" in what for what in held_by("self"))


def held_by(pid):
    """What a process holds: the targets of its file descriptors, and the files it has mapped."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
    with open(f"/proc/{pid}/maps") as maps:
        return found + maps.read().splitlines()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:  # it may go between opening and reading
        return False


def gone_within(pids, seconds):
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
things = st.recursive(
    st.none() | st.integers() | texts | arrays, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(deadline=None, max_examples=25)
@given(chunks=st.lists(things, max_size=12))
def test_any_number_of_workers_gives_the_same_results_in_order(crews, chunks):
    for workers in crews.values():
        assert same(list(workers.map(iter(chunks))), chunks)


@settings(deadline=None, max_examples=60)
@given(thing=things)
def test_a_parcel_can_be_opened_more_than_once_and_is_the_same_each_time(thing):
    ours, theirs = line()
    parcel = pack(thing)
    try:
        for _ in range(2):
            send(ours, ("word", 1), parcel)
            words, got = receive(theirs)
            opened = got.open(own=False)
            got.close()
            assert words == ("word", 1)
            assert same(opened, thing)
            if isinstance(opened, np.ndarray):
                assert opened.flags.writeable
                opened[:] = 0  # its own copy
    finally:
        parcel.close()
        ours.close()
        theirs.close()


@settings(deadline=None, max_examples=8)
@given(pauses=st.lists(st.sampled_from([0.0, 0.002, 0.02]), max_size=20))
def test_results_keep_their_order_when_workers_overtake_each_other(pauses):
    workers = OVERTAKING[0]
    results = list(workers.map(enumerate(pauses)))
    assert [index for index, _ in results] == list(range(len(pauses)))


OVERTAKING = []


@pytest.fixture(scope="module", autouse=True)
def overtaking():
    with crew(jobs.measured, ["cpu"] * 3) as workers:
        OVERTAKING.append(workers)
        yield
    OVERTAKING.clear()


def test_chunks_are_pulled_only_as_far_as_depth_allows(crews):
    pulled = []

    def source():
        for k in count():
            pulled.append(k)
            yield np.zeros(40_000)

    results = crews[2].map(source())
    assert pulled == []
    for given_back in range(1, 20):
        next(results)
        assert len(pulled) - given_back <= 2 * 3
    results.close()


def test_a_slow_chunk_does_not_let_results_pile_up_behind_it():
    pulled = []

    def source():
        for k in count():
            pulled.append(k)
            yield k, 0.0 if k else 0.3

    results = OVERTAKING[0].map(source())
    next(results)
    results.close()
    assert len(pulled) == 3 * 3


def test_an_endless_source_can_be_left_and_the_pool_goes_on(crews):
    for _ in range(3):
        for result in crews[3].map(count()):
            if result == 5:
                break
    assert list(crews[3].map("abc")) == ["a", "b", "c"]


def test_a_slow_source_does_not_hold_back_results(crews):
    def slowly():
        for k in range(4):
            yield k, time.monotonic()
            time.sleep(0.1)

    delays = [time.monotonic() - sent for _, sent in crews[2].map(slowly())]
    assert max(delays) < 0.45  # three workers' depth of chunks would take 0.6


def test_a_source_may_fill_one_buffer_again_and_again(crews):
    buffer = np.zeros(30_000)

    def source():
        for k in range(12):
            buffer[:] = k
            yield buffer

    assert [set(r) for r in crews[2].map(source())] == [{k} for k in range(12)]


def test_thousands_of_held_results_need_no_file_descriptors_and_can_be_written(crews):
    before = len(os.listdir("/proc/self/fd"))
    held = list(crews[2].map(np.full(INLINE // 8 + 1, k) for k in range(1500)))
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    for k, result in enumerate(held):
        assert result[0] == k
        result += 1
    assert all(r[-1] == k + 1 for k, r in enumerate(held))


def test_results_outlive_the_pool():
    with crew(jobs.doubled, ["cpu"]) as workers:
        results = list(workers.map([np.arange(100_000)] * 2))
    gc.collect()
    assert np.array_equal(results[1], np.arange(100_000) * 2)


def test_the_last_chunks_are_evened_out():
    # The first worker has a long chunk and one waiting behind it, which the second takes over.
    workers = OVERTAKING[0]
    began = time.monotonic()
    assert [i for i, _ in workers.map(enumerate([1.5, 0.01, 0.01, 1.5, 0.01, 0.01]))] == list(range(6))
    assert time.monotonic() - began < 2.6


def test_workers_are_placed_before_the_factory_runs_and_share_no_cpu():
    n = min(2, len(topology().usable_cpus))
    with pool(jobs.placed, n if not topology().gpus else ["cpu"] * n) as workers:
        seen = {tuple(c) for _ in range(5) for _, f, c in workers.map(range(8)) if f == c}
        stats = workers.stats()
    cpus = [cpu for s in stats for cpu in s.cpus]
    assert len(cpus) == len(set(cpus)) > 0
    assert seen == {s.cpus for s in stats}


def test_a_given_placement_is_kept():
    cpu = topology().usable_cpus[-1]
    with pool(jobs.placed, "cpu", place=[Placement(cpus=(cpu,))]) as workers:
        assert list(workers.map([0])) == [("cpu", [cpu], [cpu])]


def test_what_workers_did_is_told():
    with crew(jobs.measured, ["cpu"] * 2) as workers:  # not the shared one: another test may have left a chunk there
        pids = {pid for _, pid in workers.map((k, 0.01) for k in range(12))}
        after = workers.stats()
    assert pids == {s.pid for s in after}
    assert sum(s.chunks for s in after) == 12
    assert 0.12 <= sum(s.busy_s for s in after) < 10
    assert {s.restarts for s in after} == {0}


def test_a_pool_that_is_entered_again_has_restarted_nobody():
    workers = crew(jobs.doubled, np.int64(1) if not topology().gpus else ["cpu"])
    for _ in range(2):
        with workers:
            list(workers.map([1, 2]))
    assert [(s.chunks, s.restarts) for s in workers.stats()] == [(4, 0)]


def test_chunks_of_dead_workers_are_redone(tmp_path):
    ways = {2: "kill", 5: "segv", 6: "exit", 9: "fork"}
    with crew(jobs.Deadly(tmp_path), ["cpu"] * 2) as workers:
        assert list(workers.map((k, ways.get(k)) for k in range(14))) == [k * 10 for k in range(14)]
        assert sum(s.restarts for s in workers.stats()) == 4


def test_a_redone_chunk_is_as_it_was(tmp_path):
    chunk = {"array": np.arange(50_000), "mark": str(tmp_path / "died")}
    with crew(jobs.scribbler, ["cpu"]) as workers:
        (result,) = workers.map([chunk])
    assert np.array_equal(result, np.arange(50_000))


def test_a_worker_killed_from_outside_is_replaced(crews):
    workers = crews[2]
    results = workers.map(np.full(20_000, k) for k in range(40))
    got = [next(results)[0] for _ in range(5)]
    os.kill(workers.stats()[0].pid, signal.SIGKILL)
    assert got + [r[0] for r in results] == list(range(40))


@pytest.mark.parametrize(("how", "words"), [("kill", "SIGKILL"), ("exit", "code 3"), ("hang", "no answer within 1")])
def test_a_chunk_that_ends_its_workers_is_given_up_by_name(how, words):
    got = []
    with crew(jobs.Deadly(), ["cpu"] * 2, timeout=1.0 if how == "hang" else None) as workers:
        with pytest.raises(ChunkError, match=f"chunk 4: .*{words}") as caught:
            got.extend(workers.map((k, how if k == 4 else None) for k in range(100)))
        assert caught.value.index == 4
        assert got == [0, 10, 20, 30]
        assert list(workers.map([(1, None)])) == [10]


def test_an_error_comes_after_the_results_before_it_with_its_traceback():
    with crew(jobs.failing, ["cpu"] * 2) as workers:
        for chunk, kind, words in ((3, "KeyError", "no such word"), (5, "", "pickle"), (7, "SystemExit", "enough")):
            got = []
            with pytest.raises(ChunkError, match=f"chunk 2: .*{words}") as caught:
                got.extend(workers.map([0, 1, chunk, 4, 4, 4, 4, 4]))
            assert got == [0, 1]
            assert kind in caught.value.kind
            assert "pool_jobs.py" in caught.value.trace or chunk == 5
            assert caught.value.trace in "".join(caught.value.__notes__)


def test_errors_of_the_source_name_their_chunk(crews):
    def source():
        yield 1
        raise ValueError("torn page")

    results = crews[2].map(source())
    assert next(results) == 1
    with pytest.raises(ChunkError, match="chunk 1: the source raised ValueError: torn page") as caught:
        next(results)
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ChunkError, match="chunk 0: it cannot be sent"):
        next(crews[2].map([lambda: None]))


@pytest.mark.parametrize(
    ("factory", "words"), [(jobs.no_factory, "OSError: no model for cpu"), (jobs.stillborn, "SIGKILL.*, 2 times")]
)
def test_workers_that_cannot_start_say_why(factory, words):
    with pytest.raises(WorkerError, match=f"worker 0 .*{words}"), crew(factory, ["cpu"]):
        pass


@pytest.mark.parametrize(
    ("wrong", "words"),
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
def test_wrong_settings_are_refused_in_words(wrong, words):
    with pytest.raises(InputError, match=words):
        pool(**{"factory": jobs.doubled, "devices": ["cpu"], **wrong})


def test_a_pool_does_one_map_at_a_time_and_only_while_it_is_open(crews):
    first = crews[1].map(count())
    next(first)
    with pytest.raises(InputError, match="another map"):
        next(crews[1].map([1]))
    first.close()
    assert list(crews[1].map([1])) == [1]
    workers = crew(jobs.doubled, ["cpu"])
    with pytest.raises(InputError, match="with statement"):
        next(workers.map([1]))
    with workers:
        late = workers.map(count())
        next(late)
    with pytest.raises(InputError, match="closed"):
        next(late)


def started(how):
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


@pytest.mark.parametrize("how", ["busy", "idle"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_parent(how, sent):
    parent, pids = started(how)
    # A worker lets go of its last parcel a moment after its answer, and takes its first a moment after it is there.
    until = time.monotonic() + 10
    while True:
        held, of_parent = [what for pid in pids for what in held_by(pid)], held_by(parent.pid)
        carries = any("ridgeline-parcel" in what for what in held)
        if carries == (how == "busy") or time.monotonic() > until:
            break
        time.sleep(0.02)
    try:
        os.killpg(parent.pid, sent)  # as a terminal does
        assert gone_within(pids, 3)
        _, said = parent.communicate(timeout=3)
    finally:
        parent.kill()
        for pid in filter(alive, pids):
            os.kill(pid, signal.SIGKILL)
        parent.communicate()
    assert parent.returncode == -sent
    assert said.count("Traceback") == (1 if sent == signal.SIGINT else 0)
    # What has no name is the kernel's to free: nothing can stay in /dev/shm.
    assert carries == (how == "busy")
    assert not any("/dev/shm/" in what for what in held + of_parent)


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


def test_a_script_may_define_the_function_itself(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT.replace("GUARD", "if __name__ == '__main__':"))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=20)
    assert done.stdout == "[Pair(a=2), Pair(a=3)]\n", done.stderr
    path.write_text(SCRIPT.replace("GUARD", "if True:"))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=20)
    assert "put the rest under if __name__ == '__main__'" in done.stderr
    assert done.returncode == 1


def test_what_workers_print_is_not_the_callers_output():
    code = (
        "from tests.pipeline import pool_jobs\nfrom ridgeline.pipeline import pool\n"
        "with pool(pool_jobs.printing, ['cpu'], place=None) as workers: print(sum(r[0] for r in workers.map([1, 2])))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.stdout == "3\n"
    assert done.stderr.count("noise") == 2
