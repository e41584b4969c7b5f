"""The public names are exactly `__all__`, and each of them says what it is for."""

from __future__ import annotations

from types import ModuleType

from ridgeline import store


def test_the_public_names_are_exactly_all():
    public = {
        name
        for name, thing in vars(store).items()
        if not name.startswith("_") and not isinstance(thing, ModuleType) and name != "annotations"
    }
    assert public == set(store.__all__)
    assert store.__all__ == sorted(store.__all__)


def test_every_public_name_has_a_docstring():
    assert [name for name in store.__all__ if not getattr(store, name).__doc__] == []
