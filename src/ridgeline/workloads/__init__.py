"""One file per workload: how the lab runs it, its reference, its peers.

A file here that ends in `workload = …` is found by its name: `ridgeline bench NAME`.
"""

from __future__ import annotations

import pkgutil


def names() -> list[str]:
    """The workloads there are, without importing any."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def reference(name: str) -> str:
    return f"{__name__}.{name}"
