"""Faces of packages: public names that load their module on first use.

A package's `__init__.py` lists its public names by the module that defines them:

    __getattr__, __dir__, __all__ = attach(__name__, {"index": ["Index"], "recall": ["Curve", "Point"]})

So `import ridgeline` costs milliseconds, and a command loads only what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def attach(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for `package`; `modules` maps a submodule to its public names.

    The module name "." stands for submodules that are public themselves.
    """
    homes = {name: module for module, names in modules.items() for name in names}
    public = sorted(homes)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = homes[name]
        if module == ".":
            return import_module(f"{package}.{name}")
        return getattr(import_module(f"{package}.{module}"), name)

    def listing() -> list[str]:
        return public

    return load, listing, public
