"""Delta tables and Lance datasets, counted by their own libraries (ridgeline[bulk-test])."""

from __future__ import annotations

import pytest
from tests.bulk.sources_made import make_source, make_texts

from ridgeline import bulk

ROWS = dict(enumerate(make_texts(44)))
LATER = {i: text for i, text in ROWS.items() if i not in (7, 30)} | {12: "a new text", 90: "an added one"}


def read_table(kind, path, version=None):
    """Return (version, rows by id), each row once, with a vector."""
    if kind == "delta":
        opened = pytest.importorskip("deltalake").DeltaTable(str(path), version=version)
        rows, number = opened.to_pyarrow_table().to_pylist(), opened.version()
    else:
        opened = pytest.importorskip("lance").dataset(str(path), version=version)
        rows, number = opened.to_table().to_pylist(), opened.version
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(len(row["vector"]) == len(rows[0]["vector"]) > 0 for row in rows)
    return number, {row["id"]: row["title"] for row in rows}


@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_a_table_resumes_and_an_increment_makes_one_version(tmp_path, settings, inline, kind):
    pytest.importorskip({"delta": "deltalake", "lance": "lance"}[kind])
    source, out = make_source(tmp_path / "in", ROWS), tmp_path / "out"
    inline.stop_after = 2
    with pytest.raises(KeyboardInterrupt):
        bulk.embed(source, out, format=kind, **settings)
    inline.stop_after = None
    assert bulk.embed(source, out, format=kind, **settings)["reused"] == 20
    first, rows = read_table(kind, out)
    assert rows == ROWS
    make_source(source, LATER)
    answer = bulk.embed(source, out, format=kind, incremental=True, **settings)
    assert (answer["computed"], answer["removed"], answer["rows"]) == (2, 2, 43)
    assert read_table(kind, out) == (first + 1, LATER)
    assert read_table(kind, out, first)[1] == ROWS, "the old version is still there"
    assert bulk.embed(source, out, format=kind, incremental=True, **settings)["computed"] == 0
    assert read_table(kind, out)[0] == first + 1, "nothing changed, so there is no new version"
