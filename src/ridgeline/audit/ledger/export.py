"""Export events of a log as JSON, JSON lines, CSV or Parquet.

Pruned entries are left out, and `missing` counts them. Every row has its index, so that `audit prove` can prove it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from ridgeline.audit.ledger.event import PRUNE
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.moment import show_moment
from ridgeline.audit.ledger.retention import read_pruned_ranges
from ridgeline.audit.ledger.tiles import WIDTH
from ridgeline.errors import MissingExtra, Unverified

COLUMNS = ("index", "time", "time_ns", "source", "actor", "action", "subject", "attributes")
_ROWS = 10_000  # in a Parquet row group


class Selection:
    """The events of a log from time `start` to `end` (ns since 1970, not included) for which `where(event)` holds.

    After an iteration, `rows` is the number of events, and `missing` the number of pruned entries.
    """

    def __init__(
        self,
        ledger: Ledger,
        start: int | None = None,
        end: int | None = None,
        where: Callable[[dict[str, Any]], bool] | None = None,
    ) -> None:
        self._ledger, self._start, self._end, self._where = ledger, start, end, where
        self.rows = self.missing = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self.rows = self.missing = 0
        size, gone, until = self._ledger.checkpoint().size, list[int](), 0
        for first in range(0, size, WIDTH):
            last = min(first + WIDTH, size)
            try:
                events = list(self._ledger.entries(first, last))
            except Unverified as error:
                if error.kind != "missing":
                    raise
                self.missing += last - first
                gone.append(first)
                continue
            for index, event in enumerate(events, start=first):
                until = max(until, _pruned_until(index, event))
                event["index"] = index
                if self._matches(event):
                    self.rows += 1
                    yield event
        self._explain(gone, until, size)

    def _explain(self, gone: list[int], until: int, size: int) -> None:
        """Raise if a missing entry was not pruned; an event that was appended meanwhile may record the pruning."""
        lost = [first for first in gone if first + WIDTH > until]
        if lost:
            for index, event in enumerate(self._ledger.entries(size), start=size):
                until = max(until, _pruned_until(index, event))
            lost = [first for first in gone if first + WIDTH > until]
        if lost:
            raise Unverified(
                "missing",
                f"entries from {lost[0]} on are missing, and no event records their pruning; restore them from a "
                "copy, and see: ridgeline audit verify.",
            )

    def _matches(self, event: dict[str, Any]) -> bool:
        if self._start is not None and event["time"] < self._start:
            return False
        if self._end is not None and event["time"] >= self._end:
            return False
        return self._where is None or self._where(event)


def _pruned_until(index: int, event: dict[str, Any]) -> int:
    return max((p.end for p in read_pruned_ranges(index, event)), default=0) if event["action"] == PRUNE else 0


_FORMULA = frozenset("=+-@\t\r")


def write_jsonl(events: Iterable[dict[str, Any]], to: IO[str]) -> None:
    """Write one JSON object per line: the event and its index."""
    for event in events:
        to.write(_json(event) + "\n")


def write_json(events: Iterable[dict[str, Any]], to: IO[str]) -> None:
    """Write one JSON list, with one event per line."""
    between = "[\n"
    for event in events:
        to.write(between + _json(event))
        between = ",\n"
    to.write("[]\n" if between == "[\n" else "\n]\n")


def write_csv(events: Iterable[dict[str, Any]], to: IO[str]) -> None:
    """Write one row per event, attributes as JSON.

    A text that a spreadsheet would run as a formula gets an apostrophe in front; JSON and Parquet keep it unchanged.
    """
    table = csv.writer(to)
    table.writerow(COLUMNS)
    for event in events:
        table.writerow("'" + v if isinstance(v, str) and v[:1] in _FORMULA else v for v in _row(event).values())


def write_parquet(events: Iterable[dict[str, Any]], to: Path) -> None:
    """Write one row per event, attributes as JSON; time as nanoseconds and as a timestamp."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("Parquet", "parquet") from None
    types = {"index": pa.int64(), "time": pa.timestamp("ns", tz="UTC"), "time_ns": pa.int64()}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])
    rest = iter(events)
    with pq.ParquetWriter(to, schema) as writer:
        while rows := [{**_row(event), "time": event["time"]} for event in islice(rest, _ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))


def _json(event: dict[str, Any]) -> str:
    row = {"index": event["index"], **{k: v for k, v in event.items() if k != "index"}}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":"))


def _row(event: dict[str, Any]) -> dict[str, Any]:
    attributes = json.dumps(event["attributes"], ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    more = {"time": show_moment(event["time"]), "time_ns": event["time"], "attributes": attributes}
    return {name: more.get(name, event.get(name)) for name in COLUMNS}
