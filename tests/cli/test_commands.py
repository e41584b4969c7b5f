"""Commands: what they set before they start, their summaries in the root help, the names of their options."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline import cli
from ridgeline.cli import COMMANDS, SPIN_COUNT, load_command


@pytest.mark.parametrize(
    ("name", "is_service"), [("recommend", True), ("audit", True), ("embed", True), ("bench", False)]
)
def test_services_shorten_the_spinning_of_threads_and_measurements_do_not(name, is_service, monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    load_command(name)
    assert os.environ["GOMP_SPINCOUNT"] == "5"  # a value from the user has priority
    monkeypatch.delenv("GOMP_SPINCOUNT")
    load_command(name)
    assert os.environ.get("GOMP_SPINCOUNT") == (SPIN_COUNT if is_service else None)


def test_the_variable_is_set_before_torch_is_imported():
    code = (
        "import sys; from ridgeline.cli import load_command; load_command('recommend'); print('torch' in sys.modules)"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "False"


def list_options(module: Path) -> Iterator[tuple[str, ast.Call]]:
    """Yield the names of parameters and their calls of typer.Option."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.arg) and node.annotation is not None:
            for call in ast.walk(node.annotation):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "typer.Option":
                    yield node.arg, call


def test_an_option_named_like_its_metavar_states_its_name():
    """Typer 0.27 makes --TIME of `time: Annotated[str, typer.Option(metavar="TIME")]`."""
    modules = sorted(Path(cli.__file__).parent.glob("*.py"))
    options = [(m.name, name, call) for m in modules for name, call in list_options(m)]
    values = {(m, n): [k.value.value for k in c.keywords if k.arg == "metavar"] for m, n, c in options if not c.args}
    assert ("index.py", "metric") in values
    assert not [key for key, metavars in values.items() if metavars and metavars[0].lower() == key[1].replace("_", "-")]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_summary_of_a_command_is_the_first_line_of_its_help(name):
    first = (load_command(name).help or "").strip().split("\n\n")[0]
    assert COMMANDS[name][2] == " ".join(first.split())


def test_the_root_help_imports_no_command():
    code = (
        "import sys, ridgeline.cli as c\n"
        "try: c.main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(*(m for m in sys.modules if m.startswith(('ridgeline.lab', 'ridgeline.cli.', 'numpy', 'torch'))))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = process.stdout.strip().splitlines()
    assert lines[-1] == "ridgeline.cli.output"
    assert all(any(name in line for line in lines) for name in COMMANDS)


def complete(words: str) -> list[str]:
    """Return what the shell offers after the last of these words."""
    environment = {
        **os.environ,
        "_RIDGELINE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"ridgeline {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    command = [sys.executable, "-c", "from ridgeline.cli import main; main()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout.split()


def test_the_shell_completes_commands_and_options():
    assert complete("rec") == ["records", "recommend"]
    assert complete("records exp") == ["export"]
