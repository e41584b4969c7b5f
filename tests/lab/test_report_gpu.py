"""The page of a GPU's records: its roofline has every path that does arithmetic, and each path says what limits it.

python -m pytest tests/lab/test_report_gpu.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline import workloads
from ridgeline.lab.judge.findings import standings
from ridgeline.lab.race.loading import load
from ridgeline.lab.record import record as records
from ridgeline.lab.report import report
from ridgeline.lab.workload import Profile, devices_of
from ridgeline.workloads.charts import pictures

BENCH = Path(__file__).parents[2] / "benchmarks" / "records" / "h200-bench.jsonl"
NO_ARITHMETIC = {"copy"}  # it moves bytes


@pytest.fixture(scope="module")
def bench():
    return records.read(BENCH).records


def _placed(one) -> bool:
    return bool(one.record.work["flops"] and one.record.work["bytes"].get("memory"))


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_roofline_of_a_gpu_is_drawn_with_every_path_that_it_has_a_place_for(chromium, bench, scheme):
    trouble: list[str] = []
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.on("console", lambda message: trouble.append(message.text))
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.set_content(report.build(bench, pictures=pictures))
    chart = tab.locator("figure.chart", has_text="Roofline of cuda").first
    box = chart.locator("> svg.wide").bounding_box()
    drawn = {
        device: tab.locator("figure.chart", has_text=f"Roofline of {device}").first.inner_text()
        for device in {one.device for one in standings(bench) if _placed(one)}
    }
    section = tab.locator("section, main", has_text="Roofline of cuda").first.inner_text()
    words = chart.locator("svg text").all_text_contents()
    ink, paper = (
        tab.evaluate("([sel, what]) => getComputedStyle(document.querySelector(sel))[what]", held)
        for held in (["figure.chart svg text", "fill"], ["body", "backgroundColor"])
    )
    context.close()
    assert trouble == []
    assert box is not None
    assert box["width"] > 400
    assert box["height"] > 200
    assert any("TFLOP/s" in word for word in words)
    assert any("TB/s" in word for word in words)
    for one in standings(bench):
        assert one.workload in (drawn[one.device] if _placed(one) else section.partition("Not on it")[2]), one.workload
    assert ink != paper


def test_every_path_says_what_limits_it_or_what_would_tell(bench):
    for one in standings(bench):
        assert bool(one.limit) != bool(one.measure), one.workload
        assert "limited by" in one.sentence or "not known: " in one.sentence


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_whatever_does_arithmetic_counts_its_memory_too(device):
    """Else a roofline has no place for it."""
    for name in workloads.names():
        workload = load(workloads.reference(name))
        if device not in devices_of(workload) or name in NO_ARITHMETIC:
            continue
        for case in workload.cases(Profile.QUICK):
            if case.device in ("any", device):
                work = workload.work(replace(case, device=device))
                assert not work.flops or work.bytes.get("memory"), f"{name} {case.label}"
