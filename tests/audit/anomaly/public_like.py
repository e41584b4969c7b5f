"""Simulated sets in the style of the public ones, for the comparison of the detector with its baselines.

    hdfs         block traces of 13 to 30 events; a third of the anomalies has usual counts in another order
    hadoop       thirty long application logs to learn from; anomalies repeat rare lines, or have a few new ones
    openstack    life cycles of virtual machines; steps are missing, late, repeated or cut off, some only take longer
    adfa         long traces of system calls; attacks are stretches of other programs' calls
    adfa_order   the same; attacks have the usual calls in another order
    bgl          time windows of a supercomputer's log; new kinds of normal lines appear, failures come in bursts
    thunderbird  time windows of many nodes; an anomaly is a few lines of trouble among hundreds

Each gives a training part without anomalies and a later test part; texts have numbers where logs have them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from ridgeline.audit.anomaly.evaluate import Labelled, Unit

Session = list[str]
CALLS = re.findall(
    r"\w+",
    """
    read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask ioctl
    pread readv writev access pipe select sched_yield mremap msync mincore madvise shmget dup dup2 pause nanosleep
    getitimer alarm setitimer getpid sendfile socket connect accept sendto recvfrom sendmsg recvmsg shutdown bind
    listen getsockname clone fork vfork execve exit wait4 kill uname fcntl flock fsync truncate getdents getcwd
    chdir rename mkdir rmdir creat link unlink symlink readlink chmod chown umask gettimeofday getrlimit getuid
    setuid futex epoll_wait openat
    """,
)


def hdfs(seed: int, train: int = 1_200, normal: int = 900, bad: int = 60) -> Labelled:
    rng = Random(seed)
    responder, received = "PacketResponder {n} for block blk_{n} terminating", "Received block blk_{n} of size {n}"
    stored, serve = "NameSystem.addStoredBlock: blockMap updated blk_{n} size {n}", "Served block blk_{n} to {n}"
    late = ["Verification succeeded for blk_{n}", serve, "Deleting block blk_{n} file {n}", "ask {n} to delete blk_{n}"]
    rare = [
        "Got exception while serving blk_{n}",
        "Redundant addStoredBlock request received for blk_{n}",
        "Receiving empty packet for block blk_{n}",
        "PendingReplicationMonitor timed out block blk_{n}",
        "Unexpected error trying to delete block blk_{n}",
    ]

    def write_block() -> Session:
        copies = rng.choice((3, 3, 3, 3, 2))
        steps = ["Receiving block blk_{n} src: {n}"] * copies
        steps.insert(rng.randint(0, 1), "NameSystem.allocateBlock: /user/job_{n}. blk_{n}")
        tail = [responder, received] * copies
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(tail) - 1)
            tail[at], tail[at + 1] = tail[at + 1], tail[at]
        for _ in range(copies):
            tail.insert(rng.randrange(2, len(tail) + 1), stored)
        body = [late[0]] * (rng.random() < 0.3) + [serve] * rng.choice((0, 0, 0, 1, 2, 4))
        if rng.random() < 0.03:
            body.append(rng.choice(rare[:2]))
        gone = [late[3]] * copies + [late[2]] * copies if rng.random() < 0.4 else []
        return [*steps, *tail, *body, *gone]

    def spoil(steps: Session) -> Session:
        kind = rng.random()
        if kind < 0.33:  # another order
            at = rng.randrange(3, len(steps) - 4)
            part = steps[at : at + 5]
            part.reverse()
            return [*steps[:at], *part, *steps[at + 5 :]]
        if kind < 0.55:
            steps.remove(rng.choice((responder, received, stored)))
        elif kind < 0.75:
            steps += [rng.choice(rare)] * rng.randint(1, 3)
        elif kind < 0.9:
            steps = steps[: rng.randint(2, 8)]
        else:
            steps += [serve] * rng.randint(8, 30)
        return steps

    return _make("hdfs", rng, write_block, spoil, train, normal, bad)


def hadoop(seed: int, train: int = 30, normal: int = 25, bad: int = 60) -> Labelled:
    rng = Random(seed)
    usual = [f"{word} task attempt_{{n}} of job {{n}}" for word in CALLS[:40]]
    rare = [
        "Retrying connect to server {n}",
        "Slow ReadProcessor took {n} ms",
        "Failed to renew lease, retry",
        "Disk full: no space left on device",
        "Error cleaning up {n}",
        "Container {n} killed by the ApplicationMaster",
        "Communication exception, lost node {n}",
    ]

    def run_job() -> Session:
        mix = [rng.gammavariate(2, 1) for _ in usual]
        lines = rng.choices(usual, mix, k=int(min(900, rng.lognormvariate(5.3, 0.6))) + 1)
        for line in rare[:2]:
            lines += [line] * int(rng.expovariate(1 / 3))
        rng.shuffle(lines)
        return lines

    def spoil(lines: Session) -> Session:
        line, most = rng.choice(((rare[0], 40), (rare[2], 15), (rng.choice(rare[3:]), 9)))
        for _ in range(rng.randint(0, most)):
            lines.insert(rng.randrange(len(lines)), line)
        return lines

    return _make("hadoop", rng, run_job, spoil, train, normal, bad)


def openstack(seed: int, train: int = 400, normal: int = 350, bad: int = 70) -> Labelled:
    rng = Random(seed)
    cycle = [
        "Attempting claim: memory {n} MB",
        "Total memory: {n} MB, used: {n}",
        "memory limit not specified",
        "vcpu limit not specified",
        "Claim successful",
        "Creating image",
        "VM Started (Lifecycle Event)",
        "VM Paused (Lifecycle Event)",
        "VM Resumed (Lifecycle Event)",
        "Instance spawned successfully",
        "Took {n} seconds to spawn",
        "Took {n} seconds to build",
        "Terminating instance",
        "Instance destroyed successfully",
        "Deleting instance files",
        "Deletion complete",
        "Took {n} seconds to destroy",
        "Took {n} seconds to deallocate network",
    ]

    def live() -> Session:
        steps = list(cycle)
        for _ in range(rng.randint(0, 6)):
            steps.insert(rng.randrange(5, len(steps)), "image {n} at /var/lib/nova: checking")
        for _ in range(rng.randint(0, 3)):
            other = rng.choice(("During sync_power_state the instance has a pending task", "GET /v2/servers len {n}"))
            steps.insert(rng.randrange(6, len(steps)), other)
        if rng.random() < 0.4:
            at = steps.index(cycle[7])
            steps[at], steps[at - 1] = steps[at - 1], steps[at]
        return steps

    def spoil(steps: Session) -> Session:
        kind = rng.random()
        if kind < 0.3:
            steps.remove(rng.choice(cycle[6:16]))
        elif kind < 0.5:
            steps.insert(rng.randrange(6, len(steps)), "Timeout waiting for network-vif-plugged {n}")
        elif kind < 0.7:
            at = rng.randrange(6, len(steps) - 4)
            part = steps[at : at + 4]
            rng.shuffle(part)
            steps[at : at + 4] = part
        elif kind < 0.85:
            steps = steps[: rng.randint(8, len(steps) - 3)]
        return steps  # else it only took longer, which no text shows

    return _make("openstack", rng, live, spoil, train, normal, bad)


def adfa(seed: int, train: int = 400, normal: int = 300, bad: int = 100, order_only: bool = False) -> Labelled:
    rng = Random(seed)
    programs = [_chain(rng, rng.sample(CALLS, rng.randint(12, 40)), 4) for _ in range(12)]
    attacks = [_chain(rng, rng.sample(CALLS, 15), 3) for _ in range(5)]

    def run_program() -> Session:
        chain = rng.choices(programs, [1 / (i + 1) for i in range(len(programs))])[0]
        calls = _walk(rng, chain, int(min(600, max(40, rng.lognormvariate(4.6, 0.7)))))
        return [rng.choice(CALLS) if rng.random() < 0.01 else call for call in calls]

    def attack(calls: Session) -> Session:
        if order_only:
            start = rng.randrange(len(calls) // 2)
            end = start + len(calls) // 3
            part = calls[start:end]
            rng.shuffle(part)
            return [*calls[:start], *part, *calls[end:]]
        part = _walk(rng, rng.choice(attacks), max(8, int(len(calls) * rng.uniform(0.05, 0.5))))
        at = rng.randrange(len(calls))
        return [*calls[:at], *part, *calls[at:]]

    name = "adfa_order" if order_only else "adfa"
    return _make(name, rng, run_program, attack, train, normal, bad, "syscall {}")


def adfa_order(seed: int, train: int = 400, normal: int = 300, bad: int = 100) -> Labelled:
    return adfa(seed, train, normal, bad, order_only=True)


def bgl(seed: int, train: int = 300, normal: int = 300, bad: int = 50) -> Labelled:
    rng = Random(seed)
    kinds = [
        f"RAS KERNEL INFO {a} {b} corrected at {{n}}" for a in CALLS[:10] for b in ("ecc", "parity", "tree", "torus")
    ]
    fatal = [
        f"RAS {part} FATAL {what} {{n}}"
        for part in ("APP", "KERNEL")
        for what in ("data tlb error", "machine check", "lost socket", "rts panic")
    ]
    made = 0

    def watch_window() -> Session:
        nonlocal made
        made += 1
        known = 12 + int(28 * min(1.0, made / (train + normal)))  # kinds of lines that exist by now
        favourites = rng.choices(range(known), [1 / (k + 1) for k in range(known)], k=rng.randint(1, 4))
        lines = [kinds[rng.choice(favourites)] for _ in range(rng.randint(5, 40))]
        if rng.random() < 0.05:
            lines.append(rng.choice(fatal[:2]))
        return lines

    def fail(lines: Session) -> Session:
        at, line = rng.randrange(len(lines)), rng.choice(fatal)
        return [*lines[:at], *[line] * rng.randint(1, 25), *lines[at:]]

    return _make("bgl", rng, watch_window, fail, train, normal, bad)


def thunderbird(seed: int, train: int = 300, normal: int = 300, bad: int = 40) -> Labelled:
    rng = Random(seed)
    daemons = [
        f"{name}({user})[{{n}}]: session opened for {user}" for name in CALLS[:25] for user in ("root", "crond", "ops")
    ]
    trouble = [
        "kernel: scsi{n} error on channel {n}",
        "kernel: CHECK CONDITION sense key {n}",
        "pbs_mom: Bad file descriptor (9) in tm_request",
        "ib_sm: port {n} became inactive",
    ]

    def watch_window() -> Session:
        lines = rng.choices(daemons, [1 / (k + 1) for k in range(len(daemons))], k=rng.randint(60, 150))
        return lines + [trouble[0]] * (rng.random() < 0.05)

    def fail(lines: Session) -> Session:
        for _ in range(rng.randint(1, 6)):
            lines.insert(rng.randrange(len(lines)), rng.choice(trouble))
        return lines

    return _make("thunderbird", rng, watch_window, fail, train, normal, bad)


SETS: dict[str, Callable[[int], Labelled]] = {
    make.__name__: make for make in (hdfs, hadoop, openstack, adfa, adfa_order, bgl, thunderbird)
}


def _make(
    name: str,
    rng: Random,
    usual: Callable[[], Session],
    spoil: Callable[[Session], Session],
    train: int,
    normal: int,
    bad: int,
    form: str = "{}",
) -> Labelled:
    def make_unit(texts: Session, anomalous: bool, number: int) -> Unit:
        events = []
        for text in texts:
            subject = form.format(text).replace("{n}", str(rng.randrange(10**6)))
            attributes = {"session": str(number)}
            events.append(
                {"time": 0, "source": "log", "action": "log.line", "subject": subject, "attributes": attributes}
            )
        return Unit(anomalous, tuple(events))

    learnt = [make_unit(usual(), False, number) for number in range(train)]
    labels = [False] * normal + [True] * bad
    rng.shuffle(labels)
    judged = [make_unit(spoil(usual()) if label else usual(), label, train + k) for k, label in enumerate(labels)]
    return Labelled(name, "session", "simulated", learnt, judged)


def _chain(rng: Random, calls: Sequence[str], spread: int) -> dict[str, tuple[list[str], list[float]]]:
    """What follows each call, with weights."""
    return {call: (rng.sample(calls, spread), [1 / (i + 1) ** 1.2 for i in range(spread)]) for call in calls}


def _walk(rng: Random, chain: dict[str, tuple[list[str], list[float]]], count: int) -> Session:
    calls = [next(iter(chain))]
    for _ in range(count - 1):
        following, weights = chain[calls[-1]]
        calls.append(rng.choices(following, weights)[0])
    return calls
