"""The commands of the guides exist; the cheap ones run and print what the page shows.

python -m pytest tests/test_guides.py
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import typer.main
from tests.lab.conftest import write_ceilings

from ridgeline.cli import app

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDES = sorted(DOCS.glob("guide-*.md"))


def shell_commands(page: Path) -> list[list[str]]:
    """Return the command lines of the code blocks; the output of a command is indented."""
    blocks = re.findall(r"^```\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith("ridgeline ")]


def parse_commands(words: list[str]) -> None:
    """Parse one command line without running it."""
    group, rest = typer.main.get_command(app), words[1:]
    with group.make_context("ridgeline", rest[:1] or ["--help"], resilient_parsing=True) as context:
        while hasattr(group, "get_command"):  # a group contains commands: records ls
            chosen = group.get_command(context, rest[0])
            assert chosen is not None, words
            group, rest = chosen, rest[1:]
        group.make_context(words[1], list(rest), parent=context)


@pytest.mark.parametrize("page", [*GUIDES, DOCS / "seeds-measured.md"], ids=lambda page: page.name)
def test_every_command_of_a_guide_is_understood(page):
    commands = shell_commands(page)
    assert commands
    for words in commands:
        parse_commands(words)


def test_links_of_the_guides_lead_somewhere():
    for page in [*GUIDES, DOCS / "seeds-measured.md", DOCS / "architecture.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (DOCS / target).exists(), f"{page.name}: {target}"


def ridgeline(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", *words], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_the_guide_leads_from_a_workload_to_a_bound_number(tmp_path, monkeypatch):
    """Run the steps of "Prove a number" with a smaller case, a shorter benchmark and artificial ceilings."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_ceilings()
    shutil.copy(ROOT / "examples" / "sort_workload.py", tmp_path / "sorting.py")
    look = ("--case", "n=1000", "--out", "runs/monday", "--budget", "2s", "--quiet")
    code, output = ridgeline(tmp_path, "bench", "sorting.py", *look)
    assert code == 0, output
    code, output = ridgeline(tmp_path, "compare", "runs/monday", "runs/monday")
    assert (code, "one and the same record" in output) == (0, True), output
    code, output = ridgeline(tmp_path, "records", "ls", "runs/monday")
    name = re.search(r"^ ([0-9a-f]{8}) ", output, re.MULTILINE)
    assert name, output
    records_folder = tmp_path / "benchmarks" / "records"
    records_folder.mkdir(parents=True)
    shutil.copy(tmp_path / "runs" / "monday" / "records.jsonl", records_folder / "sorting.jsonl")
    page = tmp_path / "README.md"

    def check_page(time: str, reference: str) -> tuple[int, str]:
        page.write_text(f"# Sorting\n\nNumPy sorts a thousand numbers in {time}{reference}.\n")
        return ridgeline(tmp_path, "check", "README.md")

    bound = f"<!--@sorting.jsonl {name[1]} ridgeline median-->"
    code, output = check_page("99 h", bound)
    assert code == 1, output
    recorded_time = re.search(r"the record gives (\S+ \S+), not 99 h", output)
    assert recorded_time, output
    assert check_page(recorded_time[1], bound)[0] == 0
    code, output = check_page(recorded_time[1], "")
    assert (code, "unbound" in output) == (1, True), output
    code, output = ridgeline(tmp_path, "history", "runs")
    assert (code, "TOO FEW" in output) == (0, True), output


def test_a_plan_for_another_machine_from_its_recorded_tree(tmp_path, data):
    with tarfile.open(data / "sysfs" / "40intel64-2g2n4c+pcilocality.tar.bz2") as tree:
        tree.extractall(tmp_path, filter="data")
    code, output = ridgeline(tmp_path, "machine", "--root", "40intel64-2g2n4c+pci", "--plan", "4", "--per", "node")
    assert code == 0, output
    guide = (DOCS / "guide-placement.md").read_text()
    for line in re.findall(r"^  [0-3]      [0-3]      [\d,]{9,} +–$", guide, re.MULTILINE):
        assert line in output
    assert "Intel(R) Xeon(R) CPU E7- 4870" in output


def test_the_python_code_of_the_placement_guide_runs():
    code = re.search(r"```python\n(.*?)```", (DOCS / "guide-placement.md").read_text(), re.DOTALL)
    assert code
    done = subprocess.run([sys.executable, "-c", code[1].replace("(), 2,", "(), 1,")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\(\d+,\) \(\d+(?:, \d+)*,?\)\n", done.stdout)
