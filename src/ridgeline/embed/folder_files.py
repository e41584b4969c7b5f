"""Read the JSON files of a model folder; a file that is not what it should be is an InputError that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError


def read_json_object(file: Path, *, needed: bool = True) -> dict[str, Any]:
    """Return the object that a JSON file holds; {} if there is no file and it is not needed."""
    if not needed and not file.is_file():
        return {}
    content = _read_json(file)
    if not isinstance(content, dict):
        raise InputError(f"'{file}' holds {type(content).__name__}, not an object; fetch the model again.")
    return content


def list_modules(folder: Path) -> list[tuple[str, str]]:
    """Return (type, subfolder) of the modules that modules.json lists; [] without that file."""
    file = folder / "modules.json"
    entries = _read_json(file) if file.is_file() else []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) and "type" in entry for entry in entries):
        raise InputError(f"'{file}' is no list of modules with a type each; fetch the model again.")
    return [(str(entry["type"]), str(entry.get("path") or "")) for entry in entries]


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"'{file.parent}' has no {file.name}, so it is no model's folder.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"'{file}' cannot be read: {error}.") from error
