"""The public names are exactly `__all__`, and each of them has a docstring."""

from __future__ import annotations

from types import ModuleType

from ridgeline import store


def test_the_public_names_are_exactly_all():
    assert dir(store) == store.__all__ == sorted(store.__all__)
    hidden = {name for name in vars(store) if not name.startswith("_")} - set(store.__all__)
    modules = {name for name in hidden if isinstance(getattr(store, name), ModuleType)}
    assert hidden - modules <= {"TYPE_CHECKING", "annotations", "attach"}


def test_every_public_name_has_a_docstring():
    assert [name for name in store.__all__ if not getattr(store, name).__doc__] == []
