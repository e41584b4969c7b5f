"""Errors: one sentence, an exit code, and a traceback only with --debug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline import errors
from ridgeline.cli import COMMANDS, load_command, main
from ridgeline.errors import Exit, InputError, MissingExtra, NotComparable, RidgelineError, unknown


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ridgeline", *words], capture_output=True, text=True)


@pytest.fixture
def run_here(capsys: pytest.CaptureFixture[str]):
    """Run a command in this process: (exit code, stdout, stderr)."""

    def command(*words: str) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as exit_info:
            main([*words])
        return exit_info.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def fail_with(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run main() with a command that raises the given error: (exit code, stderr)."""

    def command(error: BaseException, *words: str) -> tuple[int | str | None, str]:
        def raise_it(*_, **__):
            raise error

        monkeypatch.setattr("ridgeline.cli.app", raise_it)
        with pytest.raises(SystemExit) as exit_info:
            main([*words])
        return exit_info.value.code, capsys.readouterr().err

    return command


def test_an_error_is_one_sentence_without_a_traceback():
    process = run("machine", "--root", "/nowhere/at/all")
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.count("\n") == 1
    assert process.stderr.startswith("ridgeline: there is no folder '/nowhere/at/all'")


@pytest.mark.parametrize(
    "words", [["--debug", "machine", "--root", "/nowhere"], ["machine", "--root", "/nowhere", "--debug"]]
)
def test_debug_shows_the_traceback_in_any_position_and_keeps_the_exit_code(words: list[str]):
    process = run(*words)
    assert process.returncode == 2
    assert "Traceback (most recent call last)" in process.stderr
    assert process.stderr.strip().splitlines()[-1].startswith("ridgeline: there is no folder '/nowhere'")


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["machine", "--nonsense"], ["machine", "--plan", "many"], ["machine", "extra"], ["--nonsense"]],
)
def test_a_wrong_word_on_the_command_line_exits_2_without_a_traceback(words: list[str], run_here):
    code, out, err = run_here(*words)
    assert (code, out) == (2, "")
    assert err
    assert "Traceback" not in err


def test_help_lists_the_commands_by_panel(run_here):
    code, out, _ = run_here("--help")
    assert code == 0
    assert "Measure" in out
    assert "machine" in out


def test_without_arguments_the_help_is_shown(run_here):
    code, out, err = run_here()
    assert "Usage" in out + err
    assert code in (0, 2)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RidgelineError("a file is wrong."), Exit.BAD_INPUT),
        (NotComparable("apples and pears."), Exit.NOT_COMPARABLE),
        (MissingExtra("embedding", "torch"), Exit.BAD_INPUT),
    ],
)
def test_each_error_has_its_exit_code(fail_with, error: RidgelineError, code: int):
    assert fail_with(error) == (code, f"ridgeline: {error}\n")


def test_a_message_of_several_lines_becomes_one(fail_with):
    assert fail_with(InputError("one\n  two\tthree")) == (2, "ridgeline: one two three\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["machine", "--json"], ["--help"]])
def test_output_to_a_full_disk_is_an_error(words: list[str]):
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([sys.executable, "-m", "ridgeline", *words], stdout=full, stderr=-1, text=True)
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert process.stderr.startswith("ridgeline: the answer could not be written: No space left")


@pytest.mark.parametrize("words", [["machine", "--json"], ["--help"]])
def test_a_reader_may_close_the_pipe_before_the_output(words: list[str]):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        process = subprocess.run([sys.executable, "-m", "ridgeline", *words], stdout=pipe, stderr=-1, text=True)
    assert (process.returncode, process.stderr) == (1, "")


def test_an_interrupt_exits_with_130(fail_with):
    assert fail_with(KeyboardInterrupt()) == (130, "ridgeline: interrupted.\n")


def test_another_exception_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def raise_error(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("ridgeline.cli.app", raise_error)
    with pytest.raises(ZeroDivisionError):
        main([])


def test_the_exit_codes_are_those_of_the_design():
    assert {code.name: int(code) for code in Exit} == {
        "OK": 0,
        "FINDINGS": 1,
        "BAD_INPUT": 2,
        "SLOWER": 3,
        "UNCLEAR": 4,
        "NOT_COMPARABLE": 5,
        "INTERRUPTED": 130,
    }


def test_every_error_of_the_package_is_a_ridgeline_error():
    ours = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(ours) >= 6
    assert all(issubclass(e, RidgelineError) for e in ours)


def test_a_missing_extra_names_the_command_that_installs_it():
    assert str(MissingExtra("embedding", "torch")) == (
        "embedding needs an optional part: pip install '.[torch]' in the folder of Ridgeline's sources."
    )


@pytest.mark.parametrize(
    ("name", "known", "sentence"),
    [
        ("cpoy", ["copy", "sort"], "there is no workload 'cpoy'; did you mean 'copy'? There are: copy, sort."),
        ("x", ["copy"], "there is no workload 'x'. There are: copy."),
        ("x", [], "there is no workload 'x'. There are none here."),
        (7, [1, 2], "there is no workload '7'. There are: 1, 2."),
    ],
)
def test_an_unknown_name_is_answered_with_similar_names(name: object, known: list, sentence: str):
    assert str(unknown("workload", name, known)) == sentence


def test_every_command_has_a_panel_and_a_help_text():
    for name, (_, panel, _) in COMMANDS.items():
        command = load_command(name)
        assert command.name == name
        assert command.rich_help_panel == panel
        assert (command.help or "").strip()


def test_a_command_does_not_import_the_others():
    check = "print({'ridgeline.lab', 'torch'} & set(sys.modules))"
    code = f"import sys, ridgeline.cli as c; c.load_command('streams'); {check}"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert process.stdout.strip() == "set()", process.stderr
