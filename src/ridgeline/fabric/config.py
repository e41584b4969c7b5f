"""Settings of the engine. Each has a line in the environment too: RIDGELINE_FABRIC_TIMEOUT=30."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.fabric.schedules import ALGORITHMS

PREFIX = "RIDGELINE_FABRIC_"
NAMES = sorted({"auto", *(name for names in ALGORITHMS.values() for name in names)})


@dataclass(frozen=True)
class FabricConfig:
    """Must be the same on all ranks."""

    collective_algorithm: str = "auto"  # or the name of a schedule, for every call that has it
    timeout: float = 300.0  # seconds of any wait; the dead are noticed within a second whatever this is
    small_bytes: int = 8 << 10  # up to here data travels beside the call itself, through slots
    slice_bytes: int = 64 << 10  # of a part of the data, where it bounces through shared memory
    foreign_bytes: int = 64 << 20  # from here the others' memory is read in place (CMA), where that is allowed
    foreign: bool = True  # False: never
    arena_bytes: int = 0  # most that fabric.empty gives one rank; 0: half of the machine's memory

    def __post_init__(self) -> None:
        if self.collective_algorithm not in NAMES:
            raise unknown("collective algorithm", self.collective_algorithm, NAMES)
        if self.timeout <= 0:
            raise InputError(f"timeout is {self.timeout}; give seconds above 0.")


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
