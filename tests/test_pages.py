"""The pages are true: their Python runs, their commands exist, the site builds.

python -m pytest tests/test_pages.py
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_guides import parse_commands, shell_commands

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
QUICKSTARTS = sorted((DOCS / "quickstart").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", [ROOT / "README.md", *QUICKSTARTS], ids=lambda page: page.name)
def test_the_python_of_a_first_page_runs_as_it_stands(page: Path, tmp_path: Path):
    for block in python_blocks(page)[:1]:
        done = subprocess.run([sys.executable, "-c", block], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


@pytest.mark.parametrize("page", [ROOT / "README.md", *QUICKSTARTS], ids=lambda page: page.name)
def test_every_command_of_a_first_page_exists(page: Path):
    for words in shell_commands(page):
        parse_commands(words)


def test_links_between_pages_lead_to_a_file():
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_no_line_of_prose_carries_a_comment():
    """Numbers are bound to records in one block at the end of a page."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        text = re.sub(r"^<!-- records\b.*?-->\s*\Z", "", text, flags=re.DOTALL | re.MULTILINE)
        assert "<!--" not in text, page.relative_to(ROOT)


def test_the_glossary_lists_each_term_once_in_alphabetical_order():
    rows = re.findall(r"^\| ([^|]+) \|", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    terms = [row for row in rows if not set(row) <= set("-: ")]
    assert len(terms) > 40
    assert terms == sorted(set(terms), key=lambda term: re.sub(r"[^a-z ]", "", term.lower()))


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_loads_nothing_from_outside(tmp_path: Path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        outside = re.findall(r"<(?:script|link|img)\b[^>]*?(?:src|href)=[\"']?(https?://[^\"'\s>]+)", page.read_text())
        assert not outside, f"{page.name}: {outside[:3]}"
