"""Another version of our own code, built beside the cache and raced from its own tree.

python -m pytest tests/lab/test_against.py
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import ridgeline
from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse
from ridgeline.lab.race import against
from ridgeline.lab.race.against import copied, rival
from ridgeline.lab.race.baton import Entrant, Team
from ridgeline.lab.race.line import ContenderLost

ROOT = Path(ridgeline.__file__).resolve().parents[2]
in_git = (
    shutil.which("git") and not subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True).returncode
)
pytestmark = [
    pytest.mark.skipif(not in_git, reason="not a git checkout"),
    pytest.mark.xdist_group("busy"),
]


def test_a_commit_is_built_and_races_from_its_own_tree_against_a_copy_of_ours(run, known_ceilings):
    entrant = rival("HEAD")
    assert entrant.name.startswith("ridgeline@")
    with Team(entrant):
        pass  # the greeting proves where the code comes from
    with copied() as tree:
        ours, theirs = (next((Path(one) / "ridgeline").glob("native*.so")) for one in (tree, entrant.tree))
        if not subprocess.run(
            ["git", "-C", ROOT, "diff", "--quiet", "HEAD", "--", "native", "CMakeLists.txt"]
        ).returncode:
            assert ours.read_bytes() == theirs.read_bytes(), "equal sources have one module"
        assert len(tree) == len(entrant.tree), "as little as possible is different"
        with Team(Entrant("ridgeline", "ridgeline", tree=tree)):
            pass
        record = run(workload="ridgeline.workloads.spin", rivals=[entrant], tree=tree, budget_s=5.0)[0]
    assert not Path(tree).parent.exists()
    assert len({(lane.samples_per_turn, lane.calls_per_sample) for lane in record.contenders}) == 1
    rows = {row.lane.contender: row for row in analyse.rows(record)}
    assert rows[entrant.name].judged.time, rows[entrant.name].judged.advice
    assert rows[entrant.name].comparison in ("SAME", "UNCLEAR"), "the same code but for uncommitted changes"
    assert rival("HEAD") == entrant, "a second time nothing is built"


def test_copies_of_runs_that_were_killed_are_swept_away(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gone = tmp_path / "ridgeline" / "against" / "here-9999999-cpython-311"
    (gone / "src").mkdir(parents=True)
    monkeypatch.setattr(against, "_put_native", lambda sources, tree, whose: None)
    with copied():
        assert not gone.exists()


def test_a_rival_that_runs_from_elsewhere_is_refused(tmp_path):
    (tmp_path / "src").mkdir()
    entrant = Entrant("ridgeline@x", "ridgeline", tree=str(tmp_path / "src"))
    with pytest.raises(ContenderLost, match="runs the code of"), Team(entrant):
        pass


def test_a_commit_older_than_the_lab_is_refused_before_anything_is_built():
    root = subprocess.run(["git", "-C", ROOT, "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True)
    oldest = root.stdout.split()[0]
    if not subprocess.run(
        ["git", "-C", ROOT, "cat-file", "-e", f"{oldest}:src/ridgeline/lab/race/contender.py"]
    ).returncode:
        pytest.skip("the whole history has the lab")
    with pytest.raises(InputError, match="older than the lab"):
        rival(oldest)


def test_a_commit_that_is_not_there_is_named():
    with pytest.raises(InputError, match="no commit 'nonsense'"):
        rival("nonsense")
