"""Writers that are killed. Commands on stdin, lines on stdout; every victim is forked from here, so it starts at once.

run MODE SEED    append for ever, with checkpoints (MODE checkpoint) or prunings (MODE prune) in between
stop N           do one fixed piece of work and die before the N-th call that changes the disk
Lines: "ack FIRST COUNT" when an append returned, "dead STATUS" when the victim is gone.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from itertools import count

CALLS = ("pwrite", "write", "rename", "replace", "unlink", "rmdir", "mkdir", "fsync", "fdatasync", "ftruncate")


def event(i: int) -> dict:
    return {"time": i, "source": "victim", "action": "a.b", "subject": f"s{i}", "attributes": {"pad": "x" * (i % 300)}}


def ack(first: int, number: int) -> None:
    os.write(sys.stdout.fileno(), f"ack {first} {number}\n".encode())


def run(path: str, mode: str, seed: int) -> None:
    import ridgeline.audit.ledger.writer as writer
    from ridgeline.audit import Ledger

    rng = random.Random(seed)
    writer._TURN = rng.choice((4 << 10, 64 << 10, 8 << 20))  # journals take turns often, now and then, never
    ledger = Ledger.open(path, checkpoint_s=rng.choice((0.001, 0.01, 1.0)))
    at = ledger.size
    for turn in count():
        number = rng.choice((1, 7, 40, 300))
        first = ledger.append([event(at + k) for k in range(number)]).first
        ack(first, number)
        at = first + number
        if mode == "checkpoint":
            ledger.checkpoint()
        if mode == "prune" and turn % 3 == 2:
            ledger.prune(at - 200, by="victim")
            at = ledger.size


def work(path: str) -> None:
    """A fixed piece of work: two appends that share a journal's turn, a checkpoint, a pruning, a close."""
    import ridgeline.audit.ledger.writer as writer
    from ridgeline.audit import Ledger

    writer._TURN = 20_000
    ledger = Ledger.open(path, checkpoint_s=3600)
    at = ledger.size
    for number in (60, 300):
        first = ledger.append([event(at + k) for k in range(number)]).first
        ack(first, number)
        at = first + number
        ledger.checkpoint()
    ledger.prune(at - 100, by="victim")
    ledger.close()


def die_before(number: int) -> None:
    calls = count(1)

    def wrap(real):
        def call(*words, **more):
            if words and words[0] == sys.stdout.fileno():
                return real(*words, **more)
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*words, **more)

        return call

    for name in CALLS:
        setattr(os, name, wrap(getattr(os, name)))


def main() -> None:
    path = sys.argv[1]
    import ridgeline.audit.ledger.ledger  # noqa: F401  (before the forks, so that a victim starts at once)
    from ridgeline.audit.ledger.checkpoint import new_signer

    new_signer("x").sign("")
    for line in sys.stdin:
        word, *rest = line.split()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if word == "run":
                    run(path, rest[0], int(rest[1]))
                else:
                    die_before(int(rest[0]))
                    work(path)
                status = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(status)
        os.write(sys.stdout.fileno(), f"pid {child}\n".encode())
        status = os.waitpid(child, 0)[1]
        os.write(sys.stdout.fileno(), f"dead {os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    main()
