"""The manifest finds every changed byte and names the file."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError, StoreError
from ridgeline.store import Entry, hash_file, publish_dir, read_manifest, verify, write_manifest

NAMES = st.from_regex(r"[a-zé]{1,8}(/[a-z]{1,3}\.bin)?", fullmatch=True)
FOLDERS = st.dictionaries(NAMES, st.binary(max_size=64), max_size=5).filter(
    lambda files: not any(name.split("/")[0] in files for name in files if "/" in name)
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
META = st.dictionaries(st.text(), JSON, max_size=4)


def fill(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@settings(max_examples=60, deadline=None)
@given(FOLDERS, META)
def test_what_was_written_is_read_and_verified(memory, files, meta):
    with TemporaryDirectory(dir=memory) as folder:
        root = Path(folder)
        fill(root, files)
        written = write_manifest(root, meta)
        assert read_manifest(root) == verify(root) == verify(root, quick=True) == written
        assert written.meta == meta
        assert {name: entry.size for name, entry in written.files.items()} == {
            name: len(data) for name, data in files.items()
        }


@settings(max_examples=120, deadline=None)
@given(FOLDERS, META, st.data())
def test_any_changed_byte_is_found_and_its_file_named(memory, files, meta, data):
    with TemporaryDirectory(dir=memory) as folder:
        root = Path(folder)
        fill(root, files)
        write_manifest(root, meta)
        name = data.draw(st.sampled_from(["manifest.json", *(n for n, content in files.items() if content)]))
        content = bytearray((root / name).read_bytes())
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] ^= data.draw(st.integers(1, 255))
        (root / name).write_bytes(content)
        with pytest.raises(StoreError, match=re.escape(name)):
            verify(root)


@settings(max_examples=40, deadline=None)
@given(META, st.data())
def test_a_manifest_cut_anywhere_is_damaged(memory, meta, data):
    with TemporaryDirectory(dir=memory) as folder:
        root = Path(folder)
        write_manifest(root, meta)
        text = (root / "manifest.json").read_bytes()
        (root / "manifest.json").write_bytes(text[: data.draw(st.integers(0, len(text) - 1))])
        with pytest.raises(StoreError, match=r"manifest\.json is damaged"):
            read_manifest(root)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with publish_dir(tmp_path / "f", {"v": 1}) as tmp:
        fill(tmp, {"a.bin": b"aaaa", "deep/b.bin": b"bb", "c.bin": b""})
    return tmp_path / "f"


def test_the_message_lists_damaged_missing_and_extra_files(folder):
    (folder / "a.bin").write_bytes(b"aaab")
    (folder / "deep" / "b.bin").unlink()
    (folder / "d.bin").write_text("")
    with pytest.raises(StoreError) as caught:
        verify(folder)
    sentence = str(caught.value)
    assert "a.bin differs from its manifest" in sentence
    assert "deep/b.bin is missing" in sentence
    assert "d.bin is not in the manifest" in sentence
    assert "c.bin" not in sentence


def test_many_damaged_files_make_a_short_sentence(tmp_path):
    with publish_dir(tmp_path / "f") as tmp:
        fill(tmp, {f"{n:02}": b"x" for n in range(20)})
    for n in range(20):
        (tmp_path / "f" / f"{n:02}").unlink()
    with pytest.raises(StoreError, match="00, 01, 02 and 17 more are missing"):
        verify(tmp_path / "f")


def test_a_quick_look_sees_sizes_only(folder):
    (folder / "a.bin").write_bytes(b"xxxx")
    verify(folder, quick=True)
    (folder / "a.bin").write_bytes(b"xxx")
    with pytest.raises(StoreError, match=r"a\.bin differs"):
        verify(folder, quick=True)


def test_the_checksums_are_plain_sha256(folder):
    entry = read_manifest(folder).files["a.bin"]
    assert entry == Entry(4, "61be55a8e2f6b4e172338bddf184d6dbee29c98853e0a0485ecee7f27b9af0b4")
    assert hash_file(folder / "a.bin") == entry.sha256


def test_a_missing_manifest_and_a_missing_folder_have_different_messages(tmp_path):
    with pytest.raises(StoreError, match="no/where does not exist"):
        read_manifest(tmp_path / "no/where")
    with pytest.raises(StoreError, match=r"has no manifest\.json"):
        read_manifest(tmp_path)
    with pytest.raises(StoreError, match="is not a folder"):
        write_manifest(tmp_path / "no")


def test_a_manifest_of_the_future_asks_for_an_update(folder):
    text = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**text, "schema": 2}))
    with pytest.raises(StoreError, match="schema 2, newer than 1; update"):
        read_manifest(folder)


def test_links_and_pipes_are_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="link is not a plain file"):
        write_manifest(tmp_path)
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="pipe is not a plain file"):
        write_manifest(tmp_path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"bytes"])
def test_meta_that_json_cannot_hold_is_refused_and_nothing_is_published(tmp_path, value):
    with pytest.raises(InputError, match="plain JSON values only"), publish_dir(tmp_path / "f", {"x": value}):
        pass
    assert os.listdir(tmp_path) == []


def test_what_a_killed_write_manifest_left_is_no_part_of_the_folder(folder):
    (folder / ".manifest.json.tmp" / "dead").mkdir(parents=True)
    (folder / ".manifest.json.tmp" / "dead" / "owner").write_text("")
    verify(folder)
    write_manifest(folder)
    assert not (folder / ".manifest.json.tmp").exists()
