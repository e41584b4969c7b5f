"""Versions of a user's repository: each contender imports the modules of its own version, however they are installed.

python -m pytest tests/lab/race/test_repository.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lab.conftest import SUBJECTS

from ridgeline.errors import InputError
from ridgeline.lab.race import BenchRequest, Plan, choose_repository, export_versions, list_contenders
from ridgeline.lab.race.benchmark import _describe_code
from ridgeline.lab.race.measure import measure_case
from ridgeline.lab.race.process import ProcessPool
from ridgeline.lab.race.request import format_command, plan_points
from ridgeline.lab.record import describe_code, find_user_repository
from ridgeline.machine import topology

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
WORKLOAD = """
import mine
from ridgeline.lab import Case, Check, Steps, Work


class Mine:
    name = "mine"

    def cases(self, profile):
        return [Case({"n": 8})]

    def work(self, case):
        return Work(items=case["n"], unit="numbers")

    def contenders(self, case):
        return ["ridgeline"]

    def prepare(self, case, contender, place):
        return Steps(lambda: sum(range(case["n"])), lambda: mine.VERSION)

    def check(self, case, result):
        return Check(ok=True, note=result)


workload = Mine()
"""


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@example.test", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """Two commits of a package in `src` and a module beside the workload, and a working tree with changes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "user repository"
    (root / "src" / "package").mkdir(parents=True)
    git(tmp_path, "init", "-q", str(root))
    (root / ".gitignore").write_text("*.so\ndata.bin\n")
    (root / "src" / "package" / "__init__.py").write_text("VERSION = 'old'\n")
    (root / "src" / "package" / "removed.py").write_text("")
    (root / "mine.py").write_text("VERSION = 'old'\n")
    (root / "work.py").write_text(WORKLOAD)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Add it")
    git(root, "rm", "-q", "src/package/removed.py")
    (root / "mine.py").write_text("VERSION = 'new'\n")
    (root / "src" / "package" / "__init__.py").write_text("VERSION = 'new'\n")
    git(root, "commit", "-qam", "Change it")
    (root / "added.py").write_text("VERSION = 'not committed'\n")
    (root / "data.bin").write_bytes(b"ignored")
    return root


def export(repository: Path, commit: str = "HEAD~1", files: tuple[str, ...] = (), messages: list[str] | None = None):
    texts = messages if messages is not None else []
    return export_versions(repository, commit, files, lambda _: None, texts.append)


def run_python(code: str, **options) -> str:
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, **options)
    return (process.stdout + process.stderr).strip()


def test_both_versions_are_copies_that_are_deleted_at_the_end(repository):
    with export(repository) as both:
        old, new = Path(both.version.checkout.folder), Path(both.working_tree.folder)
        assert both.commit == git(repository, "rev-parse", "HEAD~1")
        assert both.version.name == f"ridgeline@{both.commit[:7]}"
        assert [(f / "mine.py").read_text() for f in (old, new)] == ["VERSION = 'old'\n", "VERSION = 'new'\n"]
        assert (new / "added.py").exists()
        assert not (new / "data.bin").exists()
        assert len(str(old)) == len(str(new)), "the two differ in as little as possible"
    assert not old.parent.exists()


def test_a_workload_that_the_commit_lacks_is_that_of_the_working_tree(repository):
    messages: list[str] = []
    with export(repository, files=(str(repository / "added.py"),), messages=messages) as both:
        assert Path(both.version.checkout.folder, "added.py").exists()
    assert "has no added.py" in messages[0]


def test_the_race_measures_the_code_of_both_versions(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(repository)
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setattr(sys, "path", [*sys.path, str(repository)])
    request = BenchRequest(["work.py"], tmp_path)
    with export(repository, files=("work.py",)) as both, ProcessPool() as pool:
        request = replace(request, versions=[both.version], checkout=both.working_tree, against=both.commit)
        (point,) = plan_points(request, topology(), print)
        race = measure_case(
            "work.py",
            point.case,
            list_contenders(point, request),
            plan=Plan(budget_s=0.01, least_rounds=1, most_rounds=1),
            pool=pool,
            machine=topology(),
        )
    assert [lane.failure for lane in race.lanes] == [None, None]
    assert [lane.check["note"] for lane in race.lanes] == ["new", "old"]
    code = _describe_code(point, request)
    assert code["commit"] == git(repository, "rev-parse", "HEAD")
    assert code["against"] == git(repository, "rev-parse", "HEAD~1")
    assert code["dirty"] is True
    assert code["repository"] == "user repository"
    assert "--against" in format_command(point, request)


@pytest.mark.parametrize("way", ["PYTHONPATH", "working folder", "path file", "editable finder"])
def test_a_module_comes_from_its_version_however_it_is_installed(repository, way):
    before, variables, folder = "", dict(os.environ), str(repository.parent)
    source = str(repository / "src")
    if way == "PYTHONPATH":
        variables["PYTHONPATH"] = source
    elif way == "working folder":
        folder = source
    elif way == "path file":
        before = f"sys.path.append({source!r})"
    else:
        before = f"""
from importlib.util import spec_from_file_location
class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "package":
            return spec_from_file_location(name, {source + "/package/__init__.py"!r},
                                           submodule_search_locations=[{source + "/package"!r}])
sys.meta_path.insert(0, Editable)
"""
    with export(repository) as both:
        checkout = both.version.checkout
        code = f"""
import sys
{before}
from ridgeline.lab.race.checkout import check_modules, use_checkout
use_checkout({checkout.repository!r}, {checkout.folder!r})
import package, package.removed
check_modules()
print(package.VERSION, package.__file__ == {checkout.folder + "/src/package/__init__.py"!r})
"""
        assert run_python(code, env=variables, cwd=folder) == "old True"


def test_a_module_of_the_working_tree_is_missing_in_a_commit_without_it(repository):
    with export(repository, "HEAD") as both:
        checkout = both.version.checkout
        code = f"""
from ridgeline.lab.race.checkout import use_checkout
use_checkout({checkout.repository!r}, {checkout.folder!r})
import added
"""
        assert "No module named 'added'" in run_python(code, cwd=repository)


def test_a_module_that_was_imported_from_the_repository_is_refused(repository):
    with export(repository) as both:
        checkout = both.version.checkout
        code = f"""
import mine
from ridgeline.lab.race.checkout import check_modules, use_checkout
use_checkout({checkout.repository!r}, {checkout.folder!r})
check_modules()
"""
        assert "ImportError: module 'mine' comes from" in run_python(code, cwd=repository)


def test_an_environment_inside_the_repository_stays(repository):
    with export(repository) as both:
        checkout = both.version.checkout
        code = f"""
import sys
sys.prefix = {str(repository / "environment")!r}
from ridgeline.lab.race.checkout import Checkout
checkout = Checkout({checkout.repository!r}, {checkout.folder!r})
print(checkout.replaces({str(repository / "environment/lib/numpy.py")!r}), checkout.replaces({str(repository)!r}))
"""
        assert run_python(code) == "False True"


def test_compiled_modules_serve_both_versions_if_their_sources_are_equal(repository):
    (repository / "core.so").write_bytes(b"compiled")
    with export(repository) as both:
        for folder in (both.version.checkout.folder, both.working_tree.folder):
            assert Path(folder, "core.so").read_bytes() == b"compiled"
    (repository / "core.c").write_text("int one;\n")
    git(repository, "add", "core.c")
    git(repository, "commit", "-qm", "Add a core")
    (repository / "core.c").write_text("int two;\n")
    with pytest.raises(InputError, match=r"has another core\.c .* add --build"), export(repository, "HEAD"):
        pytest.fail("was accepted")


def test_a_missing_commit_is_named_with_its_repository(repository):
    with pytest.raises(InputError, match=r"no commit 'nonsense' in .*user repository"), export(repository, "nonsense"):
        pytest.fail("was accepted")


def test_the_repository_is_that_of_the_workloads_file(repository, tmp_path):
    mine, alone = str(repository / "work.py"), tmp_path / "alone.py"
    alone.write_text("")
    assert choose_repository([mine], None) == repository
    assert choose_repository(["ridgeline.workloads.spin"], None) is None
    assert choose_repository([SUBJECTS], None) is None, "ridgeline's own file"
    assert choose_repository([str(alone)], repository) == repository
    with pytest.raises(InputError, match=r"alone.py' is in no git repository; --repo DIR"):
        choose_repository([str(alone)], None)
    with pytest.raises(InputError, match="belong to different repositories"):
        choose_repository([mine, "ridgeline.workloads.spin"], None)
    with pytest.raises(InputError, match=r"--repo .* is in no git repository"):
        choose_repository([mine], tmp_path)


def test_a_record_of_a_users_file_has_the_users_commit_and_a_hash_of_the_users_code(repository):
    assert find_user_repository(str(repository / "work.py")) == repository
    assert find_user_repository(SUBJECTS) is None
    code = describe_code(repository)
    assert code["commit"] == git(repository, "rev-parse", "HEAD")
    assert code["ridgeline_commit"] == describe_code()["commit"]
    describe_code.cache_clear()
    (repository / "mine.py").write_text("VERSION = 'newer'\n")
    assert describe_code(repository)["tree"] != code["tree"]
    describe_code.cache_clear()
