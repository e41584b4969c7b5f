"""Which workloads there are."""

from __future__ import annotations

import pkgutil
from pathlib import Path


def names() -> list[str]:
    """The workloads there are, without importing any: other files here are what they share."""
    here = Path(__file__).parent
    plain = (m.name for m in pkgutil.iter_modules([str(here)]) if not m.name.startswith("_"))
    return sorted(name for name in plain if "\nworkload = " in (here / f"{name}.py").read_text(encoding="utf-8"))


def reference(name: str) -> str:
    return f"ridgeline.workloads.{name}"
