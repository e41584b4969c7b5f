"""A process that dies before or after any change of the target loses no row, doubles none, and changes none.

Every call that changes a file is a place to die: the job runs in a forked child that ends there by `os._exit`, without
any `finally`. Then the same call runs again.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.bulk.dies import fork
from tests.bulk.sources_made import make_source, make_texts, read_parts, read_rows

from ridgeline import bulk
from ridgeline.bulk import embedding
from ridgeline.bulk.row_worker import Computed, RowWorker
from ridgeline.bulk.storage import LocalStorage
from ridgeline.bulk.target import MANIFEST

DIED = 77
ROWS = dict(enumerate(make_texts(24)))
LATER = {i: text for i, text in ROWS.items() if i not in (7, 20)} | {12: "a new text", 90: "an added one"}
CHANGES = ("write", "move", "delete")


class FakeWorker(RowWorker):
    """Vectors from lengths and letters, without a model; the text "bad" is a reject."""

    added = ("vector",)

    def compute(self, values: Any) -> Computed:
        texts = values.to_pylist()
        good = [text for text in texts if text != "bad"]
        vectors = arrow.array([[len(text), text.count("e")] for text in good], arrow.list_(arrow.float32(), 2))
        return Computed(arrow.table({"vector": vectors}), [(i, "bad") for i, text in enumerate(texts) if text == "bad"])


@pytest.fixture
def fake(inline, monkeypatch):
    monkeypatch.setattr(embedding.EmbedFactory, "__call__", lambda self, device: FakeWorker(self, device))
    monkeypatch.setattr("ridgeline.bulk.embed_job.hash_model", lambda name: "fake")
    monkeypatch.setattr("ridgeline.bulk.job.write_summary", lambda *_: None)  # it takes longer than the job


def run(source: Path, out: Path, **more: Any) -> dict[str, Any]:
    options = {"column": "title", "key": "id", "chunk_rows": 10, "device": "cpu", "dtype": "float32", **more}
    return bulk.embed(source, out, **options)


def run_and_die(change: int, after: bool, source: Path, out: Path, file: str = "", **more: Any) -> bool:
    """Run in a child that dies before or after the given change (of one file); return whether it died."""
    child = fork()
    if child == 0:
        left = change

        def wrap(original):
            def die(*args):
                nonlocal left
                left -= args[1] == file or not file
                if left <= 0:
                    if after:
                        original(*args)
                    os._exit(DIED)
                return original(*args)

            return die

        try:
            for name in CHANGES:
                setattr(LocalStorage, name, wrap(getattr(LocalStorage, name)))
            run(source, out, **more)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == DIED


def check_whole(source: Path, out: Path, whole: Path, rows: dict[int, str], **more: Any) -> None:
    run(source, out, **more)
    assert read_rows(out) == rows
    assert read_parts(out) == read_parts(whole)
    left = {file.name for file in (out / "_ridgeline").rglob("*") if file.is_file()}
    assert left <= {"job.json", "manifest.json", "runs.json", "lock"}
    assert run(source, out, **more)["computed"] == 0, "nothing is left to do"


def test_a_driver_that_dies_before_it_tidied_leaves_no_old_part(tmp_path, fake):
    source = make_source(tmp_path / "in", ROWS)
    run(source, tmp_path / "out")
    make_source(source, LATER)
    run(source, tmp_path / "whole")
    assert run_and_die(1, True, source, tmp_path / "out", file=MANIFEST, incremental=True)
    assert len(read_parts(tmp_path / "out")) > len(read_parts(tmp_path / "whole")), "old and new parts lie there"
    check_whole(source, tmp_path / "out", tmp_path / "whole", LATER, incremental=True)


def test_what_killed_writers_left_is_removed(tmp_path, fake):
    source, out = make_source(tmp_path / "in", ROWS), tmp_path / "out"
    run(source, out)
    left = [out / "_ridgeline/commits/.0001-00000001.json.tmp", out / "rejects/.part-000001.jsonl.tmp"]
    for folder in left:
        (folder / "0011223344556677").mkdir(parents=True)
        (folder / "0011223344556677/owner").touch()
    run(make_source(source, LATER), out, incremental=True)
    assert not [folder for folder in left if folder.exists()]


@pytest.mark.slow  # some 30 runs
def test_a_death_at_any_change_of_the_first_run(tmp_path, fake):
    source = make_source(tmp_path / "in", ROWS | {15: "bad"})
    rows = {i: text for i, text in ROWS.items() if i != 15}
    run(source, tmp_path / "whole")
    places = 0
    for change in range(1, 60):
        out = tmp_path / f"out{change}"
        died = run_and_die(change, bool(change % 2), source, out)
        check_whole(source, out, tmp_path / "whole", rows)
        if not died:
            break
        places += 1
    assert places > 8, "the run has at least a part and a commit for each chunk"


@pytest.mark.slow  # some 30 runs
def test_a_death_at_any_change_of_an_increment(tmp_path, fake):
    source = make_source(tmp_path / "in", ROWS)
    run(source, tmp_path / "first")
    make_source(source, LATER)
    run(source, tmp_path / "whole")
    places = 0
    for change in range(1, 60):
        out = tmp_path / f"out{change}"
        shutil.copytree(tmp_path / "first", out)
        died = run_and_die(change, bool(change % 2), source, out, incremental=True)
        check_whole(source, out, tmp_path / "whole", LATER, incremental=True)
        if not died:
            break
        places += 1
    assert places > 5


@pytest.mark.slow  # some 30 runs
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=6))
def test_many_deaths_in_a_row_lead_to_the_same_bytes(tmp_path_factory, fake, deaths):
    folder = tmp_path_factory.mktemp("deaths")
    source = make_source(folder / "in", ROWS)
    run(source, folder / "whole")
    for change, after in deaths:
        run_and_die(change, after, source, folder / "out")
    check_whole(source, folder / "out", folder / "whole", ROWS)
