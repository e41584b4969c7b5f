"""`audit search`, `alerts`, `label` on a watched log."""

from __future__ import annotations

import json
import shutil
import stat

import pytest
from tests.audit.watch.watching import ODD_RULE, encode, event, jsonl, make, run_command, watch, write_events

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.cli.audit_options import find_token
from ridgeline.errors import InputError


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asked")
    folder_of_log = make(folder / "log")
    write_events(folder / "in", 0, 1_200)
    watch(folder_of_log, jsonl(folder / "in"), rules=[ODD_RULE])
    return folder_of_log


@pytest.fixture
def ask(monkeypatch, capsys):
    """A command in this process, with an encoder that needs no model: exit code, stdout, stderr."""
    monkeypatch.setattr("ridgeline.audit.watch.meaning.make_encoder", lambda model, device: encode)

    return lambda *words: run_command(capsys, *words)


def test_search_by_meaning_with_conditions_tells_how_far_the_index_is_complete(ask, log):
    code, out, err = ask("audit", "search", log, "disk wipe", "-k", 2, "--json")
    hits = json.loads(out)
    assert (code, err) == (0, "")
    assert [h["action"] for h in hits] == ["disk.wipe"] * 2
    assert hits[0]["entry"] > hits[1]["entry"]
    assert hits[0]["relevance"] > 0.5
    where = "actor == 'root' and attributes.pid < 10"
    rows = json.loads(ask("audit", "search", log, "disk wipe", "--where", where, "--json")[1])
    assert {h["actor"] for h in rows} == {"root"}
    assert json.loads(ask("audit", "search", log, "disk wipe", "--since", "1h", "--json")[1]) == []
    code, out, err = ask("audit", "search", log, "disk wipe")
    assert "disk.wipe" in out
    assert "entries were searched" in err


@pytest.mark.parametrize("words", [("search", "disk wipe"), ("alerts",), ("export", "--json")])
def test_an_empty_condition_is_refused(ask, log, words):
    command, *rest = words
    code, out, err = ask("audit", command, log, *rest, "--where", "")
    assert (code, out, "a condition was expected" in err) == (2, "", True)


def test_a_token_is_never_printed_or_given_on_the_command_line(ask, log, tmp_path, monkeypatch):
    monkeypatch.delenv("RIDGELINE_AUDIT_TOKEN", raising=False)
    code, _, err = ask("audit", "serve", log, "--token", "a-token-of-sixteen-or-more")
    assert (code, "seen by every user" in err, "sixteen" in err) == (2, True, False)
    token, place = find_token(log, None, "serve-token")
    path = LedgerPaths(log).private / "serve-token"
    assert (place, path.read_text().strip(), stat.S_IMODE(path.stat().st_mode)) == (str(path), token, 0o600)
    assert find_token(log, None, "serve-token")[0] == token
    (tmp_path / "mine").write_text("another-token-of-sixteen\n")
    (tmp_path / "mine").chmod(0o644)
    with pytest.raises(InputError, match=r"can be read by others \(mode 0644\)"):
        find_token(log, tmp_path / "mine", "x")
    (tmp_path / "mine").chmod(0o600)
    assert find_token(log, tmp_path / "mine", "x") == ("another-token-of-sixteen", str(tmp_path / "mine"))
    monkeypatch.setenv("RIDGELINE_AUDIT_TOKEN", "token-of-the-environment")
    assert find_token(log, None, "x") == ("token-of-the-environment", "RIDGELINE_AUDIT_TOKEN")


def test_an_index_that_was_deleted_is_made_again(ask, log):
    want = ask("audit", "search", log, "disk wipe", "--json")[1]
    folder = LedgerPaths(log).private / "meaning"
    shutil.rmtree(folder)
    assert ask("audit", "search", log, "disk wipe", "--json")[1] == want
    assert (folder / "state.json").is_file()


def test_a_copy_without_its_private_part_is_searched_with_the_key(ask, log, tmp_path):
    shutil.copytree(log, tmp_path / "copy")
    assert ask("audit", "search", tmp_path / "copy", "disk wipe")[0] == 2
    code, out, _ = ask("audit", "search", tmp_path / "copy", "disk wipe", "--key", Ledger.open(log).verifier, "--json")
    assert (code, json.loads(out)[0]["action"]) == (0, "disk.wipe")
    assert not (tmp_path / "copy.private").exists()


def test_alerts_are_listed_by_score_with_their_labels(ask, log):
    rows = json.loads(ask("audit", "alerts", log, "--json")[1])
    assert rows[0]["event"]["action"] == "firewall.rule.delete"
    entry = rows[0]["entry"]
    code, out, _ = ask("audit", "label", log, entry, "bad", "--by", "ann", "--note", "restored")
    assert (code, f"entry {entry} is bad" in out) == (0, True)
    labelled = json.loads(ask("audit", "alerts", log, "--json")[1])
    assert next(a for a in labelled if a["entry"] == entry)["label"]["note"] == "restored"
    still = json.loads(ask("audit", "alerts", log, "--open", "--json")[1])
    assert entry not in {a["entry"] for a in still}
    code, out, _ = ask("audit", "alerts", log, "-k", 1)
    assert len(out.splitlines()) == 2
    assert "ann" in out
    with Ledger.open(log) as ledger:
        ledger.verify()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("label", "{log}", 5, "fine"), "no verdict 'fine'"),
        (("label", "{log}", 99999, "bad"), "no entry 99999"),
        (("search", "{log}", " "), "is empty"),
        (("search", "{log}", "x", "--where", "nonsense("), "there is no field 'nonsense'"),
        (("search", "{log}", "x", "-k", 0), "k is 0"),
        (("alerts", "{log}", "--since", "soon"), "no time"),
        (("alerts", "{log}.none"), "no ledger"),
    ],
)
def test_mistakes_give_a_sentence(log, words, sentence, monkeypatch, capsys):
    monkeypatch.setattr("ridgeline.audit.watch.meaning.make_encoder", lambda model, device: encode)
    code, _, err = run_command(capsys, "audit", *(str(word).replace("{log}", str(log)) for word in words))
    assert code == 2
    assert sentence in err


def test_what_steers_a_terminal_is_shown_and_not_obeyed(tmp_path, ask):
    log = make(tmp_path / "log")
    with Ledger.open(log) as ledger:
        ledger.append([{**event(i), "subject": "\x1b[31mred\x1b]0;title\x07"} for i in range(3)])
    _, out, _ = ask("audit", "search", log, "unit start")
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_a_log_gets_a_name_if_it_is_given_none(tmp_path, capsys):
    assert run_command(capsys, "audit", "init", tmp_path / "my log")[0] == 0
    assert Ledger.open(tmp_path / "my log").origin.endswith("/my-log")
