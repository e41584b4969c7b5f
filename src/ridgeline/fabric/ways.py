"""How the engine gets at the others' data where several ways compete: as set, as `tune` measured, else as usual."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ridgeline.fabric.choice import read_kept
from ridgeline.fabric.config import AS_MEASURED, FabricConfig

NEVER = 1 << 62
FEW = 8  # ranks that may all read all of a small array: more ask for too many cache lines of each other
FEW_BYTES = 512  # what more of them read whole


@dataclass(frozen=True)
class Ways:
    """Bytes at which one way ends and the next begins."""

    whole_bytes: int  # up to here every rank adds all of a small array; beyond, each its part
    foreign_bytes: int  # a reduction reads the others' memory in place from here
    foreign_move_bytes: int  # a broadcast, all_gather or all_to_all does


def usual(ranks: int) -> Ways:
    """What holds where nothing was measured: slices that stay in the caches have been faster than the kernel's copy."""
    return Ways(NEVER if ranks <= FEW else FEW_BYTES, NEVER, NEVER)


def ways(config: FabricConfig, ranks: int) -> Ways:
    found = {**vars(usual(ranks)), **read_kept().get("ways", {}).get(str(ranks), {})}
    names = [one.name for one in fields(Ways)]
    said = {name: getattr(config, name) for name in names}
    return Ways(**{name: int(found[name] if said[name] == AS_MEASURED else said[name]) for name in names})
