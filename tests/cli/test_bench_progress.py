"""The progress of a benchmark: a display on a terminal, lines into a pipe.

python -m pytest tests/cli/test_bench_progress.py
"""

from __future__ import annotations

import io
import time

import pytest
from rich.console import Console
from tests.lab.conftest import make_record

from ridgeline.cli import bench_progress
from ridgeline.cli.bench_progress import show_progress
from ridgeline.lab import Case
from ridgeline.lab.race import Point


class Sort:
    name = "sort"


POINTS = [Point("sort.py", Sort(), Case({"n": n}, "cpu")) for n in (1, 2, 3)]


def run_progress(live: bool, quiet: bool = False) -> str:
    console = Console(file=io.StringIO(), force_terminal=live, width=100)
    with show_progress(console, live=live, quiet=quiet) as progress:
        hooks = progress.hooks
        hooks.on_ceiling("CPU memory: copy, 1 thread")
        hooks.on_message("p2p does not run on cuda; it is left out.")
        hooks.on_start(POINTS, 1)
        hooks.on_case(POINTS[1])
        hooks.on_prepare("numpy")
        hooks.on_progress(0.5, "round 3")
        hooks.on_record(make_record({"ridgeline": [1.0] * 6}))
        hooks.on_case(POINTS[2])
    return console.file.getvalue()


def test_the_display_shows_what_runs_and_how_many_cases_are_done():
    text = run_progress(live=True)
    assert "2 of 3 cases" in text
    assert "sort n=2 · cpu" in text
    assert "does not run on cuda" in text


def test_a_pipe_gets_lines_about_ceilings_and_cases():
    lines = run_progress(live=False).splitlines()
    assert lines[0] == "measuring ceilings: CPU memory: copy, 1 thread"
    assert lines[1] == "p2p does not run on cuda; it is left out."
    assert lines[2] == "case 2 of 3: sort n=2 · cpu: starting"
    assert lines[3].startswith("case 3 of 3: sort n=3 · cpu: starting")


def test_quiet_shows_messages_only():
    assert run_progress(live=False, quiet=True) == "p2p does not run on cuda; it is left out.\n"


def test_a_pipe_gets_a_line_again_and_again_while_one_activity_runs(monkeypatch):
    monkeypatch.setattr(bench_progress, "MAX_GAP_S", 0.2)
    console = Console(file=io.StringIO(), width=100)
    with show_progress(console, live=False) as progress:
        progress.show_activity("building commit abc")
        deadline = time.monotonic() + 30
        while console.file.getvalue().count("building commit abc") < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert console.file.getvalue().count("building commit abc") >= 3


@pytest.mark.parametrize(
    ("finished_s", "current_s", "total_s", "eta"),
    [
        (10.0, 4.0, 1000.0, "; about 16 s left"),  # 10 s per case, two cases left, 4 s into the first
        (10.0, 4.0, 20.0, "; about 6 s left"),  # the time limit ends it earlier
        (10.0, 30.0, 1000.0, "; about 16 min left"),  # slower than the finished case: only the limit is known
    ],
)
def test_the_estimate_of_the_time_left(finished_s, current_s, total_s, eta):
    console = Console(file=io.StringIO(), width=100)
    with show_progress(console, live=False) as progress:
        progress.total_s = total_s
        progress._done, progress._total, progress._skipped = 1, 3, 0
        progress._start, progress._last_finish = 100.0, 100.0 + finished_s
        assert progress._format_eta(100.0 + finished_s + current_s) == eta


def test_a_name_in_brackets_is_not_markup():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with show_progress(console, live=True) as progress:
        progress.hooks.on_start(POINTS, 0)
        progress.hooks.on_case(Point("sort.py", Sort(), Case({"by": "[/red]"}, "cpu")))
    assert "[/red]" in console.file.getvalue()
