"""Reports: all of a span, each row proved; whoever changes anything, anywhere, is found out, without the log."""

from __future__ import annotations

import csv
import json
import random
import re

import pytest
from tests.audit.watch.watching import BASE, event, jsonl, make, told, watch, write_events
from tests.web.hostile import HOSTILE

from ridgeline.audit import Ledger, new_signer
from ridgeline.audit.compliance.check import check_report
from ridgeline.audit.compliance.collection import collect
from ridgeline.audit.compliance.controls import MAPS, controls_of
from ridgeline.audit.compliance.report_files import files, write
from ridgeline.audit.watch.alerts import label_event, read_alerts
from ridgeline.cli.audit_report import _whole
from ridgeline.errors import InputError


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    log = make(folder / "log")
    write_events(folder / "in", 0, 1_200)
    watch(log, jsonl(folder / "in"))
    with Ledger.open(log) as ledger:
        odd = read_alerts(ledger)[0]["entry"]
        ledger.append([label_event(log, odd, "bad", "ann", "disk <b>restored</b>")])
        ledger.append([{"source": "t", "action": "large.one", "attributes": {"x": "y" * 70_000}}])
        words = {"source": "hostile", "action": "user.add", "actor": HOSTILE["script"], "subject": HOSTILE["image"]}
        ledger.append([words])
    return log


@pytest.fixture(scope="module")
def made(log, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "r"
    with Ledger.open(log) as ledger:
        write(collect(ledger, None, None, "soc2"), out)
    return out


@pytest.fixture
def verifier(log):
    return Ledger.open(log).verifier


def kinds(folder, verifier):
    return [finding.kind for finding in check_report(folder, verifier)[1]]


def changed(made, tmp_path, edit):
    """The report with `edit` applied to its data, everything else made to fit."""
    data = json.loads((made / "report.json").read_text())
    data.pop("tables")
    edit(data)
    out = tmp_path / "changed"
    out.mkdir()
    for name, text in files(data).items():
        (out / name).write_bytes(text.encode())
    return out


def test_a_report_holds_every_event_of_its_span_and_checks_offline(log, made, verifier):
    report, findings = check_report(made, verifier)
    assert findings == []
    with Ledger.open(log) as ledger:
        assert [row["index"] for row in report["rows"]] == list(range(ledger.size))
    tables = report["tables"]
    assert tables["events"] == 1_202
    assert dict(map(tuple, tables["by_actor"]))["guest"] == 13
    assert tables["alerts"] - tables["alerts_open"] == 1
    assert tables["labels"] == [["bad", 1]]
    assert {row["what"] for row in tables["completeness"]} == {"the watcher started", "the watcher stopped"}
    with (made / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1_202
    assert [r["note"] for r in rows if r["label"]] == ["disk <b>restored</b>"]


def test_a_span_of_time_is_reported_with_what_was_said_of_it_later(log, tmp_path, verifier):
    with Ledger.open(log) as ledger:
        odd = read_alerts(ledger)[0]
        start, end = odd["event"]["time"] - 20 * 10**9, odd["event"]["time"] + 1
        report = collect(ledger, start, end, None)
    write(report, tmp_path / "r")
    assert kinds(tmp_path / "r", verifier) == []
    assert len([row for row in report["rows"] if report["first"] <= row["index"] <= report["last"]]) == 21
    tables = json.loads((tmp_path / "r/report.json").read_text())["tables"]
    assert (tables["events"], tables["alerts"], tables["alerts_open"]) == (21, 1, 0)
    assert "2 later ones speak of them; that there are no more only the log can show" in _whole(report)


@pytest.mark.parametrize("seed", range(8))
def test_any_change_to_any_file_is_found(made, tmp_path, verifier, seed):
    rng = random.Random(seed)
    out = tmp_path / "r"
    out.mkdir()
    for path in made.iterdir():
        (out / path.name).write_bytes(path.read_bytes())
    victim = rng.choice(["report.html", "report.csv", "report.json"])
    data = bytearray((out / victim).read_bytes())
    at = rng.choice([i for i, b in enumerate(data) if chr(b).isalnum()])
    data[at] = ord("x") if data[at] != ord("x") else ord("y")
    (out / victim).write_bytes(data)
    try:
        assert kinds(out, verifier)
    except InputError:
        assert victim == "report.json"


@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (lambda d: d["rows"].pop(50), "dropped"),
        (lambda d: d.update(last=10**15), "malformed"),
        (lambda d: d.update(first=-1), "malformed"),
        (lambda d: d["rows"].reverse(), "reordered"),
        (lambda d: d["rows"][5].update(entry=d["rows"][5]["entry"].replace("root", "evil")), "altered"),
        (lambda d: d["rows"][5].update(path=d["rows"][6]["path"]), "altered"),
        (lambda d: d["rows"][5].update(path=d["rows"][5]["path"][:-1]), "proof"),
        (lambda d: d["rows"][5].update(index=1), "reordered"),
        (lambda d: d.update(checkpoint=re.sub(r"\n\d+\n", "\n5000\n", d["checkpoint"], count=1)), "bad signature"),
        (lambda d: next(r for r in d["rows"] if "stored" in r)["stored"]["attributes"].update(x="z"), "altered"),
    ],
)
def test_a_report_forged_with_care_is_found_out_too(made, tmp_path, verifier, edit, kind):
    found = kinds(changed(made, tmp_path, edit), verifier)
    assert kind in found


def test_another_key_never_passes(made):
    assert kinds(made, new_signer("example.test/watched").verifier) != []


def test_the_command_line_writes_and_checks(log, tmp_path, verifier, capsys):
    out = tmp_path / "october"
    span = ("--from", BASE, "--to", BASE + 10**11)
    code, answer, _ = told(capsys, "audit", "report", log, *span, "-o", out, "--json")
    assert (code, json.loads(answer)["events"]) == (0, 100)
    code, answer, _ = told(capsys, "audit", "check-report", out, "--key", verifier)
    assert (code, "each proved; none of 0 to 99 is left out." in answer) == (0, True)
    (out / "report.csv").write_text("")
    code, answer, note = told(capsys, "audit", "check-report", out)
    assert (code, "report.csv is not" in answer, "own word" in note) == (1, True, True)
    for words in (("--control-map", "iso"), ("--to", "1990-01-01")):
        assert told(capsys, "audit", "report", log, *words, "-o", tmp_path / "none")[0] == 2
        assert not (tmp_path / "none").exists()
    assert told(capsys, "audit", "check-report", tmp_path / "none")[0] == 2


def test_controls_sort_by_words_and_maps_are_whole():
    login = {
        "action": "log.line",
        "subject": "sshd",
        "actor": "",
        "attributes": {"message": "Failed password for root"},
    }
    assert controls_of(login, "pci") == ("10.2.1.2", "10.2.1.4", "10.2.1.5")
    assert controls_of(event(0), "soc2") == ("CC7.1",)
    for rows in MAPS.values():
        assert len({control for control, _, _ in rows}) == len(rows)


@pytest.mark.browser
def test_the_page_verifies_its_rows_itself_and_shows_hostile_text_as_text(made, chromium):
    from playwright.sync_api import expect

    page = chromium.new_page()
    trouble = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto((made / "report.html").as_uri())
    page.locator("button[data-entry='7']").first.click()
    expect(page.locator("#verdict")).to_contain_text("Entry 7 verified in this browser")
    expect(page.locator("main")).to_contain_text(HOSTILE["image"])
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.pwned") is None
    assert not trouble
    page.close()
