"""The arguments of `ridgeline run`: Hydra's overrides, and the few forms that are read before Hydra sees them.

>>> rewrite_indices("experiment.vit_configs[0].depth=2,4")
'experiment.vit_configs.0.depth=2,4'
>>> parse_zip("zip=[experiment.test.tensor_shape,vit_configs[0].dim]")
('experiment.test.tensor_shape', 'vit_configs.0.dim')

A comma list gives every choice in turn; lists of several settings give their product; `zip=[a,b]` pairs them instead.
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
CONFIG_DIR = ("--config-dir", "-cd")
WITH_VALUE = (*CONFIG_DIR, "--cfg", "-c", "--info", "-i", "--package", "-p")  # flags of Hydra that take a value
_INDEX = re.compile(r"\[(\d+)\]")

Axis = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the keys that change together, and their settings in turn


@dataclass(frozen=True)
class RunArguments:
    """The parsed arguments of `ridgeline run`.

    overrides  with Hydra's spelling of indices, comma lists unchanged
    zips       groups of settings whose lists are paired
    flags      Hydra's flags, each with its value
    """

    overrides: tuple[str, ...]
    zips: tuple[tuple[str, ...], ...]
    flags: tuple[str, ...]

    @property
    def shows_config(self) -> bool:
        """Whether a flag makes Hydra print something, so that nothing is run."""
        return any(f.partition("=")[0] not in (*CONFIG_DIR, "-m", "--multirun") for f in self.flags)

    @property
    def config_folders(self) -> list[Path]:
        """The folders of --config-dir, which hold experiments of the user; raises InputError for a missing folder."""
        folders = [f.partition("=")[2] for f in self.flags if f.partition("=")[0] in CONFIG_DIR]
        for folder in folders:
            if not Path(folder).is_dir():
                raise InputError(f"--config-dir '{folder}' is no folder; give one that holds experiment/NAME.yaml.")
        return [Path(folder).resolve() for folder in folders]


def parse_arguments(arguments: Iterable[str]) -> RunArguments:
    """Split the arguments of `ridgeline run` into overrides, pairings and flags; raises InputError for a bad zip=."""
    overrides: list[str] = []
    zips: list[tuple[str, ...]] = []
    flags: list[str] = []
    takes_value = False
    for argument in arguments:
        if takes_value:
            flags[-1] += f"={argument}"
            takes_value = False
        elif argument.startswith("-"):
            flags.append(argument)
            takes_value = argument in WITH_VALUE
        elif argument.startswith(ZIP):
            zips.append(parse_zip(argument))
        else:
            overrides.append(rewrite_indices(argument))
    return RunArguments(tuple(overrides), tuple(zips), tuple(flags))


def rewrite_indices(override: str) -> str:
    """Return the override with `list[0].key` in Hydra's spelling, `list.0.key`; its value stays unchanged."""
    key, equals, value = override.partition("=")
    return _INDEX.sub(r".\1", key) + equals + value


def parse_zip(argument: str) -> tuple[str, ...]:
    """Return the settings that zip=[a,b] pairs."""
    inside = argument[len(ZIP) :].strip()
    if not (inside.startswith("[") and inside.endswith("]")):
        raise InputError(f"'{argument}' pairs nothing; write zip=[batch_size,tensor_shape].")
    names = tuple(_INDEX.sub(r".\1", name.strip()) for name in inside[1:-1].split(","))
    if len(names) < 2 or not all(names):
        raise InputError(f"'{argument}' names {len(names)} setting; a pairing needs two or more.")
    return names


def expand_choices(choices: Mapping[str, Sequence[str]], zips: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the overrides of every job: the product of all choices, except those that a zip pairs.

    >>> expand_choices({"a": ["a=1", "a=2"], "b": ["b=3", "b=4"]}, [])
    [['a=1', 'b=3'], ['a=1', 'b=4'], ['a=2', 'b=3'], ['a=2', 'b=4']]
    >>> expand_choices({"a": ["a=1", "a=2"], "b": ["b=3", "b=4"]}, [["a", "b"]])
    [['a=1', 'b=3'], ['a=2', 'b=4']]
    """
    axes: list[Axis] = []
    paired: set[str] = set()
    for group in zips:
        keys = tuple(_find_key(name, choices) for name in group)
        lengths = {key: len(choices[key]) for key in keys}
        if len(set(lengths.values())) > 1:
            counts = ", ".join(f"{key} has {n}" for key, n in lengths.items())
            raise InputError(f"zip pairs lists of one length; {counts}.")
        if paired & set(keys) or len(set(keys)) < len(keys):
            raise InputError(f"zip=[{','.join(group)}] pairs a setting twice; name each once.")
        paired |= set(keys)
        axes.append((keys, list(zip(*(choices[key] for key in keys), strict=True))))
    axes += [((key,), [(choice,) for choice in values]) for key, values in choices.items() if key not in paired]
    order = {key: index for index, key in enumerate(choices)}
    axes.sort(key=lambda axis: min(order[key] for key in axis[0]))
    return [[override for group in job for override in group] for job in product(*(settings for _, settings in axes))]


def check_key(key: str, schema: type, root: str) -> None:
    """Raise InputError for a key below `root` that the schema does not have; the message lists the keys it has."""
    parts = key.lstrip("+~").split(".")
    if parts[0] not in (root, "hydra") and not key.startswith("hydra/"):
        raise InputError(f"there is no setting '{key}'; all begin with '{root}.' (or are Hydra's own).")
    if parts[0] != root or len(parts) == 1:
        return
    current: Any = schema
    for index, part in enumerate(parts[1:], 1):
        if is_dataclass(current) and isinstance(current, type):
            names = [f.name for f in fields(current)]
            if part not in names:
                raise unknown(f"setting in {'.'.join(parts[:index])} called", part, names)
            current = get_type_hints(current)[part]
        elif part.isdecimal():
            current = next((a for a in get_args(current) if a is not type(None)), current)
        else:
            raise InputError(f"{'.'.join(parts[:index])} has no settings of its own; leave out '.{part}'.")


def _find_key(name: str, choices: Mapping[str, Sequence[str]]) -> str:
    """Return the key that a zip names: the complete key, or the end of one."""
    matches = [key for key in choices if key == name or key.endswith(f".{name}")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise InputError(f"zip names '{name}', which could be {' or '.join(matches)}; write it in full.")
    raise InputError(f"zip names '{name}', which is given no list here; write {name}=a,b beside it.")
