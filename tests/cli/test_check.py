"""`ridgeline check`: findings with their arithmetic, one JSON, exit codes."""

from __future__ import annotations

import json

import pytest

from ridgeline.cli import main

WRONG = "# Report\n\nNeeded: 2M × 20ms / 86400s = 463 cores\n"


@pytest.fixture
def check(capsys, tmp_path):
    def command(text: str | bytes, *words: str, name: str = "report.md"):
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        try:
            main(["check", str(file), *words])
            code = 0
        except SystemExit as exit:
            code = exit.code or 0
        return code, *capsys.readouterr()

    return command


def test_a_contradiction_is_shown_with_its_arithmetic(check):
    code, out, _ = check(WRONG)
    assert code == 1
    assert "report.md:3  equation, confidence 0.95" in out
    assert "2M × 20ms / 86400s = 0.463, not 463 cores" in out


def test_json_has_the_documented_keys(check):
    code, out, _ = check(WRONG, "--json")
    assert code == 1
    (finding,) = json.loads(out)["findings"]
    assert {"file", "line", "kind", "says", "arithmetic", "confidence"} <= set(finding)
    assert finding["line"] == 3


def test_a_report_without_contradiction_is_exit_0(check):
    code, out, err = check("It took 120 seconds (2 minutes).\n")
    assert (code, err) == (0, "")
    assert "no contradiction" in out


def test_a_file_without_numbers_says_so(check):
    code, _, err = check("# Words\n\nNothing but words.\n")
    assert code == 0
    assert "no numbers" in err
    assert check("", name="empty.md")[0] == 0


@pytest.mark.parametrize("content", [b"\x7fELF\0\0\1", b"%PDF-1.7 x", b"\xff\xfe\0"])
def test_a_binary_file_is_one_sentence_and_exit_2(check, content):
    code, out, err = check(content)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


def test_a_missing_file_and_a_folder_are_exit_2(capsys, tmp_path):
    for path in (tmp_path / "gone.md", tmp_path):
        with pytest.raises(SystemExit) as exit_info:
            main(["check", str(path)])
        assert exit_info.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_control_characters_of_a_report_do_not_reach_the_terminal(check):
    _, out, _ = check(WRONG.replace("Needed", "\x1b[2JNeeded"))
    assert "\x1b" not in out
