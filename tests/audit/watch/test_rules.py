"""Rules raise an alert whatever the score is; each alert names what fired."""

from __future__ import annotations

import json

import pytest
from tests.audit.watch.watching import BASE, event, jsonl, make, run_command, watch, write_events

from ridgeline.audit import Ledger
from ridgeline.audit.watch import make_rule, read_rules
from ridgeline.audit.watch.internal_events import read_alerts
from ridgeline.errors import InputError, PointedError

FIREWALL = make_rule("action == 'firewall.disable'", "high", "the firewall is off")
GUEST = make_rule("actor == 'guest' and index >= 0", "low")


@pytest.fixture
def log(tmp_path):
    return make(tmp_path / "log")


def odd(i: int, action: str = "firewall.disable") -> dict:
    return {"time": BASE + i * 10**9, "source": "t", "actor": "root", "action": action, "subject": "fw"}


def write_odd(path, *indices):
    with path.open("a") as file:
        file.writelines(json.dumps(odd(i)) + "\n" for i in indices)


def alerts(log):
    with Ledger.open(log) as ledger:
        return {alert["event"]["time"] - BASE: alert for alert in read_alerts(ledger)}


@pytest.mark.parametrize("score", [True, False])
def test_a_rule_alerts_beside_the_score_and_the_alert_names_it(log, tmp_path, score):
    write_events(tmp_path / "in", 0, 90)
    write_odd(tmp_path / "in", 1_000, 1_001)
    sent = []
    done = watch(log, jsonl(tmp_path / "in"), rules=[FIREWALL, GUEST], outlets=[sent.append], score=score)
    both = [alerts(log)[i * 10**9] for i in (1_000, 1_001)]
    for alert in both:
        assert (alert["severity"], alert["fired"][0]) == ("high", "the firewall is off")
        assert alert["reason"].startswith("rule 'the firewall is off' (high)")
        assert (alert["score"] is not None) == score
    assert done.alerts == len(sent) == len(alerts(log))
    assert {alert["entry"] for alert in both} <= {alert["entry"] for alert in sent}


def test_the_worst_rule_decides_the_severity_and_alerts_are_sorted_by_it(log, tmp_path):
    write_odd(tmp_path / "in", 1, 2)
    rules = [make_rule("action.startswith('firewall')", "low"), make_rule(f"time == {BASE + 2 * 10**9}", "critical")]
    watch(log, jsonl(tmp_path / "in"), rules=rules, score=False)
    with Ledger.open(log) as ledger:
        first, second = read_alerts(ledger)
    assert (first["severity"], len(first["fired"])) == ("critical", 2)
    assert (second["severity"], second["fired"]) == ("low", ["action.startswith('firewall')"])


@pytest.mark.parametrize("score", [True, False])
def test_a_watcher_started_again_repeats_no_alert_and_misses_none(log, tmp_path, score):
    for k in range(3):
        write_odd(tmp_path / "in", 10 + k)
        watch(log, jsonl(tmp_path / "in"), rules=[FIREWALL], score=score)
        with Ledger.open(log) as ledger:
            ledger.append([odd(20 + k)])  # while no watcher runs
    watch(log, jsonl(tmp_path / "in"), rules=[FIREWALL], score=score)
    with Ledger.open(log) as ledger:
        times = [alert["event"]["time"] - BASE for alert in read_alerts(ledger)]
    assert sorted(times) == [i * 10**9 for i in (10, 11, 12, 20, 21, 22)]


def test_alerts_of_a_killed_watcher_that_records_only_are_not_repeated(log, tmp_path):
    write_odd(tmp_path / "in", 1, 2, 3)
    watch(log, jsonl(tmp_path / "in"), rules=[FIREWALL], score=False)
    checked = log.with_name("log.private") / "watch" / "checked.json"
    checked.write_text(json.dumps({**json.loads(checked.read_text()), "position": 0}))  # as if it had not been saved
    write_odd(tmp_path / "in", 4)
    watch(log, jsonl(tmp_path / "in"), rules=[FIREWALL], score=False)
    with Ledger.open(log) as ledger:
        assert sorted(a["event"]["time"] - BASE for a in read_alerts(ledger)) == [i * 10**9 for i in (1, 2, 3, 4)]


def test_a_file_of_rules_is_read(tmp_path):
    (tmp_path / "r.toml").write_text(
        "[[rule]]\nname = 'a'\nwhere = \"actor not in ('deploy')\"\nseverity = 'critical'\n"
        "[[rule]]\nwhere = 'attributes.n > 2'\n"
    )
    first, second = read_rules(tmp_path / "r.toml")
    assert (first.name, first.severity, second.name, second.severity) == ("a", "critical", "attributes.n > 2", "medium")
    assert first.matches({"actor": "eve"})
    assert not second.matches({"attributes": {"n": "x"}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[[rule]\n", "is no TOML"),
        ("", "has no rules"),
        ("rule = 3", "has no rules"),
        ("[[rule]]\nname = 'x'", "rule 1 of .* has no condition"),
        ("[[rule]]\nwhere = ''", "rule 1 of .*: where is ''"),
        ("[[rule]]\nwhere = 'action > 1'\n[[rule]]\nwhere = 'nonsense == 1'", "rule 2 of .*: .*no field 'nonsense'"),
        ("[[rule]]\nwhere = 'action > 1'\nseverity = 'hihg'", "rule 1 of .*: .*hihg"),
        ("[[rule]]\nwhere = 'action > 1'\nlevel = 'high'", "unknown name 'level'"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_its_rule(tmp_path, text, sentence):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(InputError, match=sentence):
        read_rules(tmp_path / "r.toml")


def test_a_condition_that_cannot_be_read_has_a_caret_and_nothing_is_recorded(log, tmp_path, capsys):
    write_odd(tmp_path / "in", 1)
    with pytest.raises(PointedError):
        make_rule("action >> 3")
    base = ("audit", "watch", log, "--jsonl", tmp_path / "in", "--no-follow", "--no-score", "-q")
    for words, part in (
        (("--rule", "action >> 3"), "^"),
        (("--severity", "high"), "--severity needs a rule"),
        (("--rule", "action == 'a'", "--severity", "huge"), "huge"),
        (("--rule", "action == 'a'", "--severity", "low", "--severity", "high"), "one for all, or one for each"),
        (("--rules", tmp_path / "none.toml"), "none.toml"),
        (("--rule", ""), "condition was expected"),
    ):
        code, _, err = run_command(capsys, *base, *words)
        assert (code, part in err) == (2, True), err
    with Ledger.open(log) as ledger:
        assert ledger.size == 0
    code, out, _ = run_command(capsys, *base, "--rule", "action == 'firewall.disable'", "--severity", "high")
    assert (code, out.startswith("alert: entry 0, high: firewall.disable fw by root")) == (0, True)
    code, out, _ = run_command(capsys, "audit", "alerts", log, "--json")
    assert [(a["severity"], a["fired"]) for a in json.loads(out)] == [("high", ["action == 'firewall.disable'"])]


def test_events_that_the_watcher_writes_match_no_rule(log, tmp_path):
    write_events(tmp_path / "in", 0, 3)
    watch(log, jsonl(tmp_path / "in"), rules=[make_rule("source == 'ridgeline.watch'")], score=False)
    assert event(0)["action"]
    assert alerts(log) == {}
