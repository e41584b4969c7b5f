"""Recorded trees are thousands of small files: they are written to memory if possible."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

collect_ignore = ["guest/pipeline.py"]  # runs inside the guest, where the files of its folder are top-level modules


@pytest.fixture(scope="session")
def memory_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def memory_path(memory_folder: str | None) -> Iterator[Path]:
    """An empty folder for one test."""
    with TemporaryDirectory(dir=memory_folder) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def recorded(data: Path, memory_folder: str | None) -> Iterator[dict[str, Path]]:
    """The recorded trees, unpacked: name → the folder that holds sys and proc."""
    with TemporaryDirectory(dir=memory_folder) as folder:
        root_by_name = {}
        for recording in sorted((data / "sysfs").glob("*.tar.bz2")):
            place = Path(folder, recording.name)
            with tarfile.open(recording) as archive:
                archive.extractall(place, filter=_set_owner)
            root = next(p.parent for p in sorted(place.rglob("sys")) if p.is_dir())
            root_by_name[recording.name.removesuffix(".tar.bz2")] = root
        yield root_by_name


def _set_owner(member: tarfile.TarInfo, _: str) -> tarfile.TarInfo:
    """Set the owner to this user: the lookup of the owners of ten thousand files takes longer than writing them."""
    return member.replace(uid=os.getuid(), gid=os.getgid(), uname="", gname="", deep=False)
