"""Findings as SARIF, as annotations of GitHub, and explained."""

from __future__ import annotations

import json
import re

import pytest

from ridgeline.claims import check_text, explain_finding, format_github
from ridgeline.claims.finding import Finding
from ridgeline.cli import main

REPORT = """| batch | ours items/s | peer items/s | speed-up |
|---|---|---|---|
| 1 | 1,250 | 1,000 | 1.25x |
| 8 | 6,000 | 4,000 | 1.5x |
| 64 | 21,000 | 10,500 | 3.1x |
"""


@pytest.fixture
def check(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.md").write_text(REPORT)

    def run(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as exit_info:
            main(["check", *map(str, words)])
        return exit_info.value.code or 0, capsys.readouterr().out

    return run


def test_sarif_has_one_result_for_each_finding_with_its_line(check, tmp_path):
    code, out = check("report.md", "--sarif", "out.sarif")
    log = json.loads((tmp_path / "out.sarif").read_text())
    run = log["runs"][0]
    assert code == 1
    assert "contradiction" in out
    assert log["version"] == "2.1.0"
    [result] = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "report.md"}, "region": {"startLine": 5}}
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]


def test_an_annotation_names_file_and_line_and_escapes_the_rest(check):
    code, out = check("report.md", "--github")
    assert code == 1
    assert re.fullmatch(r"::error file=report\.md,line=5,title=ridgeline check%3A ratio::.*\n", out)
    odd = Finding("a,b:c.md", 3, "share", "50 %\nof it", "x is 100 %", 0.5)
    assert format_github(odd).startswith("::warning file=a%2Cb%3Ac.md,line=3,")
    assert "\n" not in format_github(odd)
    assert "100 %25" in format_github(odd)


def test_an_explanation_shows_the_relation_and_the_bare_figures():
    [finding] = check_text(REPORT, "report.md").findings
    lines = explain_finding(finding)
    assert "divided by the other" in lines[0]
    assert "21,000 ÷ 10,500 = 2, not 3.1" in lines[1]


def test_annotations_are_alone(check, capsys):
    code, out = check("report.md", "--github", "--json")
    assert (code, out) == (2, "")
