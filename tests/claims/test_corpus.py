"""Reports as people write them: each has no finding, and the numbers made wrong are found in their lines."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ridgeline.claims import check_text

CORPUS = Path(__file__).parent / "corpus"
REPORTS = sorted(path for path in CORPUS.iterdir() if path.suffix != ".toml")
PLANTED = tomllib.loads((CORPUS / "planted.toml").read_text())["planted"]


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_report_that_holds_has_no_finding(report):
    assert check_text(report.read_text(), report.name).findings == ()


@pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)
def test_a_space_before_a_magnitude_changes_nothing(report):
    text = re.sub(r"(?<=\d)([kKMGT])(?![\w/%-])", r" \1", report.read_text())
    assert check_text(text, report.name).findings == ()


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: f"{plant['file']}: {plant['wrong'][-24:]}")
def test_one_wrong_number_is_found_in_its_line(plant):
    text = (CORPUS / plant["file"]).read_text()
    assert text.count(plant["right"]) == 1
    line = text[: text.index(plant["right"])].count("\n") + 1
    findings = check_text(text.replace(plant["right"], plant["wrong"]), plant["file"]).findings
    assert line in [finding.line for finding in findings]
