"""The report: drawn by a real browser, from made-up and from real records, hostile names included.

python -m pytest tests/lab/test_report.py
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.axe import faults
from tests.lab import made
from tests.lab.made import HOSTILE, everything, on_another, race, sweep

from ridgeline.errors import InputError
from ridgeline.lab.record import record as records
from ridgeline.lab.report import report
from ridgeline.workloads.charts import pictures

REAL = Path(__file__).parents[2] / "benchmarks" / "records"
DRAWN = """() => [...document.querySelectorAll("figure.chart > svg")].filter((s) => s.checkVisibility())
    .map((s) => s.getBoundingClientRect()).map((b) => [b.width, b.height])"""
SMALLEST = """() => { const scale = (svg) => svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    return Math.min(...[...document.querySelectorAll("figure.chart > svg text, p, td, th, li, a")]
        .filter((t) => t.checkVisibility() && t.textContent.trim())
        .map((t) => parseFloat(getComputedStyle(t).fontSize) * scale(t.ownerSVGElement))) }"""
LOST = """() => [...document.querySelectorAll("a[href]")].map((a) => a.getAttribute("href"))
    .filter((h) => !h.startsWith("#") || !document.getElementById(h.slice(1)))"""
TWICE = """() => { const ids = [...document.querySelectorAll("[id]:not(marker)")].map((e) => e.id);
    return ids.filter((id, n) => ids.indexOf(id) !== n) }"""


def real():
    """All records of this repository that a report can show."""
    found = []
    for file in sorted(REAL.glob("*.jsonl")):
        try:
            found += records.read(file).records
        except InputError:
            continue
    return found


@pytest.fixture(scope="module")
def documents():
    """Built once: made-up records of everything, and the real ones."""
    return {"made": report.build(everything(), pictures=pictures), "real": report.build(real(), pictures=pictures)}


@pytest.fixture
def opened(chromium):
    """Opens a page in a browser; nothing may go wrong in it, and nothing be fetched."""
    trouble: list[str] = []
    contexts = []

    def go(document: str, width: int = 1200, scheme: str = "light"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: trouble.append(str(error)))
        tab.on("dialog", lambda dialog: (trouble.append("dialog"), dialog.dismiss()))
        tab.on("request", lambda request: None if request.url.startswith("about:") else trouble.append(request.url))
        tab.set_content(document)
        return tab

    yield go
    for context in contexts:
        context.close()
    assert trouble == []


BROWSER = [pytest.mark.browser, pytest.mark.xdist_group("browser")]


def browser(test):
    for mark in BROWSER:
        test = mark(test)
    return test


@browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("which", ["made", "real"])
def test_the_page_draws_fits_leads_somewhere_and_keeps_nobody_out(documents, opened, which, width, scheme):
    tab = opened(documents[which], width, scheme)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
    drawn = tab.evaluate(DRAWN)
    assert len(drawn) >= 12, "shares, peers, rooflines, sweeps"
    assert all(w > 150 and h > 40 for w, h in drawn)
    assert tab.evaluate(SMALLEST) >= 8.5, "text that can be read"
    assert tab.evaluate(LOST) == []
    assert tab.evaluate(TWICE) == []
    if which == "made" or (width, scheme) == (400, "dark"):  # the real page is long, and takes axe long
        assert faults(tab) == []


@browser
def test_hostile_names_are_shown_and_do_nothing(documents, opened):
    tab = opened(documents["made"])
    assert tab.locator(f"td:has-text({HOSTILE!r})").count() > 0
    assert tab.evaluate("() => document.querySelectorAll('img').length") == 0


@browser
def test_the_first_screen_holds_the_machine_and_the_findings(documents, opened):
    tab = opened(documents["real"], 1600)
    assert tab.locator("figure.machine").first.bounding_box()["y"] < 400
    assert tab.locator(".finding").first.bounding_box()["y"] < 900
    said = tab.locator(".finding .said").all_text_contents()
    assert len(said) > 8
    assert any(sentence.startswith("embed reaches") for sentence in said)


@browser
def test_a_finding_leads_to_its_record_and_command(documents, opened):
    tab = opened(documents["made"])
    tab.locator(".finding .source a").first.click()
    row = tab.locator("tr:target")
    assert row.count() == 1
    assert "run <img" in row.text_content()


@browser
def test_the_record_behind_a_time_is_shown_whole_wherever_the_time_stands(documents, opened):
    tab = opened(documents["made"])
    last = tab.locator("table.races td [data-tip]").last
    last.hover()
    tip = tab.locator(".chart-tip")
    assert tip.text_content() == last.get_attribute("data-tip")
    box = tip.bounding_box()
    assert box["width"] > 0
    assert box["y"] + box["height"] <= 900


@browser
def test_paper_is_light_and_wide_enough_for_the_page(documents, opened):
    tab = opened(documents["made"], 800, "dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.locator(".contents").first.is_hidden(), "links lead nowhere on paper"
    for width in (680, 1000):  # A4 upright and across
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
    assert tab.pdf(format="A4").startswith(b"%PDF")


def test_every_part_is_there_where_the_records_support_it(documents):
    page = documents["made"]
    for words in (
        "How near each path is to its ceiling", "The best peer's time ÷ ours", "Roofline of cpu", "rate over batch",
        "rate against recall", "strong scaling", "PREDICTED", "Our rate from each NUMA node", "hf-aws-h200-x1",
        "Some batches from the middle of the run", "limited by tokenize (70 % of a step)", "batch = 1024",
        "dtype = bfloat16", "node 0", "kinds of machine", "Penalty of a far node: the whole pipeline",
        "Most sensitive: small on GPU 0",
    ):  # fmt: skip
        assert words in html.unescape(page), words


def test_nothing_is_shown_where_no_record_supports_it():
    page = report.build([race("alone", {"n": 8}, 1e3, {})])
    for words in ("PREDICTED", "NUMA", "hf-aws", "rate over", "rate against", "Some batches", "kinds of machine"):
        assert words not in page, words
    assert "Nothing that was measured supports a change." in page


def test_a_schedule_is_drawn_where_the_record_says_which_was_taken():
    one = race("allreduce", {"bytes": 1024, "ranks": 4}, 1e3, {"gloo": 2e3})
    took = replace(one, contenders=(replace(one.contenders[0], settings={"schedule": "ring"}), one.contenders[1]))
    drawn = report.build([took, replace(took, id="e" * 32, case={**took.case, "bytes": 2048})], pictures=pictures)
    assert drawn.count("all_reduce by ring, 4 ranks: who sends") == 1, "once for all sizes"
    assert ">rank 3</text>" in drawn
    for settings, case in (({}, one.case), ({"schedule": "gone"}, one.case), ({"schedule": "ring"}, {"ranks": 99})):
        lanes = (replace(one.contenders[0], settings=settings), one.contenders[1])
        assert not list(pictures(replace(one, contenders=lanes, case={**one.case, **case})))
    assert not list(pictures(race("made", {"ranks": 4}, 1e3, {})))


def test_cases_rise_whatever_order_the_files_came_in():
    own = sweep()
    page = report.build([own[2], own[0], own[3], own[1]])
    races = page[page.index('<table class="races">') :]
    labels = [races.index(f">{r.label}</a></th>") for r in own]
    assert labels == sorted(labels)


def test_each_number_names_its_record_and_its_command():
    own = sweep()
    page = report.build(own)
    assert all(r.id[:12] in page for r in own)
    assert "run &lt;img" in page
    assert "per turn (median)" in page, "the lab's own overhead is shown"
    assert "ridgeline[peers]" in page


def test_a_wrong_output_shows_no_time(record):
    page = report.build([record({"ridgeline": [123456.0] * 12}, checks={"ridgeline": {"ok": False, "error": 2.0}})])
    assert "WRONG" in page
    body = page[page.index("<main>") :]
    assert "123" not in re.sub(r"record\W+[0-9a-f]+|<code>[0-9a-f]+", "", body)


def test_machines_are_told_apart():
    one = race("made", {"n": 8}, 1e3, {})
    page = report.build([one, on_another(one)])
    assert page.count("How it was measured") == 2
    assert "Another CPU" in page
    assert "Records of 2 kinds of machine: each has a chapter of its own, none is compared with another." in page


def test_the_page_needs_nothing_from_outside(documents):
    for page in documents.values():
        assert 'src="http' not in page
        assert 'href="http' not in page


@pytest.mark.parametrize(("kinds", "lost"), [(25, "raw samples"), (50, "charts")])
def test_a_page_of_very_many_records_stays_below_four_megabytes_and_says_what_it_leaves_out(kinds, lost):
    many = [
        race("made", {"n": 2**k, "kind": f"kind {kind}"}, 2.0**k, {"peer": 2.1**k, "other": 2.2**k, "third": 3.0**k})
        for k in range(1, 15)
        for kind in range(kinds)
    ]
    page = report.build(many)
    assert len(page.encode()) < 4_000_000
    assert re.search(rf"\d+ {lost} would make this page heavy", page)
    assert all(r.id[:12] in page for r in many)


def test_markdown_and_json_say_the_same_as_the_page(tmp_path):
    page = report.write(everything(), tmp_path, refused=["a file of another schema"]).read_text()
    text = (tmp_path / "report.md").read_text()
    told = json.loads((tmp_path / "report.json").read_text())
    assert told["mixed_machines"] is True
    assert told["refused"] == ["a file of another schema"]
    assert "left out: a file of another schema" in text
    assert len(told["machines"]) == 2
    cases = 0
    for machine in told["machines"]:
        assert machine["paths"]
        for path in machine["paths"]:
            assert path["sentence"] in text.replace("\\", "")
            assert path["record"][:12] in text
            assert path["record"][:12] in page
            assert path["command"]
        cases += len(machine["cases"])
    assert cases == len(everything())
    (law,) = {name for m in told["machines"] for s in m["scaling"] for name in s["laws"]} - {"usl"}
    assert law == "amdahl"
    assert all(p["predicted"] for m in told["machines"] for s in m["scaling"] for p in s["laws"]["amdahl"]["at"])
    assert told["machines"][1]["cost"][0]["price"] == "hf-aws-h200-x1"
    assert "PREDICTED" in text


def test_sweeps_from_several_nodes_are_lines_of_their_own():
    page = report.build(made.studied())
    for name in ("small", "large"):
        for node in (0, 1):
            assert f"ridgeline {name} node {node}" in page


def test_markdown_keeps_hostile_names_harmless():
    from ridgeline.lab.report.report import chapters
    from ridgeline.lab.report.text import markdown

    text = markdown(chapters(sweep()))
    rows = [line for line in text.splitlines() if line.startswith("| made")]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (10, 11) for row in rows), "no cell more"
    assert not re.search(r"(?<!\\)<img", text.split("### Commands")[0])


def test_nothing_to_report_on_is_one_sentence():
    with pytest.raises(InputError, match="no record to report on"):
        report.build([])


def test_a_broken_price_book_costs_the_dollars_and_not_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.toml").write_text("[price.mine]\nnonsense = 1\n")
    page = report.build([made.on_gpu(race("made", {"n": 8}, 1e3, {}))])
    assert "Costs are left out: " in page
    assert "prices.toml" in page
