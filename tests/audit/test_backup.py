"""A backup restores the same log, or nothing."""

from __future__ import annotations

import gzip
import io
import os
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.watch.watching import run_command

from ridgeline.audit import Ledger
from ridgeline.audit.ledger import back_up, restore
from ridgeline.errors import InputError, RidgelineError, Unverified

EVENT = {"source": "t", "action": "a.b", "time": 5, "attributes": {}}


def fill(path, count, **more):
    with Ledger.create(path, "example.test/log") if not path.exists() else Ledger.open(path) as ledger:
        ledger.append([{**EVENT, "attributes": {"n": n}} for n in range(count)], **more)
    return path


def read(path):
    with Ledger.open(path) as ledger:
        return [entry for _, entry in ledger.raw_entries()], ledger.checkpoint()


@pytest.mark.parametrize("count", [1, 255, 256, 257, 700])
def test_a_restored_log_has_the_same_entries_and_checkpoint(tmp_path, count):
    log = fill(tmp_path / "log", count)
    done = back_up(log, tmp_path / "b.tar.gz")
    assert (done.origin, done.size, done.keys) == ("example.test/log", count, False)
    restore(tmp_path / "b.tar.gz", tmp_path / "back")
    assert read(tmp_path / "back") == read(log)
    assert not (tmp_path / "back.private" / "key").exists()
    back_up(tmp_path / "back", tmp_path / "again.tar.gz")
    assert (tmp_path / "again.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_a_backup_with_keys_can_be_continued(tmp_path):
    log = fill(tmp_path / "log", 3, positions={"file": {"offset": 7}})
    assert back_up(log, tmp_path / "b", keys=True).positions
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    restore(tmp_path / "b", tmp_path / "back")
    fill(tmp_path / "back", 2)
    assert len(read(tmp_path / "back")[0]) == 5
    with Ledger.open(tmp_path / "back") as ledger:
        assert ledger.get_position("file") == {"offset": 7}
        assert ledger.verify().ok
    assert (tmp_path / "back.private").stat().st_mode & 0o777 == 0o700


def test_large_events_and_pruned_bundles_are_restored(tmp_path):
    log = fill(tmp_path / "log", 600)
    with Ledger.open(log) as ledger:
        ledger.append([{**EVENT, "time": 9, "attributes": {"big": "x" * 100_000}}])
        ledger.prune(6, by="me")
    back_up(log, tmp_path / "b")
    assert restore(tmp_path / "b", tmp_path / "back").pruned
    with Ledger.open(tmp_path / "back") as ledger:
        assert ledger.entry(600)["attributes"]["big"] == "x" * 100_000


def test_a_log_that_is_written_meanwhile_is_backed_up_at_a_signed_size(tmp_path):
    log = fill(tmp_path / "log", 300, positions={"file": {"offset": 7}})
    with Ledger.open(log) as writer:
        writer.append([EVENT] * 10)
        done = back_up(log, tmp_path / "b")
        writer.append([EVENT] * 10)
    assert not done.positions
    restore(tmp_path / "b", tmp_path / "back")
    assert read(tmp_path / "back")[0] == read(log)[0][: done.size]


def test_a_log_that_does_not_verify_is_not_backed_up(tmp_path):
    log = fill(tmp_path / "log", 300)
    bundle = log / "tile" / "entries" / "000"
    bundle.write_bytes(bundle.read_bytes().replace(b"a.b", b"a.c", 1))
    with pytest.raises(Unverified):
        back_up(log, tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    back_up(fill(folder / "log", 300), folder / "b")
    return folder


@settings(max_examples=25)
@given(data=st.data())
def test_a_damaged_backup_restores_nothing(packed, data):
    good = (packed / "b").read_bytes()
    kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
    at = data.draw(st.integers(10, len(good) - 1))  # the first ten bytes are a header without a checksum
    bad = bytearray(good)
    if kind == "flip":
        bad[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del bad[at:]
    else:
        bad.insert(at, bad[at] ^ 1)
    (packed / "bad").write_bytes(bad)
    with pytest.raises(Unverified):
        restore(packed / "bad", packed / "worse")
    assert sorted(path.name for path in packed.iterdir()) == ["b", "bad", "log", "log.private"]


@pytest.mark.parametrize(
    "name", ["../evil", "log/../../evil", "/evil", "log/tile/../../../evil", "other/x", "private/../x"]
)
def test_files_that_belong_to_no_backup_are_refused(tmp_path, name):
    (tmp_path / "deep").mkdir()
    with gzip.open(tmp_path / "b", "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        tar.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(Unverified, match="it holds"):
        restore(tmp_path / "b", tmp_path / "deep" / "log")
    assert not list(tmp_path.rglob("evil"))
    assert not list((tmp_path / "deep").iterdir())


def test_a_link_in_a_backup_is_refused(tmp_path):
    with gzip.open(tmp_path / "b", "wb") as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo("log/checkpoint")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(member)
    with pytest.raises(Unverified, match="it holds"):
        restore(tmp_path / "b", tmp_path / "log")


def test_a_backup_of_another_log_is_refused(packed, tmp_path):
    other = fill(tmp_path / "other", 1)
    with Ledger.open(other) as ledger, pytest.raises(Unverified, match="not of"):
        restore(packed / "b", tmp_path / "log", key=ledger.verifier)


def test_nothing_is_replaced(packed, tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(InputError, match="exists"):
        restore(packed / "b", tmp_path / "log")
    with pytest.raises(InputError, match="there is no backup"):
        restore(tmp_path / "none", tmp_path / "back")
    with pytest.raises(RidgelineError):
        back_up(packed / "log", tmp_path / "log")


def test_a_served_copy_without_its_private_folder_is_backed_up_with_its_key(packed, tmp_path):
    with Ledger.open(packed / "log") as ledger:
        verifier = ledger.verifier
    os.rename(packed / "log.private", packed / "elsewhere")
    try:
        with pytest.raises(InputError, match="give the published key"):
            back_up(packed / "log", tmp_path / "b")
        back_up(packed / "log", tmp_path / "b", key=verifier)
    finally:
        os.rename(packed / "elsewhere", packed / "log.private")
    restore(tmp_path / "b", tmp_path / "back", key=verifier)


def test_the_commands(packed, tmp_path, capsys):
    assert run_command(capsys, "audit", "backup", packed / "log", "-o", tmp_path / "b")[0] == 0
    code, out, err = run_command(capsys, "audit", "restore", tmp_path / "b", "-o", tmp_path / "back")
    assert (code, "300 entries, verified" in out, "give --key" in err) == (0, True, True)
    assert run_command(capsys, "audit", "restore", tmp_path / "b", "-o", tmp_path / "back")[0] == 2
