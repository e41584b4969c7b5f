"""The manifest of a folder: every file with its size and SHA-256, and what its maker had to say about it.

    write_manifest("index", {"kind": "Flat", "dim": 384})
    verify("index").meta["dim"]

It finds damage, not deceit: whoever can change a file can also write a new manifest.
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
from ridgeline.store.disk import StrPath, explained
from ridgeline.store.files import publish
from ridgeline.store.workspace import recover

MANIFEST = "manifest.json"
_SCHEMA = 1
_NAMED = 3  # files named in a sentence before the rest is counted


@dataclass(frozen=True)
class Entry:
    """One file as it was when the manifest was written."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The files of a folder by relative path (with `/`), and the maker's own words."""

    files: Mapping[str, Entry]
    meta: Mapping[str, Any]


def write_manifest(folder: StrPath, meta: Mapping[str, Any] | None = None) -> Manifest:
    """Take stock of `folder` and publish its manifest; `meta` is anything JSON can hold."""
    root = Path(folder)
    text, manifest = _take_stock(root, meta)
    with publish(root / MANIFEST) as tmp:
        tmp.write_bytes(text)
    return manifest


def read_manifest(folder: StrPath) -> Manifest:
    """The manifest of `folder`, itself checked, without looking at the files."""
    path = Path(folder, MANIFEST)
    with explained(folder):
        there = Path(folder).is_dir() or recover(folder)
    try:
        text = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        what = "has no manifest.json" if there else "does not exist"
        raise StoreError(f"{folder} {what}; it was not finished or not made by ridgeline, make it anew.") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}; check its mode and the disk.") from error
    try:
        body = json.loads(text)
        schema = body["schema"]
        if schema == _SCHEMA:
            files = {name: Entry(e["size"], e["sha256"]) for name, e in body["files"].items()}
            manifest = Manifest(files, body["meta"])
            # Written one way only, so a single changed byte anywhere shows, even in the blanks.
            if _render(manifest) == text:
                return manifest
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        schema = _SCHEMA
    if isinstance(schema, int) and schema > _SCHEMA:
        raise StoreError(f"{path} has schema {schema}, newer than {_SCHEMA}; update ridgeline to read it.")
    raise StoreError(f"{path} is damaged; make {folder} anew or restore it from a copy.")


def verify(folder: StrPath, *, quick: bool = False) -> Manifest:
    """Check every file of `folder` against its manifest; `quick` compares sizes only.

    A StoreError names what is damaged, missing or extra.
    """
    manifest = read_manifest(folder)
    root = Path(folder)
    with explained(folder):
        found = dict(_plain_files(root))
        damaged = [
            name
            for name, entry in manifest.files.items()
            if name in found and not _same(found[name], entry, quick=quick)
        ]
    missing = [name for name in manifest.files if name not in found]
    extra = [name for name in found if name not in manifest.files]
    complaints = [
        *_complain(damaged, "differs from its manifest", "differ from their manifest"),
        *_complain(missing, "is missing", "are missing"),
        *_complain(extra, "is not in the manifest", "are not in the manifest"),
    ]
    if complaints:
        raise StoreError(f"{folder} is not as it was written: {', '.join(complaints)}; make it anew or restore it.")
    return manifest


def write_manifest_unpublished(folder: Path, meta: Mapping[str, Any] | None) -> Manifest:
    """For a folder that nobody can see yet: the manifest as a plain file, not yet synced."""
    text, manifest = _take_stock(folder, meta)
    (folder / MANIFEST).write_bytes(text)
    return manifest


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain(meta: Mapping[str, Any], what: str) -> dict[str, Any]:
    """`meta` as JSON will give it back (tuples become lists), or an InputError that says why not."""
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(meta), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{what} must hold plain JSON values only: {error}.") from error
    return found


def _take_stock(root: Path, meta: Mapping[str, Any] | None) -> tuple[bytes, Manifest]:
    if not os.path.isdir(root):
        raise StoreError(f"{root} is not a folder, so it can have no manifest; create it first.")
    words = plain({} if meta is None else meta, f"the meta of {root}")
    with explained(root):
        files = {name: Entry(path.stat().st_size, sha256_of(path)) for name, path in _plain_files(root)}
    manifest = Manifest(files, words)
    return _render(manifest), manifest


def _plain_files(root: Path) -> Iterator[tuple[str, Path]]:
    def stop(error: OSError) -> None:
        raise error

    for here, folders, names in os.walk(root, onerror=stop):
        # What a killed write_manifest left is no part of the folder; the next one removes it.
        folders[:] = sorted(set(folders) - {f".{MANIFEST}.tmp"})
        for name in sorted([*names, *(f for f in folders if Path(here, f).is_symlink())]):
            path = Path(here, name)
            relative = path.relative_to(root).as_posix()
            if relative == MANIFEST:
                continue
            if not stat.S_ISREG(path.lstat().st_mode):
                raise StoreError(f"{path} is not a plain file, and a manifest covers only those; remove it.")
            yield relative, path


def _same(path: Path, entry: Entry, *, quick: bool) -> bool:
    return path.stat().st_size == entry.size and (quick or sha256_of(path) == entry.sha256)


def _render(manifest: Manifest) -> bytes:
    body = {
        "schema": _SCHEMA,
        "meta": manifest.meta,
        "files": {name: {"size": e.size, "sha256": e.sha256} for name, e in manifest.files.items()},
    }
    seal = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**body, "seal": seal}, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _complain(names: list[str], one: str, several: str) -> list[str]:
    if not names:
        return []
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return [f"{', '.join(names[:_NAMED])}{rest} {one if len(names) == 1 else several}"]
