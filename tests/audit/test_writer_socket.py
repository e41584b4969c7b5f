"""Other processes append through the writer's socket."""

from __future__ import annotations

import json
import os
import socket
import stat
import struct
import threading

import pytest
from tests.audit.conftest import cli, cli_json, event, events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.writer_socket import NotAppended, WriterClient
from ridgeline.errors import InputError, StoreError

LINE = json.dumps({"source": "cli", "action": "a.b", "subject": "s"}) + "\n"


def test_the_command_appends_to_a_log_that_another_process_writes(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(700)])
        answer = cli_json("audit", "append", log, stdin=LINE * 3)
        assert answer["appended"] == 3
        assert answer["first"] == 701
        assert ledger.size == 704
        assert ledger.entry(703)["source"] == "cli"
        assert Ledger.open(log).size == 704, "the command had it signed"
    Ledger.open(log).verify()


def test_clients_and_the_writer_append_together_without_loss(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])

        def append_some(number: int) -> None:
            visitor = WriterClient(LedgerPaths(log))
            for k in range(20):
                first, leaves, size = visitor.append(events(k, k + 3))
                assert first + 3 <= size
                assert len(leaves) == 96
            visitor.close()

        threads = [threading.Thread(target=append_some, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(50):
            ledger.append([event(1)])
        for thread in threads:
            thread.join()
        assert ledger.size == 701 + 8 * 60 + 50
    Ledger.open(log).verify()


def test_a_bad_event_is_refused_only_to_its_client(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        visitor = WriterClient(LedgerPaths(log))
        with pytest.raises(InputError, match="event 0 has no action"):
            visitor.append([{"source": "x"}])
        assert visitor.append([]) == (701, b"", 701)
        visitor.close()
        assert ledger.size == 701


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"[]", b"{}", b'{"append":5}', b'{"append":[{"source":"x"}]}', b"\xff"]
)
def test_nonsense_on_the_socket_gets_an_error_and_the_writer_continues(log, data):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(10)
        fd = os.open(LedgerPaths(log).private, os.O_RDONLY)
        peer.connect(f"/proc/self/fd/{fd}/socket")
        os.close(fd)
        peer.sendall(struct.pack(">I", len(data)) + data)
        (size,) = struct.unpack(">I", peer.recv(4))
        assert "error" in json.loads(peer.recv(size))
        peer.close()
        ledger.append([event(1)])
        assert ledger.size == 702


def test_the_socket_is_private_and_closes_with_the_writer(log):
    paths = LedgerPaths(log)
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        assert stat.S_IMODE(paths.socket.stat().st_mode) == 0o600
    assert not paths.socket.exists()
    with pytest.raises(StoreError, match="does not answer"):
        WriterClient(paths)


def test_a_client_of_a_closing_writer_learns_that_nothing_was_appended(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        visitor = WriterClient(LedgerPaths(log))
        assert visitor.append([event(1)])[0] == 701
    with pytest.raises(NotAppended):
        visitor.append([event(2)])
    visitor.close()
    assert Ledger.open(log).size == 702


def test_a_long_path_has_a_socket_too(tmp_path):
    folder = tmp_path / ("d" * 100) / ("e" * 100) / "log"
    with Ledger.create(folder, origin="a") as ledger:
        visitor = WriterClient(LedgerPaths(folder))
        assert visitor.append([event(0)])[0] == 0
        visitor.close()
        assert ledger.size == 1


def test_the_command_names_the_line_and_appends_nothing_of_its_piece(log):
    done = cli("audit", "append", log, stdin=LINE + "{\n" + LINE)
    assert done.returncode == 2
    assert "line 2 of stdin" in done.stderr
    assert Ledger.open(log).size == 700
    done = cli("audit", "append", log, stdin=LINE + '{"source":"x"}\n')
    assert done.returncode == 2
    assert "line 2 of stdin has no action" in done.stderr
    assert Ledger.open(log).size == 700


def test_a_bad_event_is_named_by_its_line(log):
    long = json.dumps({"source": "cli", "action": "a.b", "subject": "s" * 2000}) + "\n"
    done = cli("audit", "append", log, stdin=long * 1200 + "\n" + '{"source":"x","action":"a b"}\n')
    assert done.returncode == 2
    assert "line 1202 of stdin: action 'a b'" in done.stderr


def test_init_append_info_from_the_command_line(tmp_path):
    log = tmp_path / "log"
    created = cli_json("audit", "init", log, "--origin", "example.test/cli")
    assert created["key"].startswith("example.test/cli+")
    assert cli_json("audit", "append", log, stdin=LINE * 2 + "\n" + LINE.strip())["size"] == 3
    answer = cli_json("audit", "info", log)
    assert (answer["size"], answer["origin"], answer["key"]) == (3, "example.test/cli", created["key"])
    assert cli("audit", "init", log, "--origin", "x").returncode == 2
    refused = cli("audit", "init", tmp_path / "second", "--origin", "x", "--key", tmp_path / "own.key")
    assert refused.returncode == 0
    secret = (tmp_path / "own.key").read_text().strip().removeprefix("PRIVATE+KEY+").split("+", 2)[2]
    assert len(secret) == 44  # base64 of 33 bytes, which may itself hold a "+"
    assert secret not in refused.stdout + refused.stderr
    assert stat.S_IMODE((tmp_path / "own.key").stat().st_mode) == 0o600
    inside = cli("audit", "init", tmp_path / "third", "--origin", "x", "--key", tmp_path / "third/key")
    assert inside.returncode == 2
    assert not (tmp_path / "third").exists()
