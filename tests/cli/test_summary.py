"""A benchmark on one screen: it fits, and it hides nothing important.

python -m pytest tests/cli/test_summary.py
"""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.lab.conftest import make_record

from ridgeline.cli import bench, summary
from ridgeline.lab import Case, Profile
from ridgeline.lab.judge import summarise_paths
from ridgeline.lab.race import BenchRequest, ContenderSpec, Point
from ridgeline.workloads import list_workloads

FAILED = {"ok": False, "error": 2.0, "quality": {}, "note": ""}
LONG = "NumPy + SciPy, argpartition"


def make_path(name, ours=10.0, peer=30.0, unit="trajectories", **changes):
    one = make_record({"ridgeline": [ours] * 12, LONG: [peer] * 12}, workload=name, **changes)
    return replace(one, work={**one.work, "unit": unit, "flops": 0})


def print_lines(part, width):
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(part)
    return screen.export_text().rstrip().splitlines()


@pytest.mark.parametrize("width", [80, 120, 128])
def test_every_workload_has_one_line_and_all_fit_the_screen(width):
    lines = print_lines(
        summary.build_summary(summarise_paths([make_path(name) for name in list_workloads()]), width), width
    )
    assert len(lines) == len(list_workloads()) + 2 <= 24
    assert max(map(len, lines)) <= width
    for name, line in zip(list_workloads(), lines[2:], strict=True):
        assert line.startswith(name)
        assert line.rstrip().endswith("SLOWER")
        assert "3.0" in line


def test_a_line_has_rate_share_limit_peer_ratio_and_verdict():
    (line,) = print_lines(summary.build_summary(summarise_paths([make_path("search", unit="queries")]), 128), 128)[2:]
    words = " ".join(line.split())
    assert words == f"search 800 M queries 64 % memory bandwidth {LONG} 3.0 SLOWER"
    (line,) = print_lines(summary.build_summary(summarise_paths([make_path("search", unit="bytes")]), 80), 80)[2:]
    assert " ".join(line.split()).startswith("search 800 MB 64 % memory NumPy + Sci… 3.0")


@pytest.mark.parametrize("width", [80, 100, 120, 127, 128])
def test_long_words_do_not_cut_the_verdict(width):
    records = [make_path("trajectory_training", unit="training steps", case={"n": 8, "device": "cuda", "ranks": 1})]
    paths = [replace(path, limit="limit " * 9, resource="", peer="peer " * 9) for path in summarise_paths(records)]
    (line,) = print_lines(summary.build_summary(paths, width), width)[2:]
    assert line.split()[-1] == "SLOWER"
    assert len(line) <= width


def test_a_path_without_a_valid_time_shows_its_validity():
    one = make_record({"ridgeline": [10.0] * 12}, checks={"ridgeline": FAILED}, workload="embed")
    (line,) = print_lines(summary.build_summary(summarise_paths([one]), 80), 80)[2:]
    assert " ".join(line.split()) == "embed – – – – – WRONG"


def test_paths_on_several_devices_name_them():
    cpu, gpu = make_path("copy"), make_path("copy", case={"n": 8, "device": "cuda", "ranks": 1})
    lines = print_lines(summary.build_summary(summarise_paths([cpu, gpu]), 128), 128)[2:]
    assert ["copy · cpu" in lines[0], "copy · cuda" in lines[1]] == [True, True]


def test_notes_name_doubtful_times_faster_peers_and_missing_peers():
    noisy = make_record({"ridgeline": [8.0, 12.0] * 8, "torch": [9.0] * 16}, workload="copy")
    slower = make_path("search", 30.0, 10.0)
    without_peer = replace(make_path("embed"), missing={"sentence-transformers": "peers"})
    notes = list(summary.list_notes(summarise_paths(records := [noisy, slower, without_peer]), records))
    assert notes == [
        "~ NOISY 1: do not quote these.",
        "Not known what limits search: its record does not have the CPU time of its steps; record it again.",
        "A peer is faster in: search 1 of 1 cases.",
        "Not installed, not raced: "
        "sentence-transformers (pip install '.[peers]' in the folder of Ridgeline's sources).",
    ]
    assert print_lines(summary.build_summary(summarise_paths(records), 80), 80)[2].split()[1].startswith("~")


def test_versions_are_summarised_by_counts_and_the_cases_that_are_not_same():
    version = "ridgeline@1a2b3c4"
    same = make_record({"ridgeline": [10.0] * 12, version: [10.0] * 12}, workload="copy")
    slow = make_record({"ridgeline": [10.0] * 12, version: [12.0] * 12}, workload="search")
    *rows, count = (
        line for part in summary.compare_with_versions([same, same, slow], [version]) for line in print_lines(part, 80)
    )
    assert count == f"{version}: 2 SAME, 1 SLOWER of 3 lines."
    text = "\n".join(rows)
    assert "search n=8" in text
    assert "1.200" in text
    assert "copy" not in text
    mine = make_record({"mine": [10.0] * 12, "mine@1a2b3c4": [10.0] * 12}, workload="benchmarks")
    assert list(summary.compare_with_versions([mine], [version])) == ["mine@1a2b3c4: 1 SAME of 1 lines."]


def test_a_difference_that_had_too_few_starts_of_processes_is_unclear_for_lack_of_time():
    version = "mine@1a2b3c4"
    slow = make_record({"mine": [10.0] * 12, version: [12.0] * 12})
    slow = replace(slow, plan={**slow.plan, "versions": True}, race={**slow.race, "executions": [12]})
    sentence, count = list(summary.compare_with_versions([slow], [version]))[1:]
    assert sentence.startswith("1 UNCLEAR for lack of time: a difference must show in 6 starts")
    assert count == f"{version}: 1 UNCLEAR of 1 lines."


def test_cases_without_time_are_counted(tmp_path):
    class Sort:
        name = "sort"

    points = [Point("sort.py", Sort(), Case({"n": n})) for n in (1, 2)]
    request = BenchRequest(["sort.py"], tmp_path, Profile.FULL)
    (sentence,) = bench.describe_left_out(points, [make_path("sort"), make_path("copy")], request)
    assert sentence.startswith("Cases left out for lack of time (8 min): sort 2 of 3.")
    assert bench.describe_left_out([], [make_path("sort")], request) == []


def test_versions_get_more_time_than_peers(tmp_path):
    one = BenchRequest(["copy"], tmp_path)
    assert replace(one, versions=[ContenderSpec("ridgeline@x", "ridgeline")]).limits.total_s > one.limits.total_s
    assert replace(one, budget_s=0.2).limits.least_s <= 0.2
