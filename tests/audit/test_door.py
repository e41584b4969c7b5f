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
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.writer_socket import Guest, NotTaken
from ridgeline.errors import InputError, StoreError

LINE = json.dumps({"source": "cli", "action": "a.b", "subject": "s"}) + "\n"


def test_the_command_appends_to_a_log_that_another_process_holds(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(700)])
        found = cli_json("audit", "append", log, stdin=LINE * 3)
        assert found["appended"] == 3
        assert found["first"] == 701
        assert ledger.size == 704
        assert ledger.entry(703)["source"] == "cli"
        assert Ledger.open(log).size == 704, "the command had it signed"
    Ledger.open(log).verify()


def test_guests_and_the_writer_mix_without_loss(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])

        def guest(who: int) -> None:
            visitor = Guest(Home(log))
            for k in range(20):
                first, leaves, size = visitor.append(events(k, k + 3))
                assert first + 3 <= size
                assert len(leaves) == 96
            visitor.close()

        threads = [threading.Thread(target=guest, args=(who,)) for who in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(50):
            ledger.append([event(1)])
        for thread in threads:
            thread.join()
        assert ledger.size == 701 + 8 * 60 + 50
    Ledger.open(log).verify()


def test_a_wrong_event_is_refused_to_the_guest_who_sent_it(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        visitor = Guest(Home(log))
        with pytest.raises(InputError, match="event 0 has no action"):
            visitor.append([{"source": "x"}])
        assert visitor.append([]) == (701, b"", 701)
        visitor.close()
        assert ledger.size == 701


@pytest.mark.parametrize(
    "data", [b"", b"nonsense", b"[]", b"{}", b'{"append":5}', b'{"append":[{"source":"x"}]}', b"\xff"]
)
def test_nonsense_at_the_door_gets_an_error_and_the_writer_goes_on(log, data):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(10)
        fd = os.open(Home(log).private, os.O_RDONLY)
        peer.connect(f"/proc/self/fd/{fd}/door")
        os.close(fd)
        peer.sendall(struct.pack(">I", len(data)) + data)
        (size,) = struct.unpack(">I", peer.recv(4))
        assert "error" in json.loads(peer.recv(size))
        peer.close()
        ledger.append([event(1)])
        assert ledger.size == 702


def test_the_door_is_ours_alone_and_closes_with_the_writer(log):
    home = Home(log)
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        assert stat.S_IMODE(home.door.stat().st_mode) == 0o600
    assert not home.door.exists()
    with pytest.raises(StoreError, match="does not answer"):
        Guest(home)


def test_a_guest_who_asks_while_the_writer_leaves_knows_that_nothing_was_taken(log):
    with Ledger.open(log) as ledger:
        ledger.append([event(0)])
        visitor = Guest(Home(log))
        assert visitor.append([event(1)])[0] == 701
    with pytest.raises(NotTaken):
        visitor.append([event(2)])
    visitor.close()
    assert Ledger.open(log).size == 702


def test_a_long_path_has_a_door_too(tmp_path):
    folder = tmp_path / ("d" * 100) / ("e" * 100) / "log"
    with Ledger.create(folder, origin="a") as ledger:
        visitor = Guest(Home(folder))
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


def test_a_wrong_event_is_named_by_its_line_however_much_came_before_it(log):
    long = json.dumps({"source": "cli", "action": "a.b", "subject": "s" * 2000}) + "\n"
    done = cli("audit", "append", log, stdin=long * 1200 + "\n" + '{"source":"x","action":"a b"}\n')
    assert done.returncode == 2
    assert "line 1202 of stdin: action 'a b'" in done.stderr


def test_init_append_info_from_the_command_line(tmp_path):
    log = tmp_path / "log"
    made = cli_json("audit", "init", log, "--origin", "example.test/cli")
    assert made["key"].startswith("example.test/cli+")
    assert cli_json("audit", "append", log, stdin=LINE * 2 + "\n" + LINE.strip())["size"] == 3
    found = cli_json("audit", "info", log)
    assert (found["size"], found["origin"], found["key"]) == (3, "example.test/cli", made["key"])
    assert cli("audit", "init", log, "--origin", "x").returncode == 2
    own = cli("audit", "init", tmp_path / "second", "--origin", "x", "--key", tmp_path / "own.key")
    assert own.returncode == 0
    secret = (tmp_path / "own.key").read_text().strip().removeprefix("PRIVATE+KEY+").split("+", 2)[2]
    assert len(secret) == 44  # base64 of 33 bytes, which may itself hold a "+"
    assert secret not in own.stdout + own.stderr
    assert stat.S_IMODE((tmp_path / "own.key").stat().st_mode) == 0o600
    inside = cli("audit", "init", tmp_path / "third", "--origin", "x", "--key", tmp_path / "third/key")
    assert inside.returncode == 2
    assert not (tmp_path / "third").exists()
