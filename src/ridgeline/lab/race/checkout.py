"""In the process of a contender: import the modules of a repository from another folder, that of one of its commits.

However the repository is on the path (PYTHONPATH, the working folder, an editable install), a module that would come
from it comes from the folder instead. A module that the commit does not have is missing, as it was then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType


@dataclass(frozen=True)
class Checkout:
    """The files of one version of a repository."""

    repository: str  # the working tree of the user
    folder: str  # where the files of this version are
    environment: str = sys.prefix  # of the lab: with --build each version has an environment of its own on top of it

    def locate(self, path: str) -> str:
        """Return the place of a file of the repository in this version; other paths stay as they are."""
        resolved = os.path.realpath(path or os.getcwd())
        if not self.replaces(resolved):
            return path
        return os.path.join(self.folder, os.path.relpath(resolved, self.repository))

    def replaces(self, path: str) -> bool:
        """Whether a path is in the repository, but not in an environment of Python inside it."""
        if not _is_inside(path, self.repository):
            return False
        unchanged = (self.folder, self.environment, sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]))
        return not any(_is_inside(path, os.path.realpath(folder)) for folder in unchanged)


def use_checkout(repository: str, folder: str, environment: str = sys.prefix) -> None:
    """Import modules of `repository` from `folder` from now on, in this process and in those that it starts."""
    checkout = Checkout(repository, folder, environment)
    sys.path[:] = [checkout.locate(entry) for entry in sys.path]
    if "PYTHONPATH" in os.environ:
        entries = os.environ["PYTHONPATH"].split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(checkout.locate(entry) for entry in entries)
    sys.meta_path.insert(0, _CheckoutFinder(checkout))


def check_modules() -> None:
    """Raise ImportError if a module was imported from the repository in spite of `use_checkout`."""
    for finder in sys.meta_path:
        if isinstance(finder, _CheckoutFinder):
            for name, module in list(sys.modules.items()):
                file = getattr(module, "__file__", None)
                if isinstance(file, str) and finder.checkout.replaces(os.path.realpath(file)):
                    raise ImportError(f"module '{name}' comes from {file}, not from {finder.checkout.folder}")


class _CheckoutFinder(MetaPathFinder):
    """Asks all other finders, and moves what they find from the repository to the folder."""

    def __init__(self, checkout: Checkout) -> None:
        self.checkout = checkout

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec = finder.find_spec(fullname, path, target)
                if spec is not None:
                    return self._move(spec)
        return None

    def _move(self, spec: ModuleSpec) -> ModuleSpec:
        places = spec.submodule_search_locations
        if spec.has_location and spec.origin and self.checkout.replaces(os.path.realpath(spec.origin)):
            file = self.checkout.locate(spec.origin)
            folders = None if places is None else [self.checkout.locate(place) for place in places]
            if os.path.isfile(file):
                moved = spec_from_file_location(spec.name, file, submodule_search_locations=folders)
                if moved is not None:
                    return moved
        elif spec.origin is None and places is not None and any(self._replaces(place) for place in places):
            folders = [place for place in map(self.checkout.locate, places) if os.path.isdir(place)]
            if folders:
                spec.submodule_search_locations = folders
                return spec
        else:
            return spec
        raise ModuleNotFoundError(f"No module named '{spec.name}' in this version of {self.checkout.repository}")

    def _replaces(self, place: str) -> bool:
        return self.checkout.replaces(os.path.realpath(place))


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
