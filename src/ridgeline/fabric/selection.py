"""How a call is done: which algorithm it uses, and from which sizes the engine uses another copy method.

Both follow the caller, else the settings, else the table that `ridgeline fabric tune` measured on this machine, else
the defaults.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.config import AS_MEASURED, NAMES, FabricConfig
from ridgeline.fabric.proof import prove
from ridgeline.fabric.schedule_types import KINDS, Schedule
from ridgeline.fabric.schedules import ALGORITHMS, BY_HOSTS, schedule
from ridgeline.fabric.schedules.hierarchical import group_ranks
from ridgeline.native import FABRIC_OWN_SCHEDULE

NATIVE = "direct"  # built into the engine: every rank reads the data of every other
NEVER = 1 << 62
FEW_RANKS = 8  # up to here each rank may read a small array completely: more ranks need too many cache lines
MANY_RANKS_BYTES = 512  # up to this size more ranks do so, too
CACHED_PROGRAMS = 64  # of schedules of the caller


@dataclass(frozen=True, eq=False)
class RankProgram:
    """The program of one rank, in the form that the engine reads."""

    name: str
    code: int
    rows: NDArray[np.int32]
    chunks: int
    widest: int  # the largest width in the programs of all ranks
    schedule_hash: int = 0  # of a schedule of the caller: all ranks must have the same


@lru_cache(maxsize=256)
def make_program(
    op: str, algorithm: str, ranks: int, rank: int, root: int, hosts: tuple[str, ...] | None = None
) -> RankProgram:
    """The program of a rank in a built-in algorithm; hosts: that of each rank."""
    plan = schedule(op, algorithm, ranks=ranks, root=root, hosts=hosts)
    return _make_program(plan, rank, algorithm, NAMES.index(algorithm) + 1)


def _make_program(plan: Schedule, rank: int, name: str, code: int, schedule_hash: int = 0) -> RankProgram:
    steps = [[KINDS.index(s.kind), s.peer, s.chunk, s.width] for s in plan.programs[rank]]
    rows = np.array(steps, np.int32).reshape(-1, 4)
    widest = max((s.width for program in plan.programs for s in program), default=1)
    return RankProgram(name, code, rows, plan.chunks, widest, schedule_hash)


class AlgorithmChoice:
    """The algorithm of each call of one communicator.

    hosts  the host of each rank, if they are connected by a network; None: the ranks share memory
    table  of `tune_hosts` for such ranks: the same on all of them; rows for each op and layout (`describe_layout`)
    """

    def __init__(
        self,
        config: FabricConfig,
        ranks: int,
        hosts: Sequence[str] | None = None,
        table: Mapping[str, Any] | None = None,
    ) -> None:
        self._configured, self._ranks = config.collective_algorithm, ranks
        self._hosts = tuple(hosts) if hosts is not None else None
        if self._configured != "auto" or ranks == 1:
            self._table: Mapping[str, Any] = {}
        elif hosts is None:
            self._table = read_tuning().get("choice", {})
        else:
            self._table = table or {}
        self._key = str(ranks) if hosts is None else describe_layout(hosts)
        self.native_up_to = self._find_native_limit()
        may_be_native = self._configured in ("auto", NATIVE)
        # Operations that always use the native algorithm: at every size, all-reduces up to `native_up_to`.
        native = (op for op in ("all_gather", "broadcast") if may_be_native and not self._get_rows(op))
        self.native_ops = {"send", "recv", *native, *(["all_reduce"] if self.native_up_to >= 0 else [])}
        self._own_programs: dict[
            int, tuple[Schedule, RankProgram]
        ] = {}  # by the id of the schedule, which is kept alive

    def _find_native_limit(self) -> int:
        """All-reduces up to this many bytes use the native algorithm; −1: at no size."""
        rows = self._get_rows("all_reduce")
        if self._configured not in ("auto", NATIVE):
            return -1
        if not rows:
            return 1 << 62
        return int(rows[0]["up_to"]) if rows[0]["algorithm"] == NATIVE else -1

    def get_program(
        self, op: str, requested: str | Schedule | None, rank: int, root: int, nbytes: int
    ) -> RankProgram | None:
        """The steps of this rank; None: the native algorithm."""
        if isinstance(requested, Schedule):
            program = self.prove_own(requested, rank)
            if requested.op != op:
                raise InputError(f"{op}: the schedule is one of {requested.op}; call that, or comm.run.")
            if op in ("broadcast", "reduce") and requested.root != root:
                raise InputError(f"{op}: root is {root}, that of the schedule {requested.root}; give the same.")
            return program
        name = self.get_name(op, requested, nbytes)
        if name == NATIVE:
            return None
        return make_program(op, name, self._ranks, rank, root, self._hosts if name in BY_HOSTS else None)

    def prove_own(self, plan: Schedule, rank: int) -> RankProgram:
        """The steps of this rank in a schedule of the caller; raises RidgelineError unless it can be proved."""
        known = self._own_programs.get(id(plan))
        if known is not None:
            return known[1]
        if not isinstance(plan, Schedule):
            raise InputError(
                f"a schedule is a fabric.Schedule, not {type(plan).__name__}; Schedule.from_json reads one."
            )
        if plan.ranks != self._ranks:
            raise InputError(f"the schedule is made for {plan.ranks} ranks, this communicator has {self._ranks}.")
        prove(plan)
        digest = zlib.crc32(plan.to_json().encode())
        program = _make_program(plan, rank, f"schedule {plan.algorithm}", FABRIC_OWN_SCHEDULE, digest)
        if len(self._own_programs) >= CACHED_PROGRAMS:
            self._own_programs.clear()
        self._own_programs[id(plan)] = (plan, program)
        return program

    def get_name(self, op: str, requested: str | None, nbytes: int) -> str:
        """The algorithm of such a call; `direct` is the native one."""
        if requested is not None and requested not in ("auto", *ALGORITHMS.get(op, {})):
            raise unknown(f"algorithm for {op}", requested, ["auto", *ALGORITHMS.get(op, {})])
        name = requested or self._configured
        if name == "auto":
            name = next((r["algorithm"] for r in self._get_rows(op) if nbytes <= r["up_to"]), NATIVE)
        return NATIVE if name not in ALGORITHMS.get(op, {}) or self._ranks == 1 else name

    def _get_rows(self, op: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._table.get(op, {}).get(self._key, [])
        return rows


def describe_layout(hosts: Sequence[str]) -> str:
    """The numbers of ranks of the hosts, in the order in which the hosts appear.

    >>> describe_layout(["a", "a", "b"])
    '2,1'
    """
    return ",".join(str(len(group)) for group in group_ranks(hosts))


@dataclass(frozen=True)
class Thresholds:
    """The sizes in bytes at which the native algorithm changes its method."""

    whole_bytes: int  # up to here every rank adds all of a small array; above, each rank adds its part
    foreign_bytes: int  # from here a reduction reads the memory of other ranks in place
    foreign_move_bytes: int  # the same for a broadcast, all_gather or all_to_all


def get_default_thresholds(ranks: int) -> Thresholds:
    """Thresholds without a measurement: slices that stay in the caches were faster than the copy of the kernel."""
    return Thresholds(NEVER if ranks <= FEW_RANKS else MANY_RANKS_BYTES, NEVER, NEVER)


def choose_thresholds(config: FabricConfig, ranks: int) -> Thresholds:
    tuned = {**vars(get_default_thresholds(ranks)), **read_tuning().get("ways", {}).get(str(ranks), {})}
    names = [field.name for field in fields(Thresholds)]
    configured = {name: getattr(config, name) for name in names}
    return Thresholds(
        **{name: int(tuned[name] if configured[name] == AS_MEASURED else configured[name]) for name in names}
    )


def get_tuning_path() -> Path:
    """The file in which `ridgeline fabric tune` saves its measurements for this kind of machine."""
    from ridgeline.machine import fingerprint

    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ridgeline" / "fabric" / f"{fingerprint()}.json"


def read_tuning() -> dict[str, Any]:
    """What `tune` saved. choice: op → ranks → rows of (up_to bytes, algorithm); ways: ranks → Thresholds; networks.

    hosts: what `tune_hosts` saved: transport → op → layout → rows.
    """
    try:
        tuning: dict[str, Any] = json.loads(get_tuning_path().read_text())
    except (OSError, ValueError):
        return {}
    return tuning
