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

from ridgeline.store.chunks import ChunkSet, concatenate
from ridgeline.store.files import publish
from ridgeline.store.folders import discard_dir, publish_dir
from ridgeline.store.journal import Appended, Journal, append_lines, read_lines
from ridgeline.store.locks import Owner, lock, owner
from ridgeline.store.manifest import Entry, Manifest, read_manifest, sha256_of, verify, write_manifest
from ridgeline.store.workspace import recover

__all__ = [
    "Appended",
    "ChunkSet",
    "Entry",
    "Journal",
    "Manifest",
    "Owner",
    "append_lines",
    "concatenate",
    "discard_dir",
    "lock",
    "owner",
    "publish",
    "publish_dir",
    "read_lines",
    "read_manifest",
    "recover",
    "sha256_of",
    "verify",
    "write_manifest",
]
