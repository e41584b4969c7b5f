"""Every refusal to publish is one sentence and loses nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ridgeline.errors import InputError, StoreError
from ridgeline.store import publish, publish_dir


def publish_file(path: Path, text: str = "new") -> None:
    with publish(path) as tmp:
        tmp.write_text(text)


def publish_folder(path: Path, text: str = "new") -> None:
    with publish_dir(path) as tmp:
        (tmp / "part").write_text(text)


BOTH = pytest.mark.parametrize("put", [publish_file, publish_folder])


@BOTH
def test_a_missing_folder_is_named(tmp_path, put):
    with pytest.raises(StoreError, match=r"the folder \S*/no does not exist; create it"):
        put(tmp_path / "no" / "t")


@BOTH
def test_a_file_in_the_place_of_the_folder_is_named(tmp_path, put):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="/file"):
        put(tmp_path / "file" / "t")


@BOTH
def test_a_path_without_a_name_is_refused(put):
    with pytest.raises(InputError, match="names no file"):
        put(Path("/"))


def test_a_file_does_not_replace_a_folder_nor_a_folder_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("keep")
    with pytest.raises(StoreError, match="folder is a folder"):
        publish_file(tmp_path / "folder")
    with pytest.raises(StoreError, match="file is a file"):
        publish_folder(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "keep"


def test_a_folder_that_was_not_published_here_is_never_replaced(tmp_path):
    (tmp_path / "home").mkdir()
    publish_folder(tmp_path / "home")  # empty: nothing to lose
    (tmp_path / "home" / "manifest.json").unlink()
    with pytest.raises(StoreError, match="not published here"):
        publish_folder(tmp_path / "home")
    assert (tmp_path / "home" / "part").exists()


def test_a_block_that_writes_nothing_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="nothing was written"), publish(tmp_path / "t"):
        pass
    with pytest.raises(StoreError, match="one plain file"), publish(tmp_path / "t") as tmp:
        tmp.mkdir()
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can switch to another user")
@BOTH
def test_a_folder_of_another_user_is_a_permission_error(put):
    """Root has every permission, so the test switches to an unprivileged user."""
    os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match="no permission for /t;"):
            put(Path("/t"))
    finally:
        os.seteuid(0)


def test_errors_about_the_callers_own_files_pass_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError, match="input"), publish(tmp_path / "t"):
        (tmp_path / "input").read_text()
    with pytest.raises(StoreError, match=r"/t or its folder"), publish(tmp_path / "t") as tmp:
        (tmp.parent / "no" / "file").write_text("")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EACCES, "no permission"),
        (errno.EROFS, "read-only"),
        (errno.EIO, "check the disk"),
    ],
)
@BOTH
def test_a_failing_sync_is_one_sentence_and_the_old_version_stays(tmp_path, monkeypatch, put, code, words):
    put(tmp_path / "t", "old")

    def fail(fd):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(StoreError, match=words) as caught:
            put(tmp_path / "t")
    assert str(tmp_path / "t") in str(caught.value)
    assert str(caught.value).endswith(".")
    old_content = tmp_path / "t" if put is publish_file else tmp_path / "t" / "part"
    assert old_content.read_text() == "old"
    assert os.listdir(tmp_path) == ["t"]
