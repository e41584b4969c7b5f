"""The page and the API of a log: read-only, hostile events are text, the browser verifies proofs."""

from __future__ import annotations

import base64
import json
import re

import httpx
import pytest
from tests.audit.watch.watching import ODD_RULE, encode, jsonl, make, watch, write_events
from tests.web.hostile import HOSTILE

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.merkle import leaf_hash
from ridgeline.audit.ledger.proof import check_proof
from ridgeline.audit.serve import live as live_module
from ridgeline.audit.serve.http_service import make_service
from ridgeline.audit.serve.live import Live
from ridgeline.audit.watch.internal_events import make_label_event, read_alerts
from ridgeline.web import run_in_background

SAYABLE = {name: text.encode("utf-8", "replace").decode() for name, text in HOSTILE.items()}


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    log = make(folder / "log")
    write_events(folder / "in", 0, 1_200)
    with (folder / "in").open("a") as file:
        for name, text in SAYABLE.items():
            words = {"source": "hostile", "actor": text, "action": "hostile.text", "subject": text}
            file.write(json.dumps({**words, "attributes": {"message": text, text[:50]: name}}) + "\n")
    watch(log, jsonl(folder / "in"), rules=[ODD_RULE])
    with Ledger.open(log) as ledger:
        ledger.append([make_label_event(log, oddest(ledger), "bad", "<b>ann</b>")])
    return log


def oddest(ledger) -> int:
    """An entry that was an alert."""
    return next(alert["entry"] for alert in read_alerts(ledger) if alert["event"]["action"] == "firewall.rule.delete")


@pytest.fixture
def url(log, monkeypatch):
    monkeypatch.setattr("ridgeline.audit.watch.meaning.make_encoder", lambda model, device: encode)
    with Ledger.open(log) as ledger, run_in_background(make_service(Live(ledger, "words"))) as address:
        yield address


def get(url, path, **params):
    return httpx.get(url + path, params=params, timeout=60)


def test_every_path_of_the_description_answers(url, log):
    status = get(url, "/api/status").json()
    with Ledger.open(log) as ledger:
        size, root, verifier, odd = ledger.size, ledger.checkpoint().root, ledger.verifier, oddest(ledger)
    assert (status["size"], status["root"], status["key"]) == (size, root.hex(), str(verifier))
    assert status["alerts"] > 0
    assert status["scored"] >= 1_200
    assert status["backlog"] == 0, "the last entries are events of the watcher and a label, which have no score"
    events = get(url, "/api/events", after=size - 20, k=50).json()
    assert [e["index"] for e in events] == list(range(size - 20, size))
    assert any(e["score"] is not None for e in get(url, "/api/events", k=500).json())
    alerts = get(url, "/api/alerts").json()
    assert next(a for a in alerts if a["entry"] == odd)["label"] == {"verdict": "bad", "by": "<b>ann</b>"}
    answer_rows = get(url, "/api/search", q="disk wipe", k=2, where="source == 't'").json()
    assert [h["event"]["action"] for h in answer_rows["hits"]] == ["disk.wipe"] * 2
    assert answer_rows["complete"] == answer_rows["size"] == size
    one = get(url, "/api/entry", index=odd).json()
    assert leaf_hash(base64.b64decode(one["entry"])).hex() == one["leaf"]
    assert one["event"]["action"] == "firewall.rule.delete"
    assert one["score"] is not None
    carried = get(url, "/api/proof", index=odd).text
    assert check_proof(carried.encode(), verifier, "x").index == odd
    metrics = get(url, "/metrics").text
    assert "ridgeline_audit_entries" in metrics
    assert 'ridgeline_audit_requests_total{path="/api/status",status="200"}' in metrics
    assert set(get(url, "/openapi.json").json()["paths"]) >= {"/api/status", "/api/entry", "/metrics"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/api/entry?index=99999999", "no entry 99999999"),
        ("/api/entry?index=-1", "give 0 to"),
        ("/api/entry", "whole number"),
        ("/api/entry?index=../../key", "whole number"),
        ("/api/events?k=0", "give 1 to"),
        ("/api/search?q=", "is empty"),
        ("/api/search?q=x&where=__import__('os')", "there is no field '__import__'"),
        ("/api/search?q=x&since=soon", "is no time"),
        (f"/api/search?q={'x' * 2001}", "give up to"),
    ],
)
def test_a_mistake_is_answered_by_a_sentence(url, path, message):
    answer = httpx.get(url + path, timeout=60)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_nothing_can_be_written_and_no_path_reaches_the_files(url, log):
    for path in ("/api/status", "/api/events", "/", "/metrics"):
        assert httpx.post(url + path, json={}, timeout=60).status_code == 405
    for path in ("/log.private/key", "/api/../../log.private/key", "/%2e%2e/log.private/key", "/checkpoint"):
        assert httpx.get(url + path, timeout=60).status_code == 404


def test_an_answer_to_others_needs_the_token(log):
    with Ledger.open(log) as ledger, run_in_background(make_service(Live(ledger, "words"), token="t" * 20)) as address:
        assert httpx.get(f"{address}/api/status", timeout=60).status_code == 401
        assert httpx.get(f"{address}/metrics", timeout=60).status_code == 401
        answer = httpx.get(f"{address}/api/status", headers={"authorization": f"Bearer {'t' * 20}"}, timeout=60)
        assert answer.status_code == 200


def test_alerts_are_gathered_a_piece_at_a_time(log, monkeypatch):
    with Ledger.open(log) as ledger:
        want = len(Live(ledger, "words").alerts(500))
        monkeypatch.setattr(live_module, "_STEP", 50)
        live = Live(ledger, "words")
        counts = [live.status()["alerts"] for _ in range(ledger.size // 50 + 1)]
    assert counts[0] < counts[-1] == want


@pytest.mark.browser
def test_a_person_sees_events_searches_and_has_a_proof_verified_by_the_browser(url, chromium):
    from playwright.sync_api import expect

    page = chromium.new_page()
    trouble, requested = [], []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: requested.append(request.url))
    page.goto(url)
    expect(page.locator("#events tr").first).to_be_attached()
    expect(page.locator("#alerts tr").first).to_be_visible()
    expect(page.locator("#size")).not_to_have_text("–")
    expect(page.locator("#alerts")).to_contain_text("<b>ann</b>")
    page.fill("#query", "disk wipe")
    page.click("#search button")
    expect(page.locator("#hits tr").first).to_contain_text("disk.wipe")
    page.locator("#hits tr button").first.click()
    expect(page.locator("#verdict")).to_have_text(re.compile("Verified in this browser|signature not checked"))
    expect(page.locator("#steps")).to_contain_text("hashes lead to the root")
    expect(page.locator("#event")).to_contain_text('"disk.wipe"')
    page.fill("#where", "1 +")
    page.click("#search button")
    expect(page.locator("#error")).to_contain_text("was expected here")
    assert not trouble
    assert all(address.startswith((url, "data:")) for address in requested)
    page.close()


@pytest.mark.browser
def test_hostile_events_are_shown_as_text(url, chromium):
    from playwright.sync_api import expect

    page = chromium.new_page()
    trouble = []
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("dialog", lambda dialog: trouble.append(dialog.message))
    page.goto(url)
    page.fill("#query", "hostile text")
    page.fill("#where", "source == 'hostile'")
    page.click("#search button")
    expect(page.locator("#hits tr")).to_have_count(12)
    page.locator("#hits tr button").first.click()
    expect(page.locator("#verdict")).not_to_have_text("verifying …")
    expect(page.locator("#events")).to_contain_text("<script>window.pwned = 1</script>")
    assert page.locator("#events script, #hits img, #hits svg, #alerts script").count() == 0
    assert page.evaluate("window.pwned") is None
    assert not trouble
    page.close()


@pytest.mark.browser
def test_a_proof_that_was_tampered_with_is_not_verified(url, chromium):
    from playwright.sync_api import expect

    def tamper(route):
        entry = route.fetch().json()
        if "index=5" in route.request.url:
            entry["entry"] = base64.b64encode(base64.b64decode(entry["entry"]).replace(b"root", b"evil")).decode()
        elif "index=6" in route.request.url:
            entry["checkpoint"] = entry["checkpoint"].replace("example.test", "example.evil")
        else:
            entry["path"] = entry["path"][:-1]
        route.fulfill(json=entry)

    page = chromium.new_page()
    page.route("**/api/entry*", tamper)
    page.goto(url)
    page.fill("#query", "unit start web")
    for index, why in ((5, "does not lead to the signed root"), (6, "has not signed"), (7, "too short")):
        page.fill("#where", f"index == {index}")
        page.click("#search button")
        button = page.locator("#hits").get_by_role("button", name=f"Show and verify entry {index}")
        button.click()
        expect(page.locator("#verdict")).to_contain_text(why)
        expect(page.locator("#verdict")).to_have_class("bad")
    page.close()
