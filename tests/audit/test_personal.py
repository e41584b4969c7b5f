"""Personal data: encrypted per person before it enters the ledger, exported, and erased without breaking a proof."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit.conftest import BASE
from tests.audit.threads import run_in_thread
from tests.audit.watch.watching import encode, jsonl, run_command

from ridgeline.audit import Ledger
from ridgeline.audit.anomaly import Detector
from ridgeline.audit.anomaly.sentences import describe_event
from ridgeline.audit.ledger import (
    Appender,
    LedgerPaths,
    Personal,
    PersonKeys,
    Policy,
    Selection,
    back_up,
    check_proof,
    count_key_use,
    export_person,
    find_ledger,
    finish_forgetting,
    forget_person,
    prove,
    restore,
    set_policy,
    write_csv,
    write_parquet,
)
from ridgeline.audit.ledger.erasure import EXPORT, FORGET, POLICY
from ridgeline.audit.ledger.event import encode as encode_events
from ridgeline.audit.ledger.personal import KINDS, TOKEN, write_policy
from ridgeline.audit.watch import KeyedAppend, Settings, Watcher
from ridgeline.errors import InputError, StoreError, Unverified

ORIGIN = "example.test/people"
MAIL = "attributes.email"
POLICY_OF_MAIL = Policy((MAIL, "attributes.phone"), "attributes.user")
SECRETS = {f"p{k}": (f"qzvjwkxbrt{k}plmgh@example.test", f"4915590{k}27731{k}") for k in range(3)}

json_values = st.recursive(
    st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def person_event(i: int, **more: object) -> dict:
    user = f"p{i % 3}"
    mail, phone = SECRETS[user]
    words = {"user": user, "email": mail, "phone": phone, "n": i, **more}
    return {"time": BASE + i, "source": "t", "actor": "web", "action": "account.change", "attributes": words}


def make_personal(folder: Path, policy: Policy = POLICY_OF_MAIL) -> Personal:
    paths = LedgerPaths(folder / "log")
    paths.private.mkdir(exist_ok=True)
    write_policy(paths, policy)
    return Personal(paths, ORIGIN)


def make_log(folder: Path, count: int = 30, policy: Policy = POLICY_OF_MAIL) -> Path:
    with Ledger.create(folder / "log", origin=ORIGIN) as ledger:
        set_policy(ledger, policy)
        ledger.append([person_event(i) for i in range(count)])
    return folder / "log"


def secrets_of(personal: Personal, person: str) -> dict[str, bytes]:
    return {key.id: key.secret for key in personal.keys.find(person) if key.secret}


def list_forms(data: bytes) -> list[bytes]:
    """The bytes, and what they hold if they, or what follows a known beginning in them, are compressed."""
    forms = [data]
    for match in re.finditer(rb"\x1f\x8b|\x78[\x01\x9c\xda]", data):
        try:
            forms.append(zlib.decompressobj(47).decompress(data[match.start() :]))
        except zlib.error:
            continue
    return forms


def find_traces(folder: Path, words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Search every byte below a folder for the words: as text, UTF-16, hexadecimal, base64, and compressed."""
    traces = []
    for path in (path for path in folder.rglob("*") if path.is_file()):
        forms = list_forms(path.read_bytes())
        for word in words:
            raw = word.encode()
            wanted = [raw, word.encode("utf-16-le"), raw.hex().encode()]
            wanted += [base64.b64encode(raw[k:])[2:-4] for k in range(3)]
            if any(want in form for want in wanted for form in forms):
                traces.append((path.name, word))
    return traces


# Encrypting


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Personal:
    return make_personal(tmp_path_factory.mktemp("personal"))


@settings(max_examples=40, deadline=None)
@given(value=json_values, other=json_values)
def test_a_personal_value_comes_back_only_with_the_key_of_its_person_and_at_its_place(
    shared: Personal, value: object, other: object
) -> None:
    personal = shared
    events = [
        {"action": "a.b", "source": "t", "attributes": {"user": user, "email": item, "n": 1}}
        for user, item in (("ann", value), ("bob", other))
    ]
    ann, bob = personal.encrypt(events)
    assert TOKEN.fullmatch(ann["attributes"]["email"])
    assert {**ann, "attributes": {**ann["attributes"], "email": value}} == events[0]
    keys = secrets_of(personal, "ann")
    assert personal.decrypt(ann, keys) == events[0]
    assert personal.decrypt(bob, keys) == bob
    moved = {**ann, "attributes": {"phone": ann["attributes"]["email"]}}
    assert personal.decrypt(moved, keys) == moved, "a token copied to another field must not be read"
    assert events[0]["attributes"]["email"] == value, "the caller's events do not change"


def test_a_token_is_chacha20_poly1305_over_padded_json(tmp_path: Path) -> None:
    """What another implementation must do to read a token."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    personal = make_personal(tmp_path)
    tokens = [personal.encrypt([person_event(0, email=text)])[0]["attributes"]["email"] for text in ("a@b.c", "é" * 9)]
    [(key_id, secret)] = secrets_of(personal, "p0").items()
    for token, text in zip(tokens, ("a@b.c", "é" * 9), strict=True):
        data = base64.urlsafe_b64decode(token.split(":")[2].rstrip("]") + "==")
        plain = ChaCha20Poly1305(secret).decrypt(data[:12], data[12:], f"{ORIGIN}\n{key_id}\n{MAIL}".encode())
        assert json.loads(plain) == text
        assert len(plain) % 32 == 0
    again = personal.encrypt([person_event(0, email="a@b.c")])[0]["attributes"]["email"]
    assert again != tokens[0], "equal values must not look equal"


def test_personal_text_is_encrypted_wherever_its_event_repeats_it(tmp_path: Path) -> None:
    personal = make_personal(tmp_path, Policy(("attributes.who.name", MAIL), "attributes.user"))
    event = {
        "action": "mail.send",
        "source": "t",
        "actor": "Ann Lee",
        "subject": "Ann Lee <ann@x.example>",
        "attributes": {"user": "u1", "who": [{"name": "Ann Lee"}], "email": "ann@x.example", "log": ["to Ann Lee", 5]},
    }
    [encrypted] = personal.encrypt([event])
    assert "Ann Lee" not in json.dumps(encrypted)
    assert "x.example" not in json.dumps(encrypted)
    assert encrypted["attributes"]["log"][1] == 5
    assert personal.decrypt(encrypted, secrets_of(personal, "u1")) == event


def test_personal_text_is_found_in_names_numbers_urls_and_escaped_json(tmp_path: Path) -> None:
    personal = make_personal(tmp_path, Policy((MAIL, "attributes.phone", "attributes.name"), "attributes.user", KINDS))
    attributes = {
        "user": "u1",
        "email": "ann@x.example",
        "phone": 491701234567,
        "name": "Renée Ü",
        "sessions": {"ann@x.example": {"of bob@y.example": 2}, "for Renée Ü": [491701234567, 4111111111111111], "n": 5},
        "carol@z.example": 1,
        "url": "/find?q=ann%40x.example&to=bob%40y.example&name=Ren%C3%A9e%20%C3%9C",
        "body": json.dumps({"name": "Renée Ü"}),
    }
    [encrypted] = personal.encrypt([{"action": "a.b", "source": "t", "attributes": attributes}])
    written = json.dumps(encrypted, ensure_ascii=False)
    for word in ("x.example", "y.example", "z.example", "4917", "4111", "Ren", "bob", "carol"):
        assert word not in written
    assert encrypted["attributes"]["sessions"]["n"] == 5
    assert personal.decrypt(encrypted, secrets_of(personal, "u1"))["attributes"] == attributes


def test_a_name_that_is_no_text_is_refused_as_without_a_policy(tmp_path: Path) -> None:
    personal = make_personal(tmp_path, Policy((), "actor", KINDS))
    event = {"action": "a.b", "source": "t", "actor": "u1", "attributes": {"n": {5: 1}}}
    with pytest.raises(InputError):
        encode_events(personal.encrypt([event]))


def test_the_names_of_attributes_stay_though_a_person_is_called_like_one(tmp_path: Path) -> None:
    personal = make_personal(tmp_path, Policy(("actor",), "actor"))
    attributes = {"host": "web1", "hosts": {"hosting": 1, "of host": 2}}
    [encrypted] = personal.encrypt([{"action": "a.b", "source": "t", "actor": "host", "attributes": attributes}])
    assert encrypted["attributes"]["host"] == "web1"
    names = list(encrypted["attributes"]["hosts"])
    assert names[0] == "hosting"
    assert "host" not in names[1]
    assert personal.decrypt(encrypted, secrets_of(personal, "host"))["attributes"] == attributes


def test_names_with_dots_and_fields_below_lists_are_found(tmp_path: Path) -> None:
    personal = make_personal(tmp_path, Policy(("attributes.enduser.id", "attributes.to.mail"), "attributes.enduser.id"))
    attributes = {"enduser.id": "u-12345", "to": [{"mail": "a@x.example"}, {"mail": None}, 7]}
    [encrypted] = personal.encrypt([{"action": "a.b", "source": "t", "attributes": attributes}])
    assert "u-12345" not in json.dumps(encrypted)
    assert encrypted["attributes"]["to"][1:] == [{"mail": None}, 7]
    assert personal.decrypt(encrypted, secrets_of(personal, "u-12345"))["attributes"] == attributes


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("login of ann.lee+x@mail.example.org failed", ["ann.lee+x@mail.example.org"]),
        ("from 10.1.2.3 port 22, version 1.2.3, at 12:30:45", ["10.1.2.3"]),
        ("from 2001:db8::7 and ::ffff, std::vector", ["2001:db8::7"]),
        ("call +49 170 1234567 about order 4915590127731", ["+49 170 1234567"]),
        ("card 4111 1111 1111 1111, serial 4111 1111 1111 1112", ["4111 1111 1111 1111"]),
        ("to DE89 3704 0044 0532 0130 00, not DE88 3704 0044 0532 0130 00", ["DE89 3704 0044 0532 0130 00"]),
        ("nothing here at 2026-11-19T01:02:03.456Z for 300 s", []),
    ],
)
def test_personal_texts_of_known_kinds_are_found(tmp_path: Path, text: str, hidden: list[str]) -> None:
    personal = make_personal(tmp_path, Policy((), "actor", KINDS))
    [encrypted] = personal.encrypt([{"action": "a.b", "source": "t", "actor": "u1", "attributes": {"message": text}}])
    message = encrypted["attributes"]["message"]
    assert len(TOKEN.findall(message)) == len(hidden)
    assert not any(word in message for word in hidden)
    assert personal.decrypt(encrypted, secrets_of(personal, "u1"))["attributes"]["message"] == text


def test_a_text_that_looks_like_a_token_hides_nothing(tmp_path: Path) -> None:
    personal = make_personal(tmp_path)
    forged = "[personal:0123456789abcdef:rmrfrmrfrmrf]"
    [encrypted] = personal.encrypt([person_event(0, cmd=f"run {forged}")])
    assert encrypted["attributes"]["cmd"] == "run [personal?:0123456789abcdef:rmrfrmrfrmrf]"


def test_events_without_a_person_share_a_key(tmp_path: Path) -> None:
    personal = make_personal(tmp_path)
    [encrypted] = personal.encrypt([{"action": "a.b", "source": "t", "attributes": {"email": "x@y.example"}}])
    assert "x@y" not in json.dumps(encrypted)
    assert personal.decrypt(encrypted, secrets_of(personal, "-"))["attributes"]["email"] == "x@y.example"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((("action",), "actor"), "'action' is no field"),
        (((MAIL,), None), "need a person"),
        (((MAIL,), "who"), "'who' is no field"),
        (((), "actor", ("mail",)), "email"),
    ],
)
def test_a_policy_that_cannot_be_is_refused(words: tuple, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Policy(*words)


# Keys


def test_two_processes_create_one_key(tmp_path: Path) -> None:
    one, two = PersonKeys(tmp_path / "subjects"), PersonKeys(tmp_path / "subjects")
    two.get(["ann", "bob"])
    assert one.get(["ann"])["ann"] == two.get(["ann"])["ann"]
    assert one.get(["bob"])["bob"] == two.get(["bob"])["bob"]
    assert len(list(one.list_all())) == 2


def test_a_key_destroyed_by_another_process_is_not_used_again(tmp_path: Path) -> None:
    one, two = PersonKeys(tmp_path / "subjects"), PersonKeys(tmp_path / "subjects")
    first = one.get(["ann"])["ann"]
    with two.destroying("ann", "dpo", "art. 17") as ids:
        assert ids == [first.id]
    second = one.get(["ann"])["ann"]
    assert second.secret
    assert second.id != first.id
    assert [(key.id, bool(key.secret)) for key in two.find("ann")] == [(first.id, False), (second.id, True)]


def test_no_file_of_the_keys_names_a_person(tmp_path: Path) -> None:
    keys = PersonKeys(tmp_path / "subjects")
    secret = keys.get(["qzvjwkxbrt"])["qzvjwkxbrt"].secret
    assert not find_traces(tmp_path, ("qzvjwkxbrt",))
    assert not any("qzvjwkxbrt" in str(path) for path in tmp_path.rglob("*"))
    with keys.destroying("qzvjwkxbrt", "dpo", ""):
        pass
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert base64.b64encode(secret) not in path.read_bytes()


def test_damaged_keys_are_named(tmp_path: Path) -> None:
    keys = PersonKeys(tmp_path / "subjects")
    keys.get(["ann"])
    [record] = (tmp_path / "subjects").glob("??/*.json")
    record.write_text("{")
    with pytest.raises(StoreError, match=re.escape(str(record))):
        keys.find("ann")
    (tmp_path / "subjects" / "secret").unlink()
    with pytest.raises(StoreError, match="secret is missing"):
        PersonKeys(tmp_path / "subjects").get(["bob"])


# A log with personal fields


def test_what_a_watcher_writes_has_no_personal_value_and_erasure_breaks_no_proof(tmp_path: Path, capsys) -> None:
    log = tmp_path / "log"
    Ledger.create(log, origin=ORIGIN).close()
    source = tmp_path.with_name(tmp_path.name + ".jsonl")
    source.write_text(
        "".join(json.dumps(person_event(i, note=f"to {SECRETS[f'p{i % 3}'][0]}")) + "\n" for i in range(150))
    )
    alerts: list[dict] = []
    with Ledger.open(log) as ledger:
        set_policy(ledger, POLICY_OF_MAIL)
        watcher = Watcher(ledger, [jsonl(source)], Settings(64, 5.0), outlets=[alerts.append], encode=encode)
        run_in_thread(watcher.run)
        verifier = ledger.verifier
    everybody = tuple(word for words in SECRETS.values() for word in words)
    assert find_traces(tmp_path, everybody) == []

    with Ledger.open(log) as ledger:
        proof = str(prove(ledger, 4))
    own = export_person(log, "p1", by="dpo")
    assert len(own.events) == 50
    assert json.dumps(own.events).count(SECRETS["p1"][0]) == 100  # the field, and the note
    assert not any(word in json.dumps(own.events) for k in ("p0", "p2") for word in SECRETS[k])

    code, _, _ = run_command(capsys, "audit", "subject", "forget", log, "p1", "--by", "dpo", "--reason", "article 17")
    assert code == 0
    with Ledger.open(log) as ledger:
        with (tmp_path / "e.csv").open("w") as file:
            write_csv(Selection(ledger), file)
        write_parquet(Selection(ledger), tmp_path / "e.parquet")
        actions = [event["action"] for event in ledger.entries()]
        assert [actions.count(action) for action in (POLICY, EXPORT, FORGET)] == [1, 1, 1]
        assert ledger.verify(full=True).ok
        use = count_key_use(ledger, ledger.personal.keys)
        assert [len(use.known), len(use.destroyed), len(use.lost)] == [2, 1, 0]
    back_up(log, tmp_path / "b.tar.gz", keys=True)
    assert find_traces(tmp_path, everybody) == []
    check_proof(proof.encode(), verifier, "the proof")
    after = export_person(log, "p1", by="dpo")
    assert after.erased == 50
    assert after.erasures[0]["reason"] == "article 17"
    assert SECRETS["p1"][0] not in json.dumps(after.events)
    assert len(export_person(log, "p0", by="dpo").events) == 50
    code, out, err = run_command(capsys, "audit", "subject", "export", log, "p1", "--json")
    assert code == 1
    assert "erased" in err
    assert json.loads(out)["erased"] == 50


def test_what_is_appended_is_encrypted_whoever_appends(tmp_path: Path) -> None:
    log = make_log(tmp_path, 3)
    with Ledger.open(log) as ledger:
        ledger.append([person_event(3)])
        with Appender(log) as through_its_socket:
            through_its_socket.append([person_event(4)])
    with Appender(log) as alone:
        alone.append([person_event(5)])
        KeyedAppend(log, alone, "k").append([b"..."], [person_event(6)])
    assert find_traces(tmp_path, tuple(word for words in SECRETS.values() for word in words)) == []
    assert len(export_person(log, "p0", by="x").events) == 3


def test_a_killed_erasure_is_recorded_by_the_next_one(tmp_path: Path) -> None:
    log = make_log(tmp_path, 6)
    keys = PersonKeys(find_ledger(log).persons)
    with pytest.raises(KeyboardInterrupt), keys.destroying("p1", "dpo", "article 17"):
        raise KeyboardInterrupt  # between the destruction and its event
    finish_forgetting(log)
    finish_forgetting(log)
    with Ledger.open(log) as ledger:
        forgotten = [event for event in ledger.entries() if event["action"] == FORGET]
    assert [(event["actor"], event["attributes"]["reason"]) for event in forgotten] == [("dpo", "article 17")]
    with pytest.raises(Unverified, match="erased before"):
        forget_person(log, "p1", by="dpo", reason="")


def test_a_person_who_returns_gets_a_new_key(tmp_path: Path) -> None:
    log = make_log(tmp_path, 6)
    forget_person(log, "p1", by="dpo", reason="")
    with Ledger.open(log) as ledger:
        ledger.append([person_event(7)])
    export = export_person(log, "p1", by="dpo")
    assert export.erased == 2
    assert json.dumps(export.events).count(SECRETS["p1"][0]) == 1


def test_a_lost_key_is_said_and_is_no_erasure(tmp_path: Path) -> None:
    log = make_log(tmp_path, 6)
    back_up(log, tmp_path / "b.tar.gz")
    restore(tmp_path / "b.tar.gz", tmp_path / "back")  # a backup without keys
    (tmp_path / "back.private" / "key").write_bytes((tmp_path / "log.private" / "key").read_bytes())
    (tmp_path / "back.private" / "key").chmod(0o600)
    export = export_person(tmp_path / "back", "p1", by="dpo")
    assert len(export.lost) == 1
    assert (export.erased, export.erasures) == (0, [])
    with Ledger.open(tmp_path / "back") as ledger:
        assert len(count_key_use(ledger, ledger.personal.keys).lost) == 3
        ledger.append([person_event(7)])  # the policy is in the backup
    assert find_traces(tmp_path / "back", SECRETS["p1"]) == []


def test_unknown_persons_and_values_are_refused(tmp_path: Path, capsys) -> None:
    log = make_log(tmp_path, 3)
    with pytest.raises(InputError, match="nothing about the person 'eve'"):
        export_person(log, "eve", by="dpo")
    with pytest.raises(InputError, match="no personal fields of 'eve'"):
        forget_person(log, "eve", by="dpo", reason="")
    with Ledger.open(log) as ledger, pytest.raises(InputError, match="event 1 has a personal value"):
        ledger.append([person_event(0), person_event(1, email={1, 2})])
    code, _, err = run_command(capsys, "audit", "watch", log, "--jsonl", "-", "--subject", "attributes.user")
    assert code == 2
    assert "--personal" in err


# Scoring without the values


def test_templates_and_scores_do_not_depend_on_personal_values(tmp_path: Path) -> None:
    personal = make_personal(tmp_path, Policy(("actor", MAIL), "actor"))
    plain = [{**person_event(i), "actor": f"user-{i % 2}"} for i in range(4)]
    encrypted = personal.encrypt(plain)
    assert {describe_event(event).replace(SECRETS[f"p{i % 3}"][1], "") for i, event in enumerate(encrypted)} == {
        f"account.change email=personal n={i} phone= user=p{i % 3}" for i in range(4)
    }
    detector = Detector(encode)
    detector.score(encrypted, range(4))
    actors = {actor for _, actor in detector._recent.values()}
    assert len(actors) == 2, "one pseudonym per person"
    assert all(re.fullmatch("person-[0-9a-f]{16}", actor) for actor in actors)
