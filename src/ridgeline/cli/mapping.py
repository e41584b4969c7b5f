"""A mapping file: the options of `ridgeline resample` for recordings of one robot, as TOML, JSON or YAML.

An option on the command line counts more than the file. Options of the form NAME=VALUE are tables:

    hz = 30
    format = "lerobot"
    state = ["/joint_states/position"]
    task = "pick the cube"
    [camera]
    front = "/camera/front/image/compressed"
    [shift]
    "/camera/front/image/compressed" = -0.033
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from ridgeline.errors import InputError, unknown

TABLES = ("camera", "kind", "shift", "rename")
LISTS = ("topics", "exclude", "state", "action", "cut")
# name in the file -> name of the parameter, where they differ
PARAMETERS = {"format": "form", "include": "topics"}
PLAIN = (
    "hz", "format", "max_gap", "tolerance", "span", "sort", "task", "fill", "codec", "crf", "gop", "fps",
    "time_column", "time_unit", "stamps", "encoding", "delimiter", "comment",
)  # fmt: skip
KEYS = (*TABLES, *LISTS, "include", *PLAIN)


def use_mapping(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options of a file as defaults; the callback of `--mapping`."""
    if path is not None:
        context.default_map = {**(context.default_map or {}), **load_mapping(path)}
    return path


def load_mapping(path: Path) -> dict[str, Any]:
    """Return the values of a mapping file by parameter; raise InputError for what is no option."""
    out: dict[str, Any] = {}
    for key, value in _parse(path).items():
        name = str(key).replace("-", "_")
        if name not in KEYS:
            raise unknown(f"option in '{path}'", str(key), KEYS)
        if name in TABLES:
            if not isinstance(value, Mapping) or any(isinstance(v, Mapping | list) for v in value.values()):
                raise InputError(f"'{path}': {key} is no table; write [{key}] and NAME = VALUE below it.")
            out[name] = [f"{n}={v}" for n, v in value.items()]
        elif name in (*LISTS, "include"):
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(v, str) for v in values):
                raise InputError(f"'{path}': {key} is {value!r}; give a text or a list of texts.")
            out[PARAMETERS.get(name, name)] = values
        elif isinstance(value, Mapping | list) or value is None:
            raise InputError(f"'{path}': {key} is {value!r}; give one value.")
        else:
            out[PARAMETERS.get(name, name)] = value
    return out


def _parse(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"the mapping '{path}' cannot be read ({why}); give a TOML, JSON or YAML file.") from error
    suffix = path.suffix.lower()
    try:
        if suffix == ".json":
            values = json.loads(text)
        elif suffix in (".yaml", ".yml"):
            values = _parse_yaml(text)
        else:
            values = tomllib.loads(text)
    except ValueError as error:
        raise InputError(f"the mapping '{path}' cannot be read: {str(error).splitlines()[0]}.") from error
    if not isinstance(values, Mapping):
        raise InputError(f"the mapping '{path}' holds no options by name.")
    return values


def _parse_yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise InputError("YAML mappings need PyYAML: pip install pyyaml; TOML and JSON need nothing.") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
