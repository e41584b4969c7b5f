"""Settings of the engine. Each can be set in the environment, too: RIDGELINE_FABRIC_TIMEOUT=30."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.hosts import parse_address, parse_ports
from ridgeline.fabric.schedules import ALGORITHMS

PREFIX = "RIDGELINE_FABRIC_"
TRANSPORTS = ("auto", "shm", "tcp", "udp", "ucx")
OVER_NETWORK = ("tcp", "udp", "ucx")  # those that ranks of one host use, too, if asked to
MOST_STREAMS = 16
AS_MEASURED = -1  # by `ridgeline fabric tune`, else the default (selection.py)
_OTHER_NAMES = ("SECRET", "SECRET_FILE", "HOST", "JOB")  # variables that are no field of FabricConfig
NAMES = sorted({"auto", *(name for names in ALGORITHMS.values() for name in names)})


@dataclass(frozen=True)
class FabricConfig:
    """Settings of the engine, the same on all ranks."""

    collective_algorithm: str = "auto"  # or the name of a schedule, for every operation that has it
    timeout: float = 300.0  # seconds of any wait; a dead rank is detected within a second in any case
    small_bytes: int = 8 << 10  # up to here the data is sent with the call itself, in slots
    slice_bytes: int = 64 << 10  # of a slice, where data is copied through shared memory
    # small data: up to here every rank adds all; above, each rank adds its part, with a second synchronization
    whole_bytes: int = AS_MEASURED
    foreign_bytes: int = AS_MEASURED  # from here reductions read the memory of other ranks in place (CMA), if allowed
    foreign_move_bytes: int = AS_MEASURED  # the same for broadcast, all_gather and all_to_all
    foreign: bool = True  # False: never
    transport: str = "auto"  # between ranks: shm inside a host and tcp between hosts; or shm, tcp, udp or ucx for all
    streams: int = 1  # connections of a pair of ranks for calls, and as many for messages
    interface: str = ""  # that ranks of other hosts reach: a name or a subnet; empty: the one of the rendezvous
    ports: str = ""  # low-high: ports that ranks may listen on; empty: any free port
    rendezvous: str = ""  # host:port where rank 0 listens for the ranks of other hosts
    metrics: str = ""  # [host]:port for Prometheus; further ranks of a host take the next ports
    trace: str = ""  # path, to which -RANK.json is added: a line for each call, for chrome://tracing
    arena_bytes: int = 0  # limit of fabric.empty in one rank; 0: half of the memory of the machine

    def __post_init__(self) -> None:
        if self.collective_algorithm not in NAMES:
            raise unknown("collective algorithm", self.collective_algorithm, NAMES)
        if self.transport not in TRANSPORTS:
            raise unknown("transport", self.transport, TRANSPORTS)
        if not 1 <= self.streams <= MOST_STREAMS:
            raise InputError(f"streams is {self.streams}; give 1 to {MOST_STREAMS}.")
        parse_ports(self.ports)
        if self.metrics:
            parse_address(f"x{self.metrics}" if self.metrics.startswith(":") else self.metrics, "metrics")
        if self.rendezvous:
            parse_address(self.rendezvous, "rendezvous")
        if not self.timeout > 0:
            raise InputError(f"timeout is {self.timeout}; give seconds above 0.")
        for name in ("whole_bytes", "foreign_bytes", "foreign_move_bytes"):
            if getattr(self, name) < AS_MEASURED:
                raise InputError(f"{name} is {getattr(self, name)}; give 0 or more, or {AS_MEASURED} for as measured.")


def read_config(environment: Mapping[str, str] = os.environ) -> FabricConfig:
    """Return the settings: the defaults, changed by the environment. An unknown variable is an InputError.

    >>> read_config({"RIDGELINE_FABRIC_TIMEOUT": "5"}).timeout
    5.0
    """
    known = [setting.name.upper() for setting in fields(FabricConfig)] + list(_OTHER_NAMES)
    for variable, value in environment.items():
        name = variable.removeprefix(PREFIX)
        is_kubernetes = "SERVICE_" in name or "PORT_" in name or "://" in value  # of a service named ridgeline-fabric
        if variable.startswith(PREFIX) and name not in known and not is_kubernetes:
            raise unknown(f"setting {PREFIX}…", name, sorted(known))
    values: dict[str, Any] = {}
    for setting in fields(FabricConfig):
        text = environment.get(PREFIX + setting.name.upper())
        if text is None:
            continue
        kind: Any = type(setting.default)
        try:
            values[setting.name] = text.lower() in ("1", "true", "yes") if kind is bool else kind(text)
        except ValueError:
            message = f"{PREFIX}{setting.name.upper()}={text}: expected something like {setting.default!r}."
            raise InputError(message) from None
    return FabricConfig(**values)
