"""Lazy packages: a public name loads its module on first use.

The `__init__.py` of a package lists its public names by the module that defines them:

    __getattr__, __dir__, __all__ = attach(__name__, {"index": ["Index"], "recall": ["Curve", "Point"]})

So `import ridgeline` takes milliseconds, and a command loads only what it uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def attach(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for `package`; `modules` maps a submodule to its public names.

    The key "." lists public submodules.
    """
    module_by_name = {name: module for module, names in modules.items() for name in names}
    public = sorted(module_by_name)

    def load(name: str) -> Any:
        if name not in module_by_name:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = module_by_name[name]
        if module == ".":
            return import_module(f"{package}.{name}")
        value = getattr(import_module(f"{package}.{module}"), name)
        setattr(sys.modules[package], name, value)  # later uses find an ordinary attribute
        return value

    def list_names() -> list[str]:
        return public

    return load, list_names, public
