"""The files for CI: they can be parsed, and every command and option in them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from tests.lab.conftest import make_record

from ridgeline.cli import load_command, tables
from ridgeline.errors import Exit

ROOT = Path(__file__).parents[2]
FILES = ("action.yml", "gitlab.yml")


@pytest.mark.parametrize("name", FILES)
def test_every_option_of_bench_in_a_ci_file_exists(name):
    text = (ROOT / "deploy" / "ci" / name).read_text()
    assert isinstance(yaml.safe_load(text), dict)
    command = re.search(r"ridgeline bench (.*?)\|\| code", text, re.DOTALL)[1]
    known = {option for parameter in load_command("bench").params for option in parameter.opts}
    used = set(re.findall(r"(?<=\s)--[a-z-]+", command))
    assert {"--against", "--build", "--markdown"} <= used
    assert used <= known


def test_the_action_is_composite_and_the_hook_runs_check():
    action = yaml.safe_load((ROOT / "deploy" / "ci" / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert (hook["id"], hook["entry"]) == ("ridgeline-check", "ridgeline check")


def test_the_comment_speaks_of_the_working_tree():
    """A commit that is faster means a working tree that is slower."""
    record = make_record({"mine": [1.2, 1.21, 1.19] * 8, "mine@1a2b3c4": [1.0, 1.01, 0.99] * 8})
    text = tables.format_version_markdown([record], Exit.SLOWER)
    assert text.startswith("### Benchmarks: something is slower")
    assert "| **SLOWER** |" in text
    assert "| 1.200 (" in text
