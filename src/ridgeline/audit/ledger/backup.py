"""Back up a ledger into one file, and restore it only if it verifies.

    backup.tar.gz
      log/checkpoint, log/tile/…, log/blob/…, log/witness/…    the log at its newest signed size
      private/ledger.json, private/published                   its public key
      private/positions.json                                   how far each source was read; not of a running writer
      private/key, private/subjects/…                          with keys: they let the owner of the file sign and read

The file is compressed, so its checksum covers every byte. A backup may be made while the log is written.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ridgeline.audit.ledger.checkpoint import Verifier, parse_checkpoint
from ridgeline.audit.ledger.event import decode
from ridgeline.audit.ledger.layout import LedgerPaths, find_ledger, read_note, read_regular, read_settings
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.tiles import WIDTH, Tiles, list_levels, split_bundle, tile_path
from ridgeline.audit.ledger.verify import Report, verify
from ridgeline.audit.ledger.witness import read_cosigned_files
from ridgeline.errors import InputError, Locked, StoreError, Unverified
from ridgeline.store import StrPath, explain_errors, lock, open_workspace, publish, sync_folder, sync_tree

_NAME = re.compile(r"log/(?:checkpoint|tile/[0-9a-z./]+|blob/[0-9a-f]{64}|witness/[0-9a-zA-Z+._-]+)|private/[\w./-]+")
_STORED = b',"stored":{"bytes":'
_LARGEST = 1 << 30  # bytes of a member; the largest event is far smaller


@dataclass(frozen=True)
class Backup:
    """What a backup holds."""

    origin: str
    size: int
    bytes: int
    positions: bool  # whether it holds how far the sources were read
    keys: bool


def back_up(log: StrPath, to: Path, *, key: Verifier | None = None, keys: bool = False) -> Backup:
    """Write the log at its newest signed size into `to`, after verifying it; raise `Findings` if it does not verify.

    key   the log's public key, of a copy without its private folder
    keys  add the private keys: of the log, and of the subjects whose personal fields are encrypted
    """
    paths = find_ledger(log)
    if key is not None and not paths.settings.exists():
        if keys:
            raise InputError(f"{paths.private} does not exist, so there are no keys to back up; leave out the keys.")
        verifier, key_file = key, None
    else:
        verifier, key_file = read_settings(paths)
        with Ledger.open(log) as ledger:  # it also takes over what a killed writer left
            ledger.checkpoint()
    if key is not None and key != verifier:
        raise InputError(f"{log} has the key {verifier}, not {key}.")
    verify(log, verifier)
    with ExitStack() as stack:
        try:
            if paths.private.exists():
                stack.enter_context(lock(paths.lock))
            positions = paths.positions.exists()
        except Locked:  # a running writer: its positions belong to entries that are not signed yet
            positions = False
        note = read_note(paths.checkpoint) or b""
        size = parse_checkpoint(note, str(paths.checkpoint)).size
        with publish(to, mode=0o600 if keys else None) as tmp:
            with (
                tmp.open("wb") as file,
                gzip.GzipFile("", "wb", 6, file, mtime=0) as packed,
                tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
            ):
                for name, data in _list_files(paths, size, note, verifier, positions):
                    _add(tar, name, data)
                for name, path in _list_keys(paths, key_file) if keys else ():
                    _add(tar, name, path.read_bytes())
            return Backup(verifier.name, size, tmp.stat().st_size, positions, keys)


def restore(file: Path, log: StrPath, *, key: Verifier | None = None) -> Report:
    """Restore a backup as the log `log`, which must not exist; nothing is left unless all of it verifies.

    key  the log's public key; without it the key in the backup is used, which proves only that it belongs together
    """
    target = LedgerPaths(Path(os.path.abspath(log)))
    for path in (target.log, target.private):
        if path.exists():
            raise InputError(f"{path} exists; restore to a place where nothing is.")
    with open_workspace(target.log) as space, explain_errors(target.log):
        space.payload.mkdir()
        paths = LedgerPaths(space.payload / "log")
        paths.log.mkdir()
        paths.private.mkdir(mode=0o700)
        _unpack(file, paths)
        try:
            verifier, _ = read_settings(paths)
        except (InputError, StoreError):
            raise Unverified("malformed", f"{file} holds no ledger: its public key is missing or damaged.") from None
        if key is not None and key != verifier:
            raise Unverified("altered", f"{file} is a backup of {verifier}, not of {key}.")
        try:
            report = verify(paths.log, verifier)
        except InputError as error:
            raise Unverified("malformed", f"{file} holds no ledger: {error}") from None
        sync_tree(space.payload)
        os.rename(paths.private, target.private)  # first: a log without it would be taken for a foreign one
        try:
            os.rename(paths.log, target.log)
        except BaseException:
            os.rename(target.private, paths.private)
            raise
        sync_folder(target.log.parent)
        return report


def _list_files(
    paths: LedgerPaths, size: int, note: bytes, verifier: Verifier, positions: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of the files of a log of `size` entries; entries that were pruned have none."""
    tiles = Tiles(paths.log)
    yield "log/checkpoint", note
    for level, full, partial in list_levels(size):
        for number in range(full + (1 if partial else 0)):
            width = WIDTH if number < full else partial
            yield f"log/{tile_path(level, number, width)}", tiles.hashes(level, number, width)
    for number in range(-(-size // WIDTH)):
        width = min(WIDTH, size - number * WIDTH)
        name = tile_path("entries", number, width)
        try:
            bundle = tiles.bundle(number, width)
        except Unverified as error:
            if error.kind == "missing":
                continue  # pruned: verified before
            raise
        yield f"log/{name}", bundle
        for entry in split_bundle(bundle, name) if _STORED in bundle else ():
            stored = decode(entry).get("stored") if _STORED in entry else None
            if stored is not None:
                digest = str(stored["sha256"])
                yield f"log/blob/{digest}", read_regular(paths.blob(digest), _LARGEST)
    for name, data in read_cosigned_files(paths):
        yield f"log/{name}", data
    yield "private/ledger.json", (json.dumps({"key": str(verifier)}, indent=1) + "\n").encode()
    yield "private/published", note
    if paths.personal.exists():  # the next writer of the log must encrypt what is personal
        yield "private/personal.json", paths.personal.read_bytes()
    if positions:
        yield "private/positions.json", paths.positions.read_bytes()


def _list_keys(paths: LedgerPaths, key_file: Path | None) -> Iterator[tuple[str, Path]]:
    yield "private/key", key_file or paths.key
    for path in sorted((paths.private / "subjects").rglob("*")):
        if path.is_file():
            yield f"private/{path.relative_to(paths.private)}", path


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600 if name.startswith("private/") else 0o644
    tar.addfile(member, io.BytesIO(data))


def _unpack(file: Path, paths: LedgerPaths) -> None:
    """Write the files of a backup; raise `Unverified` if it is damaged or holds anything else."""
    if not file.is_file():
        raise InputError(f"there is no backup '{file}'; check the name.")
    try:
        with gzip.open(file) as packed:
            with tarfile.open(
                fileobj=packed, mode="r|"
            ) as tar:  # a stream: names are checked before anything is written
                for member in tar:
                    if not member.isreg() or _NAME.fullmatch(member.name) is None or ".." in member.name:
                        raise Unverified(
                            "malformed", f"{file} is no backup of a ledger: it holds {member.name[:80]!r}."
                        )
                    if member.size > _LARGEST:
                        raise Unverified(
                            "malformed", f"{file} is damaged: {member.name} would have {member.size} bytes."
                        )
                    folder, _, name = member.name.partition("/")
                    path = (paths.log if folder == "log" else paths.private) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    content = tar.extractfile(member)
                    assert content is not None  # noqa: S101
                    mode = 0o600 if folder == "private" else 0o644
                    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as out:
                        out.write(content.read())
            while packed.read(1 << 20):  # to the end, where the checksum is
                pass
    except FileExistsError:
        raise Unverified("malformed", f"{file} is damaged: it holds a file twice.") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Unverified("malformed", f"{file} is damaged or no backup ({error}); use another copy.") from None
