"""A bench on one screen: it fits, and it hides nothing that must be known.

python -m pytest tests/cli/test_summary.py
"""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console
from tests.lab.conftest import make_record

from ridgeline.cli import bench, summary
from ridgeline.lab.judge.findings import standings
from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.race.points import Ask, Point
from ridgeline.lab.workload import Case, Profile
from ridgeline.workloads import names

BAD = {"ok": False, "error": 2.0, "quality": {}, "note": ""}
LONG = "NumPy + SciPy, argpartition"


def path(name, ours=10.0, peer=30.0, unit="trajectories", **more):
    one = make_record({"ridgeline": [ours] * 12, LONG: [peer] * 12}, workload=name, **more)
    return replace(one, work={**one.work, "unit": unit, "flops": 0})


def shown(part, width):
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(part)
    return screen.export_text().rstrip().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_every_workload_has_one_line_and_all_fit_the_screen(width):
    lines = shown(summary.summary(standings([path(name) for name in names()]), width), width)
    assert len(lines) == len(names()) + 2 <= 24
    assert max(map(len, lines)) <= width
    for name, line in zip(names(), lines[2:], strict=True):
        assert line.startswith(name)
        assert line.rstrip().endswith("SLOWER")
        assert "3.0" in line


def test_a_line_holds_rate_share_limit_peer_ratio_and_verdict():
    (line,) = shown(summary.summary(standings([path("search", unit="queries")]), 120), 120)[2:]
    words = " ".join(line.split())
    assert words == f"search 800 M queries 64 % memory bandwidth {LONG} 3.0 SLOWER"
    (line,) = shown(summary.summary(standings([path("search", unit="bytes")]), 80), 80)[2:]
    assert " ".join(line.split()).startswith("search 800 MB 64 % memory NumPy + Sci… 3.0")


def test_a_path_without_a_time_or_a_peer_says_so():
    one = make_record({"ridgeline": [10.0] * 12}, checks={"ridgeline": BAD}, workload="embed")
    (line,) = shown(summary.summary(standings([one]), 80), 80)[2:]
    assert " ".join(line.split()) == "embed – – – – – WRONG"


def test_paths_on_several_devices_name_them():
    cpu, gpu = path("copy"), path("copy", case={"n": 8, "device": "cuda", "ranks": 1})
    lines = shown(summary.summary(standings([cpu, gpu]), 120), 120)[2:]
    assert ["copy · cpu" in lines[0], "copy · cuda" in lines[1]] == [True, True]


def test_doubt_defeats_and_missing_peers_are_said_beside_the_lines():
    noisy = make_record({"ridgeline": [8.0, 12.0] * 8, "torch": [9.0] * 16}, workload="copy")
    lost = path("search", 30.0, 10.0)
    absent = replace(path("embed"), missing={"sentence-transformers": "peers"})
    told = list(summary.asides(standings(records := [noisy, lost, absent]), records))
    assert told == [
        "~ NOISY 1: not to be quoted.",
        "Not known what limits search: its record is older than the count of CPU time in steps; record it again.",
        "A peer is faster in: search 1 of 1 cases.",
        "Not installed, not raced: sentence-transformers (pip install 'ridgeline[peers]').",
    ]
    assert shown(summary.summary(standings(records), 80), 80)[2].split()[1].startswith("~")


def test_versions_are_told_by_their_count_and_the_lines_that_are_not_same():
    rival = "ridgeline@1a2b3c4"
    same = make_record({"ridgeline": [10.0] * 12, rival: [10.0] * 12}, workload="copy")
    slow = make_record({"ridgeline": [10.0] * 12, rival: [12.0] * 12}, workload="search")
    *rows, count = (line for part in summary.against([same, same, slow], [rival]) for line in shown(part, 80))
    assert count == f"{rival}: 2 SAME, 1 SLOWER of 3 lines."
    text = "\n".join(rows)
    assert "search n=8" in text
    assert "1.200" in text
    assert "copy" not in text


def test_what_the_time_did_not_reach_is_counted(tmp_path):
    class Sort:
        name = "sort"

    points = [Point("sort.py", Sort(), Case({"n": n})) for n in (1, 2)]
    ask = Ask(["sort.py"], tmp_path, Profile.FULL)
    (told,) = bench.left_out(points, [path("sort"), path("copy")], ask)
    assert told.startswith("Cases left out for lack of time (8 min): sort 2 of 3.")
    assert bench.left_out([], [path("sort")], ask) == []


def test_versions_get_more_time_than_peers(tmp_path):
    one = Ask(["copy"], tmp_path)
    assert replace(one, rivals=[Entrant("ridgeline@x", "ridgeline")]).pace.total_s > one.pace.total_s
    assert replace(one, budget_s=0.2).pace.least_s <= 0.2
