"""The team of threads behind resample: many callers, forks, bindings, exits, limits; each in a process of its own.

python -m pytest tests/native/test_team.py
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
    '''One call whose answer is known to the last bit: straight lines, read off at quarters.'''
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

def members():
    found = set()
    for task in os.listdir('/proc/self/task'):
        with contextlib.suppress(OSError), open(f'/proc/self/task/{task}/comm') as name:
            if name.read().strip() == 'ridgeline':
                found.add(int(task))
    return found

def team(count):
    '''Its threads, once there are so many: one that was joined can be listed for a moment longer.'''
    until = time.monotonic() + 5
    while len(now := members()) != count and time.monotonic() < until:
        time.sleep(0.001)
    assert len(now) == count, now
    return now

def child(work):
    '''work() in a forked child; what hangs there is ended by its own alarm.'''
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        try:
            work()
        except BaseException as error:
            os.write(2, f'in the child: {error!r}\\n'.encode())
            os._exit(1)
        os._exit(0)
    return pid

def ended_well(pid):
    _, status = os.waitpid(pid, 0)
    assert status == 0, f'child ended with {status}'

def status_of(task, field):
    with open(f'/proc/self/task/{task}/status') as lines:
        return next(line.split()[1] for line in lines if line.startswith(field + ':'))
"""


def alone(script: str) -> str:
    """Run in a fresh interpreter; what it printed."""
    code = COMMON + textwrap.dedent(script)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode == 0, ended.stderr
    if ended.stdout.startswith("skip "):
        pytest.skip(ended.stdout[5:].strip())
    return ended.stdout


def stolen() -> int:
    """Ticks of CPU time that the machine below has taken from this one; they are on the bill of whoever was running."""
    with open("/proc/stat") as lines:
        return int(lines.readline().split()[8])


def alone_in_calm(script: str) -> str:
    """As `alone`, but a failure while CPUs were taken away is tried again, twice at most."""
    for left in (2, 1, 0):
        before = stolen()
        try:
            return alone(script)
        except AssertionError:
            if left == 0 or stolen() - before <= 2:
                raise
    raise AssertionError("never here")


def test_a_team_is_formed_once_and_grows():
    alone("""
        assert not members()
        fill(threads=1)
        assert not members(), 'one thread needs no team'
        fill(threads=2)
        first = team(1)
        for _ in range(200):
            fill(threads=2)
        assert team(1) == first
        fill(threads=4)
        assert team(3) > first
        fill(threads=2)
        assert len(team(3)) == 3
    """)


@pytest.mark.parametrize("bound", [False, True], ids=["anywhere", "each-on-its-own-cpu"])
def test_many_callers_at_once_are_all_answered_rightly(bound):
    alone(f"""
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


def test_forked_children_and_their_children_have_a_team_of_their_own():
    alone("""
        def grandchild():
            assert not members()
            fill(threads=3)
            team(2)
        def work():
            assert not members(), 'threads do not survive a fork'
            fill()
            team(1)
            ended_well(child(grandchild))
            fill(threads=3)
            team(2)
        fill()
        mine = team(1)
        for _ in range(6):
            ended_well(child(work))
            fill()
        assert team(1) == mine, 'forking left the parent as it was'
    """)


def test_forking_while_the_team_is_at_work():
    alone("""
        stop, wrong = threading.Event(), []
        def busy(me):
            try:
                while not stop.is_set():
                    fill(batch=200, threads=2 + me, seed=me)
            except BaseException as error:
                wrong.append(error)
        def work():
            assert not members()
            for k in range(3):
                fill(threads=2 + k)
            team(3)
        others = [threading.Thread(target=busy, args=(me,)) for me in range(2)]
        for one in others: one.start()
        for _ in range(10):  # several children at a time, forked at any moment of a call
            for pid in [child(work) for _ in range(3)]:
                ended_well(pid)
        stop.set()
        for one in others: one.join()
        assert not wrong, wrong
        fill()
    """)


def test_a_fork_during_the_very_first_call():
    alone("""
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
            for pid in pids: ended_well(pid)
        for _ in range(12):
            ended_well(child(first))
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_team_runs_where_its_caller_may_run():
    alone("""
        everywhere = os.sched_getaffinity(0)
        def bound():
            return [os.sched_getaffinity(task) for task in team(2)]
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
def test_who_was_bound_to_one_cpu_has_helpers_again_when_it_is_not():
    alone("""
        everywhere = os.sched_getaffinity(0)
        values = np.ones((52, 100, 128), np.float32)  # large enough for several threads
        times, at = np.tile(np.arange(100.0), (52, 1)), np.tile(np.arange(50.0), (52, 1))
        def right():
            assert (ridgeline.resample(values, times, at) == 1).all()
        os.sched_setaffinity(0, {min(everywhere)})
        right(), right()
        team(0)
        os.sched_setaffinity(0, everywhere)
        right()
        for task in team(min(len(everywhere), 4) - 1):  # 4.2 MiB, of which 0.4 for the targets: worth four threads
            assert os.sched_getaffinity(task) == everywhere
        os.sched_setaffinity(0, {min(everywhere)})
        right(), right()  # the first may still think that it has company
        assert all(os.sched_getaffinity(task) == {min(everywhere)} for task in members())
        os.sched_setaffinity(0, everywhere)
        right(), right()
        for task in team(min(len(everywhere), 4) - 1):
            assert os.sched_getaffinity(task) == everywhere
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_work_is_worth_threads_by_its_frames_targets_and_kinds():
    alone("""
        packed, clock = np.ones((2000, 4), np.float32), np.tile(np.arange(20.0), 100)
        offsets, at = np.arange(0, 2001, 20), np.tile(np.arange(5.0), (100, 1))
        ridgeline.resample(packed, clock, at, offsets=offsets)  # frames count once, not for each trajectory
        team(0)
        values, times, at = np.ones((64, 20, 8), np.float32), np.arange(20.0), np.tile(np.arange(50.0), (64, 1))
        ridgeline.resample(values, times, at, return_mask=True)
        team(0)
        ridgeline.resample(values, times, at, kind='slerp')  # the same bytes, and more to do with them
        assert len(members()) >= 1
    """)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_whoever_was_sent_off_the_callers_cpu_may_come_back():
    alone("""
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
                for task in members():
                    assert os.sched_getaffinity(task) == everywhere
        finally:
            for one in others:
                one.kill()
                one.wait()
    """)


HOLDING = """
import ctypes, subprocess
TRACER = '''if True:
    import ctypes, os, random, sys, time
    ask = ctypes.CDLL(None).ptrace
    ask.argtypes = [ctypes.c_long] * 4
    task, pause, seize, interrupt, go_on = int(sys.argv[1]), float(sys.argv[2]), 0x4206, 0x4207, 7
    can = ask(seize, task, 0, 0) == 0
    while can and ask(interrupt, task, 0, 0) == 0:
        os.waitpid(task, 0x40000000)
        print('holds', flush=True)
        time.sleep(pause)
        ask(go_on, task, 0, 0)
        time.sleep(random.uniform(0.001, 0.004))
    print('cannot', flush=True)
'''

@contextlib.contextmanager
def held(task, pause):
    '''That thread is stopped for so many seconds again and again, as if its CPU was taken away.'''
    ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # whoever wants to may trace this process
    command = [sys.executable, '-c', TRACER, str(task), str(pause)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        if holder.stdout.readline().strip() != 'holds':
            print('skip no thread may be traced here')
            sys.exit()
        yield
    finally:
        holder.kill()
        holder.wait()

VALUES = np.ones((64, 100, 128), np.float32)
TIMES, AT = np.tile(np.arange(100.0), (64, 1)), np.tile(np.arange(50.0), (64, 1))
OUT = np.zeros((64, 50, 128), np.float32)
def large():
    return ridgeline.resample(VALUES, TIMES, AT)
def by_two():
    native.resample(
        VALUES, TIMES, AT, OUT, None, None, None, None, [(0, 128, 'linear')], 'clamp', None, None, None, None,
        'float32', False, 2)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_who_was_kept_waiting_long_works_alone_for_longer():
    alone(
        HOLDING
        + """
large()
with held(min(members()), 0.016):
    for tries_left in (2, 1, 0):  # others may hold the caller up, too
        began, waited = time.perf_counter(), 0
        for _ in range(6000):
            then = time.thread_time()  # who waits for its helper is at work, who has no CPU is not
            assert (large()[0, 0] == 1).all()
            waited += time.thread_time() - then > 0.012
        most = 2 + (time.perf_counter() - began) / 0.24
        if waited <= most:
            break
        assert tries_left, f'{waited} of 6000 calls waited, at most {most:.1f} should have'
"""
    )


def test_the_team_takes_memory_by_its_callers_policy():
    alone("""
        from ridgeline.machine import numa
        from ridgeline.machine.placement import Placement, placed
        from ridgeline.machine.hardware import topology
        def policies():  # as the kernel shows it for memory that no policy of its own was set for
            shown = set()
            for task in team(2):
                with open(f'/proc/self/task/{task}/numa_maps') as lines:
                    shown.add(next(line.split()[1] for line in lines if 'stack' in line or 'heap' in line))
            return shown
        try:
            before = numa.get_policy()
            numa.set_policy(*before)
            fill(threads=3)
            first, usual = team(2), policies()
        except (numa.Refused, OSError) as error:
            print('skip memory policies:', error)
            sys.exit()
        node = topology().memory_nodes[0]
        with placed(Placement(node=node, memory='bind')):
            fill(threads=3)
            assert policies() == {f'bind:{node}'}
            assert not team(2) & first, 'a policy is inherited, never changed from outside: these must be new'
            second = team(2)
            fill(threads=3)
            assert team(2) == second
        fill(threads=3)
        assert policies() == usual
    """)


def test_the_process_ends_while_its_team_sleeps():
    alone("fill(threads=4); time.sleep(0.1); team(3)")
    alone("fill(threads=4)")  # still awake


def test_without_a_thread_to_be_had_the_caller_does_it_all():
    alone("""
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
            assert not members()
            assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
            fill(threads=3)
            team(2)  # and as soon as there are some, they are used
        else:
            print('skip RLIMIT_NPROC holds nobody back here')
    """)


def test_a_resting_team_takes_no_time():
    alone_in_calm("""
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


def test_signals_are_left_to_the_programs_own_threads_but_not_faults():
    alone("""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        fill(threads=3)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        for task in team(2):
            until = time.monotonic() + 5
            while status_of(task, 'State') == 'R' and time.monotonic() < until:
                time.sleep(0.01)  # a thread begins with everything blocked
            blocked = int(status_of(task, 'SigBlk'), 16)
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


BORROWING = """
def tasks():
    return len(os.listdir('/proc/self/task'))

def spent_beside(busy, seconds=1.0):
    '''Many short calls, with a thread beside them that burns a CPU or does not; how many threads came into being.'''
    time.sleep(0.3)  # libraries' threads spin for a while after they were made
    fill(threads=2)
    stop = threading.Event()
    def burn():
        while not stop.is_set():
            native.spin(2_000_000) if busy else time.sleep(0.002)
    beside = [threading.Thread(target=burn) for _ in range(2)]
    for one in beside: one.start()
    before, until = tasks(), time.monotonic() + seconds
    while time.monotonic() < until and tasks() == before:
        fill(batch=64, threads=2, seed=3)
        time.sleep(0 if busy else 0.0005)
    came = tasks() - before
    for _ in range(50):
        fill(batch=64, threads=2, seed=4)
    stop.set()
    for one in beside: one.join()
    return came
"""


def test_openmp_lends_its_threads_to_the_first_thread_alone_and_not_after_a_fork():
    pytest.importorskip("torch")
    alone("""
        assert native.lent_threads() == 0, 'nobody is there to lend'
        import torch
        torch.set_num_threads(3)
        assert [native.lent_threads() for _ in range(50)] == [3] * 50
        torch.set_num_threads(2)
        assert native.lent_threads() == 2
        elsewhere = []
        other = threading.Thread(target=lambda: elsewhere.append(native.lent_threads()))
        other.start(), other.join()
        assert elsewhere == [0]
        def in_the_child():
            assert native.lent_threads() == 0
            fill(threads=2)
        ended_well(child(in_the_child))
        assert torch.arange(1_000_000).sum() == 499_999_500_000  # its owner has them back
        torch.set_num_threads(1)
        assert native.lent_threads() == 0
    """)


def test_beside_busy_threads_of_this_process_openmps_are_asked_and_answers_stay_right():
    pytest.importorskip("torch")
    alone(BORROWING + "import torch; torch.set_num_threads(4); came = spent_beside(True); assert came == 3, came")


HELD_FOR_GOOD = (
    HOLDING
    + BORROWING
    + """
import torch
torch.set_num_threads(4)

def without_a_pause():
    native.spin(200_000_000)

def at_times():
    time.sleep(0.002)

def came_to(calls, burn):
    '''Threads that came into being in some calls, the team's only thread held for good, burn() beside them. Who burns
    without a pause has a CPU throughout: where it was pushed aside, and nobody came, the calls are made once more.'''
    by_two()
    stop = threading.Event()
    def beside():
        while not stop.is_set():
            burn()
    other = threading.Thread(target=beside)
    time.sleep(0.3)  # libraries' threads spin for a while after they were made
    with held(min(team(1)), 50):
        other.start()
        clock = time.pthread_getcpuclockid(other.ident)
        for _ in range(100):
            time.sleep(0.15)  # until it is forgotten that others were counted in vain
            native.spin(20_000_000)  # until each of them has a CPU
            before, used, began = tasks(), time.clock_gettime(clock), time.perf_counter()
            for _ in range(calls):
                by_two()
            used, passed = time.clock_gettime(clock) - used, time.perf_counter() - began
            came = tasks() - before
            if came or burn is at_times or used > 0.95 * passed:
                break
        stop.set()
    other.join()
    return came
"""
)


def test_whose_own_get_no_cpu_asks_openmp_at_the_next_call_if_threads_of_this_process_run():
    pytest.importorskip("torch")
    alone_in_calm(HELD_FOR_GOOD + "came = came_to(2, without_a_pause); assert came == 3, came")


def test_whose_own_get_no_cpu_asks_nobody_if_no_thread_of_this_process_runs():
    pytest.importorskip("torch")
    alone_in_calm(HELD_FOR_GOOD + "came = came_to(20, at_times); assert came == 0, came")


def test_beside_idle_threads_openmps_are_left_alone():
    pytest.importorskip("torch")
    script = "import torch; torch.set_num_threads(4); came = spent_beside(False, 0.3); assert came == 0, came"
    alone_in_calm(BORROWING + script)
