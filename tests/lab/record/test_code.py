"""Which code a record measures: an unknown state is recorded as unknown."""

from __future__ import annotations

import pytest

from ridgeline.lab.record import code


@pytest.fixture
def describe(monkeypatch):
    """Call describe_code() with artificial answers of git; None: no repository."""

    def describe_with(status: str | None, head: str | None):
        answers = {"rev-parse": head, "status": status}
        monkeypatch.setattr(code, "_git", lambda _folder, *words: answers[words[0]])
        return code.describe_code.__wrapped__()

    return describe_with


def test_a_tree_without_git_is_not_recorded_as_clean(describe, monkeypatch):
    monkeypatch.setenv("RIDGELINE_COMMIT", "abc")
    description = describe(None, None)
    assert (description["commit"], description["dirty"]) == ("abc", None)
    description = describe(" M file", "c0ffee")  # the variable has priority over a repository around the copy
    assert (description["commit"], description["dirty"]) == ("abc", None)


@pytest.mark.parametrize(("status", "dirty"), [("", False), (" M file", True)])
def test_a_checkout_is_dirty_if_it_has_changes(describe, status, dirty):
    assert describe(status, "c0ffee")["dirty"] is dirty
