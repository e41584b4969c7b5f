"""A real Chromium for the tests that must see a page drawn.

The browser is the machine's own (`chromium` on the PATH), driven through Playwright; nothing is downloaded.
Without one the tests are skipped, unless RIDGELINE_REQUIRE names `browser`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
)


def required(part: str) -> bool:
    """Whether RIDGELINE_REQUIRE, a comma list, says that tests of this part must not be skipped."""
    return part in {name.strip() for name in os.environ.get("RIDGELINE_REQUIRE", "").split(",")}


def missing(part: str, what: str) -> None:
    """Skips the test, or fails it where the part is required."""
    if required(part):
        pytest.fail(f"RIDGELINE_REQUIRE asks for {part}, but {what}.", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """One browser for the whole session; a test opens its own contexts and pages in it."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        missing("browser", "no chromium was found on the PATH")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("browser", "playwright is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_QUIET))
        yield browser
        browser.close()
