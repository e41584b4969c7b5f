"""Delta tables and Lance datasets, counted by their own libraries (ridgeline[bulk-test])."""

from __future__ import annotations

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from tests.bulk.sources_made import make_source, make_texts

from ridgeline import bulk
from ridgeline.bulk.sources import Table
from ridgeline.bulk.tables import open_output
from ridgeline.errors import InputError, StoreError

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


@pytest.mark.parametrize(("kind", "name"), [("delta", "write_deltalake"), ("lance", "write_dataset")])
def test_a_table_that_cannot_be_written_is_one_sentence_and_costs_no_rows(
    tmp_path, settings, inline, kind, name, monkeypatch
):
    library = pytest.importorskip({"delta": "deltalake", "lance": "lance"}[kind])

    def fail(*_: object, **__: object) -> None:
        raise Exception("IO: No space left\n on device, /home/x/structural.rs:190:9")

    with monkeypatch.context() as patched:
        patched.setattr(library, name, fail)
        with pytest.raises(StoreError, match="was not written: IO: No space left on device; what is computed is kept"):
            bulk.embed(make_source(tmp_path / "in", ROWS), tmp_path / "out", format=kind, **settings)
    assert bulk.embed(tmp_path / "in", tmp_path / "out", format=kind, **settings)["computed"] == 0
    assert read_table(kind, tmp_path / "out")[1] == ROWS


def make_columns(kind, values):
    return arrow.table({"id": [1, 2], "title": ["x", "y"], "value": arrow.array(values, kind)})


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (arrow.uint8(), [1, 255]),
        (arrow.uint64(), [1, 2**63 - 1]),
        (arrow.float16(), [0.5, None]),
        (arrow.timestamp("ns"), [1_000, 2_000_000]),
        (arrow.list_(arrow.uint8()), [[200], []]),
        (arrow.struct([("a", arrow.uint16())]), [{"a": 65535}, None]),
    ],
)
def test_a_delta_table_keeps_values_whose_types_it_lacks(tmp_path, settings, inline, kind, values):
    deltalake = pytest.importorskip("deltalake")
    rows = make_columns(kind, values)
    parquet.write_table(rows, tmp_path / "in.parquet")
    bulk.embed(tmp_path / "in.parquet", tmp_path / "out", format="delta", **settings)
    found = deltalake.DeltaTable(str(tmp_path / "out")).to_pyarrow_table().sort_by("id")
    assert found["value"].to_pylist() == rows["value"].to_pylist()
    parquet.write_table(rows, tmp_path / "in.parquet", row_group_size=1)
    again = bulk.embed(tmp_path / "in.parquet", tmp_path / "out", format="delta", incremental=True, **settings)
    assert again["computed"] == 0, "the types of the table make no row a changed one"


def test_a_delta_table_stores_the_bytes_of_an_extension_type(tmp_path, settings, inline):
    deltalake = pytest.importorskip("deltalake")
    parquet.write_table(make_columns(arrow.uuid(), [b"a" * 16, b"b" * 16]), tmp_path / "in.parquet")
    bulk.embed(tmp_path / "in.parquet", tmp_path / "out", format="delta", **settings)
    found = deltalake.DeltaTable(str(tmp_path / "out")).to_pyarrow_table().sort_by("id")
    assert found["value"].to_pylist() == [b"a" * 16, b"b" * 16]
    again = bulk.embed(tmp_path / "in.parquet", tmp_path / "out", format="delta", incremental=True, **settings)
    assert again["computed"] == 0


@pytest.mark.parametrize(("kind", "values"), [(arrow.uint64(), [1, 2**63]), (arrow.timestamp("ns"), [1, 2])])
def test_a_value_that_a_delta_table_would_change_is_refused(tmp_path, settings, inline, kind, values):
    pytest.importorskip("deltalake")
    parquet.write_table(make_columns(kind, values), tmp_path / "in.parquet")
    with pytest.raises(StoreError, match=r"in\.parquet has a value in 'value' that the target cannot hold"):
        bulk.embed(tmp_path / "in.parquet", tmp_path / "out", format="delta", **settings)


@pytest.mark.parametrize("kind", [arrow.time64("us"), arrow.duration("us"), arrow.decimal256(50, 2)])
def test_a_type_that_no_delta_table_has_is_refused_before_anything_is_computed(tmp_path, kind):
    pytest.importorskip("deltalake")
    schema = arrow.schema([("title", arrow.string()), ("value", kind)])
    with pytest.raises(InputError, match="the type of column 'value'; convert it, or choose parquet or lance"):
        open_output("delta", str(tmp_path / "out"), Table((), "title", None, schema, ()))


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [("delta", "Title", "columns 'title' and 'Title', which differ in their case"), ("lance", "a.b", "column 'a.b'")],
)
def test_a_name_that_a_table_cannot_have_is_refused_before_anything_is_computed(tmp_path, kind, name, message):
    pytest.importorskip({"delta": "deltalake", "lance": "lance"}[kind])
    schema = arrow.schema([("title", arrow.string()), (name, arrow.string())])
    with pytest.raises(InputError, match=message):
        open_output(kind, str(tmp_path / "out"), Table((), "title", None, schema, ()))


def test_columns_that_were_added_to_a_delta_table_are_null_in_its_older_files(tmp_path, settings, inline):
    deltalake = pytest.importorskip("deltalake")
    source = str(tmp_path / "in")
    deltalake.write_deltalake(source, arrow.table({"id": [1, 2], "title": ["x", "y"]}))
    later = arrow.table({"id": [3], "title": ["z"], "year": [1999]})
    deltalake.write_deltalake(source, later, mode="append", schema_mode="merge")
    bulk.embed(source, tmp_path / "out", **settings)
    rows = [row for file in sorted((tmp_path / "out").glob("part-*")) for row in parquet.read_table(file).to_pylist()]
    assert {row["id"]: row["year"] for row in rows} == {1: None, 2: None, 3: 1999}
    with pytest.raises(InputError, match=r"has no column 'none'; it has: .*year"):
        bulk.embed(source, tmp_path / "other", **{**settings, "key": "none"})


@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_a_table_with_a_key_twice_is_not_updated(tmp_path, settings, inline, kind):
    pytest.importorskip({"delta": "deltalake", "lance": "lance"}[kind])
    parquet.write_table(arrow.table({"id": [1, 2, 2], "title": ["x", "y", "z"]}), tmp_path / "in.parquet")
    bulk.embed(tmp_path / "in.parquet", tmp_path / "out", format=kind, **settings)
    parquet.write_table(arrow.table({"id": [1, 2], "title": ["x", "new"]}), tmp_path / "in.parquet")
    with pytest.raises(InputError, match="values of the key column 'id' occur twice in the target"):
        bulk.embed(tmp_path / "in.parquet", tmp_path / "out", format=kind, incremental=True, **settings)


def test_a_key_that_lance_cannot_look_up_is_refused_before_anything_is_computed(tmp_path, settings, inline):
    pytest.importorskip("lance")
    rows = make_columns(arrow.timestamp("us"), [1, 2])
    parquet.write_table(rows, tmp_path / "in.parquet")
    call = {**settings, "key": "value", "format": "lance"}
    bulk.embed(tmp_path / "in.parquet", tmp_path / "out", **call)
    parquet.write_table(rows.slice(1), tmp_path / "in.parquet")
    with pytest.raises(InputError, match=r"'value' is timestamp\[us\]; choose another --key, or --format delta"):
        bulk.embed(tmp_path / "in.parquet", tmp_path / "out", incremental=True, **call)
