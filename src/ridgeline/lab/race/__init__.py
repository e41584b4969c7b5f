"""Race a workload against its peers: warm processes, timed in turn, in shuffled order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.race.against import copied as copied
    from ridgeline.lab.race.against import rival as rival
    from ridgeline.lab.race.baton import Entrant as Entrant
    from ridgeline.lab.race.benchmark import (
        Outcome as Outcome,
    )
    from ridgeline.lab.race.benchmark import (
        Watcher as Watcher,
    )
    from ridgeline.lab.race.benchmark import (
        bench as bench,
    )
    from ridgeline.lab.race.benchmark import (
        make_folder as make_folder,
    )
    from ridgeline.lab.race.contender import peaks as peaks
    from ridgeline.lab.race.contender import reset_peaks as reset_peaks
    from ridgeline.lab.race.plan import Plan as Plan
    from ridgeline.lab.race.points import Ask as Ask
    from ridgeline.lab.race.points import Point as Point

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "against": ["copied", "rival"],
        "baton": ["Entrant"],
        "benchmark": ["Outcome", "Watcher", "bench", "make_folder"],
        "contender": ["peaks", "reset_peaks"],
        "plan": ["Plan"],
        "points": ["Ask", "Point"],
    },
)
