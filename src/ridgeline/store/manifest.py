"""The manifest of a folder: every file with its size and SHA-256, and metadata.

    write_manifest("index", {"kind": "Flat", "dim": 384})
    verify("index").meta["dim"]

It detects damage, not fraud: a user who can change a file can also write a new manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, StoreError
from ridgeline.store.disk import StrPath, explain_errors
from ridgeline.store.files import publish
from ridgeline.store.workspace import recover

MANIFEST = "manifest.json"
_SCHEMA = 1
_MAX_NAMES = 3  # file names in a message; the rest is counted


@dataclass(frozen=True)
class Entry:
    """One file as it was when the manifest was written."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by relative path (with `/`), and the metadata of its writer."""

    files: Mapping[str, Entry]
    meta: Mapping[str, Any]


def write_manifest(folder: StrPath, meta: Mapping[str, Any] | None = None) -> Manifest:
    """Hash the files of `folder` and publish its manifest; `meta` holds JSON values."""
    root = Path(folder)
    text, manifest = _collect_files(root, meta)
    with publish(root / MANIFEST) as tmp:
        tmp.write_bytes(text)
    return manifest


def read_manifest(folder: StrPath) -> Manifest:
    """Read and check the manifest of `folder`, without checking the files."""
    path = Path(folder, MANIFEST)
    with explain_errors(folder):
        exists = Path(folder).is_dir() or recover(folder)
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "has no manifest.json" if exists else "does not exist"
        raise StoreError(f"{folder} {what}; it was not finished or not made by ridgeline, make it anew.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; check its mode and the disk.") from error
    try:
        body = json.loads(text)
        schema = body["schema"]
        if schema == _SCHEMA:
            files = {name: Entry(e["size"], e["sha256"]) for name, e in body["files"].items()}
            manifest = Manifest(files, body["meta"])
            # There is one way to write it, so any changed byte is detected, even in white space.
            if _render(manifest) == text:
                return manifest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        schema = _SCHEMA
    if isinstance(schema, int) and schema > _SCHEMA:
        raise StoreError(f"{path} has schema {schema}, newer than {_SCHEMA}; update ridgeline to read it.")
    raise StoreError(f"{path} is damaged; make {folder} anew or restore it from a copy.")


def verify(folder: StrPath, *, quick: bool = False) -> Manifest:
    """Check every file of `folder` against its manifest; `quick` compares sizes only.

    Raises `StoreError` with the damaged, missing and extra files.
    """
    manifest = read_manifest(folder)
    root = Path(folder)
    with explain_errors(folder):
        files = dict(_list_files(root))
        damaged = [
            name
            for name, entry in manifest.files.items()
            if name in files and not _matches(files[name], entry, quick=quick)
        ]
    missing = [name for name in manifest.files if name not in files]
    extra = [name for name in files if name not in manifest.files]
    complaints = [
        *_describe_names(damaged, "differs from its manifest", "differ from their manifest"),
        *_describe_names(missing, "is missing", "are missing"),
        *_describe_names(extra, "is not in the manifest", "are not in the manifest"),
    ]
    if complaints:
        raise StoreError(f"{folder} is not as it was written: {', '.join(complaints)}; make it anew or restore it.")
    return manifest


def write_manifest_unpublished(folder: Path, meta: Mapping[str, Any] | None) -> Manifest:
    """Write the manifest of a folder that is not published yet, without syncing it."""
    text, manifest = _collect_files(folder, meta)
    (folder / MANIFEST).write_bytes(text)
    return manifest


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(meta: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return `meta` as JSON returns it (tuples become lists); raise `InputError` if JSON cannot hold it."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(meta), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} must hold plain JSON values only: {error}.") from error
    return copy


def _collect_files(root: Path, meta: Mapping[str, Any] | None) -> tuple[bytes, Manifest]:
    if not os.path.isdir(root):
        raise StoreError(f"{root} is not a folder, so it can have no manifest; create it first.")
    json_meta = plain({} if meta is None else meta, f"the meta of {root}")
    with explain_errors(root):
        files = {name: Entry(path.stat().st_size, hash_file(path)) for name, path in _list_files(root)}
    manifest = Manifest(files, json_meta)
    return _render(manifest), manifest


def _list_files(root: Path) -> Iterator[tuple[str, Path]]:
    def stop(error: OSError) -> None:
        raise error

    for current, folders, names in os.walk(root, onerror=stop):
        # Ignore leftovers of a killed write_manifest; the next one removes them.
        folders[:] = sorted(set(folders) - {f".{MANIFEST}.tmp"})
        for name in sorted([*names, *(f for f in folders if Path(current, f).is_symlink())]):
            path = Path(current, name)
            relative = path.relative_to(root).as_posix()
            if relative == MANIFEST:
                continue
            if not stat.S_ISREG(path.lstat().st_mode):
                raise StoreError(f"{path} is not a plain file, and a manifest covers only those; remove it.")
            yield relative, path


def _matches(path: Path, entry: Entry, *, quick: bool) -> bool:
    return path.stat().st_size == entry.size and (quick or hash_file(path) == entry.sha256)


def _render(manifest: Manifest) -> bytes:
    body = {
        "schema": _SCHEMA,
        "meta": manifest.meta,
        "files": {name: {"size": e.size, "sha256": e.sha256} for name, e in manifest.files.items()},
    }
    checksum = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**body, "seal": checksum}, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _describe_names(names: list[str], one: str, several: str) -> list[str]:
    if not names:
        return []
    rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return [f"{', '.join(names[:_MAX_NAMES])}{rest} {one if len(names) == 1 else several}"]
