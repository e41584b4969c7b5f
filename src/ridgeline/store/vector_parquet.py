"""Parquet files with a column of vectors, written at the speed of memory.

pyarrow makes a repetition level and a definition level for every number of a list, and writes float16 number by
number. But in lists of one length without nulls the levels repeat from row to row, and plainly encoded numbers are
the bytes of the array. So pyarrow writes everything but the vectors, in whose place it writes nulls; this module
appends the pages of the vectors, and enters them in the footer.

The footer is in Thrift's compact protocol: https://github.com/apache/parquet-format
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, BinaryIO

MAGIC = b"PAR1"
PAGE_BYTES = 1 << 20
PLAIN, RLE = 0, 3  # encodings
DATA_PAGE = 0
UNCOMPRESSED = 0
LEVEL = 3  # of a number that is there: its list may be null, repeats, and its numbers may be null

# Thrift's types
TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
Struct = dict[int, tuple[int, Any]]  # type and value by the number of the field
# Numbers of fields
ROW_GROUPS = 4  # of the footer
COLUMNS, GROUP_BYTES, GROUP_OFFSET, GROUP_COMPRESSED = 1, 2, 5, 6  # of a row group
COLUMN_OFFSET, COLUMN_DATA = 2, 3  # of a column of a row group
ENCODINGS, CODEC, VALUES, BYTES, COMPRESSED, DATA_OFFSET = 2, 4, 5, 6, 7, 9  # of the data of a column
OUTDATED = (8, 10, 11, 12, 13, 14, 15, 16)  # what pyarrow says about the nulls: statistics, sizes, other pages


class VectorParquetWriter:
    """Writes tables whose last column holds vectors, each as one row group, into an empty file that can be read too.

    The same tables give the same bytes. Vectors are not compressed and have no statistics; `compression` is that of
    the other columns. Nulls among the vectors raise ValueError.
    """

    def __init__(self, file: BinaryIO, schema: Any, *, compression: str = "zstd") -> None:
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        self._file, self._vectors = file, schema[-1]
        if not arrow.types.is_fixed_size_list(self._vectors.type):
            raise ValueError(f"column '{self._vectors.name}' is {self._vectors.type}, not a list of a fixed size")
        # In the file vectors and numbers may be null, because pyarrow writes nulls for them: hence LEVEL.
        kind = arrow.list_(self._vectors.type.value_type, self._vectors.type.list_size)
        self._schema = schema.set(len(schema) - 1, arrow.field(self._vectors.name, kind))
        self._pages: list[tuple[int, int, int]] = []  # of each row group: offset, bytes, numbers
        self._writer = parquet.ParquetWriter(_Sink(file), self._schema, compression=compression, use_dictionary=False)

    def write(self, table: Any) -> None:
        """Write a table as one row group."""
        import pyarrow as arrow

        if not len(table):
            return
        vectors = table.column(table.num_columns - 1).combine_chunks()
        values = vectors.flatten()
        if vectors.null_count or values.null_count:
            raise ValueError(f"column '{self._vectors.name}' has nulls")
        columns = [*table.columns[:-1], arrow.nulls(len(table), self._schema[-1].type)]
        self._writer.write_table(arrow.table(columns, schema=self._schema), row_group_size=len(table))
        width = vectors.type.value_type.bit_width // 8
        data = memoryview(values.buffers()[1])[values.offset * width :][: len(values) * width]
        offset = self._file.tell()
        for piece in _make_pages(data, len(table), vectors.type.list_size, width):
            self._file.write(piece)
        self._pages.append((offset, self._file.tell() - offset, len(values)))

    def close(self) -> None:
        """Write the footer; the file stays open."""
        self._writer.close()
        end = self._file.seek(-8, io.SEEK_END)
        length = int.from_bytes(self._file.read(4), "little")
        start = self._file.seek(end - length)
        footer = parse_struct(self._file.read(length))
        groups = footer[ROW_GROUPS][1][1] if ROW_GROUPS in footer else ()
        shift = 0
        for group, (offset, size, count) in zip(groups, self._pages, strict=True):
            _shift_group(group, shift)
            _enter_pages(group, offset, size, count)
            shift += size
        data = format_struct(footer)
        self._file.seek(start)
        self._file.truncate()
        self._file.write(data + len(data).to_bytes(4, "little") + MAGIC)


class _Sink(io.RawIOBase):
    """What pyarrow writes to; it tells pyarrow the number of its own bytes only."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._count = file, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._count += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self._count


def _make_pages(data: memoryview, rows: int, dim: int, width: int) -> Sequence[bytes | memoryview]:
    """Return the headers, levels and numbers of the pages of a column, each page of whole rows."""
    pieces: list[bytes | memoryview] = []
    per_page = max(1, PAGE_BYTES // (dim * width))
    for first in range(0, rows, per_page):
        count = min(per_page, rows - first)
        levels = _repeat_levels(count, dim) + _encode_levels(_make_run(count * dim, LEVEL))
        numbers = data[first * dim * width : (first + count) * dim * width]
        size = len(levels) + len(numbers)
        page: Struct = {1: (I32, count * dim), 2: (I32, PLAIN), 3: (I32, RLE), 4: (I32, RLE)}
        header: Struct = {1: (I32, DATA_PAGE), 2: (I32, size), 3: (I32, size), 5: (STRUCT, page)}
        pieces += [format_struct(header), levels, numbers]
    return pieces


def _repeat_levels(rows: int, dim: int) -> bytes:
    """Return the repetition levels of rows: 0 where a row begins, 1 for its other numbers."""
    if dim == 1:
        return _encode_levels(_make_run(rows, 0))
    return _encode_levels((_make_run(1, 0) + _make_run(dim - 1, 1)) * rows)


def _make_run(count: int, level: int) -> bytes:
    return _format_number(count << 1) + bytes([level])


def _encode_levels(runs: bytes) -> bytes:
    return len(runs).to_bytes(4, "little") + runs


def _shift_group(group: Struct, shift: int) -> None:
    """Move a row group behind pages that pyarrow does not know of."""
    _shift(group, GROUP_OFFSET, shift)
    for column in group[COLUMNS][1][1]:
        _shift(column, COLUMN_OFFSET, shift)
        _shift(column[COLUMN_DATA][1], DATA_OFFSET, shift)


def _shift(fields: Struct, number: int, shift: int) -> None:
    kind, offset = fields.get(number, (I64, 0))
    if offset:  # newer files have 0 where an offset has no meaning any more
        fields[number] = kind, offset + shift


def _enter_pages(group: Struct, offset: int, size: int, count: int) -> None:
    """Make the last column of a row group that of these pages."""
    column: Struct = group[COLUMNS][1][1][-1]
    data: Struct = column[COLUMN_DATA][1]
    added = size - data[COMPRESSED][1]
    group[GROUP_BYTES] = I64, group[GROUP_BYTES][1] + size - data[BYTES][1]
    if GROUP_COMPRESSED in group:
        group[GROUP_COMPRESSED] = I64, group[GROUP_COMPRESSED][1] + added
    for number in OUTDATED:
        data.pop(number, None)
    data[ENCODINGS] = LIST, (I32, [PLAIN, RLE])
    data[CODEC] = I32, UNCOMPRESSED
    for number, value in ((VALUES, count), (BYTES, size), (COMPRESSED, size), (DATA_OFFSET, offset)):
        data[number] = I64, value
    if column[COLUMN_OFFSET][1]:
        column[COLUMN_OFFSET] = I64, offset


def parse_struct(data: bytes) -> Struct:
    """Parse a struct in Thrift's compact protocol.

    >>> parse_struct(format_struct({1: (I32, -2), 20: (LIST, (BINARY, [b"x", b""]))}))
    {1: (5, -2), 20: (9, (8, [b'x', b'']))}
    """
    parser = _Parser(data)
    result: Struct = parser.parse(STRUCT)
    return result


class _Parser:
    def __init__(self, data: bytes) -> None:
        self._data, self._position = data, 0

    def parse(self, kind: int) -> Any:
        if kind in (BYTE, I16, I32, I64):
            if kind == BYTE:
                return int.from_bytes(self._take(1), "little", signed=True)
            number = self._parse_number()
            return number >> 1 ^ -(number & 1)
        if kind == DOUBLE:
            return self._take(8)
        if kind == BINARY:
            return self._take(self._parse_number())
        if kind in (LIST, SET):
            return self._parse_list()
        if kind == STRUCT:
            return self._parse_struct()
        raise ValueError(f"type {kind} of Thrift is not known here")

    def _parse_struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._take(1)[0]:
            kind, step = head & 15, head >> 4
            number = number + step if step else self.parse(I16)
            fields[number] = (kind, None if kind in (TRUE, FALSE) else self.parse(kind))
        return fields

    def _parse_list(self) -> tuple[int, list[Any]]:
        head = self._take(1)[0]
        kind, count = head & 15, head >> 4
        count = self._parse_number() if count == 15 else count
        return kind, [self._take(1) if kind in (TRUE, FALSE) else self.parse(kind) for _ in range(count)]

    def _parse_number(self) -> int:
        number = shift = 0
        while True:
            byte = self._take(1)[0]
            number |= (byte & 127) << shift
            if byte < 128:
                return number
            shift += 7

    def _take(self, count: int) -> bytes:
        taken = self._data[self._position : self._position + count]
        if len(taken) < count:
            raise ValueError("a struct of Thrift ends early")
        self._position += count
        return taken


def format_struct(fields: Struct) -> bytes:
    """Return a struct in Thrift's compact protocol."""
    result, last = bytearray(), 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - last
        result += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _format(I16, number)
        result += _format(kind, value)
        last = number
    return bytes(result) + b"\0"


def _format(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE):
        return value or b""  # in a struct the type is the value
    if kind == BYTE:
        return int(value).to_bytes(1, "little", signed=True)
    if kind in (I16, I32, I64):
        return _format_number(value << 1 if value >= 0 else ~(value << 1))
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return _format_number(len(value)) + bytes(value)
    if kind in (LIST, SET):
        inner, items = value
        head = (
            bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([240 | inner]) + _format_number(len(items))
        )
        return head + b"".join(_format(inner, item) for item in items)
    return format_struct(value)


def _format_number(number: int) -> bytes:
    """Return a number in groups of seven bits."""
    result = bytearray()
    while number > 127:
        result.append(number & 127 | 128)
        number >>= 7
    return bytes([*result, number])
