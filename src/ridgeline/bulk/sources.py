"""Find the files of a source, their common columns, and how many rows each has.

A source is a file, a folder, a glob or a URL of these, a Delta table, a Lance dataset, or the target of another bulk
job. Parquet files give their schema. A column of JSON lines or of a .csv file has the type that its first rows need; a
later row that does not fit goes to the rejects.
"""

from __future__ import annotations

import csv
import fnmatch
import glob
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ridgeline.bulk.storage import FileState, Storage, is_url, make_absolute, open_storage
from ridgeline.errors import InputError, MissingExtra, StoreError, unknown

DEFAULT_COLUMN = "text"
VECTOR = "vector"
DEFAULT_COLUMNS = {"texts": DEFAULT_COLUMN, "ids": "user", "vectors": VECTOR}
HIDDEN = "_ridgeline"  # the folder of a job in its target
SAMPLE_ROWS = 1_000  # of a text file, to find the types of its columns
SAMPLE_BYTES = 4 << 20
BLOCK_BYTES = 8 << 20
LINE_END, QUOTE = 10, 34
MAX_CHUNK_BYTES = 64 << 20  # of text in one chunk
READERS = 16  # files whose ends are read at once
DAMAGED_GZIP = (OSError, EOFError, zlib.error)  # what a damaged .gz file raises
SUFFIXES = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "txt",
}
_ORDER = ("null", "bool", "int64", "double", "string")  # a column has the last kind that one of its values needs
_INTEGER = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
FLOAT = re.compile(r"[+-]?((0|[1-9]\d{0,14})(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class SourceFile:
    """One file of a source, or one fragment of a Lance dataset."""

    url: str
    name: str  # relative to the source, which may move
    kind: str
    size: int
    version: str  # changes when the content changes
    gzipped: bool = False
    fragment: int = -1  # of a Lance dataset
    may_lack_columns: bool = False  # of a Delta table: they are null there

    @property
    def label(self) -> str:
        return self.url if self.fragment < 0 else f"{self.url} (fragment {self.fragment})"


@dataclass(frozen=True)
class Span:
    """Neighbouring rows of one file; in a text file a row is a line (of .csv and .tsv: a record after the header)."""

    file: int
    first: int
    rows: int
    offset: int = 0  # of a text file: bytes
    length: int = 0


@dataclass(frozen=True)
class Table:
    """The files of a source and their common columns."""

    files: tuple[SourceFile, ...]
    column: str  # of texts, or what the job reads
    key: str | None
    schema: Any  # pyarrow.Schema of the columns that are kept
    headers: tuple[tuple[str, ...], ...]  # of each .csv and .tsv file


def require_arrow() -> None:
    """Raise MissingExtra without pyarrow."""
    try:
        import pyarrow as pyarrow
    except ImportError:
        raise MissingExtra("a bulk job", "parquet") from None


def find_files(sources: Sequence[str | os.PathLike[str]], target: str | None = None) -> tuple[SourceFile, ...]:
    """Return the files of all sources, in their order, each folder sorted by name; `target` must lie outside."""
    if not sources:
        raise InputError("a bulk job needs a source; give files, folders, globs or URLs.")
    files = [file for source in sources for file in _expand(make_absolute(source), target)]
    if target is not None:
        for file in files:
            refuse_nested(file.url, target)
    if not files:
        raise InputError(f"there is no file to read in '{sources[0]}'; give {', '.join(SUFFIXES)} files.")
    return tuple(files)


def refuse_nested(source: str, target: str) -> None:
    """Raise InputError if a source lies in the target or contains it: the next run would read what this one wrote."""
    outer, inner = make_absolute(source).rstrip("/"), make_absolute(target).rstrip("/")
    if f"{inner}/".startswith(f"{outer}/") or outer.startswith(f"{inner}/"):
        raise InputError(f"source '{source}' and target '{target}' overlap; choose a target outside.")


def is_pattern(source: str) -> bool:
    """Whether a source is a glob."""
    return any(letter in source for letter in "*?[") and not Path(source).exists()


def open_fixed_part(pattern: str) -> tuple[Storage, str]:
    """Return the storage above the first wildcard of a URL, and the rest of the pattern."""
    scheme, _, rest = pattern.partition("://")
    fixed = re.split(r"[*?\[]", rest, maxsplit=1)[0].rpartition("/")[0]
    return open_storage(f"{scheme}://{fixed}"), rest[len(fixed) :].lstrip("/")


def _expand(source: str, target: str | None) -> list[SourceFile]:
    if is_pattern(source):
        matches = _expand_glob(source, target)
        if not matches:
            raise InputError(f"no file matches '{source}'; check the pattern.")
        return matches
    storage = open_storage(source)
    names = storage.list()
    base = source.rstrip("/").rpartition("/")[2]
    if storage.local is not None and not storage.local.exists():
        raise InputError(f"there is no source '{source}'; check the name.")
    if not names or names == [FileState("", names[0].size, names[0].version)]:
        state = storage.state("")
        if state is None:
            raise InputError(f"'{source}' is empty or not there; check the name.")
        return [_make_file(source, base, state.size, state.version)]
    folders = {file.name.partition("/")[0] for file in names}
    if "_delta_log" in folders:
        return _list_delta(source)
    if "_versions" in folders:
        return _list_lance(source)
    if any(file.name == f"{HIDDEN}/manifest.json" for file in names):  # the target of another job
        names = [file for file in names if file.name.startswith("part-") and "/" not in file.name]
    elif target is not None:
        refuse_nested(source, target)
    matches = []
    for file in names:
        hidden = any(part.startswith((".", "_")) for part in file.name.split("/"))
        if not hidden and file.size and _find_kind(file.name) is not None:
            matches.append(_make_file(storage.label(file.name), file.name, file.size, file.version))
    if not matches:
        raise InputError(f"'{source}' has no file that can be read; there must be {', '.join(SUFFIXES)}.")
    return matches


def _expand_glob(pattern: str, target: str | None) -> list[SourceFile]:
    if not is_url(pattern):
        matches = []
        for path in sorted(glob.glob(pattern, recursive=True)):
            if Path(path).is_dir():
                matches += _expand(path, target)
            else:
                stat = Path(path).stat()
                matches.append(_make_file(path, Path(path).name, stat.st_size, str(stat.st_mtime_ns)))
        return matches
    storage, within = open_fixed_part(pattern)
    return [
        _make_file(storage.label(file.name), file.name, file.size, file.version)
        for file in storage.list()
        if matches_pattern(file.name, within) and _find_kind(file.name) is not None
    ]


def matches_pattern(name: str, pattern: str) -> bool:
    """Whether a name in an object store matches a glob; * also matches slashes there.

    >>> matches_pattern("a.csv", "**/*.csv"), matches_pattern("in/a.csv", "*.csv"), matches_pattern("a.csv", "in/*")
    (True, True, False)
    """
    return any(fnmatch.fnmatchcase(name, form) for form in (pattern, pattern.replace("**/", "")))


def _make_file(url: str, name: str, size: int, version: str) -> SourceFile:
    kind = _find_kind(name)
    if kind is None:
        raise unknown(f"reader for '{name}': suffix", Path(name).suffix, SUFFIXES)
    if not size:
        raise InputError(f"'{url}' is empty; remove it from the source.")
    return SourceFile(url, name, kind, size, version, name.endswith(".gz"))


def _find_kind(name: str) -> str | None:
    gzipped = name.endswith(".gz")
    kind = SUFFIXES.get(Path(name.removesuffix(".gz")).suffix.lower())
    return None if gzipped and kind == "parquet" else kind


def _list_delta(source: str) -> list[SourceFile]:
    try:
        import deltalake
    except ImportError:
        raise MissingExtra(f"reading the Delta table '{source}'", "delta") from None
    table = deltalake.DeltaTable(source)
    if table.metadata().partition_columns:
        raise InputError(
            f"the Delta table '{source}' is partitioned; give its Parquet files, or an unpartitioned table."
        )
    features = set(table.protocol().reader_features or ())
    if "deletionVectors" in features:
        raise InputError(f"the Delta table '{source}' has deletion vectors; compact it first (REORG … APPLY (PURGE)).")
    files = []
    for uri in sorted(table.file_uris()):
        state = open_storage(uri).state()
        if state is None:
            raise InputError(f"'{uri}' of the Delta table '{source}' is not there; check the table.")
        name = uri.rpartition("/")[2]
        files.append(SourceFile(uri, name, "parquet", state.size, state.version, may_lack_columns=True))
    return files


def _list_lance(source: str) -> list[SourceFile]:
    dataset = open_lance(source)
    version = str(dataset.version)
    return [
        SourceFile(source, f"fragment {fragment.fragment_id}", "lance", fragment.count_rows(), version,
                   fragment=fragment.fragment_id)
        for fragment in dataset.get_fragments()
    ]  # fmt: skip


def open_lance(source: str, version: int | None = None) -> Any:
    """Open a Lance dataset."""
    try:
        import lance
    except ImportError:
        raise MissingExtra(f"reading the Lance dataset '{source}'", "lance") from None
    return lance.dataset(source, version=version)


def open_table(
    files: tuple[SourceFile, ...],
    column: str | None,
    key: str | None,
    wants: str = "texts",
    keep: Sequence[str] | None = None,
) -> Table:
    """Find the common columns of all files; raises InputError that names the file which differs.

    wants  what `column` holds: "texts", "ids" (whole numbers or texts) or "vectors"
    keep   the other columns to read (default: all but `vector`)
    """
    require_arrow()
    schemas = _map_files(files, lambda file: _read_schema(file))
    evolved = {name: None for file, (names, _, _) in zip(files, schemas, strict=True)
               for name in (names if file.may_lack_columns else ())}  # fmt: skip
    listed = [evolved if file.may_lack_columns else names for file, (names, _, _) in zip(files, schemas, strict=True)]
    column = _choose_column(files[0], column, [*listed[0]], wants)
    if wants == "vectors" and (text := next((file for file in files if file.kind not in ("parquet", "lance")), None)):
        raise InputError(f"'{text.label}' is no source of vectors; give Parquet files, a Delta table or a Lance one.")
    for file, known in zip(files, listed, strict=True):
        for required in (column, *([key] if key else ())):
            if required not in known:
                raise InputError(f"'{file.label}' has no column '{required}'; it has: {', '.join(known) or 'none'}.")
    schema = _join_schemas(files, schemas, column, wants)
    if keep is not None:
        if missing := [name for name in keep if name not in schema.names]:
            raise unknown(f"column in '{files[0].label}'", missing[0], schema.names)
        names = dict.fromkeys((column, *([key] if key else ()), *keep))
        schema = _select_fields(schema, names)
    return Table(files, column, key, schema, tuple(tuple(header) for _, _, header in schemas))


def _select_fields(schema: Any, names: Iterable[str]) -> Any:
    import pyarrow as arrow

    selected = set(names)
    return arrow.schema([field for field in schema if field.name in selected])


def _choose_column(file: SourceFile, column: str | None, names: list[str], wants: str) -> str:
    name = column or (names[0] if len(names) == 1 else DEFAULT_COLUMNS[wants])
    if name not in names:
        raise unknown(f"column in '{file.label}'", name, names)
    return name


def _join_schemas(
    files: tuple[SourceFile, ...], schemas: list[tuple[dict[str, Any], bool, list[str]]], column: str, wants: str
) -> Any:
    """Return the schema of all files: types of Parquet must agree, those of text files adapt."""
    import pyarrow as arrow

    columns: dict[str, Any] = {}
    typed: dict[str, tuple[SourceFile, Any]] = {}
    for file, (names, is_typed, _) in zip(files, schemas, strict=True):
        if not is_typed:
            continue
        for name, kind in names.items():
            first, earlier = typed.setdefault(name, (file, kind))
            if earlier != kind:
                raise InputError(
                    f"'{file.label}' has column '{name}' as {kind}, '{first.label}' as {earlier}; "
                    "give files of one schema."
                )
    typed_files = [(file, names) for file, (names, is_typed, _) in zip(files, schemas, strict=True) if is_typed]
    for file, names in typed_files:
        if file.may_lack_columns:
            continue
        if missing := [name for name in typed if name not in names]:
            raise InputError(
                f"'{file.label}' has no column '{missing[0]}', which '{typed[missing[0]][0].label}' has; "
                "give files of one schema."
            )
    columns = {name: kind for name, (_, kind) in typed.items()}
    guessed: dict[str, str] = {}
    for names, is_typed, _ in schemas:
        for name, kind in names.items() if not is_typed else ():
            if typed and name not in typed:
                continue  # a table with types keeps its columns; others of text files are left out
            if name not in typed:
                guessed[name] = max(guessed.get(name, "null"), kind, key=_ORDER.index)
    types = {"null": "string", "bool": "bool", "int64": "int64", "double": "float64", "string": "string"}
    columns |= {name: arrow.type_for_alias(types[kind]) for name, kind in guessed.items()}
    if column in typed:
        _check_type(typed[column][0], column, columns[column], wants)
    elif wants == "texts" or not arrow.types.is_integer(columns[column]):
        columns[column] = arrow.string()
    return arrow.schema([(name, kind) for name, kind in columns.items() if name != VECTOR or name == column])


def _check_type(file: SourceFile, column: str, kind: Any, wants: str) -> None:
    """Raise InputError if a column has not the type that the job reads."""
    from pyarrow import types

    if wants == "vectors":
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        fits = is_list and types.is_floating(kind.value_type)
    else:
        fits = types.is_string(kind) or types.is_large_string(kind) or (wants == "ids" and types.is_integer(kind))
    if not fits:
        needed = {"texts": "texts", "ids": "whole numbers or texts", "vectors": "lists of floating-point numbers"}
        raise InputError(f"'{file.label}' has column '{column}' as {kind}; give a column of {needed[wants]}.")


def _read_schema(file: SourceFile) -> tuple[dict[str, Any], bool, list[str]]:
    """Return name → type (of text files: one of `_ORDER`), whether the types are given, and the header of a .csv."""
    if file.kind == "parquet":
        return _get_types(file, read_footer(file).schema.to_arrow_schema()), True, []
    if file.kind == "lance":
        return _get_types(file, open_lance(file.url).schema), True, []
    if file.kind == "txt":
        return {DEFAULT_COLUMN: "string"}, False, []
    kinds: dict[str, str] = {}
    with open_file(file) as stream, _explain_gzip(file):
        lines = _sample_lines(file, stream)
    if file.kind == "jsonl":
        for line in lines:
            with suppress(ValueError, RecursionError):
                row = json.loads(line)
                for name, value in row.items() if isinstance(row, dict) else ():
                    kinds[name] = max(kinds.get(name, "null"), _find_json_kind(value), key=_ORDER.index)
        if not kinds:
            raise InputError(f"'{file.label}' has no JSON object in its first lines; give one object on each line.")
        return kinds, False, []
    table = csv.reader(lines, delimiter=get_delimiter(file, lines[0] if lines else ""))
    try:
        header = next(table, [])
    except csv.Error as error:
        raise InputError(f"'{file.label}' has no header that can be read: {error}; end its lines with \\n.") from None
    if any("\ufffd" in name for name in header):
        raise InputError(f"the header of '{file.label}' is not UTF-8; convert the file (iconv -t UTF-8).")
    _refuse_twice(file, header)
    counts = dict.fromkeys(header, "null")
    while True:
        try:
            row = next(table, None)
        except csv.Error:  # a reject later
            continue
        if row is None:
            return dict(counts), False, header
        for name, cell in zip(header, row, strict=False):
            if cell:
                counts[name] = max(counts[name], _find_text_kind(cell), key=_ORDER.index)


def _get_types(file: SourceFile, schema: Any) -> dict[str, Any]:
    """Return name → type; categories and views of texts count as texts."""
    from pyarrow import string, types

    _refuse_twice(file, schema.names)
    kinds = dict(zip(schema.names, schema.types, strict=True))
    for name, kind in kinds.items():
        kind = kind.value_type if types.is_dictionary(kind) else kind
        kinds[name] = string() if types.is_string_view(kind) else kind
    return kinds


def _refuse_twice(file: SourceFile, names: Sequence[str]) -> None:
    twice = [name for number, name in enumerate(names) if name in names[:number]]
    if twice:
        raise InputError(f"'{file.label}' has two columns '{twice[0]}'; rename one.")


def _sample_lines(file: SourceFile, stream: Any) -> list[str]:
    """Return the first complete lines of a text file."""
    data = stream.read(SAMPLE_BYTES)
    end = data.rfind(b"\n")
    data = data[: end + 1] if end >= 0 and len(data) == SAMPLE_BYTES else data
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise InputError(f"'{file.label}' is UTF-16; convert it to UTF-8 (iconv -f UTF-16 -t UTF-8).")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("utf-8-sig", errors="replace")
    return list(islice(io.StringIO(text, newline="\n"), SAMPLE_ROWS))


def get_delimiter(file: SourceFile, header: str) -> str:
    """Return the delimiter of a .csv or .tsv file by its header."""
    if file.kind == "tsv":
        return "\t"
    return max((",", ";", "\t", "|"), key=header.count) if header else ","


def _find_text_kind(value: str) -> str:
    if _INTEGER.fullmatch(value):
        return "int64"
    return "double" if FLOAT.fullmatch(value) else "string"


def _find_json_kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "string"
    return "double" if isinstance(value, float) else "string"


def open_file(file: SourceFile) -> Any:
    """Open a file of a source; the bytes of a .gz file are decompressed."""
    raw = open_storage(file.url).open()
    if not file.gzipped:
        return raw
    stream = gzip.GzipFile(fileobj=raw)
    stream.myfileobj = raw  # closed with it
    return stream


def refuse_changed(file: SourceFile) -> None:
    """Raise StoreError if a file of this machine is another one than when the job was planned.

    A text file may have grown: the rows of the plan are still there.
    """
    if is_url(file.url) or file.fragment >= 0:
        return
    try:
        state = os.stat(make_absolute(file.url))
    except OSError as error:
        raise StoreError(f"{file.label} is gone since the job started: {error.strerror}; bring it back.") from error
    is_longer = file.kind != "parquet" and not file.gzipped and state.st_size > file.size
    if not is_longer and (state.st_size, str(state.st_mtime_ns)) != (file.size, file.version):
        raise StoreError(
            f"{file.label} changed since the job started; do not change a source while a job reads it. Run it again "
            "into another target, or with --incremental when it is complete."
        )


@contextmanager
def _explain_gzip(file: SourceFile) -> Iterator[None]:
    try:
        yield
    except DAMAGED_GZIP as error:
        if not file.gzipped:
            raise
        raise InputError(f"'{file.label}' cannot be decompressed: {error}; replace the file.") from error


def read_footer(file: SourceFile) -> Any:
    """Return the metadata of a Parquet file."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    with open_file(file) as stream:
        try:
            return parquet.ParquetFile(stream).metadata
        except (OSError, arrow.ArrowInvalid) as error:
            raise InputError(f"'{file.label}' is no Parquet file: {str(error).rstrip('.')}; replace it.") from error


def plan_spans(table: Table, chunk_rows: int) -> Iterator[tuple[Span, ...]]:
    """Yield the spans of each chunk: `chunk_rows` rows, fewer if their texts are long, over as many files as needed."""
    counted = tuple(file for file in table.files if file.kind in ("parquet", "lance"))
    counts = iter(_map_files(counted, lambda f: read_footer(f).num_rows if f.kind == "parquet" else f.size))
    spans: list[Span] = []
    rows = size = 0
    for number, file in enumerate(table.files):
        cutter: _Rows | _Lines
        if file.kind in ("parquet", "lance"):
            cutter = _Rows(number, next(counts))
        else:
            cutter = _Lines(number, file, bool(table.headers[number]))
        while (span := cutter.take(chunk_rows - rows, MAX_CHUNK_BYTES - size)) is not None:
            spans.append(span)
            rows, size = rows + span.rows, size + span.length
            if rows >= chunk_rows or size >= MAX_CHUNK_BYTES:
                yield tuple(spans)
                spans, rows, size = [], 0, 0
    if spans:
        yield tuple(spans)


class _Rows:
    """Cuts a file with a known number of rows."""

    def __init__(self, number: int, total: int) -> None:
        self._number, self._total, self._first = number, total, 0

    def take(self, rows: int, _: int) -> Span | None:
        first, count = self._first, min(rows, self._total - self._first)
        self._first += count
        return Span(self._number, first, count) if count else None


class _Lines:
    """Cuts a text file after complete lines; a line end inside quotes of a .csv file does not count."""

    def __init__(self, number: int, file: SourceFile, has_header: bool) -> None:
        self._number, self._first = number, 0
        self._ends = find_line_ends(file, quotes=file.kind in ("csv", "tsv"))
        self._offset = next(self._ends, 0) if has_header else 0
        self._next = next(self._ends, None)  # the end of the next line

    def take(self, rows: int, size: int) -> Span | None:
        start, count, end = self._offset, 0, self._offset
        while self._next is not None and count < rows and (not count or self._next - start <= size):
            count, end, self._next = count + 1, self._next, next(self._ends, None)
        if not count:
            return None
        span = Span(self._number, self._first, count, start, end - start)
        self._first, self._offset = self._first + count, end
        return span


def find_line_ends(file: SourceFile, quotes: bool) -> Iterator[int]:
    """Yield the offset after each line of a text file; the last line may lack its end."""
    base = last = 0
    with open_file(file) as stream, _explain_gzip(file):
        cells = _QuotedCells(get_delimiter(file, stream.readline().decode("utf-8", "replace"))) if quotes else None
        stream.seek(0)
        while block := stream.read(BLOCK_BYTES):
            ends = np.flatnonzero(np.frombuffer(block, np.uint8) == LINE_END)
            if cells is not None:
                ends = ends[~cells.is_inside(block, ends)]
            for end in (ends + (base + 1)).tolist():
                last = end
                yield end
            base += len(block)
    if cells is not None and cells.open_since is not None:
        raise InputError(
            f"'{file.label}' has a quote at byte {cells.open_since} that is never closed; close it, or double it."
        )
    if last < base:
        yield base


class _QuotedCells:
    """Follows the quotes of a .csv file as the module csv does: a quote inside a bare cell is a letter."""

    def __init__(self, delimiter: str) -> None:
        self._before = (ord(delimiter), LINE_END, ord("\r"))  # what a cell may follow
        self._last = b"\n"  # the byte before the block
        self._base = 0
        self._closed = -1  # the offset of the last quote that closed a cell
        self.open_since: int | None = None  # the offset of the quote that opened the cell

    def is_inside(self, block: bytes, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each place of the next block lies inside a quoted cell."""
        was_open = self.open_since is not None
        quotes = np.flatnonzero(np.frombuffer(block, np.uint8) == QUOTE)
        turns = self._find_turns(block, quotes)
        self._last, self._base = block[-1:], self._base + len(block)
        inside: NDArray[np.bool_] = (np.searchsorted(turns, places) + was_open) % 2 == 1
        return inside

    def _find_turns(self, block: bytes, quotes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the quotes that open or close a cell; one that is doubled does both."""
        turns = []
        start = 3 if not self._base and block.startswith(b"\xef\xbb\xbf") else 0
        data = self._last + block
        for quote in quotes.tolist():
            place = self._base + quote
            if self.open_since is not None:
                self.open_since, self._closed = None, place
            elif data[quote] in self._before or self._closed == place - 1 or (start and quote == start):
                self.open_since = place
            else:
                continue
            turns.append(quote)
        return np.array(turns, np.int64)


def _map_files(files: Iterable[Item], function: Callable[[Item], Answer]) -> list[Answer]:
    """Return function(file) for each file, in order, some at a time."""
    with ThreadPoolExecutor(READERS) as threads:
        return list(threads.map(function, files))
