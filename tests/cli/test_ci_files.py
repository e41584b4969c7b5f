"""The files for CI: they can be parsed, and every command and option in them exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.lab.conftest import make_record

from ridgeline.cli import load_command, tables
from ridgeline.errors import Exit

ROOT = Path(__file__).parents[2]
CI = ROOT / "deploy" / "ci"
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


@pytest.fixture
def programs(tmp_path):
    """Return a function that puts programs (shell scripts) first on the path and gives the environment."""

    def write(**scripts: str) -> dict[str, str]:
        for name, text in scripts.items():
            (tmp_path / "bin").mkdir(exist_ok=True)
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (tmp_path / "bin" / name).chmod(0o755)
        folders = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
        return {**os.environ, "PATH": ":".join(folders)}

    return write


RACE = "mkdir -p ridgeline-report; echo '### slower' > ridgeline-report/comment.md; exit 3"
ANSWER = """case "$*" in *-X*) echo "$*" >> calls;; *) echo '{}';; esac"""


@pytest.mark.parametrize(
    ("curl", "calls"),
    [
        ("exit 22", ["GET"]),  # the token may not read
        (ANSWER.format("[]"), ["POST"]),
        (ANSWER.format('[{"id": 7, "body": "<!-- ridgeline bench -->"}]'), ["PUT"]),
    ],
)
def test_the_gitlab_job_ends_with_the_verdict_whether_it_may_comment_or_not(programs, tmp_path, curl, calls):
    script = yaml.safe_load((CI / "gitlab.yml").read_text())["ridgeline-bench"]["script"][1]
    names = "RIDGELINE_SUITE RIDGELINE_BUILD RIDGELINE_BUDGET RIDGELINE_TOKEN CI_MERGE_REQUEST_DIFF_BASE_SHA"
    names += " CI_API_V4_URL CI_PROJECT_ID CI_MERGE_REQUEST_IID CI_JOB_URL"
    environment = programs(ridgeline=RACE, curl=curl) | dict.fromkeys(names.split(), "x")
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 3, done.stderr
    assert ("no comment" in done.stdout) == (calls == ["GET"])
    if calls != ["GET"]:
        assert f"-X {calls[0]}" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(("gh", "said"), [("exit 1", "::warning::no comment"), ("cat > /dev/null", "")])
def test_the_action_goes_on_if_its_token_may_not_comment(programs, tmp_path, gh, said):
    steps = yaml.safe_load((CI / "action.yml").read_text())["runs"]["steps"]
    (script,) = [step["run"] for step in steps if "gh api" in step.get("run", "")]
    (tmp_path / "ridgeline-report").mkdir()
    (tmp_path / "ridgeline-report/comment.md").write_text("### slower\n")
    environment = programs(gh=gh) | {"REPO": "o/r", "NUMBER": "3", "PAGE": "https://x"}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=tmp_path, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
