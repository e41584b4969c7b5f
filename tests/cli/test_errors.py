"""One voice for errors: a sentence, an exit code, and the traceback only when asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline import errors
from ridgeline.cli import COMMANDS, command, main
from ridgeline.errors import Exit, InputError, MissingExtra, NotComparable, RidgelineError, unknown


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ridgeline", *words], capture_output=True, text=True)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]):
    """Runs a command in this process: (exit code, stdout, stderr)."""

    def command(*words: str) -> tuple[int | str | None, str, str]:
        with pytest.raises(SystemExit) as left:
            main([*words])
        return left.value.code, *capsys.readouterr()

    return command


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Runs main() on a command that raises the given error: (exit code, stderr)."""

    def command(error: BaseException, *words: str) -> tuple[int | str | None, str]:
        def raise_it(*_, **__):
            raise error

        monkeypatch.setattr("ridgeline.cli.app", raise_it)
        with pytest.raises(SystemExit) as left:
            main([*words])
        return left.value.code, capsys.readouterr().err

    return command


def test_an_error_is_one_sentence_without_a_traceback():
    said = run("machine", "--root", "/nowhere/at/all")
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr.count("\n") == 1
    assert said.stderr.startswith("ridgeline: there is no folder '/nowhere/at/all'")


@pytest.mark.parametrize(
    "words", [["--debug", "machine", "--root", "/nowhere"], ["machine", "--root", "/nowhere", "--debug"]]
)
def test_debug_shows_the_traceback_wherever_it_stands_and_keeps_the_exit_code(words: list[str]):
    said = run(*words)
    assert said.returncode == 2
    assert "Traceback (most recent call last)" in said.stderr
    assert said.stderr.strip().splitlines()[-1].startswith("ridgeline: there is no folder '/nowhere'")


@pytest.mark.parametrize(
    "words",
    [["nonsense"], ["machine", "--nonsense"], ["machine", "--plan", "many"], ["machine", "extra"], ["--nonsense"]],
)
def test_a_wrong_word_on_the_command_line_exits_2_without_a_traceback(words: list[str], say):
    code, out, err = say(*words)
    assert (code, out) == (2, "")
    assert err
    assert "Traceback" not in err


def test_help_lists_the_commands_by_panel(say):
    code, out, _ = say("--help")
    assert code == 0
    assert "Measure" in out
    assert "machine" in out


def test_without_words_there_is_help(say):
    code, out, err = say()
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
def test_each_error_leaves_with_its_own_code(failing, error: RidgelineError, code: int):
    assert failing(error) == (code, f"ridgeline: {error}\n")


def test_a_message_of_several_lines_becomes_one(failing):
    assert failing(InputError("one\n  two\tthree")) == (2, "ridgeline: one two three\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", [["machine", "--json"], ["--help"]])
def test_an_answer_that_finds_no_room_is_an_error(words: list[str]):
    with Path("/dev/full").open("w") as full:
        said = subprocess.run([sys.executable, "-m", "ridgeline", *words], stdout=full, stderr=-1, text=True)
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert said.stderr.startswith("ridgeline: the answer could not be written: No space left")


@pytest.mark.parametrize("words", [["machine", "--json"], ["--help"]])
def test_who_reads_may_leave_before_the_answer_comes(words: list[str]):
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        said = subprocess.run([sys.executable, "-m", "ridgeline", *words], stdout=pipe, stderr=-1, text=True)
    assert (said.returncode, said.stderr) == (1, "")


def test_an_interrupt_leaves_with_130(failing):
    assert failing(KeyboardInterrupt()) == (130, "ridgeline: interrupted.\n")


def test_an_error_that_is_not_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch):
    def broken(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("ridgeline.cli.app", broken)
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


def test_every_error_of_the_house_is_a_ridgeline_error():
    ours = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    assert len(ours) >= 6
    assert all(issubclass(e, RidgelineError) for e in ours)


def test_a_missing_extra_names_the_command_that_cures_it():
    assert str(MissingExtra("embedding", "torch")) == (
        "embedding needs an optional part: pip install 'ridgeline[torch]'."
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
def test_an_unknown_name_is_answered_with_the_nearest_ones(name: object, known: list, sentence: str):
    assert str(unknown("workload", name, known)) == sentence


def test_every_command_stands_in_a_panel_and_has_examples_or_says_what_it_does():
    for name, (_, panel) in COMMANDS.items():
        made = command(name)
        assert made.name == name
        assert made.rich_help_panel == panel
        assert (made.help or "").strip()


def test_one_command_does_not_wait_for_the_others():
    code = "import sys, ridgeline.cli as c; c.command('streams'); print({'ridgeline.lab', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "set()", done.stderr
