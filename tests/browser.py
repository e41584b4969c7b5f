"""A real Chromium for tests of rendered pages.

The browser is the installed one (`chromium` on the PATH), driven by Playwright; nothing is downloaded. Without it the
tests are skipped, unless RIDGELINE_REQUIRE names `browser`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


def required(part: str) -> bool:
    """Whether RIDGELINE_REQUIRE, a comma list, forbids skipping the tests of this part."""
    return part in {name.strip() for name in os.environ.get("RIDGELINE_REQUIRE", "").split(",")}


def missing(part: str, what: str) -> None:
    """Skip the test, or fail it if the part is required."""
    if required(part):
        pytest.fail(f"RIDGELINE_REQUIRE asks for {part}, but {what}.", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for the session; each test opens its own contexts and pages."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing("browser", "no chromium was found on the PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("browser", "playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_ARGUMENTS))
        yield browser
        browser.close()
