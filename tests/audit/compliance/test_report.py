"""Reports: every row of a span is proved, and the check finds any change without the log."""

from __future__ import annotations

import csv
import json
import random
import re
import shutil

import pytest
from tests.audit.watch.watching import BASE, ODD_RULE, event, jsonl, make, run_command, watch, write_events
from tests.web.hostile import HOSTILE

from ridgeline.audit import Ledger, new_signer
from ridgeline.audit.compliance.check import check_report
from ridgeline.audit.compliance.controls import MAPS, find_controls, find_own_controls
from ridgeline.audit.compliance.report import UNFOLDED, collect, derive_tables, render_files, write
from ridgeline.audit.watch.internal_events import is_internal, make_label_event, read_alerts
from ridgeline.cli.audit_report import _describe_completeness
from ridgeline.errors import InputError
from ridgeline.store import write_manifest


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    log = make(folder / "log")
    write_events(folder / "in", 0, 1_200)
    watch(log, jsonl(folder / "in"), rules=[ODD_RULE])
    with Ledger.open(log) as ledger:
        odd = read_alerts(ledger)[0]["entry"]
        ledger.append([make_label_event(log, odd, "bad", "ann", "disk <b>restored</b>")])
        ledger.append([{"source": "t", "action": "large.one", "attributes": {"x": "y" * 70_000}}])
        words = {"source": "hostile", "action": "user.add", "actor": HOSTILE["script"], "subject": HOSTILE["image"]}
        ledger.append([words])
    return log


@pytest.fixture(scope="module")
def report_folder(log, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "r"
    with Ledger.open(log) as ledger:
        write(collect(ledger, None, None, "soc2"), out)
    return out


@pytest.fixture(scope="module")
def short_report_folder(log, tmp_path_factory):
    """A report of 100 events: its checks take a tenth of the time."""
    out = tmp_path_factory.mktemp("short") / "r"
    with Ledger.open(log) as ledger:
        write(collect(ledger, BASE, BASE + 10**11, "soc2"), out)
    return out


@pytest.fixture
def verifier(log):
    return Ledger.open(log).verifier


def kinds(folder, verifier):
    return [finding.kind for finding in check_report(folder, verifier)[1]]


def change_copy(report_folder, tmp_path, edit):
    """The report with `edit` applied to its data, everything else made to fit."""
    data = json.loads((report_folder / "report.json").read_text())
    data.pop("tables")
    edit(data)
    out = tmp_path / "changed"
    out.mkdir()
    for name, text in render_files(data).items():
        (out / name).write_bytes(text.encode())
    write_manifest(out)
    return out


def outside_row(data):
    """The first row whose event is not internal: the place of the watcher's start event is not fixed."""
    return next(row for row in data["rows"] if not is_internal(json.loads(row["entry"])))


def test_a_report_holds_every_event_of_its_span_and_checks_offline(log, report_folder, verifier):
    report, findings = check_report(report_folder, verifier)
    assert findings == []
    with Ledger.open(log) as ledger:
        assert [row["index"] for row in report["rows"]] == list(range(ledger.size))
    tables = report["tables"]
    assert tables["events"] == 1_202
    assert dict(map(tuple, tables["by_actor"]))["guest"] == 13
    assert tables["alerts"] - tables["alerts_open"] == 1
    assert tables["labels"] == [["bad", 1]]
    assert {row["what"] for row in tables["completeness"]} == {"the watcher started", "the watcher stopped"}
    with (report_folder / "report.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1_202
    assert [r["note"] for r in rows if r["label"]] == ["disk <b>restored</b>"]


def test_a_report_of_a_time_span_includes_later_entries_about_it(log, tmp_path, verifier):
    with Ledger.open(log) as ledger:
        odd = read_alerts(ledger)[0]
        start, end = odd["event"]["time"] - 20 * 10**9, odd["event"]["time"] + 1
        report = collect(ledger, start, end, None)
    write(report, tmp_path / "r")
    assert kinds(tmp_path / "r", verifier) == []
    span = [row for row in report["rows"] if report["first"] <= row["index"] <= report["last"]]
    assert len([row for row in span if not is_internal(json.loads(row["entry"]))]) == 21
    tables = json.loads((tmp_path / "r/report.json").read_text())["tables"]
    assert (tables["events"], tables["alerts"], tables["alerts_open"]) == (21, 1, 0)
    assert "2 later entries refer to them; only the log can show that there are no more" in _describe_completeness(
        report
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_any_change_to_any_file_is_found(report_folder, tmp_path, verifier, seed):
    rng = random.Random(seed)
    out = tmp_path / "r"
    out.mkdir()
    for path in report_folder.iterdir():
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "kind"),
    [
        (lambda d: d["rows"].pop(50), "dropped"),
        (lambda d: d.update(last=10**15), "malformed"),
        (lambda d: d.update(first=-1), "malformed"),
        (lambda d: d["rows"].reverse(), "reordered"),
        (lambda d: (row := outside_row(d)).update(entry=row["entry"].replace("root", "evil")), "altered"),
        (lambda d: d["rows"][5].update(path=d["rows"][6]["path"]), "altered"),
        (lambda d: d["rows"][5].update(path=d["rows"][5]["path"][:-1]), "proof"),
        (lambda d: d["rows"][5].update(index=1), "reordered"),
        (lambda d: d.update(checkpoint=re.sub(r"\n\d+\n", "\n5000\n", d["checkpoint"], count=1)), "bad signature"),
        (lambda d: next(r for r in d["rows"] if "stored" in r)["stored"]["attributes"].update(x="z"), "altered"),
    ],
)
def test_the_check_finds_a_carefully_forged_report(report_folder, tmp_path, verifier, edit, kind):
    findings = kinds(change_copy(report_folder, tmp_path, edit), verifier)
    assert kind in findings


def test_the_manifest_belongs_to_the_report(short_report_folder, tmp_path, verifier):
    out = tmp_path / "r"
    shutil.copytree(short_report_folder, out)
    assert kinds(out, verifier) == []
    manifest = out / "manifest.json"
    text = manifest.read_text()
    for altered in (text.replace('"size": ', '"size": 1'), text + " ", text.replace("report.csv", "report.xyz"), "{"):
        assert altered != text
        manifest.write_text(altered)
        assert kinds(out, verifier) == ["altered"]
    write_manifest(out, {"note": "approved"})
    assert kinds(out, verifier) == ["altered"]
    manifest.unlink()
    assert kinds(out, verifier) == ["missing"]


def test_another_key_never_passes(report_folder):
    assert kinds(report_folder, new_signer("example.test/watched").verifier) != []


def test_the_command_line_writes_and_checks(log, tmp_path, verifier, capsys):
    out = tmp_path / "october"
    span = ("--from", BASE, "--to", BASE + 10**11)
    code, answer, _ = run_command(capsys, "audit", "report", log, *span, "-o", out, "--json")
    summary = json.loads(answer)
    assert (code, summary["events"]) == (0, 100)
    # The watcher's internal events may come before or between the events, so the report tells the indices.
    first, last = summary["first"], summary["last"]
    code, answer, _ = run_command(capsys, "audit", "check-report", out, "--key", verifier)
    assert (code, f"each proved; it has every entry from {first} to {last}." in answer) == (0, True)
    (out / "report.csv").write_text("")
    code, answer, note = run_command(capsys, "audit", "check-report", out)
    assert (code, "report.csv does not follow" in answer, "from the report itself" in note) == (1, True, True)
    for words in (("--control-map", "iso"), ("--to", "1990-01-01")):
        assert run_command(capsys, "audit", "report", log, *words, "-o", tmp_path / "none")[0] == 2
        assert not (tmp_path / "none").exists()
    assert run_command(capsys, "audit", "check-report", tmp_path / "none")[0] == 2


@pytest.mark.parametrize(
    ("name", "control"), [("soc2", "CC4.1"), pytest.param("pci", "10.2.1.6", marks=pytest.mark.slow)]
)
def test_the_watchers_own_start_and_stop_count_for_the_control_that_asks_for_them(log, tmp_path, name, control):
    with Ledger.open(log) as ledger:
        whole = derive_tables(collect(ledger, None, None, name))
        part = derive_tables(collect(ledger, BASE, BASE + 10**12, name))  # the watcher ran at another time
    counts = {row["control"]: row["events"] for row in whole["by_control"]}
    assert counts[control] == 2
    assert [row["what"] for row in whole["completeness"] if control in row["controls"]] == [
        "the watcher started",
        "the watcher stopped",
    ]
    assert {row["control"]: row["events"] for row in part["by_control"]}[control] == 0
    assert whole["events"] == 1_202, "own events are no rows"


def test_the_subject_of_an_own_event_is_no_reason_for_a_control():
    started = {"action": "ridgeline.watch.start", "subject": "lines:/var/log/auth.log sudo firewall", "actor": None}
    assert find_own_controls(started, "pci") == ["10.2.1.6"]
    assert find_own_controls({**started, "action": "foreign.ridgeline.watch.start"}, "pci") == []


def test_controls_sort_by_words_and_maps_are_whole():
    login = {
        "action": "log.line",
        "subject": "sshd",
        "actor": "",
        "attributes": {"message": "Failed password for root"},
    }
    assert find_controls(login, "pci") == ("10.2.1.2", "10.2.1.4", "10.2.1.5")
    assert find_controls(event(0), "soc2") == ("CC7.1",)
    for rows in MAPS.values():
        assert len({control for control, _, _ in rows}) == len(rows)


@pytest.mark.browser
def test_the_page_verifies_its_rows_itself_and_shows_hostile_text_as_text(report_folder, chromium):
    from playwright.sync_api import expect

    page = chromium.new_page()
    trouble = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.goto((report_folder / "report.html").as_uri())
    page.locator("button[data-entry='7']").first.click()
    expect(page.locator("#verdict")).to_contain_text("Entry 7 verified in this browser")
    page.locator("summary").last.click()
    folded = page.locator("details[open] button[data-entry]").first
    folded.click()
    expect(page.locator("#verdict")).to_contain_text(f"Entry {folded.inner_text()} verified in this browser")
    expect(page.locator("#verdict")).to_be_in_viewport()
    expect(page.locator("main")).to_contain_text(HOSTILE["image"])
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("window.pwned") is None
    assert not trouble
    page.close()


def test_the_page_has_every_event_once_and_folds_all_but_the_first(report_folder):
    page = (report_folder / "report.html").read_text()
    events = page[page.index("<h2>Events</h2>") : page.index("</main>")]
    with (report_folder / "report.csv").open(newline="") as file:
        indices = [row["index"] for row in csv.DictReader(file)]
    assert re.findall(r'data-entry="(\d+)"', events) == indices
    in_sight = re.sub(r"<details>.*?</details>", "", events, flags=re.DOTALL)
    assert re.findall(r'data-entry="(\d+)"', in_sight) == indices[:UNFOLDED]
    assert "<summary>1,121 to 1,202 of 1,202</summary>" in events
    assert page.index("<h2>Anomalies</h2>") < page.index("<h2>By actor</h2>") < page.index("<h2>Events</h2>")


@pytest.mark.browser
def test_the_page_fits_a_phone_and_paper_has_every_line(report_folder, chromium):
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    page.goto((report_folder / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollHeight") <= 20_000
    page.locator("summary").last.click()
    assert page.evaluate("document.documentElement.scrollHeight") <= 20_000, "with one part open"
    frames = "[document.documentElement, ...document.querySelectorAll('.table')]"
    assert page.evaluate(f"{frames}.every((frame) => frame.scrollWidth <= Math.max(frame.clientWidth, 1))")
    folds = page.locator("details").count()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("details[open]").count() == folds
    assert page.locator("button[data-entry='7']").first.is_visible(), "paper shows the number of an entry"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("details[open]").count() == 1
    page.close()
