"""Ranks on one host: `spawn` starts them, `init` joins those that a launcher (torchrun, mpirun, Slurm) started."""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import secrets
import selectors
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ridgeline.errors import FabricError, InputError
from ridgeline.fabric import arena
from ridgeline.fabric import rendezvous as meeting
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import FabricConfig, from_environment
from ridgeline.machine import Placement, plan, topology
from ridgeline.pipeline import Parcel, Post, Task, pack, worker

GRACE_S = 2.0  # from the first failure to the end of the rest, who may have something to say
LOOK_S = 0.2


class RankError(FabricError):
    """A rank's function failed or its process ended; `rank` says which, `trace` is the traceback's text."""

    def __init__(self, rank: int, what: str, trace: str = "") -> None:
        super().__init__(f"rank {rank}: {what}")
        self.rank, self.trace = rank, trace
        if trace:
            self.add_note(f"In rank {rank}:\n{trace}")


def spawn(
    fn: Callable[..., Any],
    ranks: int,
    args: Sequence[Any] = (),
    *,
    on_error: str = "raise",
    timeout: float | None = None,
    config: FabricConfig | None = None,
) -> list[Any]:
    """fn(comm, *args) in `ranks` fresh processes; what each returned, by rank.

    on_error  "raise": the first failure ends all ranks and is raised, naming its rank;
              "collect": a failed rank's place in the list holds its RankError
    timeout   seconds for all of it; ranks that are not done then are ended

    Each rank stands on a core of its own where there are enough. fn must be importable: defined in a module or script.
    """
    if worker.importing_main:
        raise InputError(
            "a rank imports this script for what it defines: put the rest under if __name__ == '__main__'."
        )
    if ranks < 1:
        raise InputError(f"ranks is {ranks}; start 1 or more.")
    if on_error not in ("raise", "collect"):
        raise InputError(f"on_error is '{on_error}'; there are: raise, collect.")
    settings = config or from_environment()
    name = f"ridgeline-fabric-{secrets.token_hex(16)}"
    factory = pickle.dumps(partial(_rank, name, ranks, settings), protocol=5)
    try:
        parcel = pack((fn, tuple(args)))
    except Exception as error:
        raise InputError(f"fn or args cannot be sent to ranks ({error}); define fn at the top of a module.") from error
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # so ranks call what they import as main
    host = meeting.Host(name, ranks, meeting.arena_size(settings.arena_bytes))
    posts = [Post(rank, f"cpu:{rank}", place, factory) for rank, place in enumerate(_places(ranks))]
    try:
        return _Watch(posts, parcel, on_error == "collect", timeout).results()
    finally:
        host.close()
        for post in posts:
            if hasattr(post, "process"):
                post.kill()
        parcel.close()


def _rank(name: str, ranks: int, config: FabricConfig, device: str) -> Callable[[Any], Any]:
    """In the rank's own process: join the others, then run what is sent."""
    number = int(device.partition(":")[2])

    def run(sent: Any) -> Any:
        fn, args = sent
        with Communicator(meeting.join(name, number, ranks), config) as comm:
            arena.use(comm.arena)
            return fn(comm, *args)

    return run


def _places(ranks: int) -> Sequence[Placement | None]:
    return plan(ranks=ranks, per="core") if ranks <= len(topology().usable_cpus) else [None] * ranks


class _Watch:
    """The parent's side of a spawn: takes what ranks say, and sees who died or stands still."""

    def __init__(self, posts: list[Post], parcel: Parcel, collect: bool, timeout: float | None) -> None:
        self._posts, self._parcel, self._collect = posts, parcel, collect
        self._until = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._found: dict[int, Any] = {}
        self._failed_at: float | None = None
        self._stopped_at: float | None = None

    def results(self) -> list[Any]:
        with selectors.DefaultSelector() as selector:
            for post in self._posts:
                post.start()
                selector.register(post.line, selectors.EVENT_READ, post)
            while len(self._found) < len(self._posts):
                selector.select(LOOK_S)
                for post in self._posts:
                    if post.number not in self._found:
                        self._look(post)
                        if post.number in self._found:
                            selector.unregister(post.line)
                            self._end(post)
                self._give_up()
        errors = [e for e in (self._found[post.number] for post in self._posts) if isinstance(e, _Failure)]
        if errors and not self._collect:
            raise min(errors, key=lambda failure: failure.order).error
        return [e.error if isinstance(e, _Failure) else e for e in (self._found[p.number] for p in self._posts)]

    def _look(self, post: Post) -> None:
        try:
            while (message := post.read()) is not None:
                (what, *rest), parcel = message
                if what == "ready":
                    post.ready = True
                    post.give(Task(0, self._parcel))
                elif what == "refused":
                    kind, words, trace = rest
                    self._fail(post, f"could not start: {kind}: {words}", trace)
                    return
                elif what == "failed":
                    kind, words, trace = rest[3:]
                    self._fail(post, words if kind.endswith("FabricError") else f"{kind}: {words}", trace)
                    return
                else:
                    self._found[post.number] = parcel.open(own=True)
                    parcel.close()
                    return
            if post.died():
                raise EOFError
        except EOFError:
            self._fail(post, f"its process {post.lost()}.")

    def _fail(self, post: Post, what: str, trace: str = "") -> None:
        self._found[post.number] = _Failure(len(self._found), RankError(post.number, what, trace))
        self._failed_at = self._failed_at or time.monotonic()

    def _end(self, post: Post) -> None:
        """A rank that failed is gone for the others too: they hear it at once. One that is done may leave."""
        if isinstance(self._found[post.number], _Failure):
            post.kill()
        else:
            post.leave()

    def _give_up(self) -> None:
        now = time.monotonic()
        left = [post for post in self._posts if post.number not in self._found]
        if self._until is not None and now >= self._until:
            self._drop(left, f"was not done within {self._timeout:g} s.")
        elif self._failed_at is not None and not self._collect and now >= self._failed_at + GRACE_S:
            self._drop(left, "was ended because another rank failed.")
        elif left and all(_stopped(post) for post in left):
            self._stopped_at = self._stopped_at or now
            if now >= self._stopped_at + GRACE_S:
                self._drop(left, "its process was stopped (SIGSTOP) and all others are done.")
        else:
            self._stopped_at = None

    def _drop(self, posts: list[Post], why: str) -> None:
        for post in posts:
            self._fail(post, why)
            post.kill()


class _Failure:
    """A rank's error, told apart from an exception that a rank returned; `order`: who failed first."""

    def __init__(self, order: int, error: RankError) -> None:
        self.order, self.error = order, error


def _stopped(post: Post) -> bool:
    with suppress(OSError, IndexError), open(f"/proc/{post.process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
    return False


# (rank, size, ranks on this host) as launchers tell them
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "OpenMPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),  # 4, 2(x2) or 2,1
}
_JOBS = "TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT OMPI_MCA_orte_hnp_uri PMIX_NAMESPACE SLURM_JOB_ID SLURM_STEP_ID"
_JOBS += " RIDGELINE_FABRIC_JOB"


def init(*, config: FabricConfig | None = None, timeout: float = meeting.PATIENCE_S) -> Communicator:
    """Join the ranks that a launcher started on this host; alone where no launcher did.

    RIDGELINE_FABRIC_JOB may name the job, where two of one user run on a host under launchers that give no name.
    """
    settings = config or from_environment()
    rank, size, name = _told(os.environ)
    host = meeting.Host(name, size, meeting.arena_size(settings.arena_bytes), timeout) if rank == 0 else None
    try:
        comm = Communicator(meeting.join(name, rank, size, timeout), settings)
    finally:
        if host is not None:
            host.close()
    arena.use(comm.arena)
    return comm


def _told(environment: Mapping[str, str]) -> tuple[int, int, str]:
    """(rank, size, the meeting's name) from a launcher's variables."""
    for launcher, (rank, size, here) in _LAUNCHERS.items():
        if rank in environment and size in environment:
            total, local = int(environment[size]), re.split("[(,]", environment.get(here, environment[size]))[0]
            if local.isdigit() and int(local) != total:
                raise InputError(
                    f"{launcher} started {total} ranks, {local} of them here; fabric serves one host: start all on it."
                )
            # mpirun gives its ranks no name in common but their parent.
            job = [environment.get(word, "") for word in _JOBS.split()] if launcher != "MPICH" else [str(os.getppid())]
            digest = hashlib.sha256("\0".join([launcher, str(os.getuid()), *job]).encode()).hexdigest()[:32]
            return int(environment[rank]), total, f"ridgeline-fabric-{digest}"
    return 0, 1, f"ridgeline-fabric-{secrets.token_hex(16)}"
