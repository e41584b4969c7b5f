"""`spawn` starts ranks on this host, `init` joins those that a launcher (torchrun, mpirun, Slurm) started."""

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
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.config import OVER_NETWORK, FabricConfig, read_config
from ridgeline.fabric.handshake import read_secret
from ridgeline.fabric.hosts import Address, parse_address
from ridgeline.fabric.membership import join_membership, make_world
from ridgeline.fabric.network_rendezvous import NetworkWorld, meet
from ridgeline.fabric.rendezvous import TIMEOUT_S, RendezvousServer, World, choose_arena_bytes, join_world
from ridgeline.fabric.shared_buffers import set_current_arena
from ridgeline.fabric.telemetry import publish_metrics
from ridgeline.machine import Placement, plan, topology
from ridgeline.pipeline import Payload, Task, WorkerProcess, is_importing_main, pack

GRACE_S = 2.0  # from the first failure to the end of the other ranks, which may have an error to report
CHECK_EVERY_S = 0.2


class RankError(FabricError):
    """The function of a rank failed or its process ended; `rank` is its number, `trace` the text of the traceback."""

    def __init__(self, rank: int, message: str, trace: str = "") -> None:
        super().__init__(f"rank {rank}: {message}")
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
    hosts: int = 1,
) -> list[Any]:
    """Run fn(comm, *args) in `ranks` new processes and return their results, by rank.

    on_error  "raise": the first failure ends all ranks and is raised as RankError;
              "collect": the list has the RankError of a failed rank in its place
    timeout   seconds for all ranks together; ranks that run longer are ended (default: no limit)
    config    settings of the engine (default: from the environment)
    hosts     the ranks behave as if they were on this many hosts, to try a program: those of two hosts use TCP

    Each rank has a separate core if there are enough. fn must be importable: defined in a module or script. Raises
    InputError for wrong arguments.
    """
    if is_importing_main():
        raise InputError(
            "a rank imports this script for what it defines: put the rest under if __name__ == '__main__'."
        )
    if ranks < 1:
        raise InputError(f"ranks is {ranks}; start 1 or more.")
    if not 1 <= hosts <= ranks:
        raise InputError(f"hosts is {hosts}; {ranks} ranks can be on 1 to {ranks}.")
    if on_error not in ("raise", "collect"):
        raise InputError(f"on_error is '{on_error}'; there are: raise, collect.")
    settings = config or read_config()
    name = f"ridgeline-fabric-{secrets.token_hex(16)}"
    secret = secrets.token_bytes(32)  # of the ranks of this call
    factory = pickle.dumps(partial(_make_rank, name, ranks, settings, hosts, secret), protocol=5)
    try:
        payload = pack((fn, tuple(args)))
    except Exception as error:
        raise InputError(f"fn or args cannot be sent to ranks ({error}); define fn at the top of a module.") from error
    sys.modules.setdefault("__mp_main__", sys.modules["__main__"])  # the name of the script in ranks
    is_shared = hosts == 1 and settings.transport in ("auto", "shm")
    server = RendezvousServer(name, ranks, choose_arena_bytes(settings.arena_bytes)) if is_shared else None
    processes = [WorkerProcess(rank, f"cpu:{rank}", place, factory) for rank, place in enumerate(_place_ranks(ranks))]
    try:
        return _RankWatcher(processes, payload, on_error == "collect", timeout).run()
    finally:
        if server is not None:
            server.close()
        for process in processes:
            if hasattr(process, "process"):
                process.kill()
        payload.close()


def _make_rank(
    name: str, ranks: int, config: FabricConfig, hosts: int, secret: bytes, device: str
) -> Callable[[Any], Any]:
    """In the process of the rank: join the others, then run the function that is sent."""
    number = int(device.partition(":")[2])

    def run(call: Any) -> Any:
        fn, args = call
        world: World | NetworkWorld
        if hosts > 1 or config.transport in OVER_NETWORK:
            if hosts > 1:
                os.environ["RIDGELINE_FABRIC_HOST"] = f"host {number * hosts // ranks}"
            world = _meet(number, ranks, Address(f"@{name}", 0), secret, config, TIMEOUT_S)
        else:
            world = join_world(name, number, ranks)
        with Communicator(world, config) as comm:
            set_current_arena(comm.arena)
            publish_metrics(comm)
            return fn(comm, *args)

    return run


def _place_ranks(ranks: int) -> Sequence[Placement | None]:
    return plan(ranks=ranks, per="core") if ranks <= len(topology().usable_cpus) else [None] * ranks


class _RankWatcher:
    """The parent's side of a spawn: reads the messages of ranks, and detects dead, stopped and late ranks."""

    def __init__(self, processes: list[WorkerProcess], payload: Payload, collect: bool, timeout: float | None) -> None:
        self._processes, self._payload, self._collect = processes, payload, collect
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._timeout = timeout
        self._outcomes: dict[int, Any] = {}
        self._failed_at: float | None = None
        self._stopped_at: float | None = None

    def run(self) -> list[Any]:
        with selectors.DefaultSelector() as selector:
            for process in self._processes:
                process.start()
                selector.register(process.connection, selectors.EVENT_READ, process)
            while len(self._outcomes) < len(self._processes):
                selector.select(CHECK_EVERY_S)
                for process in self._processes:
                    if process.number not in self._outcomes:
                        self._read_messages(process)
                        if process.number in self._outcomes:
                            selector.unregister(process.connection)
                            self._end(process)
                self._check_time()
        outcomes = [self._outcomes[process.number] for process in self._processes]
        failures = [outcome for outcome in outcomes if isinstance(outcome, _Failure)]
        if failures and not self._collect:
            raise min(failures, key=lambda failure: failure.order).error
        return [outcome.error if isinstance(outcome, _Failure) else outcome for outcome in outcomes]

    def _read_messages(self, process: WorkerProcess) -> None:
        try:
            while (message := process.read()) is not None:
                (kind, *rest), payload = message
                if kind == "ready":
                    process.ready = True
                    process.assign(Task(0, self._payload))
                elif kind == "refused":
                    error_type, text, trace = rest
                    self._fail(process, f"could not start: {error_type}: {text}", trace)
                    return
                elif kind == "failed":
                    error_type, text, trace = rest[3:]
                    self._fail(process, text if error_type.endswith("FabricError") else f"{error_type}: {text}", trace)
                    return
                else:
                    self._outcomes[process.number] = payload.unpack(exclusive=True)
                    payload.close()
                    return
            if process.died():
                raise EOFError
        except EOFError:
            self._fail(process, f"its process {process.clean_up()}.")

    def _fail(self, process: WorkerProcess, message: str, trace: str = "") -> None:
        self._outcomes[process.number] = _Failure(len(self._outcomes), RankError(process.number, message, trace))
        self._failed_at = self._failed_at or time.monotonic()

    def _end(self, process: WorkerProcess) -> None:
        """Kill a failed rank, so that the others notice it at once; let a finished rank exit by itself."""
        if isinstance(self._outcomes[process.number], _Failure):
            process.kill()
        else:
            process.close()

    def _check_time(self) -> None:
        now = time.monotonic()
        running = [process for process in self._processes if process.number not in self._outcomes]
        if self._deadline is not None and now >= self._deadline:
            self._end_all(running, f"was not done within {self._timeout:g} s.")
        elif self._failed_at is not None and not self._collect and now >= self._failed_at + GRACE_S:
            self._end_all(running, "was ended because another rank failed.")
        elif running and all(_is_stopped(process) for process in running):
            self._stopped_at = self._stopped_at or now
            if now >= self._stopped_at + GRACE_S:
                self._end_all(running, "its process was stopped (SIGSTOP) and all others are done.")
        else:
            self._stopped_at = None

    def _end_all(self, processes: list[WorkerProcess], reason: str) -> None:
        for process in processes:
            self._fail(process, reason)
            process.kill()


class _Failure:
    """The error of a rank, as opposed to an exception that a rank returned; `order`: the first failure has 0."""

    def __init__(self, order: int, error: RankError) -> None:
        self.order, self.error = order, error


def _is_stopped(process: WorkerProcess) -> bool:
    with suppress(OSError, IndexError), open(f"/proc/{process.process.pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"
    return False


# The variables of each launcher: rank, number of ranks, ranks on this host
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    "OpenMPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE"),  # 4, 2(x2) or 2,1
}
_JOBS = "TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT OMPI_MCA_orte_hnp_uri PMIX_NAMESPACE SLURM_JOB_ID SLURM_STEP_ID"
_JOBS += " RIDGELINE_FABRIC_JOB"


def init(*, config: FabricConfig | None = None, timeout: float = TIMEOUT_S) -> Communicator:
    """Join the ranks that a launcher started on this host; without a launcher, return a communicator of one rank.

    config   settings of the engine (default: from the environment)
    timeout  seconds to wait for all ranks (default: 120)

    Ranks of several hosts need RIDGELINE_FABRIC_RENDEZVOUS=host:port, where rank 0 listens, and a common secret in
    RIDGELINE_FABRIC_SECRET or RIDGELINE_FABRIC_SECRET_FILE. RIDGELINE_FABRIC_JOB may name the job, if one user runs two
    jobs on a host under launchers that give no name.
    Raises InputError for wrong settings, FabricError if not all ranks come.
    """
    settings = config or read_config()
    rank, size, name = _read_launcher(os.environ, bool(settings.rendezvous))
    if settings.rendezvous:
        rendezvous = parse_address(settings.rendezvous, "rendezvous")
        comm = Communicator(_meet(rank, size, rendezvous, read_secret(), settings, timeout), settings)
    elif settings.transport in OVER_NETWORK:
        raise InputError(
            f"transport {settings.transport} needs RIDGELINE_FABRIC_RENDEZVOUS=host:port, where rank 0 listens."
        )
    else:
        comm = Communicator(_join(name, rank, size, settings, timeout), settings)
    set_current_arena(comm.arena)
    publish_metrics(comm)
    return comm


def _join(name: str, rank: int, size: int, config: FabricConfig, timeout: float) -> World:
    """Join the ranks of this host."""
    server = RendezvousServer(name, size, choose_arena_bytes(config.arena_bytes), timeout) if rank == 0 else None
    try:
        return join_world(name, rank, size, timeout)
    finally:
        if server is not None:
            server.close()


def _meet(
    rank: int, size: int, rendezvous: Address, secret: bytes, config: FabricConfig, timeout: float
) -> World | NetworkWorld:
    """Join the ranks of all hosts."""
    deadline = time.monotonic() + timeout
    return make_world(meet(rank, size, rendezvous, secret, config, timeout), deadline)


def join(address: str, *, config: FabricConfig | None = None, timeout: float = TIMEOUT_S) -> Communicator:
    """Become a new rank of a communicator whose ranks call `grow`.

    address  the `address` of that communicator
    config   settings of the engine, those of its ranks (default: from the environment)
    timeout  seconds to wait for them (default: 120)

    The secret comes from the environment, as in `init`. Raises FabricError if no rank is there or none calls `grow`.
    """
    settings = config or read_config()
    deadline = time.monotonic() + timeout
    comm = Communicator(make_world(join_membership(address, settings, timeout), deadline), settings)
    set_current_arena(comm.arena)
    publish_metrics(comm)
    return comm


def _read_number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not text.isdecimal():
        raise InputError(f"{name} is '{text}'; give a whole number from 0 on.")
    return int(text)


def _read_launcher(environment: Mapping[str, str], has_rendezvous: bool) -> tuple[int, int, str]:
    """(rank, size, name of the rendezvous) from the variables of a launcher."""
    for launcher, (rank, size, local_size) in _LAUNCHERS.items():
        if rank in environment and size in environment:
            number, total = _read_number(environment, rank), _read_number(environment, size)
            if number >= total:
                raise InputError(f"{rank} is {number}, {size} is {total}; ranks count from 0 to {size} - 1.")
            local = re.split("[(,]", environment.get(local_size, environment[size]))[0]
            if local.isdigit() and int(local) != total and not has_rendezvous:
                raise InputError(
                    f"{launcher} started {total} ranks, {local} of them here; for several hosts set "
                    "RIDGELINE_FABRIC_RENDEZVOUS=host:port (an address of rank 0) and RIDGELINE_FABRIC_SECRET."
                )
            # The only common value of ranks of MPICH's mpirun is their parent process.
            job = [environment.get(name, "") for name in _JOBS.split()] if launcher != "MPICH" else [str(os.getppid())]
            digest = hashlib.sha256("\0".join([launcher, str(os.getuid()), *job]).encode()).hexdigest()[:32]
            return number, total, f"ridgeline-fabric-{digest}"
    return 0, 1, f"ridgeline-fabric-{secrets.token_hex(16)}"
