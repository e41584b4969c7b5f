"""One file per workload: how the lab runs it, its reference, its peers.

A file here that has a line `workload = …` is found by its name: `ridgeline bench NAME`.
"""

from __future__ import annotations

import pkgutil
from pathlib import Path


def names() -> list[str]:
    """The workloads there are, without importing any: other files here are what they share."""
    here = Path(__path__[0])
    plain = (m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))
    return sorted(name for name in plain if "\nworkload = " in (here / f"{name}.py").read_text(encoding="utf-8"))


def reference(name: str) -> str:
    return f"{__name__}.{name}"
