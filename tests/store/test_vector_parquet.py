"""Parquet files of vectors, against pyarrow as their reader."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.store import VectorParquetWriter, vector_parquet

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def make_table(rows: int, dim: int, dtype: str = "float32", seed: int = 0):
    random = np.random.default_rng(seed)
    numbers = random.integers(-100, 100, rows * dim).astype(dtype) / np.asarray(8, dtype)
    vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(numbers), dim)
    ids, texts = list(range(rows)), [None if k % 7 == 3 else f"text {k}" for k in range(rows)]
    tags = [["a"] * (k % 3) for k in range(rows)]
    columns = [
        arrow.array(ids, arrow.int64()),
        arrow.array(texts, arrow.string()),
        arrow.array(tags, arrow.list_(arrow.string())),
    ]
    return arrow.table([*columns, vectors], names=["id", "text", "tags", "vector"]).replace_schema_metadata({"a": "b"})


def write(tables, schema=None) -> bytes:
    file = io.BytesIO()
    writer = VectorParquetWriter(file, schema or tables[0].schema)
    for table in tables:
        writer.write(table)
    writer.close()
    return file.getvalue()


@given(
    rows=st.lists(st.integers(0, 70), min_size=1, max_size=4),
    dim=st.sampled_from([1, 2, 3, 8, 63, 64, 65, 127, 128, 129, 384]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    page_bytes=st.sampled_from([1, 100, 5000, 1 << 20]),
)
def test_pyarrow_reads_what_was_written(rows, dim, dtype, page_bytes):
    tables = [make_table(count, dim, dtype, seed) for seed, count in enumerate(rows)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector_parquet, "PAGE_BYTES", page_bytes)
        data = write(tables)
        assert write(tables) == data
    file = parquet.ParquetFile(io.BytesIO(data))
    groups = [table for table in tables if len(table)]
    assert file.num_row_groups == len(groups)
    read = file.read()
    assert read.equals(arrow.concat_tables(tables))
    assert read.schema.metadata == {b"a": b"b"}
    assert read.schema.types == tables[0].schema.types
    for number, table in enumerate(groups):
        assert file.read_row_group(number).equals(table)
        assert list(file.iter_batches(7, row_groups=[number]))[-1]["vector"][-1] == table["vector"][-1]


def test_metadata_counts_the_bytes_of_the_vectors():
    table = make_table(3000, 384)
    data = write([table])
    group = parquet.read_metadata(io.BytesIO(data)).row_group(0)
    column = group.column(group.num_columns - 1)
    assert column.num_values == 3000 * 384
    assert column.compression == "UNCOMPRESSED"
    assert 3000 * 384 * 4 < column.total_compressed_size < 3000 * 384 * 4 + 3000 * 8
    assert column.data_page_offset + column.total_compressed_size <= len(data)
    sizes = [group.column(k).total_uncompressed_size for k in range(group.num_columns)]
    assert group.total_byte_size == sum(sizes)


def test_a_part_of_a_larger_array_is_written():
    table = make_table(50, 16, "float16")
    assert parquet.read_table(io.BytesIO(write([table.slice(7, 20)]))).equals(table.slice(7, 20))


def test_vectors_that_cannot_be_null_are_written_as_others():
    item = arrow.field("item", arrow.float32(), nullable=False)
    vectors = arrow.FixedSizeListArray.from_arrays(
        arrow.array(np.arange(6, dtype=np.float32)), type=arrow.list_(item, 2)
    )
    field = arrow.field("vector", vectors.type, nullable=False)
    read = parquet.read_table(io.BytesIO(write([arrow.table([vectors], schema=arrow.schema([field]))])))
    assert read["vector"].to_pylist() == [[0, 1], [2, 3], [4, 5]]


def test_columns_and_rows_can_be_chosen(tmp_path):
    file = tmp_path / "vectors.parquet"
    with file.open("w+b") as stream:
        writer = VectorParquetWriter(stream, make_table(1, 5).schema)
        for seed in range(3):
            writer.write(make_table(40, 5, seed=seed))
        writer.close()
    assert parquet.read_table(file, columns=["id", "vector"], filters=[("id", ">", 37)]).num_rows == 6
    assert parquet.read_table(file, columns=["text"]).num_rows == 120


def test_no_rows_make_an_empty_table():
    table = make_table(0, 4)
    assert parquet.read_table(io.BytesIO(write([table]))).equals(table)


def test_nulls_are_refused():
    kind = arrow.list_(arrow.float32(), 2)
    for values in ([[1.0, 2.0], None], [[1.0, None]]):
        table = arrow.table({"vector": arrow.array(values, kind)})
        with pytest.raises(ValueError, match="column 'vector' has nulls"):
            write([table])


def test_a_column_of_other_lists_is_refused():
    table = arrow.table({"vector": arrow.array([[1.0], [2.0, 3.0]])})
    with pytest.raises(ValueError, match="not a list of a fixed size"):
        write([table])


def test_a_vector_that_is_not_finite_is_kept():
    values = np.array([[np.nan, np.inf], [-np.inf, -0.0]], np.float32)
    table = arrow.table({"vector": arrow.FixedSizeListArray.from_arrays(arrow.array(values.ravel()), 2)})
    read = parquet.read_table(io.BytesIO(write([table])))["vector"].combine_chunks().flatten().to_numpy()
    assert read.tobytes() == values.tobytes()


Values = st.recursive(
    st.one_of(
        st.tuples(st.just(vector_parquet.I32), st.integers(-(2**31), 2**31 - 1)),
        st.tuples(st.just(vector_parquet.I64), st.integers(-(2**63), 2**63 - 1)),
        st.tuples(st.just(vector_parquet.BYTE), st.integers(-128, 127)),
        st.tuples(st.just(vector_parquet.DOUBLE), st.binary(min_size=8, max_size=8)),
        st.tuples(st.just(vector_parquet.BINARY), st.binary(max_size=300)),
        st.tuples(st.sampled_from([vector_parquet.TRUE, vector_parquet.FALSE]), st.none()),
        st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(
            lambda items: (vector_parquet.LIST, (vector_parquet.I32, items))
        ),
    ),
    lambda inner: st.dictionaries(st.integers(1, 300), inner, max_size=4).map(lambda s: (vector_parquet.STRUCT, s)),
)


@given(st.dictionaries(st.integers(1, 40), Values, max_size=6))
def test_structs_of_thrift_survive_a_round_trip(fields):
    assert vector_parquet.parse_struct(vector_parquet.format_struct(fields)) == dict(sorted(fields.items()))


def test_the_footer_of_pyarrow_survives_a_round_trip():
    sink = io.BytesIO()
    parquet.write_table(make_table(10, 3), sink)
    data = sink.getvalue()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    assert vector_parquet.format_struct(vector_parquet.parse_struct(footer)) == footer


def test_a_footer_that_ends_early_is_refused():
    with pytest.raises(ValueError, match="ends early"):
        vector_parquet.parse_struct(b"\x15")
