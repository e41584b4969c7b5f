"""The words of `ridgeline run`: Hydra's overrides, and the few forms that are read before Hydra sees them.

>>> rewritten("experiment.vit_configs[0].depth=2,4")
'experiment.vit_configs.0.depth=2,4'
>>> zipped("zip=[experiment.test.tensor_shape,vit_configs[0].dim]")
('experiment.test.tensor_shape', 'vit_configs.0.dim')

A comma list is every choice in turn, lists of several settings are their product; `zip=[a,b]` pairs them instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ridgeline.errors import InputError, unknown

ZIP = "zip="
_INDEX = re.compile(r"\[(\d+)\]")

Axis = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the keys that move together, and their settings in turn


@dataclass(frozen=True)
class Words:
    """A command line, taken apart."""

    overrides: tuple[str, ...]  # rewritten, commas and all
    zips: tuple[tuple[str, ...], ...]
    flags: tuple[str, ...]  # Hydra's own

    @property
    def showing(self) -> bool:
        """Whether Hydra is asked to show something, and nothing is to be run."""
        return any(f.partition("=")[0] not in ("--config-dir", "-cd", "-m", "--multirun") for f in self.flags)

    @property
    def folders(self) -> list[Path]:
        """Folders with experiments of the user's own: --config-dir."""
        found = [f.partition("=")[2] for f in self.flags if f.partition("=")[0] in ("--config-dir", "-cd")]
        for folder in found:
            if not Path(folder).is_dir():
                raise InputError(f"--config-dir '{folder}' is no folder; give one that holds experiment/NAME.yaml.")
        return [Path(folder).resolve() for folder in found]


def parted(words: Iterable[str]) -> Words:
    """Overrides, pairings and flags, each in their order; a flag's value is kept with it."""
    overrides: list[str] = []
    zips: list[tuple[str, ...]] = []
    flags: list[str] = []
    takes_value = False
    for word in words:
        if takes_value:
            flags[-1] += f"={word}"
            takes_value = False
        elif word.startswith("-"):
            flags.append(word)
            takes_value = word in ("--config-dir", "-cd", "--cfg", "-c", "--info", "-i", "--package", "-p")
        elif word.startswith(ZIP):
            zips.append(zipped(word))
        else:
            overrides.append(rewritten(word))
    return Words(tuple(overrides), tuple(zips), tuple(flags))


def rewritten(word: str) -> str:
    """The same override with `list[0].key` as Hydra writes it, `list.0.key`; its value is left alone."""
    key, equals, value = word.partition("=")
    return _INDEX.sub(r".\1", key) + equals + value


def zipped(word: str) -> tuple[str, ...]:
    inside = word[len(ZIP) :].strip()
    if not (inside.startswith("[") and inside.endswith("]")):
        raise InputError(f"'{word}' pairs nothing; write zip=[batch_size,tensor_shape].")
    names = tuple(_INDEX.sub(r".\1", name.strip()) for name in inside[1:-1].split(","))
    if len(names) < 2 or not all(names):
        raise InputError(f"'{word}' names {len(names)} setting; a pairing needs two or more.")
    return names


def expanded(overrides: Mapping[str, Sequence[str]], zips: Sequence[Sequence[str]]) -> list[list[str]]:
    """Every job's overrides: the product of all choices, but for those that are paired.

    >>> expanded({"a": ["a=1", "a=2"], "b": ["b=3", "b=4"]}, [])
    [['a=1', 'b=3'], ['a=1', 'b=4'], ['a=2', 'b=3'], ['a=2', 'b=4']]
    >>> expanded({"a": ["a=1", "a=2"], "b": ["b=3", "b=4"]}, [["a", "b"]])
    [['a=1', 'b=3'], ['a=2', 'b=4']]
    """
    axes: list[Axis] = []
    paired: set[str] = set()
    for group in zips:
        keys = tuple(_found(name, overrides) for name in group)
        lengths = {key: len(overrides[key]) for key in keys}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {n}" for key, n in lengths.items())
            raise InputError(f"zip pairs lists of one length; {told}.")
        if paired & set(keys) or len(set(keys)) < len(keys):
            raise InputError(f"zip=[{','.join(group)}] pairs a setting twice; name each once.")
        paired |= set(keys)
        axes.append((keys, list(zip(*(overrides[key] for key in keys), strict=True))))
    axes += [((key,), [(choice,) for choice in choices]) for key, choices in overrides.items() if key not in paired]
    order = {key: place for place, key in enumerate(overrides)}
    axes.sort(key=lambda axis: min(order[key] for key in axis[0]))
    return [[word for words in chosen for word in words] for chosen in product(*(settings for _, settings in axes))]


def _found(name: str, overrides: Mapping[str, Sequence[str]]) -> str:
    """The override a pairing means: its whole key, or the end of one."""
    fitting = [key for key in overrides if key == name or key.endswith(f".{name}")]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InputError(f"zip names '{name}', which could be {' or '.join(fitting)}; write it in full.")
    raise InputError(f"zip names '{name}', which is given no list here; write {name}=a,b beside it.")


def refuse_unknown(key: str, schema: type, root: str) -> None:
    """A key below `root` that the schema does not have, told with those it has."""
    parts = key.lstrip("+~").split(".")
    if parts[0] not in (root, "hydra") and not key.startswith("hydra/"):
        raise InputError(f"there is no setting '{key}'; all begin with '{root}.' (or are Hydra's own).")
    if parts[0] != root or len(parts) == 1:
        return
    here: Any = schema
    for place, part in enumerate(parts[1:], 1):
        if is_dataclass(here) and isinstance(here, type):
            names = [f.name for f in fields(here)]
            if part not in names:
                raise unknown(f"setting in {'.'.join(parts[:place])} called", part, names)
            here = get_type_hints(here)[part]
        elif part.isdecimal():
            here = next((a for a in get_args(here) if a is not type(None)), here)
        else:
            raise InputError(f"{'.'.join(parts[:place])} has no settings of its own; leave out '.{part}'.")
