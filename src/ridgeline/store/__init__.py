"""Atomic files and folders, journals, resumable jobs and locks that survive crashes, full disks and `kill -9`.

>>> import tempfile
>>> from pathlib import Path
>>> from ridgeline.store import ChunkSet, append_lines, lock, publish, publish_dir, read_lines, verify
>>> folder = Path(tempfile.mkdtemp())

A file, or a folder with its manifest, appears in a single step:

>>> with publish(folder / "note.txt") as tmp:
...     _ = tmp.write_text("complete")
>>> (folder / "note.txt").read_text()
'complete'
>>> with publish_dir(folder / "index", meta={"dim": 3}) as tmp:
...     _ = (tmp / "vectors.bin").write_bytes(bytes(12))
>>> verify(folder / "index").meta["dim"]
3

A long job resumes with the chunks it has:

>>> with ChunkSet(folder / "job", key="v1", total=3) as chunks:
...     chunks.put(1, b"b")
>>> with ChunkSet(folder / "job", key="v1", total=3) as chunks:
...     for number in chunks.missing():
...         chunks.put(number, b"abc"[number : number + 1])
...     chunks.finish(folder / "joined")
>>> (folder / "joined").read_bytes()
b'abc'

A journal keeps every line that it acknowledged, and a lock ends with its owner:

>>> with lock(folder / "lock"):
...     append_lines(folder / "runs.jsonl", [{"run": 1}, {"run": 2}])
AppendResult(lines=2, torn_bytes=0)
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
        NO_SPACE as NO_SPACE,
    )
    from ridgeline.store.disk import (
        StrPath as StrPath,
    )
    from ridgeline.store.disk import (
        explain_error as explain_error,
    )
    from ridgeline.store.disk import (
        explain_errors as explain_errors,
    )
    from ridgeline.store.disk import (
        start_writing as start_writing,
    )
    from ridgeline.store.disk import (
        sync_file as sync_file,
    )
    from ridgeline.store.disk import (
        sync_filesystem as sync_filesystem,
    )
    from ridgeline.store.disk import (
        sync_folder as sync_folder,
    )
    from ridgeline.store.disk import sync_tree as sync_tree
    from ridgeline.store.files import publish as publish
    from ridgeline.store.folders import discard_dir as discard_dir
    from ridgeline.store.folders import publish_dir as publish_dir
    from ridgeline.store.journal import (
        AppendResult as AppendResult,
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
    from ridgeline.store.locks import get_owner as get_owner
    from ridgeline.store.locks import lock as lock
    from ridgeline.store.locks import release as release
    from ridgeline.store.locks import try_lock as try_lock
    from ridgeline.store.manifest import (
        MANIFEST as MANIFEST,
    )
    from ridgeline.store.manifest import (
        Entry as Entry,
    )
    from ridgeline.store.manifest import (
        Manifest as Manifest,
    )
    from ridgeline.store.manifest import (
        hash_file as hash_file,
    )
    from ridgeline.store.manifest import (
        read_manifest as read_manifest,
    )
    from ridgeline.store.manifest import (
        verify as verify,
    )
    from ridgeline.store.manifest import (
        write_manifest as write_manifest,
    )
    from ridgeline.store.vector_parquet import VectorParquetWriter as VectorParquetWriter
    from ridgeline.store.where import (
        COMPARE as COMPARE,
    )
    from ridgeline.store.where import (
        And as And,
    )
    from ridgeline.store.where import (
        Compare as Compare,
    )
    from ridgeline.store.where import (
        Field as Field,
    )
    from ridgeline.store.where import (
        IsNull as IsNull,
    )
    from ridgeline.store.where import (
        Items as Items,
    )
    from ridgeline.store.where import (
        Literal as Literal,
    )
    from ridgeline.store.where import (
        Node as Node,
    )
    from ridgeline.store.where import (
        Not as Not,
    )
    from ridgeline.store.where import (
        Or as Or,
    )
    from ridgeline.store.where import (
        TextTest as TextTest,
    )
    from ridgeline.store.where import (
        Where as Where,
    )
    from ridgeline.store.where import (
        compile_test as compile_test,
    )
    from ridgeline.store.where import (
        parse_where as parse_where,
    )
    from ridgeline.store.workspace import open_workspace as open_workspace
    from ridgeline.store.workspace import recover as recover

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "chunks": ["ChunkSet", "concatenate"],
        "disk": [
            "NO_SPACE",
            "StrPath",
            "explain_error",
            "explain_errors",
            "start_writing",
            "sync_file",
            "sync_filesystem",
            "sync_folder",
            "sync_tree",
        ],
        "files": ["publish"],
        "folders": ["discard_dir", "publish_dir"],
        "journal": ["AppendResult", "Journal", "append_lines", "read_lines"],
        "locks": ["Owner", "try_lock", "lock", "get_owner", "release"],
        "manifest": ["MANIFEST", "Entry", "Manifest", "read_manifest", "hash_file", "verify", "write_manifest"],
        "vector_parquet": ["VectorParquetWriter"],
        "where": [
            "COMPARE",
            "And",
            "Compare",
            "Field",
            "IsNull",
            "Items",
            "Literal",
            "Node",
            "Not",
            "Or",
            "TextTest",
            "Where",
            "compile_test",
            "parse_where",
        ],
        "workspace": ["open_workspace", "recover"],
    },
)
