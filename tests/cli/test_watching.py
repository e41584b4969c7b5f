"""The display of a bench, drawn into a terminal that is none.

python -m pytest tests/cli/test_watching.py
"""

from __future__ import annotations

import io

from rich.console import Console
from tests.lab.conftest import make_record

from ridgeline.cli.watching import watcher
from ridgeline.lab.race.points import Point
from ridgeline.lab.workload import Case


class Sort:
    name = "sort"


POINTS = [Point("sort.py", Sort(), Case({"n": n}, "cpu")) for n in (1, 2, 3)]


def drawn(live: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=live, width=100)
    with watcher(console, live=live) as told:
        told.ceiling("CPU memory: copy, 1 thread")
        told.say("p2p does not run on cuda; it is left out.")
        told.start(POINTS, 1)
        told.case(POINTS[1])
        told.progress(0.5, "round 3")
        told.done(make_record({"ridgeline": [1.0] * 6}))
    return console.file.getvalue()


def test_one_display_shows_what_is_raced_and_how_far_it_is():
    text = drawn(live=True)
    assert "2 of 3 cases" in text
    assert "sort n=2 · cpu" in text
    assert "does not run on cuda" in text


def test_without_a_terminal_only_sentences_are_said():
    assert drawn(live=False).split() == ["p2p", "does", "not", "run", "on", "cuda;", "it", "is", "left", "out."]


def test_a_name_in_brackets_is_no_markup():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with watcher(console, live=True) as told:
        told.start(POINTS, 0)
        told.case(Point("sort.py", Sort(), Case({"by": "[/red]"}, "cpu")))
    assert "[/red]" in console.file.getvalue()
