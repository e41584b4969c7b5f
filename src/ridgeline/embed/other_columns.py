"""The columns of a file of texts, typed, as Arrow tables: `ridgeline embed` writes them beside the vectors.

Parquet columns keep their types. A .csv column is int64 or float64 if all its values are plain numbers ('007' is a
text), and then an empty cell is null; else it is text. JSON values keep their types; lists and objects become JSON
texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ridgeline.embed.text_files import (
    AS_FILE_SHOWS,
    BATCH,
    TextFormat,
    decode_lines,
    get_format,
    open_stream,
    read_csv_rows,
    read_json_rows,
)
from ridgeline.errors import InputError, MissingExtra, unknown

VECTOR = "vector"  # the column of the vectors in the output
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
_FLOAT = re.compile(r"[+-]?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_ORDER = ("null", "bool", "int64", "double", "string")  # a column has the last kind that one of its values needs

Take = Callable[[int], Any]  # returns a pyarrow Table of the next n rows


class OtherColumns:
    """The columns `names` of a file, of which `column` holds the texts; `schema` has their types."""

    def __init__(
        self,
        path: Path,
        column: str,
        keep: Sequence[str] | None = None,
        text_format: TextFormat = AS_FILE_SHOWS,
    ) -> None:
        """`keep` names the columns beside the texts; None: all except one that is called vector."""
        try:
            import pyarrow as arrow
        except ImportError:
            raise MissingExtra("writing Parquet", "parquet") from None
        self.path, self.column, self._format = path, column, text_format
        known = self._find_columns()
        for name in keep or ():
            if name not in known:
                raise unknown(f"column in '{path}'", name, known)
            if name == VECTOR and name != column:
                raise InputError(f"'{path}' has a column '{VECTOR}', the name of the new vectors; do not keep it.")
        names = [n for n in known if n == column or (n != VECTOR if keep is None else n in keep)]
        self.names = tuple(dict.fromkeys(names))
        types = {name: known[name] for name in self.names} | {column: arrow.string()}
        self.schema = arrow.schema([("text" if n == VECTOR else n, t) for n, t in types.items()])

    def open(self) -> tuple[Take, Callable[[], None]]:
        """Return a function that reads the next n rows as a Table, and one that closes the file."""
        import pyarrow as arrow

        kind = get_format(self.path)
        if kind == "parquet":
            return self._open_parquet()
        raw = self.path.open("rb")
        rows = self._read_rows(raw)

        def take(count: int) -> Any:
            part = list(islice(rows, count))
            columns = zip(*part, strict=True) if part else [()] * len(self.names)
            arrays = [_convert(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
            return arrow.table(arrays, schema=self.schema)

        return take, raw.close

    def _find_columns(self) -> dict[str, Any]:
        """Return name → Arrow type of all columns, in the order of the file."""
        import pyarrow as arrow

        kind = get_format(self.path)
        if kind == "parquet":
            import pyarrow.parquet as parquet

            schema = parquet.read_schema(self.path)
            return dict(zip(schema.names, schema.types, strict=True))
        if kind == "txt":
            return {self.column: arrow.string()}
        kinds: dict[str, int] = {}
        with self.path.open("rb") as raw:
            stream = open_stream(self.path, raw)
            if kind == "jsonl":
                for _, row in read_json_rows(self.path, stream, self._format):
                    for name, value in row.items() if isinstance(row, dict) else [(self.column, row)]:
                        kinds[name] = max(kinds.get(name, 0), _ORDER.index(_find_json_kind(value)))
            else:
                table = read_csv_rows(self.path, stream, self.column, self._format)
                head = next(table)[1]
                counts = [0] * len(head)
                for _, row in table:
                    for place, value in enumerate(row[: len(head)]):
                        if value and counts[place] < len(_ORDER) - 1:
                            counts[place] = max(counts[place], _ORDER.index(_find_text_kind(value)))
                for name, number in zip(head, counts, strict=True):
                    kinds.setdefault(name, number)
        types = {"null": "string", "bool": "bool", "int64": "int64", "double": "float64", "string": "string"}
        return {name: arrow.type_for_alias(types[_ORDER[number]]) for name, number in kinds.items()}

    def _read_rows(self, raw: Any) -> Iterator[list[Any]]:
        """Yield the values of the other columns of every row."""
        kind, stream = get_format(self.path), open_stream(self.path, raw)
        if kind == "jsonl":
            for _, row in read_json_rows(self.path, stream, self._format):
                values = row if isinstance(row, dict) else {self.column: row}
                yield [values.get(name) for name in self.names]
        elif kind == "txt":
            for text in decode_lines(self.path, stream, self._format.encoding):
                yield [text]
        else:
            table = read_csv_rows(self.path, stream, self.column, self._format)
            head = next(table)[1]
            places = [head.index(name) for name in self.names]
            for _, row in table:
                yield [row[place] if place < len(row) else "" for place in places]

    def _open_parquet(self) -> tuple[Take, Callable[[], None]]:
        import pyarrow as arrow
        import pyarrow.parquet as parquet

        file = parquet.ParquetFile(self.path)
        batches = file.iter_batches(BATCH, columns=list(self.names))
        rest: list[Any] = []

        def take(count: int) -> Any:
            while sum(len(batch) for batch in rest) < count and (batch := next(batches, None)) is not None:
                rest.append(batch)
            table = arrow.Table.from_batches(rest).select(list(self.names)) if rest else None
            if table is None:
                return self.schema.empty_table()
            rest[:] = table.slice(count).to_batches()
            return table.slice(0, count).rename_columns(self.schema.names).cast(self.schema)

        return take, file.close


def _find_text_kind(value: str) -> str:
    if _INTEGER.fullmatch(value):
        return "int64"
    return "double" if _FLOAT.fullmatch(value) else "string"


def _find_json_kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "string"
    return "double" if isinstance(value, float) else "string"


def _convert(values: Sequence[Any], kind: Any) -> Any:
    """Return an Arrow array of texts or JSON values."""
    import pyarrow as arrow

    if arrow.types.is_string(kind):
        return arrow.array([v if isinstance(v, str) or v is None else json.dumps(v) for v in values], kind)
    if arrow.types.is_boolean(kind):
        return arrow.array(values, kind)
    convert = int if arrow.types.is_integer(kind) else float
    return arrow.array([None if v is None or v == "" else convert(v) for v in values], kind)
