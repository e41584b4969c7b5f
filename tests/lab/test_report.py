"""The page: drawn by a real browser, from made-up records, hostile names included.

python -m pytest tests/lab/test_report.py
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ridgeline.lab import report

HOSTILE = "<img src=x onerror=alert(1)>{{7*7}}\"'</script>"


def runs(record):
    """A sweep of four sizes with a peer, one noisy, one wrong, one crashed contender, hostile names."""
    rng = random.Random(0)
    made = []
    for n in (1024, 4096, 16384, 65536):
        times = {name: [n * f * rng.lognormvariate(0, 0.02) for _ in range(30)] for name, f in
                 (("ridgeline", 1.0), ("peer", 2.5), ("wrong", 1.0), (HOSTILE, 1.2))}  # fmt: skip
        bad = {"ok": False, "error": 1.0, "quality": {}, "note": HOSTILE}
        one = record(times, checks={"wrong": bad}, case={"n": n, "device": "cpu", "ranks": 1}, command=f"run {HOSTILE}")
        work = {**one.work, "items": n, "flops": 16 * n, "bytes": {"memory": 64 * n}}
        lanes = (*one.contenders, replace(one.contenders[1], contender="gone", failure="was killed by SIGSEGV"))
        made.append(replace(one, work=work, contenders=lanes, missing={"absent": "peers"}))
    return made


@pytest.fixture
def opened(chromium, record):
    """The page in a browser, with everything that went wrong on the way."""
    trouble: list[str] = []
    context = chromium.new_context(viewport={"width": 1200, "height": 900})
    tab = context.new_page()
    tab.on("console", lambda message: trouble.append(f"{message.type}: {message.text}"))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", lambda dialog: (trouble.append("dialog"), dialog.dismiss()))
    tab.on("request", lambda request: None if request.url.startswith("about:") else trouble.append(request.url))
    tab.set_content(report.build(runs(record)))
    yield tab, trouble
    context.close()


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_the_plots_draw_without_a_word_on_the_console(opened):
    tab, trouble = opened
    boxes = tab.evaluate("""() => [...document.querySelectorAll("figure.chart > svg")]
        .map((s) => s.getBoundingClientRect()).filter((b) => b.width > 0 && b.height > 0).length""")
    assert boxes >= 3, "roofline, sweep, peers"
    assert tab.locator("text=SLOWER").count() > 0
    assert trouble == []


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_hostile_names_are_shown_and_do_nothing(opened):
    tab, trouble = opened
    assert tab.locator(f"td:has-text({HOSTILE!r})").count() > 0
    assert tab.evaluate("() => document.querySelectorAll('img').length") == 0
    assert trouble == []


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("width", [400, 1600])
def test_the_page_fits_narrow_and_wide_screens(opened, width):
    tab, _ = opened
    tab.set_viewport_size({"width": width, "height": 900})
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= width


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_the_record_behind_a_time_is_shown_whole_wherever_the_time_stands(opened):
    tab, _ = opened
    last = tab.locator("table.races td [data-tip]").last
    last.hover()
    tip = tab.locator(".chart-tip")
    assert tip.text_content() == last.get_attribute("data-tip")
    box = tip.bounding_box()
    assert box["width"] > 0
    assert box["y"] + box["height"] <= 900


def test_cases_rise_whatever_order_the_files_came_in(record):
    made = runs(record)
    page = report.build([made[2], made[0], made[3], made[1]])
    labels = [page.index(f">{r.label}</span>") for r in made]
    assert labels == sorted(labels)


def test_each_number_names_its_record_and_its_command(record):
    made = runs(record)
    page = report.build(made)
    assert made[0].id[:12] in page
    assert "run &lt;img" in page
    assert "per turn (median)" in page, "the lab's own overhead is shown"
    assert "ridgeline[peers]" in page


def test_a_wrong_output_shows_no_time(record):
    page = report.build([record({"ridgeline": [123456.0] * 12}, checks={"ridgeline": {"ok": False, "error": 2.0}})])
    assert "WRONG" in page
    assert "123" not in page.split("<tbody>")[1].split("</tr>", 1)[1].split("</tbody>")[0]


def test_machines_are_told_apart(record):
    one = record({"ridgeline": [100.0] * 12})
    other = replace(one, id="f" * 32, machine={**one.machine, "fingerprint": "other", "cpu": "Another CPU"})
    page = report.build([one, other])
    assert page.count("How it was measured") == 2
    assert "Another CPU" in page


def test_the_page_needs_nothing_from_outside(record):
    page = report.build(runs(record))
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert len(page) < 2_000_000


def test_what_was_reached_stands_beside_each_time_and_draws_a_frontier(record):
    made = []
    for asked in (0.8, 0.9, 0.99):
        checks = {
            name: {"ok": True, "error": None, "quality": {"recall": asked + more}, "note": ""}
            for name, more in (("ridgeline", 0.005), ("peer", 0.001))
        }
        case = {"rows": 1000, "recall": asked, "device": "cpu", "ranks": 1}
        made.append(record({"ridgeline": [100.0] * 12, "peer": [300.0] * 12}, checks=checks, case=case))
    page = report.build(made)
    assert page.count("recall 0.905") >= 1
    assert "rate against recall" in page
    assert "rate against recall" not in report.build(made[:2]), "two points are no frontier"
