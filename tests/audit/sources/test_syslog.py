"""Syslog over loopback: each message is an event with its host, program, severity and time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.audit.threads import run_in_thread

from ridgeline.audit.ledger import parse_moment
from ridgeline.audit.ledger.event import encode
from ridgeline.audit.sources import syslog
from ridgeline.audit.sources.syslog import Certificate, MessageSplitter, Syslog, make_event
from ridgeline.errors import InputError

MESSAGE = b'<34>1 2026-11-18T10:00:00.5Z web1 su 77 ID47 [x@1 k="v]"] su root failed'


def send(kind, target, *parts):
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as line:
        line.connect(target)
        for part in parts:
            line.sendall(part)


async def receive(source, act, count):
    events, dropped = [], 0
    async with asyncio.timeout(30):
        async for batch in source.batches(None):
            if not batch.events and not batch.dropped:
                await asyncio.to_thread(act)
            events += batch.events
            dropped += batch.dropped
            if len(events) + dropped >= count:
                source.stop()
    return events, dropped


def test_a_message_keeps_its_host_program_severity_and_time():
    event = make_event(MESSAGE)
    assert (event["time"], event["subject"]) == (parse_moment("2026-11-18T10:00:00.5Z"), "su")
    words = event["attributes"]
    assert (words["host"], words["severity"], words["message"]) == ("web1", "crit", "su root failed")
    assert words["data"] == '[x@1 k="v]"]'
    old = make_event(b"<13>Nov  1 10:00:00 web2 cron[5]: job done\n")
    assert (old["subject"], old["attributes"]["host"], old["attributes"]["severity"]) == ("cron", "web2", "notice")
    assert old["attributes"]["message"] == "job done"


@pytest.mark.parametrize(
    ("message", "time", "host", "program", "text"),
    [
        ("<34>Oct 11 2025 22:14:15 web2 su[1]: x", "2025-10-11T22:14:15", "web2", "su", "x"),
        ("<34>2025 Oct  1 22:14:15.25 web2 su: x", "2025-10-01T22:14:15.25", "web2", "su", "x"),
        ("<34>Oct 1 2025 22:14:15 su[230]: no host", "2025-10-01T22:14:15", None, "su", "no host"),
        ("Oct 11 2025 22:14:15 fe80::1 app: no priority", "2025-10-11T22:14:15", "fe80::1", "app", "no priority"),
        ("<34>Oct 11 2025 22:14:15 web2 just text", "2025-10-11T22:14:15", "web2", None, "just text"),
        ("<34>Oct 11 2025 22:14:15", "2025-10-11T22:14:15", None, None, ""),
        ("<189>45: *Oct 11 2025 22:14:15.123 UTC: %SYS-5: x", "2025-10-11T22:14:15.123Z", None, None, "%SYS-5: x"),
        ("<34>2025-10-11T22:14:15.5+02:00 web2 app[9]: x", "2025-10-11T20:14:15.5Z", "web2", "app", "x"),
        ("<34>no header at all", None, None, None, "no header at all"),
    ],
)
def test_old_messages_keep_what_their_senders_write(message, time, host, program, text):
    event = make_event(message.encode())
    words = event["attributes"]
    assert (words.get("host"), event["subject"], words["message"]) == (host, program, text)
    assert words.get("_prefix", "") + text == message
    if time is not None:
        local = datetime.fromisoformat(time).astimezone(UTC)  # without a zone: local time, as the sender's
        assert event["time"] == parse_moment(local.isoformat())


@pytest.mark.parametrize("rest", ["failed without data", '[x@1 v="a\\"] never closed', ""])
def test_a_message_whose_structured_data_are_wrong_keeps_its_header(rest):
    event = make_event(f"<34>1 2026-11-18T10:00:00.5Z web1 su 77 ID47 {rest}".encode())
    assert (event["time"], event["subject"]) == (parse_moment("2026-11-18T10:00:00.5Z"), "su")
    words = event["attributes"]
    assert (words["host"], words["_pid"], words["message"]) == ("web1", "77", rest)
    assert "data" not in words


def test_a_message_that_is_cut_says_so():
    for head in (b"<34>1 - - - - - - ", b"<34>Oct 11 22:14:15 web2 su: "):
        words = make_event(head + b"x" * (1 << 20))["attributes"]
        assert words["_cut_bytes"] == len(head)


@pytest.mark.parametrize("message", [b"<999>1 - - - - - -", b"\xff\0", b"<34>1 2026-99-99T10:00:00Z a b - - - x", b"<"])
def test_every_message_is_an_event_that_the_log_accepts(message):
    encode([make_event(message)])


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_messages_arrive_by_every_kind_of_socket(kind, tmp_path):
    source = Syslog(f"unix:{tmp_path}/s" if kind == "unix" else f"{kind}:127.0.0.1:0")
    second = MESSAGE.replace(b"root", b"ann")
    parts = (MESSAGE + b"\n", b"%d " % len(second) + second) if kind == "tcp" else (MESSAGE, second)
    act = lambda: send(kind, f"{tmp_path}/s" if kind == "unix" else ("127.0.0.1", source.port), *parts)  # noqa: E731
    events, _ = run_in_thread(receive(source, act, 2))
    assert [event["attributes"]["message"] for event in events] == ["su root failed", "su ann failed"]
    assert {event["attributes"].get("_peer") for event in events} == {None if kind == "unix" else "127.0.0.1"}
    assert not (tmp_path / "s").exists()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """An authority, a server and a sender that it signed, and a stranger that signed itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder, now, keys = tmp_path_factory.mktemp("tls"), datetime.now(UTC), {}

    def make(name, issuer):
        key = ec.generate_private_key(ec.SECP256R1())
        keys[name] = key
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=name == issuer, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(keys[issuer], hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))

    for name, issuer in (("authority", "authority"), ("server", "authority"), ("sender", "authority")):
        make(name, issuer)
    make("stranger", "stranger")
    return folder


def connect_tls(folder, port, name=None):
    context = ssl.create_default_context(cafile=folder / "authority.pem")
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), 30), server_hostname="localhost")


def listen_tls(folder, authorities=None):
    certificate = Certificate(folder / "server.pem", folder / "server.key", authorities)
    return Syslog("tls://127.0.0.1:0", certificate=certificate)


def test_messages_arrive_by_tls(certificates):
    source = listen_tls(certificates)

    def act():
        with connect_tls(certificates, source.port) as line:
            line.sendall(b"%d " % len(MESSAGE) + MESSAGE + MESSAGE + b"\n")

    events, _ = run_in_thread(receive(source, act, 2))
    assert [event["attributes"]["host"] for event in events] == ["web1", "web1"]


def test_tls_with_authorities_takes_only_their_senders(certificates):
    source = listen_tls(certificates, certificates / "authority.pem")

    def act():
        for name in (None, "stranger"):
            with suppress(OSError), connect_tls(certificates, source.port, name) as line:
                line.sendall(MESSAGE.replace(b"root", b"eve") + b"\n")
                line.recv(1)  # closed
        with connect_tls(certificates, source.port, "sender") as line:
            line.sendall(MESSAGE + b"\n")

    events, _ = run_in_thread(receive(source, act, 1))
    assert [event["attributes"]["message"] for event in events] == ["su root failed"]
    assert [event["attributes"]["_peer_name"] for event in events] == ["sender"]


def test_certificates_that_do_not_fit_are_refused(certificates, tmp_path):
    with pytest.raises(InputError, match="needs a certificate; give --tls-cert and --tls-key"):
        Syslog("tls://127.0.0.1:0")
    for chain, key, words in (
        ("server.pem", "sender.key", "are no certificate and its key"),
        ("server.pem", "none.key", "there is no file"),
        ("server.key", "server.key", "are no certificate and its key"),
    ):
        with pytest.raises(InputError, match=words):
            Syslog("tls:127.0.0.1:0", certificate=Certificate(certificates / chain, certificates / key))
    (tmp_path / "empty.pem").write_text("")
    with pytest.raises(InputError, match="has no certificates"):
        listen_tls(certificates, tmp_path / "empty.pem")


def test_addresses_may_be_urls():
    for address in ("udp://127.0.0.1:0", "tcp://[::1]:0", "unix:///run/s", "udp:127.0.0.1:0"):
        assert Syslog(address).name == "syslog:" + address.replace("://", ":")
    for address in ("udp:/127.0.0.1:0", "http://127.0.0.1:1", "tcp://127.0.0.1"):
        with pytest.raises(InputError, match="is no address"):
            Syslog(address)


def test_messages_beyond_the_buffer_are_counted():
    source = Syslog("udp:127.0.0.1:0", capacity=2)
    events, dropped = run_in_thread(receive(source, lambda: [source.take(MESSAGE) for _ in range(5)], 5))
    assert (len(events), dropped) == (2, 3)


@pytest.mark.parametrize("part", [b"99999999 <34>1", b"500 <34>1 cut off"])
def test_a_message_that_cannot_be_taken_from_a_stream_is_counted(part):
    source = Syslog("tcp:127.0.0.1:0")
    act = lambda: send("tcp", ("127.0.0.1", source.port), MESSAGE + b"\n", part)  # noqa: E731
    events, dropped = run_in_thread(receive(source, act, 2))
    assert (len(events), dropped) == (1, 1)


MESSAGES = [
    b"<34>plain",
    b"<34>1 - - - - - - \xef\xbb\xbfmark",
    b"<34>\xff\xfe",
    b"<34>" + b"x" * 70_000,
    b"<34>3 <4>",
    b"<34>",
]
FRAMES = {
    "lines": lambda message: message + b"\n",
    "CRLF": lambda message: message + b"\r\n",
    "counted": lambda message: b"%d " % len(message) + message,
    "counted, with a newline": lambda message: b"%d " % len(message) + message + b"\n",
}


@given(
    st.lists(st.tuples(st.sampled_from(MESSAGES), st.sampled_from(sorted(FRAMES)))),
    st.integers(1, 50) | st.integers(60_000, 80_000),
)
def test_messages_in_any_mix_of_frames_arrive_whole(messages, step):
    data = b"".join(FRAMES[kind](message) for message, kind in messages)
    splitter, arrived = MessageSplitter(), []
    for at in range(0, len(data), step):
        arrived += splitter.split(data[at : at + step])
    assert [message.rstrip(b"\r") for message in arrived] == [message for message, _ in messages]
    assert splitter.finish().strip(b"\r\n\0") == b""


@given(st.lists(st.sampled_from(MESSAGES)), st.integers(1, 50) | st.integers(60_000, 80_000))
def test_messages_may_end_with_a_nul(messages, step):  # as those of Python's SysLogHandler over TCP
    data, splitter, arrived = b"".join(message + b"\0" for message in messages), MessageSplitter(), []
    for at in range(0, len(data), step):
        arrived += splitter.split(data[at : at + step])
    assert arrived == messages


def test_a_nul_inside_of_a_message_belongs_to_it():
    assert MessageSplitter().split(b"<34>one\0 word\n<34>two\0<34>three\n") == [
        b"<34>one\0 word",
        b"<34>two",
        b"<34>three",
    ]


def test_lines_that_begin_with_digits_are_no_lengths():
    lines = [b"2026-11-19 10:00:00 started", b"12x3 <34>1", b"404 errors", b"7"]
    splitter = MessageSplitter()
    assert splitter.split(b"".join(line + b"\n" for line in lines) + b"99") == lines
    assert splitter.finish() == b"99"


def test_counted_messages_need_no_priority_after_the_first():
    splitter = MessageSplitter()
    assert splitter.split(b"5 <34>a4 5 <b3 cut") == [b"<34>a", b"5 <b", b"cut"]
    assert splitter.split(b"9 cut") == []
    assert splitter.finish() == b""
    assert splitter.unfinished


def test_strangers_who_only_connect_do_not_keep_messages_out(monkeypatch, caplog, capsys):
    monkeypatch.setattr("ridgeline.web.get_connection_limit", lambda: 4)
    source, lines = Syslog("tcp:127.0.0.1:0"), []

    def connect(count):
        for _ in range(count):
            lines.append(socket.create_connection(("127.0.0.1", source.port), 30))
        return lines[-1]

    def act():
        speaking = connect(1)
        speaking.sendall(MESSAGE + b"\n")
        while not source._known:  # its message has arrived
            time.sleep(0.01)
        strangers = [connect(1) for _ in range(40)]
        for stranger in strangers[-3:]:
            stranger.sendall(b"<34>1 - - - half a message")
        assert all(stranger.recv(1) == b"" for stranger in strangers[:36])  # closed for the later ones
        speaking.sendall(MESSAGE + b"\n")  # is still connected, because it had sent a message
        connect(1).sendall(MESSAGE + b"\n")

    try:
        events, dropped = run_in_thread(receive(source, act, 3))
    finally:
        for line in lines:
            line.close()
    assert {event["attributes"]["message"] for event in events} == {"su root failed"}
    assert len(events) + dropped >= 3
    assert capsys.readouterr().err == caplog.text == ""  # asyncio prints no error
    assert not source._new
    assert not source._known


def test_strangers_who_never_finish_a_tls_handshake_take_few_descriptors(certificates, monkeypatch, caplog, capsys):
    monkeypatch.setattr("ridgeline.web.get_connection_limit", lambda: 4)
    source, lines = listen_tls(certificates), []

    def act():
        for _ in range(40):
            lines.append(socket.create_connection(("127.0.0.1", source.port), 30))
        assert all(stranger.recv(1) == b"" for stranger in lines[:36])  # closed for the later ones
        with connect_tls(certificates, source.port) as line:
            line.sendall(MESSAGE + b"\n")

    try:
        events, dropped = run_in_thread(receive(source, act, 1))
    finally:
        for line in lines:
            line.close()
    assert [event["attributes"]["message"] for event in events] == ["su root failed"]
    assert dropped == 0
    assert capsys.readouterr().err == caplog.text == ""  # asyncio prints no error


@pytest.mark.parametrize(("rest", "cut"), [(b"", 0), (b"<13>half a mes", 1)])
def test_a_reset_drops_the_message_that_has_begun_and_no_other(rest, cut):
    source = Syslog("tcp://127.0.0.1:0")

    def act():
        line = socket.create_connection(("127.0.0.1", source.port), 30)
        line.sendall(MESSAGE + b"\n" + rest)
        time.sleep(0.2)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no end
        line.close()
        with socket.create_connection(("127.0.0.1", source.port), 30) as line:
            time.sleep(0.2)
            line.sendall(MESSAGE + b"\n")

    events, dropped = run_in_thread(receive(source, act, 2 + cut))
    assert (len(events), dropped) == (2, cut)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_an_address_in_use_is_said_without_a_number(kind):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        if kind == "tcp":
            other.listen()
        source = Syslog(f"{kind}:127.0.0.1:{other.getsockname()[1]}")
        with pytest.raises(InputError, match=r"cannot be listened on: address already in use\.$"):
            run_in_thread(receive(source, lambda: None, 0))


def test_the_buffer_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(syslog, "MOST_BYTES", 1000)
    source = Syslog("udp:127.0.0.1:0")
    for _ in range(30):
        source.take(b"x" * 100)

    events, dropped = run_in_thread(receive(source, lambda: None, 30))
    assert (len(events), dropped, source._bytes) == (10, 20, 0)


def test_a_wrong_address_is_a_sentence(tmp_path):
    for address in ("514", "udp:514", "unix:", "udp:127.0.0.1:70000"):
        with pytest.raises(InputError, match="--syslog"):
            Syslog(address)
    (tmp_path / "file").write_text("keep")
    with pytest.raises(InputError, match="cannot be listened on"):
        run_in_thread(receive(Syslog(f"unix:{tmp_path}/file"), lambda: None, 0))
    assert (tmp_path / "file").read_text() == "keep"
