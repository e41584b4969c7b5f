"""The list of workloads."""

from __future__ import annotations

import pkgutil
from pathlib import Path

from ridgeline.web import read_asset


def list_workloads() -> list[str]:
    """Return the names of all workloads, without importing them; other files of this folder are shared code."""
    folder = Path(__file__).parent
    public = (m.name for m in pkgutil.iter_modules([str(folder)]) if not m.name.startswith("_"))
    return sorted(name for name in public if "\nworkload = " in (folder / f"{name}.py").read_text(encoding="utf-8"))


def get_reference(name: str) -> str:
    """Return the module of a workload."""
    return f"ridgeline.workloads.{name}"


def load_campaign() -> str:
    """Return the steps of a campaign as TOML: what is not measured on hardware, in order of value."""
    return read_asset("campaign.toml", "ridgeline.workloads")
