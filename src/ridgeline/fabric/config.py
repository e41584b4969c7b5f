"""Settings of the engine. Each has a line in the environment too: RIDGELINE_FABRIC_TIMEOUT=30."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.schedules import ALGORITHMS

PREFIX = "RIDGELINE_FABRIC_"
AS_MEASURED = -1  # by `ridgeline fabric tune`, else as usual (ways.py)
NAMES = sorted({"auto", *(name for names in ALGORITHMS.values() for name in names)})


@dataclass(frozen=True)
class FabricConfig:
    """Must be the same on all ranks."""

    collective_algorithm: str = "auto"  # or the name of a schedule, for every call that has it
    timeout: float = 300.0  # seconds of any wait; the dead are noticed within a second whatever this is
    small_bytes: int = 8 << 10  # up to here data travels beside the call itself, through slots
    slice_bytes: int = 64 << 10  # of a part of the data, where it bounces through shared memory
    whole_bytes: int = (
        AS_MEASURED  # of those, up to here every rank adds all; beyond, each its part, and they meet twice
    )
    foreign_bytes: int = AS_MEASURED  # reductions read the others' memory in place (CMA) from here, where allowed
    foreign_move_bytes: int = AS_MEASURED  # the same of broadcast, all_gather and all_to_all
    foreign: bool = True  # False: never
    arena_bytes: int = 0  # most that fabric.empty gives one rank; 0: half of the machine's memory

    def __post_init__(self) -> None:
        if self.collective_algorithm not in NAMES:
            raise unknown("collective algorithm", self.collective_algorithm, NAMES)
        if self.timeout <= 0:
            raise InputError(f"timeout is {self.timeout}; give seconds above 0.")
        for name in ("whole_bytes", "foreign_bytes", "foreign_move_bytes"):
            if getattr(self, name) < AS_MEASURED:
                raise InputError(f"{name} is {getattr(self, name)}; give 0 or more, or {AS_MEASURED} for as measured.")


def from_environment(environment: Mapping[str, str] = os.environ) -> FabricConfig:
    """The settings, with what the environment says instead.

    >>> from_environment({"RIDGELINE_FABRIC_TIMEOUT": "5"}).timeout
    5.0
    """
    told: dict[str, Any] = {}
    for one in fields(FabricConfig):
        word = environment.get(PREFIX + one.name.upper())
        if word is None:
            continue
        kind: Any = type(one.default)
        try:
            told[one.name] = word.lower() in ("1", "true", "yes") if kind is bool else kind(word)
        except ValueError:
            raise InputError(f"{PREFIX}{one.name.upper()}={word}: expected something like {one.default!r}.") from None
    return FabricConfig(**told)
