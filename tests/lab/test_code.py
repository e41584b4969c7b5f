"""Which code was measured: what is not known is not claimed."""

from __future__ import annotations

import pytest

from ridgeline.lab.record import code


@pytest.fixture
def asked(monkeypatch):
    """code.version() with git's answers made up; None where there is no repository."""

    def ask(status: str | None, head: str | None):
        answers = {"rev-parse": head, "status": status}
        monkeypatch.setattr(code, "_git", lambda *words: answers[words[0]])
        return code.version.__wrapped__()

    return ask


def test_a_tree_without_git_does_not_claim_to_be_clean(asked, monkeypatch):
    monkeypatch.setenv("RIDGELINE_COMMIT", "abc")
    told = asked(None, None)
    assert (told["commit"], told["dirty"]) == ("abc", None)
    told = asked(" M file", "c0ffee")  # and a copy that has the git of where it was copied to believes what it is told
    assert (told["commit"], told["dirty"]) == ("abc", None)


@pytest.mark.parametrize(("status", "dirty"), [("", False), (" M file", True)])
def test_a_checkout_says_whether_it_has_changes(asked, status, dirty):
    assert asked(status, "c0ffee")["dirty"] is dirty
