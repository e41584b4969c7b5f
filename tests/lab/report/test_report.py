"""The report in a real browser, from artificial and from real records, with hostile names.

python -m pytest tests/lab/report/test_report.py
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.axe import faults
from tests.lab.sample_records import (
    HOSTILE,
    make_all,
    make_experiment,
    make_race,
    make_sweep,
    move_to_another_machine,
    move_to_gpu,
)

from ridgeline.errors import InputError
from ridgeline.lab.judge import summarise_paths
from ridgeline.lab.record import read_records
from ridgeline.lab.report import build_report, figures, write_report
from ridgeline.workloads.charts import draw_pictures

REAL = Path(__file__).parents[3] / "benchmarks" / "records"
DRAWN = """() => [...document.querySelectorAll("figure.chart > svg")].filter((s) => s.checkVisibility())
    .map((s) => s.getBoundingClientRect()).map((b) => [b.width, b.height])"""
SMALLEST = """() => { const scale = (svg) => svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    return Math.min(...[...document.querySelectorAll("figure.chart > svg text, p, td, th, li, a")]
        .filter((t) => t.checkVisibility() && t.textContent.trim())
        .map((t) => parseFloat(getComputedStyle(t).fontSize) * scale(t.ownerSVGElement))) }"""
BROKEN_LINKS = """() => [...document.querySelectorAll("a[href]")].map((a) => a.getAttribute("href"))
    .filter((h) => !h.startsWith("#") || !document.getElementById(h.slice(1)))"""
DUPLICATE_IDS = """() => { const ids = [...document.querySelectorAll("[id]:not(marker)")].map((e) => e.id);
    return ids.filter((id, n) => ids.indexOf(id) !== n) }"""


def load_real_records():
    """Load all records of this repository that a report can show."""
    records = []
    for file in sorted(REAL.glob("*.jsonl")):
        try:
            records += read_records(file).records
        except InputError:
            continue
    return records


@pytest.fixture(scope="module")
def documents():
    """Build both pages once: from artificial and from real records."""
    return {
        "made": build_report(make_all(), draw_pictures=draw_pictures),
        "real": build_report(load_real_records(), draw_pictures=draw_pictures),
    }


@pytest.fixture
def open_page(chromium):
    """Open a page in a browser; an error, a message or a request fails the test."""
    problems: list[str] = []
    contexts = []

    def open_document(document: str, width: int = 1200, scheme: str = "light"):
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: problems.append(f"{message.type}: {message.text}"))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: (problems.append("dialog"), dialog.dismiss()))
        tab.on("request", lambda request: None if request.url.startswith("about:") else problems.append(request.url))
        tab.set_content(document)
        return tab

    yield open_document
    for context in contexts:
        context.close()
    assert problems == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1600])
@pytest.mark.parametrize("which", ["made", "real"])
def test_the_page_is_drawn_fits_has_no_broken_link_and_is_accessible(documents, open_page, which, width, scheme):
    tab = open_page(documents[which], width, scheme)
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= width, "nothing to scroll sideways"
    drawn = tab.evaluate(DRAWN)
    assert len(drawn) >= 12, "shares, peers, rooflines, sweeps"
    assert all(w > 150 and h > 40 for w, h in drawn)
    assert tab.evaluate(SMALLEST) >= 8.5, "readable text"
    assert tab.evaluate(BROKEN_LINKS) == []
    assert tab.evaluate(DUPLICATE_IDS) == []
    if which == "made" or (width, scheme) == (400, "dark"):  # the real page is long, and takes axe long
        assert faults(tab) == []


@pytest.mark.browser
def test_hostile_names_are_shown_and_harmless(documents, open_page):
    tab = open_page(documents["made"])
    assert tab.locator(f"td:has-text({HOSTILE!r})").count() > 0
    assert tab.evaluate("() => document.querySelectorAll('img').length") == 0


@pytest.mark.browser
def test_the_first_screen_holds_the_machine_and_the_findings(documents, open_page):
    tab = open_page(documents["real"], 1600)
    assert tab.locator("figure.machine").first.bounding_box()["y"] < 400
    assert tab.locator(".finding").first.bounding_box()["y"] < 900
    sentences = tab.locator(".finding .sentence").all_text_contents()
    assert len(sentences) > 8
    assert any(sentence.startswith("embed reaches") for sentence in sentences)


@pytest.mark.browser
def test_a_finding_links_to_its_record_and_command(documents, open_page):
    tab = open_page(documents["made"])
    finding = tab.locator(".finding", has=tab.locator(".sentence", has_text="nearest")).first
    finding.locator(".source a").first.click()
    row = tab.locator("tr:target")
    assert row.count() == 1
    assert row.text_content().endswith("ridgeline bench nearest")


@pytest.mark.browser
def test_the_tooltip_of_a_time_is_fully_visible(documents, open_page):
    tab = open_page(documents["made"])
    last = tab.locator("table.races td [data-tip]").last
    last.hover()
    tip = tab.locator(".chart-tip")
    assert tip.text_content() == last.get_attribute("data-tip")
    box = tip.bounding_box()
    assert box["width"] > 0
    assert box["y"] + box["height"] <= 900


@pytest.mark.browser
def test_the_printed_page_is_light_and_fits_the_paper(documents, open_page):
    tab = open_page(documents["made"], 800, "dark")
    tab.emulate_media(media="print", color_scheme="dark")
    assert tab.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.locator(".contents").first.is_hidden(), "links have no use on paper"
    for width in (680, 1000):  # A4 portrait and landscape
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("() => document.documentElement.scrollWidth") <= width
    assert tab.pdf(format="A4").startswith(b"%PDF")


def test_every_part_is_shown_if_the_records_support_it(documents):
    page = documents["made"]
    for words in (
        "How close each path is to its ceiling", "The best peer's time ÷ ours", "Roofline of cpu", "rate over batch",
        "rate against recall", "strong scaling", "PREDICTED", "Our rate from each NUMA node", "hf-aws-h200-x1",
        "Some batches from the middle of the run", "limited by tokenize (70 % of a step)", "batch = 1024",
        "dtype = bfloat16", "node 0", "kinds of machine", "Penalty of a far node: the whole pipeline",
        "Most sensitive: small on GPU 0",
    ):  # fmt: skip
        assert words in html.unescape(page), words


def test_a_part_without_records_is_not_shown():
    page = build_report([make_race("alone", {"n": 8}, 1e3, {})])
    for words in ("PREDICTED", "NUMA", "hf-aws", "rate over", "rate against", "Some batches", "kinds of machine"):
        assert words not in page, words
    assert "Nothing that was measured supports a change." in page


def test_a_schedule_is_drawn_if_the_record_names_it():
    one = make_race("allreduce", {"bytes": 1024, "ranks": 4}, 1e3, {"gloo": 2e3})
    named = replace(one, contenders=(replace(one.contenders[0], settings={"schedule": "ring"}), one.contenders[1]))
    drawn = build_report(
        [named, replace(named, id="e" * 32, case={**named.case, "bytes": 2048})], draw_pictures=draw_pictures
    )
    assert drawn.count("all_reduce by ring, 4 ranks: which rank sends") == 1, "once for all sizes"
    assert ">rank 3</text>" in drawn
    for settings, case in (({}, one.case), ({"schedule": "gone"}, one.case), ({"schedule": "ring"}, {"ranks": 99})):
        contenders = (replace(one.contenders[0], settings=settings), one.contenders[1])
        assert not list(draw_pictures(replace(one, contenders=contenders, case={**one.case, **case})))
    assert not list(draw_pictures(make_race("made", {"ranks": 4}, 1e3, {})))


def test_cases_are_sorted_in_any_order_of_files():
    records = make_sweep()
    page = build_report([records[2], records[0], records[3], records[1]])
    races = page[page.index('<table class="races">') :]
    labels = [races.index(f">{r.label}</a></th>") for r in records]
    assert labels == sorted(labels)


def test_losses_come_first_and_each_verdict_has_one_colour():
    records = [make_race(name, {"n": 8}, 10.0, {"peer": peer}) for name, peer in (("ahead", 30.0), ("behind", 5.0))]
    page = build_report(records)
    assert page.index(">behind</a>") < page.index(">ahead</a>")
    assert "a loss: peer is 2.0 × as fast" in page
    assert ">loss</span>" in page
    for one in (page, build_report(list(reversed(records)))):
        chart = one[one.index('<div class="verdicts">') :]
        assert read_legend(chart[: chart.index("</ul>")]) == {"FASTER": "c1", "SLOWER": "c2"}
    assert ".verdicts .c1 { --hue: var(--bad); }" in page, "the colour of its badge"


def test_a_workload_has_one_colour_and_marker_on_every_roofline():
    cpu = [make_race(name, {"n": 8}, 10.0, {}) for name in ("first", "second")]
    records = [*cpu, move_to_gpu(cpu[1])]
    on_cpu, on_gpu = map(read_legend, figures.draw_rooflines(records, summarise_paths(records)))
    assert on_cpu == {"first": "c1", "second": "c2"}
    assert on_gpu == {"second": "c2"}


def read_legend(chart: str) -> dict[str, str]:
    """Return the colour of each series by its name."""
    keys = re.findall(r'class="key (c\d)".*?<span title="([^"]*)">', chart)
    return {name: colour for colour, name in keys}


def test_a_stage_that_took_longer_than_its_step_has_no_ratio():
    one = make_race("made", {"n": 8}, 10.0, {})
    for stage_ns, ratio in ((9.0, "0.90"), (15.5, "–")):
        result = replace(one.contenders[0], extras={"stages_ns": {"read": [stage_ns], "write": [1.0]}})
        page = build_report([replace(one, contenders=(result,))])
        stages = page[page.index('<table class="stages">') :]
        assert re.findall(r'<td class="num">([^<]*)</td></tr>', stages)[0] == ratio


def test_a_ratio_has_the_digits_that_its_interval_supports():
    noisy = make_race("made", {"n": 8}, 10.0, {"peer": 12.0})
    samples = [12.0 * (0.5 + 1.0 * (i % 2)) for i in range(len(noisy.contenders[1].samples_ns))]
    noisy = replace(noisy, contenders=(noisy.contenders[0], replace(noisy.contenders[1], samples_ns=tuple(samples))))
    page = build_report([noisy])
    ratio = re.search(r'<td class="num">([\d.]+) <span class="soft">([\d.]+)–([\d.]+)</span>', page)
    assert ratio is not None
    assert max(len(number.partition(".")[2]) for number in ratio.groups()) <= 1, ratio.groups()


def test_each_number_names_its_record_and_its_command():
    records = make_sweep()
    page = build_report(records)
    assert all(r.id[:12] in page for r in records)
    assert "run &lt;img" in page
    assert "per turn (median)" in page, "the overhead of the lab is shown"
    assert ".[peers]" in page


def test_a_wrong_output_shows_no_time(record):
    page = build_report([record({"ridgeline": [123456.0] * 12}, checks={"ridgeline": {"ok": False, "error": 2.0}})])
    assert "WRONG" in page
    body = page[page.index("<main>") :]
    assert "123" not in re.sub(r"record\W+[0-9a-f]+|<code>[0-9a-f]+", "", body)


def test_machines_have_separate_chapters():
    one = make_race("made", {"n": 8}, 1e3, {})
    page = build_report([one, move_to_another_machine(one)])
    assert page.count("How the lab measures") == 2
    assert "Another CPU" in page
    assert "Records of 2 kinds of machine: each has its own chapter, and no chapter compares two." in page


def test_the_page_needs_nothing_from_outside(documents):
    for page in documents.values():
        assert 'src="http' not in page
        assert 'href="http' not in page


@pytest.mark.slow
@pytest.mark.parametrize(("kinds", "omitted"), [(25, "raw samples"), (50, "charts")])
def test_a_page_of_very_many_records_stays_below_four_megabytes_and_says_what_it_leaves_out(kinds, omitted):
    many = [
        make_race(
            "made", {"n": 2**k, "kind": f"kind {kind}"}, 2.0**k, {"peer": 2.1**k, "other": 2.2**k, "third": 3.0**k}
        )
        for k in range(1, 15)
        for kind in range(kinds)
    ]
    page = build_report(many)
    assert len(page.encode()) < 4_000_000
    assert re.search(rf"\d+ {omitted} would make this page heavy", page)
    assert all(r.id[:12] in page for r in many)


def test_markdown_and_json_say_the_same_as_the_page(tmp_path):
    page = write_report(make_all(), tmp_path, refused=["a file of another schema"]).read_text()
    text = (tmp_path / "report.md").read_text()
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["mixed_machines"] is True
    assert content["refused"] == ["a file of another schema"]
    assert "left out: a file of another schema" in text
    assert len(content["machines"]) == 2
    cases = 0
    for machine in content["machines"]:
        assert machine["paths"]
        for path in machine["paths"]:
            assert path["sentence"] in text.replace("\\", "")
            assert path["record"][:12] in text
            assert path["record"][:12] in page
            assert path["command"]
        cases += len(machine["cases"])
    assert cases == len(make_all())
    (law,) = {name for m in content["machines"] for s in m["scaling"] for name in s["laws"]} - {"usl"}
    assert law == "amdahl"
    assert all(p["predicted"] for m in content["machines"] for s in m["scaling"] for p in s["laws"]["amdahl"]["at"])
    assert content["machines"][1]["cost"][0]["price"] == "hf-aws-h200-x1"
    assert "PREDICTED" in text


def test_sweeps_from_several_nodes_are_separate_lines():
    page = build_report(make_experiment())
    for name in ("small", "large"):
        for node in (0, 1):
            assert f"ridgeline {name} node {node}" in page


def test_markdown_keeps_hostile_names_harmless():
    from ridgeline.lab.report.report import build_chapters, format_markdown

    text = format_markdown(build_chapters(make_sweep()))
    rows = [line for line in text.splitlines() if line.startswith("| made")]
    assert rows
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (10, 11) for row in rows), "no additional cell"
    assert not re.search(r"(?<!\\)<img", text.split("### Commands")[0])


def test_a_report_without_records_is_refused_in_one_sentence():
    with pytest.raises(InputError, match="no record to report on"):
        build_report([])


def test_a_broken_price_book_costs_the_dollars_and_not_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.toml").write_text("[price.mine]\nnonsense = 1\n")
    page = build_report([move_to_gpu(make_race("made", {"n": 8}, 1e3, {}))])
    assert "Costs are left out: " in page
    assert "prices.toml" in page
