"""Suites of asv as workloads, their versions with --build, and the search for a slow commit."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.cli import main
from ridgeline.errors import CaseLeftOut, InputError, NotComparable
from ridgeline.lab import Case, Profile
from ridgeline.lab.race import (
    add_packages,
    bisection,
    commit_history,
    export_versions,
    find_slow_commit,
    find_suite,
    load_workload,
    measure_history,
)
from ridgeline.lab.race.commit_history import CaseHistory, CommitPoint
from ridgeline.lab.report import describe_commit_steps, write_commit_history
from ridgeline.machine import Placement

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
SUITE = """
LOG = []

class Total:
    params = [[10, 20], ["a", ("b",)]]
    param_names = ["n"]

    def setup_cache(self):
        return "cached"

    def setup(self, cached, n, kind):
        self.values = list(range(n))

    def time_sum(self, cached, n, kind):
        LOG.append((cached, sum(self.values), kind))

    def track_size(self, cached, n, kind):
        return n

def time_plain():
    LOG.append("plain")
"""


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.test", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A repository with a suite in a folder of a unique name, because imported packages stay."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    root = tmp_path / "project"
    suite = root / f"suite_{tmp_path.name.replace('-', '_')}"
    suite.mkdir(parents=True)
    (suite / "__init__.py").write_text("")
    (suite / "bench_total.py").write_text(SUITE)
    config = f'// a comment\n{{"project": "mine", "benchmark_dir": "{suite.name}",}}\n'
    (root / "asv.conf.json").write_text(config)
    return root


def test_a_suite_has_a_case_for_every_benchmark_and_parameter(project):
    workload = load_workload(str(find_suite(project)))
    cases = [dict(case.params) for case in workload.cases(Profile.QUICK)]
    assert len(cases) == 5
    assert {"benchmark": "bench_total.Total.time_sum", "n": 20, "param2": "('b',)"} in cases
    assert workload.contenders(workload.cases(Profile.QUICK)[0]) == ["mine"]


def test_a_benchmark_runs_with_its_setup_and_its_parameters(project):
    workload = load_workload(str(find_suite(project)))
    module = __import__(f"{find_suite(project).name}.bench_total", fromlist=["LOG"])
    for case in workload.cases(Profile.QUICK):
        run = workload.prepare(case, "mine", Placement())
        run.step()
        run.close()
    assert ("cached", 190, ("b",)) in module.LOG
    assert "plain" in module.LOG


ATTRIBUTES = """
params = [1, 2]
param_names = ["size"]
LOG = []

def setup(size):
    LOG.append(("module", size))

def prepare(size, kind):
    LOG.append(("own", size, kind))

def time_module(size):
    LOG.append(("time", size))

class Own:
    params = [[3], ["a", "b"]]

    def setup(self, size, kind):
        if kind == "b":
            raise NotImplementedError
        LOG.append(("class", size, kind))

    def teardown(self, size, kind):
        LOG.append(("end", size, kind))

    def time_method(self, size, kind):
        LOG.append(("time", size, kind))
"""


def test_attributes_of_the_module_and_of_functions_count_and_a_setup_may_leave_its_case_out(project):
    """As in asv: the setup of the module runs before that of the class, and NotImplementedError skips a case."""
    suite = find_suite(project)
    text = ATTRIBUTES.replace("def setup(size)", "def setup(size, kind=None)")
    (suite / "bench_total.py").write_text(text + "\nOwn.time_method.setup = lambda size, kind: prepare(size, kind)\n")
    workload = load_workload(str(suite))
    module = __import__(f"{suite.name}.bench_total", fromlist=["LOG"])
    cases = {case.label: case for case in workload.cases(Profile.QUICK)}
    assert len(cases) == 4
    (kind_a,) = [case for label, case in cases.items() if "param2=a" in label]
    run = workload.prepare(kind_a, "mine", Placement())
    run.step()
    run.close()
    assert module.LOG == [("module", 3), ("class", 3, "a"), ("own", 3, "a"), ("time", 3, "a"), ("end", 3, "a")]
    (kind_b,) = [case for label, case in cases.items() if "param2=b" in label]
    with pytest.raises(CaseLeftOut):
        workload.prepare(kind_b, "mine", Placement())
    (second,) = [case for label, case in cases.items() if "size=2" in label and "module" in label]
    workload.prepare(second, "mine", Placement()).step()
    assert module.LOG[-2:] == [("module", 2), ("time", 2)]


def test_comments_anywhere_in_the_configuration_and_a_damaged_one_is_refused(project):
    config = project / "asv.conf.json"
    suite = find_suite(project)
    config.write_text(
        f'{{ /* two\nlines */ "project": "mine, // no comment ,]", // a comment\n"benchmark_dir": "{suite.name}",}}'
    )
    assert find_suite(project) == suite
    assert load_workload(str(suite)).contenders(None) == ["mine, // no comment ,]"]
    config.write_text('{"project": ')
    with pytest.raises(InputError, match=r"asv\.conf\.json' is no JSON"):
        find_suite(project)


@pytest.mark.slow  # a race and a search with real processes
def test_a_case_that_is_left_out_has_no_record_and_does_not_end_a_race_or_a_search(project, tmp_path, capsys):
    suite = find_suite(project)
    (suite / "bench_total.py").write_text(
        "import mine\nclass T:\n    params = [1, 2]\n    def setup(self, n):\n"
        "        if n == 1: raise NotImplementedError\n    def time_it(self, n): mine.work()\n"
    )
    git(project, "init", "-q")
    for size in (2000, 20_000):
        (project / "mine.py").write_text(f"def work():\n    return sum(range({size}))\n")
        git(project, "add", "-A")
        git(project, "commit", "-qm", str(size))
    with pytest.raises(SystemExit) as left:
        main(["bench", str(project), "--against", "HEAD~1", "--budget", "40s", "--json", "-q", "--out", str(tmp_path)])
    assert left.value.code == 3
    answer = json.loads(capsys.readouterr().out)
    assert [case["case"]["param1"] for case in answer["cases"]] == [2]
    assert answer["left_out"] == []
    result = find_slow_commit(str(suite), "HEAD~1", "HEAD", budget_s=5)
    assert result.case.params["param1"] == 2


def test_a_folder_without_benchmarks_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no benchmark"):
        load_workload(str(tmp_path))


def test_each_version_is_built_in_an_environment_of_its_own(project):
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "Add it")
    build = "python -c \"import sys, numpy; open('built', 'w').write(sys.prefix)\""
    with export_versions(project, "HEAD", [], lambda _: None, lambda _: None, build) as both:
        folders = [Path(both.version.checkout.folder), Path(both.working_tree.folder)]
        assert [(f / "built").read_text() for f in folders] == [str(f / ".ridgeline-venv") for f in folders]
        assert both.interpreter == str(folders[1] / ".ridgeline-venv" / "bin" / "python")
    with (
        pytest.raises(InputError, match=r"failed for commit .* with exit code 7: no compiler"),
        export_versions(project, "HEAD", [], lambda _: None, lambda _: None, "echo no compiler; exit 7"),
    ):
        pass


def commit_ten(project: Path) -> list[str]:
    git(project, "init", "-q")
    for number in range(10):
        (project / "number").write_text(str(number))
        git(project, "add", "-A")
        git(project, "commit", "-qm", f"Change {number}")
    return git(project, "rev-list", "--reverse", "HEAD").split()


def draw_races(times: list[float], commits: list[str]):
    """Return a race of two commits that take these times, with 0.2 % noise between starts."""
    rng = random.Random(0)

    def race(reference, case, specs, *rest, **more):
        first, second = (times[commits.index(next(c for c in commits if c.startswith(s.name)))] for s in specs)
        return [second / first * math.exp(rng.gauss(0, 0.002)) for _ in range(8)]

    return race


def test_a_suite_may_import_what_only_a_build_installs(project, monkeypatch):
    """A package in src/ is importable after the build, and the cases are listed by this process."""
    name = f"built_{project.parent.name.replace('-', '_')}"
    bench = find_suite(project) / "bench_total.py"
    bench.write_text(f"import {name}\ndef time_it():\n    {name}.work()\n")
    git(project, "init", "-q")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "Add it")
    code = f"import sysconfig; open(sysconfig.get_path('purelib') + '/{name}.py', 'w').write('def work(): pass')"
    with export_versions(project, "HEAD", [], lambda _: None, lambda _: None, f'python -c "{code}"') as both:
        with pytest.raises(InputError, match=name):
            load_workload(str(find_suite(project)))
        add_packages(both.interpreter)
        assert len(load_workload(str(find_suite(project))).cases(Profile.QUICK)) == 1


@pytest.mark.parametrize("first_slow", [1, 4, 9])
def test_bisect_finds_the_first_slow_commit(project, monkeypatch, first_slow):
    commits = commit_ten(project)
    times = [1.05 if number >= first_slow else 1.0 for number in range(10)]
    monkeypatch.setattr(bisection, "race_commits", draw_races(times, commits))
    found = find_slow_commit(str(find_suite(project)), commits[0], commits[-1])
    assert found.commit == commits[first_slow]
    assert found.subject == f"Change {first_slow}"
    assert found.certain
    assert {step.commit for step in found.steps} < set(commits)
    assert json.dumps(found.to_json())
    if first_slow < 9:
        with pytest.raises(NotComparable, match="is not slower"):
            find_slow_commit(str(find_suite(project)), commits[first_slow], commits[-1])
    with pytest.raises(InputError, match="is no ancestor"):
        find_slow_commit(str(find_suite(project)), commits[-1], commits[0])


def test_a_history_finds_every_step_up_and_down_and_its_commit(project, monkeypatch):
    commits = commit_ten(project)
    times = [1.0] * 3 + [1.04] * 4 + [0.97] * 3
    for module in (bisection, commit_history):
        monkeypatch.setattr(module, "race_commits", draw_races(times, commits))
    history = measure_history(str(find_suite(project)), commits[0], commits[-1], points=4)
    assert len(history.cases) == 5
    for one in history.cases:
        assert [point.commit for point in one.points] == [commits[i] for i in (0, 3, 6, 9)]
        assert [(step.commit, step.subject) for step in one.steps] == [
            (commits[3], "Change 3"),
            (commits[7], "Change 7"),
        ]
        assert [step.ratio.value for step in one.steps] == pytest.approx([1.04, 0.97 / 1.04], abs=0.01)
        assert all(step.certain for step in one.steps)
    page = write_commit_history(history, project / "history.html").read_text()
    assert "Change 7" in page
    assert "<svg" in page


def test_a_history_of_equal_commits_has_no_step(project, monkeypatch):
    commits = commit_ten(project)
    for module in (bisection, commit_history):
        monkeypatch.setattr(module, "race_commits", draw_races([1.0] * 10, commits))
    history = measure_history(str(find_suite(project)), commits[0], "HEAD", points=99)
    assert [len(one.points) for one in history.cases] == [10] * 5
    assert not any(one.steps for one in history.cases)
    assert {tuple(describe_commit_steps(one)) for one in history.cases} == {("No step.",)}
    with pytest.raises(InputError, match="ask for 3 or more"):
        measure_history(str(find_suite(project)), commits[0], "HEAD", points=2)


def test_commits_that_differ_from_the_first_without_a_certain_step_are_unclear():
    ratios = ((), (0.99, 1.0, 1.01) * 3, (1.02, 1.07, 1.12) * 3, (1.055, 1.06, 1.065) * 3)
    points = tuple(CommitPoint(str(i), "s", "t", each) for i, each in enumerate(ratios))
    (sentence,) = describe_commit_steps(CaseHistory(Case({}), points, (), 0.02))
    assert sentence.startswith("UNCLEAR: commits differ from the first one")


@given(st.integers(2, 500), st.integers(3, 40))
def test_a_sample_of_commits_has_both_ends_and_none_twice(commits, points):
    sample = commit_history.choose_sample(commits, points)
    assert sample[0] == 0
    assert sample[-1] == commits - 1
    assert sample == sorted(set(sample))
    assert len(sample) == min(commits, points)
