"""Small sources, and an engine that runs in this process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as parquet

WORDS = ["the", "a", "red", "blue", "cat", "dog", "runs", "sleeps", "fast", "slowly", "under", "over", "tree", "house"]


def make_texts(count: int) -> list[str]:
    return [" ".join(WORDS[(i * j) % len(WORDS)] for j in range(1, 2 + i % 7)) for i in range(count)]


def make_table(ids: Sequence[Any], texts: Sequence[Any]) -> Any:
    return arrow.table({"id": arrow.array(ids, arrow.int64()), "title": arrow.array(texts, arrow.string())})


def make_source(folder: Path, rows: dict[int, str]) -> Path:
    """Four files of equal size: Parquet, JSON lines, CSV, Parquet."""
    folder.mkdir(parents=True, exist_ok=True)
    items = list(rows.items())
    size = -(-len(items) // 4)
    for number in range(4):
        part = items[number * size : (number + 1) * size]
        if number == 1:
            lines = [json.dumps({"id": i, "title": text}) + "\n" for i, text in part]
            (folder / "1.jsonl").write_text("".join(lines))
        elif number == 2:
            (folder / "2.csv").write_text("id,title\n" + "".join(f'{i},"{text}"\n' for i, text in part))
        else:
            parquet.write_table(make_table(*zip(*part, strict=True)), folder / f"{number}.parquet")
    return folder


def read_rows(target: Path) -> dict[int, str]:
    """The rows of a target, which must be unique."""
    rows = [row for file in sorted(target.glob("part-*.parquet")) for row in parquet.read_table(file).to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows)
    assert all(len(row["vector"]) for row in rows)
    return {row["id"]: row["title"] for row in rows}


def read_parts(target: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(target.glob("part-*.parquet"))}


class InlineEngine:
    """Runs tasks in this process; `stop_after` raises KeyboardInterrupt before that task."""

    stop_after: int | None = None

    def __init__(self, factory: Any, devices: list[str], timeout: float | None = None) -> None:
        self.devices, self.units, self._factory = devices, 1, factory

    def __enter__(self) -> InlineEngine:
        self._run = self._factory(self.devices[0])
        return self

    def __exit__(self, *_: object) -> None:
        self._run.close()

    def run(self, tasks: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        for number, task in enumerate(tasks):
            if number == self.stop_after:
                raise KeyboardInterrupt
            yield task, self._run(task)

    def busy_seconds(self) -> dict[str, float]:
        return {"0 cpu": 0.0}
