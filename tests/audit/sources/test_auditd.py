"""auditd: records joined by serial number, from a file that is resumed and from a unix socket."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.threads import run_in_thread

from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources.auditd import Auditd, Joiner, make_event, parse_record
from ridgeline.audit.watch import Redaction
from ridgeline.errors import InputError, RidgelineError

# Two events, interleaved: a refused read of /etc/shadow, and `id -n`.
LOG = """\
type=SYSCALL msg=audit(1700000000.123:42): arch=c000003e syscall=257 success=no exit=-13 a0=ffffff9c ppid=10 pid=77 \
auid=1000 uid=33 tty=(none) ses=3 comm="cat" exe="/usr/bin/cat" key="shadow"
type=SYSCALL msg=audit(1700000000.124:43): arch=c000003e syscall=59 success=yes exit=0 pid=78 auid=4294967295 uid=0 \
tty=pts0 comm="id" exe="/usr/bin/id" key=(null)
type=PATH msg=audit(1700000000.123:42): item=0 name="/etc" nametype=PARENT
type=PATH msg=audit(1700000000.123:42): item=1 name="/etc/shadow" nametype=NORMAL
type=EXECVE msg=audit(1700000000.124:43): argc=2 a0="id" a1=2D6E
type=PROCTITLE msg=audit(1700000000.123:42): proctitle=636174002F6574632F736861646F77
type=EOE msg=audit(1700000000.123:42):
type=EOE msg=audit(1700000000.124:43):
"""
LOGIN = (
    'node=web1 type=USER_LOGIN msg=audit(1700000009.500:50): pid=9 uid=0 auid=1000 ses=4 msg=\'op=login acct="eve" '
    'uid=77 exe="/usr/sbin/sshd" addr=10.0.0.1 terminal=ssh res=failed\'\x1dUID="root" AUID="eve"\n'
)


async def collect(source, position=None, stop_at=None):
    batches = []
    async with asyncio.timeout(30):
        async for batch in source.batches(position):
            batches.append(batch)
            if stop_at is not None and sum(len(b.events) for b in batches) >= stop_at:
                source.stop()
    return batches


def read(path, position=None, **settings):
    return run_in_thread(collect(Auditd(path, **{"follow": False, **settings}), position))


def get_events(batches):
    return [event for batch in batches for event in batch.events]


def test_interleaved_records_are_joined_by_their_serial_number(tmp_path):
    (tmp_path / "audit.log").write_text(LOG)
    cat, id = get_events(read(tmp_path / "audit.log"))
    assert (cat["time"], cat["action"], cat["subject"], cat["actor"]) == (
        (1_700_000_000_123_000_000, "auditd.syscall", "/etc/shadow", "uid 1000")
    )
    words = cat["attributes"]
    assert (words["uid"], words["auid"], words["pid"], words["success"]) == (33, 1000, 77, False)
    assert (words["exe"], words["comm"], words["key"]) == ("/usr/bin/cat", "cat", "shadow")
    assert (words["message"], words["paths"]) == ("cat /etc/shadow", ["/etc", "/etc/shadow"])
    assert (id["action"], id["subject"], id["actor"]) == ("auditd.execve", "/usr/bin/id", "uid 0")
    assert (id["attributes"]["message"], id["attributes"]["success"]) == ("id -n", True)
    assert "auid" not in id["attributes"]
    encode([cat, id])


def test_the_record_of_a_program_is_a_whole_event_whose_uid_is_the_kernels():
    record = parse_record(LOGIN.strip(), "line 1")
    event = make_event([record])
    assert record.from_program
    assert (event["action"], event["actor"], event["subject"]) == ("auditd.user_login", "eve", "eve")
    assert event["attributes"]["success"] is False
    assert (event["attributes"]["uid"], event["attributes"]["host"], event["attributes"]["addr"]) == (
        0,
        "web1",
        "10.0.0.1",
    )


@pytest.mark.parametrize("account", ["x'uid=0", "x'auid=0'", "'", "O'Brien"])
def test_no_account_name_forges_a_field_of_the_kernel(account):
    line = (
        "type=USER_AUTH msg=audit(1700000009.500:50): pid=9 uid=77 auid=1000 msg='op=PAM:authentication "
        f'acct="{account}" exe="/usr/bin/su" terminal=pts/0 res=failed\'\x1dUID="eve" AUID="eve"'
    )
    attributes = make_event([parse_record(line, "line 1")])["attributes"]
    assert (attributes["uid"], attributes["auid"], attributes["acct"]) == (77, 1000, account)
    assert (attributes["exe"], attributes["success"]) == ("/usr/bin/su", False)


def test_a_program_s_record_that_was_cut_off_is_an_event():
    cut = LOGIN.partition("terminal")[0].rstrip()
    event = make_event([parse_record(cut, "line 1")])
    assert (event["action"], event["attributes"]["acct"], event["actor"]) == ("auditd.user_login", "eve", "uid 1000")


def test_names_that_auditd_adds_replace_no_value():
    line = LOG.splitlines()[0] + '\x1dARCH=x86_64 SYSCALL=openat AUID="ann" UID="www-data" uid=0'
    event = make_event([parse_record(line, "line 1")])
    assert (event["actor"], event["attributes"]["syscall"], event["attributes"]["uid"]) == ("ann", "openat", 33)


def test_a_path_is_joined_to_the_working_directory():
    lines = (
        "type=SYSCALL msg=audit(1.000:7): syscall=87 success=yes",
        'type=CWD msg=audit(1.000:7): cwd="/etc/cron.d"',
        'type=PATH msg=audit(1.000:7): item=0 name="../" nametype=PARENT',
        'type=PATH msg=audit(1.000:7): item=1 name="../passwd" nametype=DELETE',
    )
    event = make_event([parse_record(line, "a line") for line in lines])
    assert (event["subject"], event["attributes"]["paths"]) == ("/etc/passwd", ["/etc", "/etc/passwd"])


@pytest.mark.parametrize(
    ("saddr", "address"),
    [
        ("020001BB0A0000010000000000000000", "10.0.0.1:443"),
        ("0A00003500000000" + "00" * 15 + "0100000000", "[::1]:53"),
        ("01002F72756E2F646275730000FF", "/run/dbus"),
        ("0100006162630000", "@abc"),
        ("10000000000000000000", "10000000000000000000"),  # netlink
        ("02", "02"),
    ],
)
def test_a_connection_says_where_it_goes(saddr, address):
    line = f"type=SOCKADDR msg=audit(1.000:7): saddr={saddr}\x1dSADDR={{ saddr_fam=inet laddr=10.0.0.1 lport=443 }}"
    event = make_event([parse_record(line, "line 1")])
    assert (event["subject"], event["attributes"]["address"]) == (address, address)
    encode([event])


def test_pieces_of_a_long_argument_are_put_together():
    lines = (
        'type=EXECVE msg=audit(1.000:7): argc=3 a0="sh" a1="-c" a2_len=20 a2[0]=6563686F20 a2[1]="one"',
        "type=EXECVE msg=audit(1.000:7): a2[2]=2074776F",
    )
    event = make_event([parse_record(line, "a line") for line in lines])
    assert event["attributes"]["message"] == "sh -c echo one two"


def test_digits_of_other_scripts_and_huge_numbers_are_no_ids():
    line = "type=SYSCALL msg=audit(1.000:7): uid=² auid=٣ pid=" + "9" * 5_000
    event = make_event([parse_record(line, "line 1")])
    assert not {"uid", "auid", "pid"} & set(event["attributes"])
    encode([event])


def test_words_before_the_fields_are_kept():
    line = 'type=AVC msg=audit(1.000:7): avc:  denied  { write } for  pid=5 comm="nginx" name="x" tclass=file'
    event = make_event([parse_record(line, "line 1")])
    assert (event["action"], event["attributes"]["message"]) == ("auditd.avc", "avc: denied { write } for")
    line = "type=USER_AVC msg=audit(1.000:8): pid=5 msg='avc:  denied  { send_msg } for scontext=a exe=\"/x\"'"
    event = make_event([parse_record(line, "line 1")])
    assert (event["subject"], event["attributes"]["message"]) == ("/x", "avc: denied { send_msg } for")


def test_secrets_of_a_command_line_are_hidden_although_the_kernel_writes_it_in_hexadecimal(tmp_path):
    secret = b"mysql\0-uroot\0-phunter22".hex().upper()
    text = f"type=PROCTITLE msg=audit(1700000000.123:42): proctitle={secret}\n"
    (tmp_path / "audit.log").write_text(text)
    (event,) = get_events(read(tmp_path / "audit.log"))
    hidden = json.dumps(Redaction().event(event))
    assert "mysql -uroot" in hidden
    assert "hunter22" not in hidden
    assert secret not in hidden


def test_a_command_that_sudo_ran_is_the_message_without_its_secret():
    cmd = b"mysql -phunter22".hex()
    line = f'type=USER_CMD msg=audit(1.000:7): uid=1000 msg=\'cwd="/root" cmd={cmd} exe="/usr/bin/sudo" res=success\''
    event = Redaction().event(make_event([parse_record(line, "line 1")]))
    assert event["attributes"]["message"] == "mysql -p[redacted]"
    assert "hunter22" not in json.dumps(event)


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_restart_between_any_two_records_neither_loses_nor_doubles_an_event(tmp_path, cut):
    path, lines = tmp_path / "audit.log", LOG.splitlines(keepends=True)
    whole = tmp_path / "whole.log"
    whole.write_text(LOG)
    want = get_events(read(whole))
    path.write_text("".join(lines[:cut]))
    # A watcher that follows, stopped at its first batch of lines: unfinished events go into the position.
    source = Auditd(path, follow=True)

    async def first_part():
        batches = []
        async with asyncio.timeout(30):
            async for batch in source.batches(None):
                batches.append(batch)
                if batch.position and batch.position["file"]["offset"]:
                    source.stop()
        return batches

    before = run_in_thread(first_part())
    with path.open("a") as file:
        file.write("".join(lines[cut:]))
    after = read(path, json.loads(json.dumps(before[-1].position)))
    assert get_events(before) + get_events(after) == want


def test_an_event_without_an_end_ends_when_nothing_follows_or_a_later_record_does(tmp_path):
    lines = LOG.splitlines(keepends=True)
    (tmp_path / "audit.log").write_text(lines[0])
    batches = run_in_thread(collect(Auditd(tmp_path / "audit.log", wait_s=0.05), stop_at=1))
    assert get_events(batches)[0]["attributes"]["exe"] == "/usr/bin/cat"
    joiner = Joiner()
    assert not joiner.join([(parse_record(lines[0].strip(), "a"), "a")])
    later = lines[1].strip().replace("1700000000.124", "1700000003.124")
    ((event, place),) = joiner.join([(parse_record(later, "b"), "b")])
    assert (place, event["attributes"]["comm"], joiner.unfinished) == ("a", "cat", 1)


def test_a_host_whose_clock_is_ahead_ends_no_event_of_another():
    lines = [
        "node=a type=SYSCALL msg=audit(1700000000.100:7): syscall=59 uid=5",
        "node=b type=SYSCALL msg=audit(1700000060.100:7): syscall=59 uid=6",
        'node=a type=PATH msg=audit(1700000000.100:7): item=0 name="/bin/a"',
        "node=a type=SYSCALL msg=audit(1700000009.100:8): syscall=2 uid=5",  # ends event 7 of its own host
    ]
    events = Joiner().join((parse_record(line, "x"), "x") for line in lines)
    assert [(event["attributes"]["host"], event["subject"]) for event, _ in events] == [("a", "/bin/a")]


def test_unfinished_events_take_bounded_memory():
    joiner = Joiner()
    record = parse_record("type=PATH msg=audit(1700000000.123:42): name=" + "61" * 100_000, "a")
    ended = [event for _ in range(20) for event in joiner.join([(record, "a")])]
    assert ended
    assert sum(map(len, joiner.texts())) <= (1 << 20) + len(record.text)


@pytest.mark.parametrize("path", ["/dev/null", "/"])
def test_what_is_neither_a_file_nor_a_socket_is_refused_at_once(path):
    with pytest.raises(InputError, match=r"is neither an audit\.log nor the socket"):
        Auditd(Path(path))


def test_a_line_that_is_no_record_is_refused_by_its_number(tmp_path):
    (tmp_path / "audit.log").write_text(LOG + "hello\n")
    batches = read(tmp_path / "audit.log")
    assert len(get_events(batches)) == 2
    ((place, why),) = [refusal for batch in batches for refusal in batch.refused]
    assert place.startswith("line 9 of")
    assert "no audit record" in why


@given(st.text(max_size=80))
def test_every_record_gives_an_event_that_the_log_accepts(words):
    line = f"type=A{words[:3].replace(' ', '')}B msg=audit(1700000000.123:42): {words} name=x".replace("\n", " ")
    try:
        record = parse_record(line.encode("utf-8", "backslashreplace").decode(), "line 1")
    except InputError:
        return
    encode([make_event([record])])


def serve_socket(path, data):
    """Return a listening socket and a function that sends `data` to its client and closes."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(1)

    def act():
        with server.accept()[0] as client:
            client.sendall(data)

    return server, act


def test_the_socket_of_auditd_is_read_until_auditd_closes_it(tmp_path):
    server, act = serve_socket(tmp_path / "s", (LOG + LOGIN).encode())
    source, events = Auditd(tmp_path / "s"), []

    async def watch():
        acting = asyncio.create_task(asyncio.to_thread(act))
        async with asyncio.timeout(30):
            async for batch in source.batches(None):
                events.extend(batch.events)
                assert batch.position is None
        await acting

    with server, pytest.raises(RidgelineError, match="auditd closed the socket"):
        run_in_thread(watch())
    assert [event["action"] for event in events] == ["auditd.syscall", "auditd.execve", "auditd.user_login"]


def test_a_socket_that_auditd_makes_later_is_read(tmp_path):
    source = Auditd(tmp_path / "s")
    server, act = serve_socket(tmp_path / "s", LOG.encode())

    async def watch():
        acting = asyncio.create_task(asyncio.to_thread(act))
        async with asyncio.timeout(30):
            async for batch in source.batches(None):
                if batch.events:
                    source.stop()
        await acting

    with server:
        run_in_thread(watch())


def test_a_socket_that_is_silent_ends_on_stop(tmp_path):
    server = socket.socket(socket.AF_UNIX)
    with server:
        server.bind(str(tmp_path / "s"))
        server.listen(1)
        source = Auditd(tmp_path / "s")

        async def watch():
            async with asyncio.timeout(30):
                async for _ in source.batches(None):  # the first batch says that it is connected
                    source.stop()

        run_in_thread(watch())
    with pytest.raises(InputError, match="no socket that auditd listens on"):
        run_in_thread(collect(Auditd(tmp_path / "s")))
