"""Another version of our code, built in the cache folder and raced from its own tree.

python -m pytest tests/lab/race/test_against.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import ridgeline
from ridgeline.errors import InputError
from ridgeline.lab.judge import analyse_record
from ridgeline.lab.race import ContenderSpec, against, build_version, copy_working_tree
from ridgeline.lab.race.process import CONTENDER_MODULES, ContenderFailure, RankGroup, _entry_arguments, module_path

ROOT = Path(ridgeline.__file__).resolve().parents[2]
in_git = (
    shutil.which("git") and not subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True).returncode
)
pytestmark = pytest.mark.skipif(not in_git, reason="not a git checkout")


@pytest.mark.slow
def test_a_commit_is_built_and_races_from_its_own_tree_against_a_copy_of_ours(run, known_ceilings):
    version = build_version("HEAD")
    assert version.name.startswith("ridgeline@")
    with RankGroup(version):
        pass  # the first message proves where the code comes from
    with copy_working_tree() as tree:
        tree_module, version_module = (
            next((Path(one) / "ridgeline").glob("native*.so")) for one in (tree, version.tree)
        )
        if not subprocess.run(
            ["git", "-C", ROOT, "diff", "--quiet", "HEAD", "--", "native", "CMakeLists.txt"]
        ).returncode:
            assert tree_module.read_bytes() == version_module.read_bytes(), "equal sources have one module"
        assert len(tree) == len(version.tree), "the two differ in as little as possible"
        with RankGroup(ContenderSpec("ridgeline", "ridgeline", tree=tree)):
            pass
        record = run(workload="ridgeline.workloads.spin", versions=[version], tree=tree, budget_s=5.0)[0]
    assert not Path(tree).parent.exists()
    assert len({(result.samples_per_turn, result.calls_per_sample) for result in record.contenders}) == 1
    rows = {row.result.contender: row for row in analyse_record(record)}
    assert rows[version.name].assessment.time, rows[version.name].assessment.advice
    assert rows[version.name].comparison in ("SAME", "UNCLEAR"), "the same code except for uncommitted changes"
    assert build_version("HEAD") == version, "the second call builds nothing"


def test_copies_of_killed_processes_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    orphan = tmp_path / "ridgeline" / "against" / "here-9999999-cpython-311"
    (orphan / "src").mkdir(parents=True)
    monkeypatch.setattr(against, "_install_native", lambda *_: None)
    with copy_working_tree():
        assert not orphan.exists()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with a native module that was built after its sources; compilers are not called."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    root = tmp_path / "checkout"
    package = root / "src" / "ridgeline"
    (root / "native").mkdir(parents=True)
    package.mkdir(parents=True)
    (root / "CMakeLists.txt").write_text("project(ridgeline)\n")
    (root / "native" / "module.cpp").write_text("int one = 1;\n")
    (package / f"native.{sys.implementation.cache_tag}-x86_64-linux-gnu.so").write_bytes(b"module of the checkout")
    monkeypatch.setattr(against, "_find_root", lambda: root)
    monkeypatch.setattr(ridgeline, "__file__", str(package / "__init__.py"))

    def build(scratch: Path, owner: str, on_activity) -> None:
        on_activity(f"building {owner}")
        (scratch / "src" / "ridgeline").mkdir(parents=True)
        (scratch / "src" / "ridgeline" / "native.so").write_bytes(b"module that was built")

    monkeypatch.setattr(against, "_build", build)
    return root


def install(sources: Path, target: Path) -> tuple[bytes, list[str]]:
    """The native module that a tree gets, and what the user sees meanwhile."""
    (target / "src" / "ridgeline").mkdir(parents=True)
    reports: list[str] = []
    against._install_native(sources, target, "commit 1a2b3c4", reports.append, reports.append)
    return next((target / "src" / "ridgeline").glob("*.so")).read_bytes(), reports


def test_equal_native_sources_use_the_module_of_the_checkout(checkout, tmp_path):
    same = tmp_path / "same"
    shutil.copytree(checkout / "native", same / "native")
    shutil.copy2(checkout / "CMakeLists.txt", same)
    assert install(same, tmp_path / "one") == (b"module of the checkout", [])
    assert install(checkout, tmp_path / "two") == (b"module of the checkout", []), "both versions have one module"


def test_other_native_sources_are_built_once_and_the_user_sees_it(checkout, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(checkout / "native", other / "native")
    (other / "CMakeLists.txt").write_text("project(other)\n")
    module, reports = install(other, tmp_path / "one")
    assert module == b"module that was built"
    assert "not part of --budget" in reports[0]
    assert reports[1:] == ["building commit 1a2b3c4"]
    assert install(other, tmp_path / "two") == (b"module that was built", []), "the second call builds nothing"


def test_a_module_older_than_its_sources_is_not_used(checkout, tmp_path):
    source = checkout / "native" / "module.cpp"
    later = source.stat().st_mtime + 10
    os.utime(source, (later, later))
    assert install(checkout, tmp_path / "one")[0] == b"module that was built"


@pytest.mark.parametrize(("line", "share"), [("[ 42%] Building CXX", "42%"), ("[17/40] Building CXX", "17 of 40")])
def test_the_progress_of_a_build_is_shown(tmp_path, monkeypatch, line, share):
    cmake = tmp_path / "cmake"
    cmake.write_text(f"#!/bin/sh\necho '{line}'\nmkdir -p {tmp_path}/tree/build\n")
    cmake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(cmake))
    activities: list[str] = []
    against._build(tmp_path / "tree", "commit 1a2b3c4", activities.append)
    assert activities[-1] == f"building the native module of commit 1a2b3c4: {share}"


def test_a_failed_build_shows_the_error_of_the_compiler(tmp_path, monkeypatch):
    cmake = tmp_path / "cmake"
    cmake.write_text("#!/bin/sh\necho 'module.cpp:3: error: no such type'\necho 'gmake: *** [all] Error 2'\nexit 2\n")
    cmake.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: str(cmake))
    with pytest.raises(InputError, match=r"of commit 1a2b3c4 does not build: module.cpp:3: error: no such type"):
        against._build(tmp_path / "tree", "commit 1a2b3c4", lambda _: None)


def test_a_version_that_runs_from_another_tree_is_refused(tmp_path):
    (tmp_path / "src").mkdir()
    version = ContenderSpec("ridgeline@x", "ridgeline", tree=str(tmp_path / "src"))
    with pytest.raises(ContenderFailure, match="runs the code of"), RankGroup(version):
        pass


def test_a_commit_older_than_the_lab_is_refused_before_anything_is_built():
    root = subprocess.run(["git", "-C", ROOT, "rev-list", "--max-parents=0", "HEAD"], capture_output=True, text=True)
    oldest = root.stdout.split()[0]
    files = (f"{oldest}:src/{module_path(module)}" for module in CONTENDER_MODULES)
    if any(not subprocess.run(["git", "-C", ROOT, "cat-file", "-e", file]).returncode for file in files):
        pytest.skip("every commit has the lab")
    with pytest.raises(InputError, match="older than the lab"):
        build_version(oldest)


@pytest.mark.parametrize("module", CONTENDER_MODULES)
def test_the_process_starts_the_contender_module_that_its_tree_has(tmp_path, module):
    file = tmp_path / module_path(module)
    file.parent.mkdir(parents=True)
    file.touch()
    _, script = _entry_arguments(ContenderSpec("ridgeline@x", "ridgeline", tree=str(tmp_path)))
    assert f"from {module} import main" in script
    assert str(tmp_path) in script


def test_a_missing_commit_is_named():
    with pytest.raises(InputError, match="no commit 'nonsense'"):
        build_version("nonsense")
