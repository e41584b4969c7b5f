"""Read the rows of a chunk as one Arrow table; a row that cannot be read is a reject with its reason.

batch = RowReader(table).read(chunk.spans)
batch.rows  # pyarrow.Table of the good rows
batch.rejects  # [Reject(source, row, reason), …]
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.bulk.sources import (
    DAMAGED_GZIP,
    DEFAULT_COLUMN,
    FLOAT,
    SourceFile,
    Span,
    Table,
    get_delimiter,
    open_file,
    open_lance,
    refuse_changed,
)
from ridgeline.bulk.storage import open_storage
from ridgeline.errors import StoreError

VALUE_CHARACTERS = 60  # of a value in a reason

csv.field_size_limit(1 << 30)


@dataclass(frozen=True)
class Reject:
    """A row that has no result: its file, its number (from 0), and why."""

    source: str
    row: int
    reason: str


@dataclass(frozen=True)
class RowBatch:
    """The good rows of a chunk, where each comes from, and the rejects."""

    rows: Any  # pyarrow.Table
    files: NDArray[np.int32]  # per row
    numbers: NDArray[np.int64]  # per row
    rejects: tuple[Reject, ...]


class RowReader:
    """Reads chunks of one table; open Parquet files and the position in .gz files are kept between chunks."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._parquet: tuple[int, Any, Any] | None = None  # file number, ParquetFile, its stream
        self._unzipped: tuple[int, Any] | None = None  # file number, stream

    def read(self, spans: Sequence[Span]) -> RowBatch:
        """Read the rows of a chunk."""
        import pyarrow as arrow

        tables, files, numbers = [], [], []
        rejects: list[Reject] = []
        for span in spans:
            file = self._table.files[span.file]
            reader = {"parquet": self._read_parquet, "lance": self._read_lance}.get(file.kind, self._read_text)
            part, places, bad = reader(file, span)
            refuse_changed(file)  # after the rows were read: they are those of the plan
            part, places, more = self._check(file, part, places)
            tables.append(part)
            files.append(np.full(len(places), span.file, np.int32))
            numbers.append(places)
            rejects += sorted([*bad, *more], key=lambda reject: reject.row)
        rows = arrow.concat_tables(tables) if tables else self._table.schema.empty_table()
        return RowBatch(rows, np.concatenate(files), np.concatenate(numbers), tuple(rejects))

    def _check(
        self, file: SourceFile, rows: Any, places: NDArray[np.int64]
    ) -> tuple[Any, NDArray[np.int64], list[Reject]]:
        """Reject rows without a text or a key, and those of which one is no text: Parquet files do not check it."""
        rejects: list[Reject] = []
        for name in dict.fromkeys((self._table.column, self._table.key)):
            if name is None:
                continue
            for bad, reason in ((_find_null(rows[name]), "null"), (_find_undecodable(rows[name]), "not UTF-8")):
                if bad is not None:
                    rejects += [Reject(file.label, int(row), f"'{name}' is {reason}") for row in places[bad]]
                    rows, places = rows.filter(_to_arrow(~bad)), places[~bad]
        return rows, places, rejects

    def _read_parquet(self, file: SourceFile, span: Span) -> tuple[Any, NDArray[np.int64], list[Reject]]:
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        if self._parquet is None or self._parquet[0] != span.file:
            self.close()
            stream = open_file(file)
            self._parquet = (span.file, parquet.ParquetFile(stream), stream)
        source = self._parquet[1]
        names = [name for name in self._table.schema.names if name in source.schema_arrow.names]
        parts, first = [], 0
        try:
            for group in range(source.num_row_groups):
                count = source.metadata.row_group(group).num_rows
                low, high = max(span.first, first), min(span.first + span.rows, first + count)
                if low < high:
                    parts.append(self._read_group(source, group, names, low - first, high - low))
                first += count
        except (OSError, arrow.ArrowInvalid) as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise StoreError(f"{file.label} cannot be read: {reason}; the file is damaged or was changed.") from error
        rows = arrow.Table.from_batches([batch for part in parts for batch in part.to_batches()], parts[0].schema)
        if len(rows) != span.rows:
            raise StoreError(f"{file.label} has other rows than when the job was planned; run the command again.")
        return self._fit(file, rows), np.arange(span.first, span.first + span.rows), []

    def _read_group(self, source: Any, group: int, names: list[str], first: int, rows: int) -> Any:
        """Return some rows of a row group; a large group is read in batches, not whole."""
        import pyarrow as arrow

        batches, position = [], 0
        for batch in source.iter_batches(max(rows, 1024), row_groups=[group], columns=names):
            low, high = max(first, position), min(first + rows, position + len(batch))
            if low < high:
                batches.append(batch.slice(low - position, high - low))
            position += len(batch)
            if position >= first + rows:
                break
        return arrow.Table.from_batches(batches)

    def _read_lance(self, file: SourceFile, span: Span) -> tuple[Any, NDArray[np.int64], list[Reject]]:
        dataset = open_lance(file.url, int(file.version))
        fragment = dataset.get_fragment(file.fragment)
        rows = fragment.to_table(columns=self._table.schema.names, offset=span.first, limit=span.rows)
        return self._fit(file, rows), np.arange(span.first, span.first + span.rows), []

    def _fit(self, file: SourceFile, rows: Any) -> Any:
        """Return the columns of the table in its types; raises StoreError if a value would change."""
        import pyarrow as arrow

        columns = []
        for field in self._table.schema:
            if file.may_lack_columns and field.name not in rows.column_names:
                columns.append(arrow.nulls(len(rows), field.type))
                continue
            try:
                columns.append(rows[field.name].cast(field.type))
            except arrow.ArrowInvalid as error:
                raise StoreError(
                    f"{file.label} has a value in '{field.name}' that the target cannot hold as {field.type}: "
                    f"{' '.join(str(error).split())}; convert the column, or choose another --format."
                ) from error
        return arrow.table(columns, schema=self._table.schema)

    def _read_text(self, file: SourceFile, span: Span) -> tuple[Any, NDArray[np.int64], list[Reject]]:
        data = self._read_bytes(file, span)
        values, places, rejects = [], [], []
        for row, value in self._parse(file, span, data):
            if isinstance(value, str):
                rejects.append(Reject(file.label, row, value))
            else:
                values.append(value)
                places.append(row)
        rows, good, bad = self._convert(file, values, np.array(places, np.int64))
        return rows, good, rejects + bad

    def _read_bytes(self, file: SourceFile, span: Span) -> bytes:
        if not file.gzipped:
            with open_storage(file.url).open() as stream:
                stream.seek(span.offset)
                data: bytes = stream.read(span.length)
        else:
            if self._unzipped is None or self._unzipped[0] != span.file or self._unzipped[1].tell() > span.offset:
                self.close()
                self._unzipped = (span.file, open_file(file))
            stream = self._unzipped[1]
            try:
                stream.seek(span.offset)
                data = stream.read(span.length)
            except DAMAGED_GZIP as error:
                raise StoreError(f"{file.label} cannot be decompressed: {error}; the file is damaged.") from error
        if len(data) != span.length:
            raise StoreError(f"{file.label} is shorter than when the job was planned; run the command again.")
        return data

    def _parse(self, file: SourceFile, span: Span, data: bytes) -> Iterator[tuple[int, dict[str, Any] | str]]:
        """Yield (row, values by column), or (row, reason)."""
        if span.offset == 0:
            data = data.removeprefix(b"\xef\xbb\xbf")
        if file.kind in ("csv", "tsv"):
            yield from self._parse_csv(file, span, data)
            return
        for row, line in enumerate(data.split(b"\n")[: span.rows], span.first):
            try:
                text = line.decode("utf-8").removesuffix("\r")
            except UnicodeDecodeError as error:
                yield row, f"not UTF-8 ({error.reason}); convert the file"
                continue
            if file.kind == "txt":
                yield row, {DEFAULT_COLUMN: text}
            elif text.strip():
                yield row, self._parse_json(text)

    def _parse_json(self, text: str) -> dict[str, Any] | str:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"no JSON: {error}"
        if not isinstance(value, dict):
            return f"no JSON object but {_shorten(value)}"
        for name in (self._table.column, self._table.key):
            if name is not None and value.get(name) is None:
                return f"'{name}' is {'null' if name in value else 'missing'}"
        return value

    def _parse_csv(self, file: SourceFile, span: Span, data: bytes) -> Iterator[tuple[int, dict[str, Any] | str]]:
        header = self._table.headers[span.file]
        text = data.decode("utf-8", errors="surrogateescape")
        with open_file(file) as stream:
            first_line = stream.readline().decode("utf-8", errors="replace")
        table = csv.reader(io.StringIO(text, newline="\n"), delimiter=get_delimiter(file, first_line))
        row = span.first - 1
        while True:
            row += 1
            try:
                cells = next(table, None)
            except csv.Error as error:
                yield row, f"no {file.kind.upper()}: {error}"
                continue
            if cells is None:
                return
            if cells and len(cells) != len(header):
                yield row, f"{len(cells)} cells, the header has {len(header)}"
            elif cells:
                yield row, dict(zip(header, cells, strict=True))

    def _convert(
        self, file: SourceFile, values: list[dict[str, Any]], places: NDArray[np.int64]
    ) -> tuple[Any, NDArray[np.int64], list[Reject]]:
        """Return a table of the rows whose values fit the types of the columns."""
        import pyarrow as arrow

        is_csv = file.kind in ("csv", "tsv")
        rejects: list[Reject] = []
        keep = np.ones(len(values), bool)
        columns = []
        for field in self._table.schema:
            cells = [row.get(field.name) for row in values]
            if is_csv and not arrow.types.is_string(field.type):
                cells = [None if cell == "" else cell for cell in cells]
            column: list[Any] = []
            try:
                column = _make_array(cells, field.type, field.name == self._table.column, is_csv)
            except (arrow.ArrowException, ValueError, TypeError, OverflowError):
                single: list[Any] = []
                for index, cell in enumerate(cells):
                    try:
                        single.append(_make_array([cell], field.type, field.name == self._table.column, is_csv)[0])
                    except (arrow.ArrowException, ValueError, TypeError, OverflowError):
                        single.append(arrow.scalar(None, field.type))
                        if keep[index]:
                            keep[index] = False
                            reason = f"'{field.name}' is {_shorten(cell)}, no {field.type}"
                            rejects.append(Reject(file.label, int(places[index]), reason))
                column = arrow.array([value.as_py() for value in single], field.type)
            columns.append(column)
        rows = arrow.table(columns, schema=self._table.schema)
        return (rows, places, []) if keep.all() else (rows.filter(_to_arrow(keep)), places[keep], rejects)

    def close(self) -> None:
        """Close the files that are open."""
        if self._parquet is not None:
            self._parquet[2].close()
        if self._unzipped is not None:
            self._unzipped[1].close()
        self._parquet = self._unzipped = None


def _find_null(column: Any) -> NDArray[np.bool_] | None:
    return np.asarray(column.is_null()) if column.null_count else None


def _find_undecodable(column: Any) -> NDArray[np.bool_] | None:
    """Return which texts are not UTF-8; None if all are, or if these are no texts."""
    import pyarrow as arrow

    if not (arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)):
        return None
    try:
        column.validate(full=True)
    except arrow.ArrowInvalid:
        return np.array([not _is_text(value) for value in column.cast(arrow.large_binary()).to_pylist()])
    return None


def _is_text(value: bytes | None) -> bool:
    try:
        return value is None or bool(value.decode() or True)
    except UnicodeDecodeError:
        return False


def _make_array(cells: list[Any], kind: Any, is_text: bool, is_csv: bool) -> Any:
    """Return an Arrow array; raises if a value does not fit."""
    import pyarrow as arrow

    if arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        if is_text and not all(isinstance(cell, str) for cell in cells):
            raise TypeError("no text")
        return arrow.array([c if isinstance(c, str) or c is None else json.dumps(c) for c in cells], kind)
    if is_csv and (arrow.types.is_integer(kind) or arrow.types.is_floating(kind)):
        convert = _parse_integer if arrow.types.is_integer(kind) else _parse_float
        return arrow.array([None if cell is None else convert(cell) for cell in cells], kind)
    if is_csv:
        return arrow.array(cells, arrow.string()).cast(kind)
    return arrow.array([_keep_exact(cell, kind) for cell in cells], kind)


def _keep_exact(cell: Any, kind: Any) -> Any:
    """Return a JSON value that Arrow stores as it is; raises if there is none.

    Arrow itself cuts 1.5 to 1 in a column of whole numbers, stores a truth value as 1.0, drops names that a structure
    does not have, and makes 1e300 infinite in float32.
    """
    from pyarrow import types

    if cell is None or types.is_map(kind):
        return cell
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return [_keep_exact(value, kind.value_type) for value in cell] if isinstance(cell, list) else cell
    if types.is_struct(kind) and isinstance(cell, dict):
        fields = {field.name: field.type for field in kind}
        if cell.keys() - fields.keys():
            raise TypeError("names that the structure does not have")
        return {name: _keep_exact(value, fields[name]) for name, value in cell.items()}
    if isinstance(cell, bool) != types.is_boolean(kind):
        raise TypeError("a truth value, or none")
    if isinstance(cell, float) and not types.is_floating(kind):
        if not cell.is_integer():
            raise ValueError("a fraction")
        return int(cell)
    is_narrow = types.is_floating(kind) and kind.bit_width < 64 and isinstance(cell, float) and math.isfinite(cell)
    if is_narrow and abs(cell) > float(np.finfo(f"f{kind.bit_width // 8}").max):
        raise OverflowError("too large")
    return cell


def _parse_integer(cell: str) -> int:
    """Return the number of a cell; 007 and 1_0, which int() takes, would come back as other texts."""
    number = int(cell)
    if str(number) != cell.removeprefix("+"):
        raise ValueError(cell)
    return number


def _parse_float(cell: str) -> float:
    if not FLOAT.fullmatch(cell) and cell.lower().lstrip("+-") not in ("nan", "inf", "infinity"):
        raise ValueError(cell)
    return float(cell)


def _to_arrow(mask: NDArray[np.bool_]) -> Any:
    import pyarrow as arrow

    return arrow.array(mask)


def _shorten(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= VALUE_CHARACTERS else text[: VALUE_CHARACTERS - 1] + "…"
