"""Delta tables (deltalake) and Lance datasets (pylance) as targets: one new version for each run of a job.

Parts are computed into the job's folder first. Then one commit adds them all; it carries the job's id and generation,
so that a driver that was killed after the commit does not commit again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

from ridgeline.bulk.sources import Table
from ridgeline.bulk.storage import Storage, open_storage
from ridgeline.errors import InputError, MissingExtra, StoreError

BATCH_ROWS = 16_384
MATCH_ROWS = 2_000  # keys in one condition
OPERATION = "_operation"


class TableTarget(Protocol):
    """A table that a job writes."""

    def check(self) -> None:
        """Raise MissingExtra without the library."""

    def choose_types(self, schema: Any) -> Any:
        """Return the columns in types that the table holds; raises InputError for a column that has none."""

    def check_key(self, field: Any) -> None:
        """Raise InputError if rows cannot be found by a column of this type."""

    def exists(self) -> bool: ...

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield the rows of the current version, as pyarrow tables."""

    def describe(self) -> tuple[int, Any]:
        """Return the current version and its schema."""

    def create(self, parts: Iterable[str], schema: Any, job: str) -> None:
        """Make the first version from parts."""

    def update(self, parts: Iterable[str], schema: Any, key: str, removed: Sequence[Any], job: str, base: int) -> None:
        """Make one new version: rows of the parts replace those of the same key, removed keys disappear.

        `base` is the version before; if there is a newer one of this job, nothing is done.
        """


def open_output(kind: str, url: str, table: Table) -> tuple[TableTarget | None, Table]:
    """Return the table of a target, None for Parquet, and the source with the types that it holds."""
    if kind == "parquet":
        return None, table
    storage = open_storage(url)
    output: TableTarget = DeltaTarget(url, storage) if kind == "delta" else LanceTarget(url, storage)
    output.check()
    return output, replace(table, schema=output.choose_types(table.schema))


def _read_parts(storage: Storage, names: Iterable[str], schema: Any) -> Iterator[Any]:
    """Yield the rows of parts in batches of one schema."""
    import pyarrow.parquet as parquet

    for name in names:
        with storage.open(name) as stream:
            for batch in parquet.ParquetFile(stream).iter_batches(BATCH_ROWS):
                yield from _cast(batch, schema).to_batches()


def _cast(batch: Any, schema: Any) -> Any:
    import pyarrow as arrow

    return arrow.Table.from_batches([batch]).replace_schema_metadata(None).cast(schema)


class DeltaTarget:
    """A Delta table; vectors are lists of float32."""

    def __init__(self, url: str, storage: Storage) -> None:
        self._url, self._storage = url, storage

    def check(self) -> None:
        try:
            import deltalake as deltalake
        except ImportError:
            raise MissingExtra("writing a Delta table", "delta") from None

    def choose_types(self, schema: Any) -> Any:
        import pyarrow as arrow

        fields = []
        for number, name in enumerate(schema.names):
            if twin := next((other for other in schema.names[:number] if other.lower() == name.lower()), None):
                raise InputError(
                    f"a Delta table cannot have columns '{twin}' and '{name}', which differ in their case only; rename "
                    "one, or choose parquet or lance."
                )
        for field in schema:
            kind = _find_delta_type(field.type)
            if kind is None:
                raise InputError(
                    f"a Delta table has no {field.type}, the type of column '{field.name}'; convert it, or choose "
                    "parquet or lance."
                )
            fields.append(arrow.field(field.name, kind))
        return arrow.schema(fields)

    def check_key(self, field: Any) -> None:
        """Every type will do."""

    def exists(self) -> bool:
        import deltalake

        return bool(deltalake.DeltaTable.is_deltatable(self._url))

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        import deltalake
        import pyarrow as arrow

        dataset = deltalake.DeltaTable(self._url).to_pyarrow_dataset()
        for batch in dataset.to_batches(columns=list(columns), batch_size=BATCH_ROWS):
            if len(batch):
                yield arrow.Table.from_batches([batch])

    def create(self, parts: Iterable[str], schema: Any, job: str) -> None:
        import deltalake
        import pyarrow as arrow

        if self.exists():
            if self._get_mark(job) < 1:
                raise InputError(f"'{self._url}' has a Delta table of another job; choose another target.")
            return
        schema = _make_delta_schema(schema)
        reader = arrow.RecordBatchReader.from_batches(schema, _read_parts(self._storage, parts, schema))
        deltalake.write_deltalake(self._url, reader, mode="error", commit_properties=_mark_commit(job, 1))

    def update(self, parts: Iterable[str], schema: Any, key: str, removed: Sequence[Any], job: str, base: int) -> None:
        import deltalake
        import pyarrow as arrow

        if self._get_mark(job) > base + 1:
            return
        schema = _make_delta_schema(schema)
        wide = schema.append(arrow.field(OPERATION, arrow.string()))

        def read() -> Iterator[Any]:
            for batch in _read_parts(self._storage, parts, schema):
                yield batch.append_column(OPERATION, arrow.array(["write"] * len(batch)))
            for first in range(0, len(removed), BATCH_ROWS):
                values = removed[first : first + BATCH_ROWS]
                columns = [
                    arrow.array(values, f.type) if f.name == key
                    else arrow.array(["remove"] * len(values)) if f.name == OPERATION
                    else arrow.nulls(len(values), f.type)
                    for f in wide
                ]  # fmt: skip
                yield arrow.RecordBatch.from_arrays(columns, schema=wide)

        quoted = {name: f"new.`{name}`" for name in schema.names}
        (
            deltalake.DeltaTable(self._url)
            .merge(
                arrow.RecordBatchReader.from_batches(wide, read()),
                predicate=f"old.`{key}` = new.`{key}`",
                source_alias="new",
                target_alias="old",
                commit_properties=_mark_commit(job, base + 2),
            )
            .when_matched_delete(predicate=f"new.{OPERATION} = 'remove'")
            .when_matched_update(quoted, predicate=f"new.{OPERATION} = 'write'")
            .when_not_matched_insert(quoted, predicate=f"new.{OPERATION} = 'write'")
            .execute()
        )

    def describe(self) -> tuple[int, Any]:
        import deltalake

        table = deltalake.DeltaTable(self._url)
        return int(table.version()), table.to_pyarrow_dataset().schema

    def _get_mark(self, job: str) -> int:
        """Return what the last commit of a job left: one more than the version it made; 0 if there is none."""
        import deltalake

        return int(deltalake.DeltaTable(self._url).transaction_version(f"ridgeline {job}") or 0)


def _mark_commit(job: str, mark: int) -> Any:
    import deltalake

    return deltalake.CommitProperties(app_transactions=[deltalake.Transaction(f"ridgeline {job}", mark)])


def _find_delta_type(kind: Any) -> Any:
    """Return the type in which a Delta table holds all values of a type, None if there is none.

    Numbers have signs, and time stamps are microseconds; a value that does not fit is an error when it is read.
    """
    import pyarrow as arrow
    from pyarrow import types

    if isinstance(kind, arrow.BaseExtensionType):
        kind = kind.storage_type  # a table keeps the name of the type, and readers then expect other bytes
    signed = {"uint8": arrow.int16(), "uint16": arrow.int32(), "uint32": arrow.int64(), "uint64": arrow.int64()}
    if types.is_struct(kind):
        inner = [(field.name, _find_delta_type(field.type)) for field in kind]
        return None if any(delta is None for _, delta in inner) else arrow.struct(inner)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        value = _find_delta_type(kind.value_type)
        return None if value is None else arrow.list_(value)
    if types.is_float16(kind):
        return arrow.float32()
    if types.is_timestamp(kind):
        return arrow.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_time(kind) or types.is_duration(kind) or types.is_decimal256(kind):
        return None
    return signed.get(str(kind), kind)


def _make_delta_schema(schema: Any) -> Any:
    """Delta has lists of any length only."""
    import pyarrow as arrow

    fields = []
    for field in schema:
        kind = arrow.list_(field.type.value_type) if arrow.types.is_fixed_size_list(field.type) else field.type
        fields.append(arrow.field(field.name, kind))
    return arrow.schema(fields)


class LanceTarget:
    """A Lance dataset; vectors are lists of a fixed size, as its vector index needs them."""

    def __init__(self, url: str, storage: Storage) -> None:
        self._url, self._storage = url, storage

    def check(self) -> None:
        try:
            import lance as lance
        except ImportError:
            raise MissingExtra("writing a Lance dataset", "lance") from None

    def choose_types(self, schema: Any) -> Any:
        if wrong := next((name for name in schema.names if "." in name), None):
            raise InputError(
                f"a Lance dataset cannot have column '{wrong}': a dot stands for a field of a structure; rename it, or "
                "choose parquet or delta."
            )
        return schema

    def check_key(self, field: Any) -> None:
        from pyarrow import types

        if not (types.is_integer(field.type) or types.is_string(field.type) or types.is_large_string(field.type)):
            raise InputError(
                f"rows of a Lance dataset are updated by whole numbers or texts, and '{field.name}' is {field.type}; "
                "choose another --key, or --format delta."
            )

    def exists(self) -> bool:
        return any(file.name.startswith("_versions/") for file in self._storage.list())

    def read(self, columns: Sequence[str]) -> Iterator[Any]:
        import lance
        import pyarrow as arrow

        for batch in lance.dataset(self._url).to_batches(columns=list(columns), batch_size=BATCH_ROWS):
            if len(batch):
                yield arrow.Table.from_batches([batch])

    def create(self, parts: Iterable[str], schema: Any, job: str) -> None:
        import lance
        import pyarrow as arrow

        if self.exists():  # the job's own: the target was empty before, and one commit makes the dataset
            return
        reader = arrow.RecordBatchReader.from_batches(schema, _read_parts(self._storage, parts, schema))
        lance.write_dataset(reader, self._url, mode="create")

    def update(self, parts: Iterable[str], schema: Any, key: str, removed: Sequence[Any], job: str, base: int) -> None:
        import lance
        import pyarrow as arrow

        dataset = lance.dataset(self._url)
        if dataset.version > base:
            if dataset.version > base + 1:
                raise StoreError(f"'{self._url}' has versions of another writer; run with --incremental again.")
            return
        reader = arrow.RecordBatchReader.from_batches(schema, _read_parts(self._storage, parts, schema))
        merge = dataset.merge_insert(key).when_matched_update_all().when_not_matched_insert_all()
        if removed:
            merge = merge.when_not_matched_by_source_delete(f"`{key}` IN ({', '.join(map(_quote, removed))})")
        merge.execute(reader)

    def describe(self) -> tuple[int, Any]:
        import lance

        dataset = lance.dataset(self._url)
        return int(dataset.version), dataset.schema


def _quote(value: int | str) -> str:
    return repr(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
