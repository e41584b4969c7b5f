"""Patterns of performance reports: what holds has no finding, and a contradiction is found in its line."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ridgeline.claims import check_text

PATTERNS = tomllib.loads((Path(__file__).parent / "patterns.toml").read_text())["pattern"]
RIGHT = [pattern for pattern in PATTERNS if "wrong" not in pattern]
WRONG = [pattern for pattern in PATTERNS if "wrong" in pattern]


@pytest.mark.parametrize("pattern", RIGHT, ids=lambda pattern: pattern["name"])
def test_a_pattern_that_holds_has_no_finding(pattern):
    assert check_text(f"# Results\n\n{pattern['text']}\n", "report.md").findings == ()


@pytest.mark.parametrize("pattern", WRONG, ids=lambda pattern: pattern["name"])
def test_a_contradiction_is_found_in_its_line_and_nowhere_else(pattern):
    text = f"# Results\n\n{pattern['text']}\n"
    assert text.count(pattern["wrong"]) == 1
    line = text[: text.index(pattern["wrong"])].count("\n") + 1
    assert [finding.line for finding in check_text(text, "report.md").findings] == [line]
