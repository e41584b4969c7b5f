"""Run axe-core in a page to find barriers for users of screen readers, keyboards and high contrast.

The script comes with the package axe-playwright-python; nothing is fetched.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.browser import missing

if TYPE_CHECKING:
    from playwright.sync_api import Page

GRAVE = ("serious", "critical")


def faults(tab: Page) -> list[str]:
    """Return the serious and critical violations with their elements."""
    if not tab.evaluate("typeof window.axe === 'object'"):
        tab.evaluate(_source())
    violations = json.loads(tab.evaluate("async () => JSON.stringify((await axe.run(document)).violations)"))
    return [
        f"{one['impact']}: {one['id']}, {one['help']}: {[node['html'][:120] for node in one['nodes'][:3]]}"
        for one in violations
        if one["impact"] in GRAVE
    ]


def _source() -> str:
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        missing("browser", "axe-playwright-python is not installed")
    return (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")
