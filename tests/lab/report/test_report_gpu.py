"""The report of a GPU: its roofline has every path with arithmetic, and each path says what limits it.

python -m pytest tests/lab/report/test_report_gpu.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline import workloads
from ridgeline.lab.judge import summarise_paths
from ridgeline.lab.race import load_workload
from ridgeline.lab.record import read_records
from ridgeline.lab.report import build_report
from ridgeline.lab.workload import Profile, list_devices
from ridgeline.workloads.charts import draw_pictures

BENCH = Path(__file__).parents[3] / "benchmarks" / "records" / "h200-bench.jsonl"
NO_ARITHMETIC = {"copy"}  # it moves bytes


@pytest.fixture(scope="module")
def bench():
    return read_records(BENCH).records


def _has_intensity(path) -> bool:
    return bool(path.record.work["flops"] and path.record.work["bytes"].get("memory"))


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_roofline_of_a_gpu_shows_every_path_with_arithmetic_and_memory(chromium, bench, scheme):
    problems: list[str] = []
    context = chromium.new_context(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
    tab = context.new_page()
    tab.on("console", lambda message: problems.append(message.text))
    tab.on("pageerror", lambda error: problems.append(str(error)))
    tab.set_content(build_report(bench, draw_pictures=draw_pictures))
    chart = tab.locator("figure.chart", has_text="Roofline of cuda").first
    box = chart.locator("> svg.wide").bounding_box()
    drawn = {
        device: tab.locator("figure.chart", has_text=f"Roofline of {device}").first.inner_text()
        for device in {path.device for path in summarise_paths(bench) if _has_intensity(path)}
    }
    section = tab.locator("section, main", has_text="Roofline of cuda").first.inner_text()
    words = chart.locator("svg text").all_text_contents()
    ink, paper = (
        tab.evaluate("([sel, what]) => getComputedStyle(document.querySelector(sel))[what]", query)
        for query in (["figure.chart svg text", "fill"], ["body", "backgroundColor"])
    )
    context.close()
    assert problems == []
    assert box is not None
    assert box["width"] > 400
    assert box["height"] > 200
    assert any("TFLOP/s" in word for word in words)
    assert any("TB/s" in word for word in words)
    for path in summarise_paths(bench):
        assert path.workload in (
            drawn[path.device] if _has_intensity(path) else section.partition("Paths without counted arithmetic")[2]
        ), path.workload
    assert ink != paper


def test_every_path_says_what_limits_it_or_what_to_measure(bench):
    for path in summarise_paths(bench):
        assert bool(path.limit) != bool(path.measure), path.workload
        assert "limited by" in path.sentence or "not known: " in path.sentence


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_work_with_arithmetic_counts_its_memory_traffic(device):
    """Without it a roofline cannot show the path."""
    for name in workloads.list_workloads():
        workload = load_workload(workloads.get_reference(name))
        if device not in list_devices(workload) or name in NO_ARITHMETIC:
            continue
        for case in workload.cases(Profile.QUICK):
            if case.device in ("any", device):
                work = workload.work(replace(case, device=device))
                assert not work.flops or work.bytes.get("memory"), f"{name} {case.label}"
