"""Files that are whole or not there, through crashes, full disks and `kill -9`.

>>> import tempfile
>>> from pathlib import Path
>>> folder = Path(tempfile.mkdtemp())

One file, or one folder with its manifest, appears in a single step:

>>> with publish(folder / "note.txt") as tmp:
...     _ = tmp.write_text("whole")
>>> (folder / "note.txt").read_text()
'whole'
>>> with publish_dir(folder / "index", meta={"dim": 3}) as tmp:
...     _ = (tmp / "vectors.bin").write_bytes(bytes(12))
>>> verify(folder / "index").meta["dim"]
3

A long job keeps the chunks it has:

>>> with ChunkSet(folder / "job", key="v1", total=3) as chunks:
...     chunks.put(1, b"b")
>>> with ChunkSet(folder / "job", key="v1", total=3) as chunks:
...     for number in chunks.missing():
...         chunks.put(number, b"abc"[number : number + 1])
...     chunks.finish(folder / "joined")
>>> (folder / "joined").read_bytes()
b'abc'

A journal keeps every line it acknowledged, and a lock dies with its owner:

>>> with lock(folder / "lock"):
...     append_lines(folder / "runs.jsonl", [{"run": 1}, {"run": 2}])
Appended(lines=2, torn_bytes=0)
>>> read_lines(folder / "runs.jsonl").objects[-1]
{'run': 2}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.store.chunks import ChunkSet as ChunkSet
    from ridgeline.store.chunks import concatenate as concatenate
    from ridgeline.store.disk import (
        NO_ROOM as NO_ROOM,
    )
    from ridgeline.store.disk import (
        StrPath as StrPath,
    )
    from ridgeline.store.disk import (
        explain as explain,
    )
    from ridgeline.store.disk import (
        explained as explained,
    )
    from ridgeline.store.disk import (
        start_writing as start_writing,
    )
    from ridgeline.store.disk import (
        sync_file as sync_file,
    )
    from ridgeline.store.disk import (
        sync_folder as sync_folder,
    )
    from ridgeline.store.files import publish as publish
    from ridgeline.store.folders import discard_dir as discard_dir
    from ridgeline.store.folders import publish_dir as publish_dir
    from ridgeline.store.journal import (
        Appended as Appended,
    )
    from ridgeline.store.journal import (
        Journal as Journal,
    )
    from ridgeline.store.journal import (
        append_lines as append_lines,
    )
    from ridgeline.store.journal import (
        read_lines as read_lines,
    )
    from ridgeline.store.locks import Owner as Owner
    from ridgeline.store.locks import grip as grip
    from ridgeline.store.locks import lock as lock
    from ridgeline.store.locks import owner as owner
    from ridgeline.store.locks import release as release
    from ridgeline.store.manifest import (
        Entry as Entry,
    )
    from ridgeline.store.manifest import (
        Manifest as Manifest,
    )
    from ridgeline.store.manifest import (
        read_manifest as read_manifest,
    )
    from ridgeline.store.manifest import (
        sha256_of as sha256_of,
    )
    from ridgeline.store.manifest import (
        verify as verify,
    )
    from ridgeline.store.manifest import (
        write_manifest as write_manifest,
    )
    from ridgeline.store.workspace import recover as recover

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "chunks": ["ChunkSet", "concatenate"],
        "disk": ["NO_ROOM", "StrPath", "explain", "explained", "start_writing", "sync_file", "sync_folder"],
        "files": ["publish"],
        "folders": ["discard_dir", "publish_dir"],
        "journal": ["Appended", "Journal", "append_lines", "read_lines"],
        "locks": ["Owner", "grip", "lock", "owner", "release"],
        "manifest": ["Entry", "Manifest", "read_manifest", "sha256_of", "verify", "write_manifest"],
        "workspace": ["recover"],
    },
)
