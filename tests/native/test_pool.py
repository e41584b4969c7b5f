"""The thread pool behind resample: many callers, forks, affinities, exits, limits; each test in its own process.

python -m pytest tests/native/test_pool.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

LIMIT_S = 60  # a call that never comes back is a failure, not a hang

COMMON = """
import contextlib, os, resource, signal, sys, threading, time
import numpy as np
from numpy.random import default_rng  # at once: an import that another thread has begun never ends in a forked child
import ridgeline
from ridgeline import native

def fill(batch=24, stamps=50, channels=5, targets=80, threads=2, seed=0):
    '''One call with a known result: straight lines, read at quarters.'''
    slope = np.arange(1.0, channels + 1) + seed
    times = np.arange(float(stamps)) + np.arange(batch)[:, None]
    values = times[:, :, None] * slope
    at = default_rng(seed).integers(0, 4 * (stamps - 1), (batch, targets)) / 4 + np.arange(batch)[:, None]
    out = np.full((batch, targets, channels), -1.0)
    bad = native.resample(
        values, times, at, out, None, None, None, None, [(0, channels, 'linear')], 'clamp', None, None, None, None,
        'float64', False, threads, True)
    assert bad == -1
    assert np.array_equal(out, at[:, :, None] * slope), 'wrong answer'

def workers():
    tasks = set()
    for task in os.listdir('/proc/self/task'):
        with contextlib.suppress(OSError), open(f'/proc/self/task/{task}/comm') as name:
            if name.read().strip() == 'ridgeline':
                tasks.add(int(task))
    return tasks

def wait_workers(count):
    '''The workers, once there are `count`: a joined thread can be listed for a short time.'''
    until = time.monotonic() + 60
    while len(now := workers()) != count and time.monotonic() < until:
        time.sleep(0.001)
    assert len(now) == count, now
    return now

def child(work):
    '''Run work() in a forked child; an alarm ends a child that hangs.'''
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            work()
        except BaseException as error:
            os.write(2, f'in the child: {error!r}\\n'.encode())
            os._exit(1)
        os._exit(0)
    return pid

def check_exit(pid):
    _, status = os.waitpid(pid, 0)
    assert status == 0, f'child ended with {status}'

def read_status(task, field):
    with open(f'/proc/self/task/{task}/status') as lines:
        return next(line.split()[1] for line in lines if line.startswith(field + ':'))
"""


def run_script(script: str) -> str:
    """Run in a fresh interpreter; what it printed."""
    code = COMMON + textwrap.dedent(script)
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert process.returncode == 0, process.stderr
    if process.stdout.startswith("skip "):
        pytest.skip(process.stdout[5:].strip())
    return process.stdout


def read_steal_ticks() -> int:
    """Ticks of CPU time that the hypervisor has taken; they count as time of the running process."""
    with open("/proc/stat") as lines:
        return int(lines.readline().split()[8])


def run_retried(script: str) -> str:
    """As `run_script`, but repeats a failure at most twice if the hypervisor has taken CPU time."""
    for left in (2, 1, 0):
        before = read_steal_ticks()
        try:
            return run_script(script)
        except AssertionError:
            if left == 0 or read_steal_ticks() - before <= 2:
                raise
    raise AssertionError("unreachable")


def test_the_pool_starts_once_and_grows():
    run_script("""
        assert not workers()
        fill(threads=1)
        assert not workers(), 'one thread needs no pool'
        fill(threads=2)
        first = wait_workers(1)
        for _ in range(200):
            fill(threads=2)
        assert wait_workers(1) == first
        fill(threads=4)
        assert wait_workers(3) > first
        fill(threads=2)
        assert len(wait_workers(3)) == 3
    """)


@pytest.mark.parametrize("bound", [False, True], ids=["anywhere", "each-on-its-own-cpu"])
def test_many_callers_at_once_get_right_results(bound):
    run_script(f"""
        cpus, wrong = sorted(os.sched_getaffinity(0)), []
        def caller(me):
            try:
                if {bound}:
                    os.sched_setaffinity(0, {{cpus[me % len(cpus)]}})
                for k in range(40):
                    fill(batch=1 + (7 * k + me) % 40, threads=2 + k % 3, seed=me)
            except BaseException as error:
                wrong.append(error)
        callers = [threading.Thread(target=caller, args=(me,)) for me in range(8)]
        for one in callers: one.start()
        for one in callers: one.join()
        assert not wrong, wrong
    """)


def test_forked_children_and_their_children_start_their_own_pool():
    run_script("""
        def grandchild():
            assert not workers()
            fill(threads=3)
            wait_workers(2)
        def work():
            assert not workers(), 'threads do not survive a fork'
            fill()
            wait_workers(1)
            check_exit(child(grandchild))
            fill(threads=3)
            wait_workers(2)
        fill()
        mine = wait_workers(1)
        for _ in range(6):
            check_exit(child(work))
            fill()
        assert wait_workers(1) == mine, 'forking left the parent as it was'
    """)


def test_a_fork_while_the_pool_is_busy():
    run_script("""
        stop, wrong = threading.Event(), []
        def busy(me):
            try:
                while not stop.is_set():
                    fill(batch=200, threads=2 + me, seed=me)
            except BaseException as error:
                wrong.append(error)
        def work():
            assert not workers()
            for k in range(3):
                fill(threads=2 + k)
            wait_workers(3)
        others = [threading.Thread(target=busy, args=(me,)) for me in range(2)]
        for one in others: one.start()
        for _ in range(10):  # several children at a time, forked at any moment of a call
            for pid in [child(work) for _ in range(3)]:
                check_exit(pid)
        stop.set()
        for one in others: one.join()
        assert not wrong, wrong
        fill()
    """)


def test_a_fork_during_the_very_first_call():
    run_script("""
        def first():  # a process that has never called: its first call and a fork, at the same time
            ready = threading.Barrier(2)
            def call():
                ready.wait()
                fill(batch=2)
            other = threading.Thread(target=call)
            other.start()
            ready.wait()
            pids = [child(fill) for _ in range(3)]
            other.join()
            for pid in pids: check_exit(pid)
        for _ in range(12):
            check_exit(child(first))
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_pool_runs_where_its_caller_may_run():
    run_script("""
        everywhere = os.sched_getaffinity(0)
        def bound():
            return [os.sched_getaffinity(task) for task in wait_workers(2)]
        fill(threads=3)
        assert bound() == [everywhere] * 2
        for cpu in (min(everywhere), max(everywhere)):
            os.sched_setaffinity(0, {cpu})
            fill(threads=3)
            assert bound() == [{cpu}] * 2
        os.sched_setaffinity(0, everywhere)
        fill(threads=3)
        assert bound() == [everywhere] * 2
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_caller_that_was_bound_to_one_cpu_gets_workers_again():
    run_script("""
        everywhere = os.sched_getaffinity(0)
        values = np.ones((52, 100, 128), np.float32)  # large enough for several threads
        times, at = np.tile(np.arange(100.0), (52, 1)), np.tile(np.arange(50.0), (52, 1))
        def right():
            assert (ridgeline.resample(values, times, at) == 1).all()
        os.sched_setaffinity(0, {min(everywhere)})
        right(), right()
        wait_workers(0)
        os.sched_setaffinity(0, everywhere)
        right()
        for task in wait_workers(min(len(everywhere), 4) - 1):  # 4.2 MiB: four threads
            assert os.sched_getaffinity(task) == everywhere
        os.sched_setaffinity(0, {min(everywhere)})
        right(), right()  # without workers, which sleep
        os.sched_setaffinity(0, everywhere)
        right(), right()
        for task in wait_workers(min(len(everywhere), 4) - 1):
            assert os.sched_getaffinity(task) == everywhere
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_frames_targets_and_kinds_decide_the_number_of_threads():
    run_script("""
        packed, clock = np.ones((2000, 4), np.float32), np.tile(np.arange(20.0), 100)
        offsets, at = np.arange(0, 2001, 20), np.tile(np.arange(5.0), (100, 1))
        ridgeline.resample(packed, clock, at, offsets=offsets)  # frames count once, not for each trajectory
        wait_workers(0)
        values, times, at = np.ones((64, 20, 8), np.float32), np.arange(20.0), np.tile(np.arange(50.0), (64, 1))
        ridgeline.resample(values, times, at, return_mask=True)
        wait_workers(0)
        ridgeline.resample(values, times, at, kind='slerp')  # the same bytes, and more to do with them
        assert len(workers()) >= 1
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_workers_keep_their_affinity_where_no_cpu_is_free():
    run_script("""
        import subprocess
        everywhere = os.sched_getaffinity(0)
        spin = 'import os, signal; signal.alarm(50)\\nwhile os.getppid() == %d: pass' % os.getpid()
        others = [subprocess.Popen([sys.executable, '-c', spin]) for _ in everywhere]  # no CPU is free
        try:
            values = np.ones((64, 100, 128), np.float32)  # large enough for several threads
            times, at = np.tile(np.arange(100.0), (64, 1)), np.tile(np.arange(50.0), (64, 1))
            for k in range(150):
                if k % 2:
                    fill(threads=3)
                else:
                    assert (ridgeline.resample(values, times, at) == 1).all()
                for task in workers():
                    assert os.sched_getaffinity(task) == everywhere
        finally:
            for one in others:
                one.kill()
                one.wait()
    """)


def test_the_pool_takes_memory_by_the_policy_of_its_caller():
    run_script("""
        from ridgeline.machine import Placement, numa, placed, topology
        def policies():  # as the kernel shows it for memory that no policy of its own was set for
            policies = set()
            for task in wait_workers(2):
                with open(f'/proc/self/task/{task}/numa_maps') as lines:
                    policies.add(next(line.split()[1] for line in lines if 'stack' in line or 'heap' in line))
            return policies
        try:
            before = numa.get_policy()
            numa.set_policy(*before)
            fill(threads=3)
            first, usual = wait_workers(2), policies()
        except (numa.PolicyRefused, OSError) as error:
            print('skip memory policies:', error)
            sys.exit()
        node = topology().memory_nodes[0]
        with placed(Placement(node=node, memory='bind')):
            fill(threads=3)
            assert policies() == {f'bind:{node}'}
            assert not wait_workers(2) & first, 'a policy is inherited, never changed from outside: these must be new'
            second = wait_workers(2)
            fill(threads=3)
            assert wait_workers(2) == second
        fill(threads=3)
        assert policies() == usual
    """)


def test_the_process_ends_while_the_pool_sleeps():
    run_script("fill(threads=4); time.sleep(0.1); wait_workers(3)")
    run_script("fill(threads=4)")  # still awake


def test_without_threads_the_caller_does_all_the_work():
    run_script("""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        with contextlib.suppress(OSError):
            os.setresgid(65534, 65534, 65534)  # the limit does not hold root back
            os.setresuid(65534, 65534, 65534)
        _, most = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
        try:
            threading.Thread(target=int).start()
        except RuntimeError:
            for threads in (2, 3, 8):
                fill(threads=threads)
            assert not workers()
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
            fill(threads=3)
            wait_workers(2)  # and as soon as there are some, they are used
        else:
            print('skip RLIMIT_NPROC has no effect here')
    """)


def test_an_idle_pool_uses_no_cpu_time():
    run_retried("""
        for _ in range(20):
            fill(threads=3)
        time.sleep(0.05)
        begun = time.process_time()
        time.sleep(0.5)
        used = time.process_time() - begun
        assert used < 0.05, used
        begun = time.process_time()
        for _ in range(20):  # woken, put to bed, woken
            fill(threads=3)
            time.sleep(0.01)
        used = time.process_time() - begun
        assert used < 0.15, used
    """)


def test_workers_handle_faults_and_no_other_signals():
    run_script("""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        fill(threads=3)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        for task in wait_workers(2):
            until = time.monotonic() + 60
            while read_status(task, 'State') == 'R' and time.monotonic() < until:
                time.sleep(0.01)  # a thread begins with everything blocked
            blocked = int(read_status(task, 'SigBlk'), 16)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGALRM, signal.SIGUSR1):
                assert blocked >> number - 1 & 1, number
            for number in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
                assert not blocked >> number - 1 & 1, number  # so that faulthandler can speak
        caught = []
        signal.signal(signal.SIGUSR1, lambda *_: caught.append(threading.current_thread()))
        for _ in range(50):
            os.kill(os.getpid(), signal.SIGUSR1)
            fill(threads=3)
        assert caught
    """)
