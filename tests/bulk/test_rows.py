"""Sources are cut into the same rows in any chunk size, and every row is read once."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
from pathlib import Path
from typing import ClassVar

import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bulk.sources_made import make_source, make_table, make_texts

from ridgeline.bulk import sources, storage
from ridgeline.bulk.increment import RowHasher, index_rows
from ridgeline.bulk.rows import RowReader
from ridgeline.bulk.sources import find_files, open_table, plan_spans
from ridgeline.errors import InputError, StoreError

GZIPPED = gzip.compress(b"".join(b'{"id": %d, "title": "%d"}\n' % (i, i**5) for i in range(500)), mtime=0)


def read_all(source: Path | list[Path], chunk_rows: int, column: str | None = "title", key: str | None = "id"):
    files = find_files(source if isinstance(source, list) else [source])
    table = open_table(files, column, key)
    reader = RowReader(table)
    chunks = [reader.read(spans) for spans in plan_spans(table, chunk_rows)]
    reader.close()
    assert all(len(chunk.rows) + len(chunk.rejects) <= chunk_rows for chunk in chunks)
    return chunks


@pytest.mark.parametrize("chunk_rows", [1, 7, 10, 1000])
def test_chunks_span_files_and_hold_every_row_once(tmp_path, chunk_rows):
    rows = dict(enumerate(make_texts(43)))
    chunks = read_all(make_source(tmp_path / "in", rows), chunk_rows)
    assert len(chunks) == -(-43 // chunk_rows)
    assert [i for chunk in chunks for i in chunk.rows["id"].to_pylist()] == list(rows)
    assert [t for chunk in chunks for t in chunk.rows["title"].to_pylist()] == list(rows.values())


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=12), max_size=20),
    st.integers(1, 8),
)
def test_csv_cells_with_quotes_and_line_ends_are_read_as_they_were_written(tmp_path_factory, texts, chunk_rows):
    path = tmp_path_factory.mktemp("csv") / "in.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerows([["id", "title"], *([i, text] for i, text in enumerate(texts))])
    found = [t for chunk in read_all(path, chunk_rows) for t in chunk.rows["title"].to_pylist()]
    assert found == texts


@given(st.lists(st.text(st.sampled_from('ab",\n\t é'), max_size=12), max_size=20), st.integers(1, 8), st.integers(1, 9))
def test_chunks_of_any_csv_file_have_the_records_of_the_module_csv(tmp_path_factory, pieces, chunk_rows, block):
    path = tmp_path_factory.mktemp("csv") / "in.csv"
    text = "title,n\n" + "".join(f"{piece},{i}\n" for i, piece in enumerate(pieces))
    path.write_text(text, encoding="utf-8")
    *expected, last = csv.reader(io.StringIO(f"{text}END", newline="\n"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BLOCK_BYTES", block)
        if last != ["END"]:  # the text ends inside quotes
            with pytest.raises(InputError, match="never closed"):
                read_all(path, chunk_rows, key=None)
            return
        chunks = read_all(path, chunk_rows, key=None)
    good = [row[0] for row in expected[1:] if len(row) == 2]
    assert [t for chunk in chunks for t in chunk.rows["title"].to_pylist()] == good
    assert sum(len(chunk.rejects) for chunk in chunks) == sum(len(row) not in (0, 2) for row in expected[1:])


def test_a_quote_that_is_never_closed_is_named_and_swallows_no_rows(tmp_path):
    (tmp_path / "a.tsv").write_text('id\ttitle\n1\t"Giliap\n2\tJaws\n')
    with pytest.raises(InputError, match=r"a\.tsv' has a quote at byte 11 that is never closed"):
        read_all(tmp_path, 10)


def test_a_later_number_that_would_come_back_as_another_text_is_a_reject(tmp_path):
    lines = ["id,title,year,rating", *(f"{i},t,{i},{i}.5" for i in range(1000))]
    lines += ["1000,t,007,1.5", "1001,t,1_0,1.5", "1002,t, 5,1.5", "1003,t,1,007.5", "1004,t,1,1_0", "1005,t,+8,nan"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    [chunk] = read_all(tmp_path, 2000)
    assert [(reject.row, reject.reason) for reject in chunk.rejects] == [
        (1000, "'year' is \"007\", no int64"),
        (1001, "'year' is \"1_0\", no int64"),
        (1002, "'year' is \" 5\", no int64"),
        (1003, "'rating' is \"007.5\", no double"),
        (1004, "'rating' is \"1_0\", no double"),
    ]
    assert chunk.rows["year"].to_pylist()[-1] == 8


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", b"id,title\r1,a\r2,b\r", "a.csv' has no header that can be read"),
        ("a.csv", b"id,title,title\n1,a,b\n", "a.csv' has two columns 'title'"),
        ("a.csv", "id,title\n1,a\n".encode("utf-16"), "a.csv' is UTF-16; convert it"),
        ("a.jsonl", b'{\n "id": 1\n}\n', "a.jsonl' has no JSON object in its first lines"),
        ("a.csv", "id,title,\xe9t\xe9\n1,a,b\n".encode("latin-1"), "the header of '"),
        ("a.jsonl.gz", b'{"id": 1, "title": "x"}\n', "a.jsonl.gz' cannot be decompressed"),
        ("a.jsonl.gz", GZIPPED[:-20], "a.jsonl.gz' cannot be decompressed"),
        ("a.csv.gz", GZIPPED[:40] + bytes(20) + GZIPPED[60:], "a.csv.gz' cannot be decompressed"),
    ],
)
def test_a_text_file_that_cannot_be_a_table_is_named(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError, match=re.escape(message)):
        read_all(tmp_path, 10)


def test_categories_of_texts_are_texts_and_two_columns_of_one_name_are_refused(tmp_path):
    titles = arrow.array(["x", "y", "x"]).dictionary_encode()
    parquet.write_table(arrow.table({"id": [1, 2, 3], "title": titles}), tmp_path / "a.parquet")
    [chunk] = read_all(tmp_path / "a.parquet", 10)
    assert chunk.rows["title"].to_pylist() == ["x", "y", "x"]
    twice = arrow.Table.from_arrays([arrow.array([1])] * 3, names=["id", "title", "title"])
    parquet.write_table(twice, tmp_path / "b.parquet")
    with pytest.raises(InputError, match=r"b\.parquet' has two columns 'title'"):
        read_all(tmp_path / "b.parquet", 10)


@pytest.mark.parametrize(("source", "out"), [("in", "in/out"), ("in", "in"), ("in/**/*.parquet", "in")])
def test_a_target_inside_its_source_is_refused(tmp_path, source, out):
    parquet.write_table(make_table([1], ["x"]), tmp_path.joinpath("in").mkdir() or tmp_path / "in/a.parquet")
    with pytest.raises(InputError, match="overlap; choose a target outside"):
        find_files([tmp_path / source], str(tmp_path / out))


@pytest.mark.parametrize(
    ("kind", "cell", "stored"),
    [
        (arrow.int64(), 2.0, 2),
        (arrow.int64(), 1.5, None),
        (arrow.int64(), 1e300, None),
        (arrow.int64(), True, None),
        (arrow.float64(), True, None),
        (arrow.float32(), 1e300, None),
        (arrow.float32(), 0.5, 0.5),
        (arrow.bool_(), 1, None),
        (arrow.date32(), 1.5, None),
        (arrow.list_(arrow.int64()), [1, 2.0], [1, 2]),
        (arrow.list_(arrow.int64()), [1, 2.5], None),
        (arrow.list_(arrow.int64()), "12", None),
        (arrow.struct([("a", arrow.int64())]), {"a": 1}, {"a": 1}),
        (arrow.struct([("a", arrow.int64())]), {}, {"a": None}),
        (arrow.struct([("a", arrow.int64())]), {"a": 1.5}, None),
        (arrow.struct([("a", arrow.int64())]), {"a": 1, "b": 2}, None),
    ],
)
def test_a_json_value_that_its_column_would_change_is_a_reject(tmp_path, kind, cell, stored):
    typed = arrow.table({"id": [1], "title": ["x"], "n": arrow.array([None], kind)})
    parquet.write_table(typed, tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(json.dumps({"id": 2, "title": "y", "n": cell}) + "\n")
    [chunk] = read_all(tmp_path, 10)
    values = dict(zip(chunk.rows["id"].to_pylist(), chunk.rows["n"].to_pylist(), strict=True))
    assert values == ({1: None} if stored is None else {1: None, 2: stored})
    assert [reject.row for reject in chunk.rejects] == ([0] if stored is None else [])


@pytest.mark.parametrize("kind", [arrow.string(), arrow.large_string()])
def test_a_text_of_parquet_that_is_no_utf_8_is_a_reject(tmp_path, kind):
    data = arrow.array([b"good", b"\xff bad", None, b"", b"cut \xc3"], arrow.large_binary()).cast(
        arrow.large_binary() if kind == arrow.large_string() else arrow.binary()
    )
    texts = arrow.Array.from_buffers(kind, len(data), data.buffers())
    parquet.write_table(arrow.table({"id": range(5), "title": texts}), tmp_path / "a.parquet")
    chunks = read_all(tmp_path, 2)
    assert [row for chunk in chunks for row in chunk.rows.to_pylist()] == [
        {"id": 0, "title": "good"},
        {"id": 3, "title": ""},
    ]
    reasons = {reject.row: reject.reason for chunk in chunks for reject in chunk.rejects}
    assert reasons == {1: "'title' is not UTF-8", 2: "'title' is null", 4: "'title' is not UTF-8"}


@given(st.lists(st.one_of(st.text(max_size=8), st.integers(), st.none(), st.floats(allow_nan=False)), max_size=15))
def test_every_json_line_is_a_row_or_a_reject(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("json") / "in.jsonl"
    path.write_text("".join(json.dumps({"id": i, "title": v}) + "\n" for i, v in enumerate([*values, "last"])))
    chunks = read_all(path, 4)
    good = [i for chunk in chunks for i in chunk.rows["id"].to_pylist()]
    bad = [reject.row for chunk in chunks for reject in chunk.rejects]
    readable = [i for i, v in enumerate([*values, "last"]) if isinstance(v, str) and v.isprintable()]
    assert sorted(good + bad) == list(range(len(values) + 1))
    assert set(readable) <= set(good)


def test_gzip_text_and_windows_line_ends(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("one\n\nthree\n")
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbffour\r\nfive")
    chunks = read_all(tmp_path, 2, None, None)
    assert [t for chunk in chunks for t in chunk.rows["text"].to_pylist()] == ["one", "", "three", "four", "five"]


def test_folders_globs_and_files_in_the_order_given(tmp_path):
    for name, first in (("b", 0), ("a", 5)):
        (tmp_path / name).mkdir()
        parquet.write_table(make_table([first, first + 1], ["x", "y"]), tmp_path / name / "part.parquet")
    (tmp_path / "a/notes.md").write_text("not a table")
    (tmp_path / "a/.hidden.parquet").write_text("not a table")
    ids = [i for c in read_all([tmp_path / "b", tmp_path / "a"], 9) for i in c.rows["id"].to_pylist()]
    assert ids == [0, 1, 5, 6]
    ids = [i for c in read_all([Path(f"{tmp_path}/*/*.parquet")], 9) for i in c.rows["id"].to_pylist()]
    assert ids == [5, 6, 0, 1]


@pytest.mark.parametrize("source", ["", "a.parquet", "*.parquet", "**/*.parquet"])
def test_fsspec_reads_a_file_a_folder_and_a_glob(tmp_path, source):
    pytest.importorskip("fsspec")
    parquet.write_table(make_table([1, 2], ["x", "y"]), tmp_path / "a.parquet")
    [chunk] = read_all([f"local://{tmp_path}/{source}"], 9)
    assert chunk.rows["id"].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("mark", "changes"),
    [("ETag", True), ("blob_id", True), ("sha", True), ("Last-Modified", True), ("created", True), ("comment", False)],
)
def test_a_file_without_a_time_has_the_mark_of_its_content_as_version(mark, changes):
    fsspec = pytest.importorskip("fsspec")
    memory = pytest.importorskip("fsspec.implementations.memory")

    class MarkedFiles(memory.MemoryFileSystem):
        protocol = "marked"
        store: ClassVar[dict] = {}
        pseudo_dirs: ClassVar[list] = [""]

        @classmethod
        def _strip_protocol(cls, path):
            return super()._strip_protocol(path.replace("marked://", "memory://"))

        def info(self, path, **options):
            known = super().info(path, **options)
            known.pop("created", None)
            if known["type"] == "file":
                known[mark] = hashlib.sha256(self.cat_file(path)).hexdigest()
            return known

    fsspec.register_implementation("marked", MarkedFiles, clobber=True)
    storage._open_filesystem.cache_clear()
    versions = []
    for content in (b"one", b"two", b"one"):
        MarkedFiles().pipe("/in/a.txt", content)
        [listed] = find_files(["marked://in"])
        [single] = find_files(["marked://in/a.txt"])
        assert listed.version == single.version
        versions.append(listed.version)
    assert versions[0] == versions[2]
    assert (versions[0] != versions[1]) is changes, "a change of the content that keeps the size"


@pytest.mark.parametrize("source", ["none.parquet", "*.parquet", "s3://", "notes.md", "foo://bucket/x"])
def test_a_source_that_is_not_there_is_named(tmp_path, source, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(InputError, match=re.escape(source)):
        find_files([source])


def test_a_bucket_without_credentials_is_refused_before_a_request(tmp_path, monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(InputError, match="no credentials for 's3://some-bucket/in'"):
        find_files(["s3://some-bucket/in"])


def test_a_store_that_never_answered_is_given_up_soon_and_one_that_did_is_asked_again(monkeypatch):
    monkeypatch.setattr(storage.time, "sleep", lambda _: None)
    monkeypatch.setattr(storage, "_answered", set())
    calls = []

    def fail() -> None:
        calls.append(1)
        raise OSError("AWS Error NETWORK_CONNECTION: curlCode: 7, Could not connect to server")

    with pytest.raises(StoreError, match=r"nothing answers for 's3://bucket/in'.*check network and endpoint"):
        storage._repeat("s3://bucket/in", fail)
    assert len(calls) == storage.FIRST_TRIES
    storage._repeat("s3://bucket/other", lambda: None)
    with pytest.raises(StoreError, match="failed 10 times"):
        storage._repeat("s3://bucket/in", fail)
    assert len(calls) == storage.FIRST_TRIES + storage.TRIES


def test_changed_added_and_equal_rows_are_told_apart():
    hasher = RowHasher()
    old = index_rows([(0, make_table([1, 2], ["a", "b"])), (4, make_table([3], ["c"]))], "id", hasher)
    parts, rows = old.find(*hasher.hash_rows(make_table([3, 2, 1, 9], ["c", "B", "a", "a"]), "id"))
    assert parts.tolist() == [4, -1, 0, -1]
    assert rows.tolist() == [0, -1, 0, -1]
