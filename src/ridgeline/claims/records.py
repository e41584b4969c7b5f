"""A number from a record: by record, contender and metric; by path in JSON; or by the line of a text it stands in."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ridgeline.claims import quantities as q
from ridgeline.claims.quantities import Dims, find
from ridgeline.errors import InputError
from ridgeline.lab import OURS
from ridgeline.lab.judge import Row, analyse
from ridgeline.lab.record import Record, record

Derived = tuple[float, Dims | None]  # in seconds, bytes, …; None where a text gives no unit

METRICS: dict[str, tuple[Dims, Callable[[Row], float | None]]] = {
    "median": (q.TIME, lambda row: row.seconds),
    "rate": (q.RATE, lambda row: row.items_per_s),
    "share": (q.NONE, lambda row: row.share),
    "ratio": (q.NONE, lambda row: row.ratio.value if row.ratio else None),  # their time ÷ ours
    "flops": (q.FLOPS, lambda row: row.flops_per_s),
}


class Lost(Exception):
    """There is no such record, line or metric; the text says what is missing."""


def derive(folder: Path, name: str, words: list[str]) -> Derived:
    """`words`: a quoted line of a text; or selector, contender, metric; or selector and path."""
    if "/" in words:  # a ratio of two
        cut = words.index("/")
        (above, dims), (below, other) = derive(folder, name, words[:cut]), derive(folder, name, words[cut + 1 :])
        return above / below, q.NONE if dims == other else None
    file = folder / name
    if not file.is_file():
        raise Lost(f"there is no record '{name}'")
    if file.suffix == ".jsonl" and _is_records(file):
        return _from_records(file, words)
    if file.suffix in (".json", ".jsonl") and not (len(words) == 1 and words[0].startswith('"')):
        return _from_json(file, words)
    return _from_text(file, words)


@lru_cache(maxsize=32)
def _lines(file: Path) -> tuple[str, ...]:
    return tuple(" ".join(line.split()) for line in file.read_text(encoding="utf-8").splitlines())


@lru_cache(maxsize=32)
def _records(file: Path) -> tuple[Record, ...]:
    return record.read(file).records


@lru_cache(maxsize=32)
def _is_records(file: Path) -> bool:
    with file.open(encoding="utf-8") as lines:
        first = lines.readline()
    return '"schema"' in first and '"contenders"' in first


def _from_text(file: Path, words: list[str]) -> Derived:
    """The last number of the quoted piece of a line, or the one in square brackets."""
    quoted = " ".join(" ".join(words).strip('"').split())
    bare = re.sub(r"\[([^\]]*\d[^\]]*)\]", r"\1", quoted)
    if not any(bare in line for line in _lines(file)):
        raise Lost(f"no line of '{file.name}' has “{bare}”")
    marked = re.search(r"\[([^\]]*\d[^\]]*)\]", quoted)
    numbers = find(quoted[marked.start() + 1 :].replace("]", "", 1)) if marked else find(bare)
    if not numbers:
        raise Lost(f"there is no number in “{bare}”")
    number = numbers[0] if marked else numbers[-1]
    unit = number.unit or ("" if number.dims == q.NONE else number.unit)
    return (number.value, number.dims) if unit or number.dims != q.NONE else (number.written, None)


def _from_json(file: Path, words: list[str]) -> Derived:
    *select, path = words
    try:
        text = file.read_text(encoding="utf-8")
        held = (
            [json.loads(line) for line in text.splitlines() if line.strip()]
            if file.suffix == ".jsonl"
            else [json.loads(text)]
        )
    except json.JSONDecodeError as wrong:
        raise Lost(f"'{file.name}' is no JSON: {wrong}") from None
    wanted = dict(pair.split("=", 1) for word in select for pair in word.split(","))
    chosen = [line for line in held if all(str(_at(line, key)) == value for key, value in wanted.items())]
    if len(chosen) != 1:
        raise Lost(f"{len(chosen)} lines of '{file.name}' are {' '.join(select) or 'meant'}; one must be")
    value = _at(chosen[0], path)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise Lost(f"'{file.name}' has no number at {path}")
    return float(value), None


def _at(held: Any, path: str) -> Any:
    """models.ease.recall@20.mean, ceilings.3.value"""
    for key in path.split("."):
        if isinstance(held, Mapping):
            held = held.get(key)
        elif isinstance(held, list) and key.isdigit() and int(key) < len(held):
            held = held[int(key)]
        else:
            return None
    return held


def _from_records(file: Path, words: list[str]) -> Derived:
    """SELECTOR [CONTENDER] METRIC: the selector is the beginning of an id, or workload and key=value pairs."""
    if not words:
        raise Lost("the reference names no metric")
    *before, metric = (word.strip('"') for word in words)
    contender = OURS
    if before and "=" not in before[-1] and len(before) > 1:
        contender = before.pop()
    try:
        chosen = [r for r in _records(file) if all(_meant(r, word) for word in before)]
    except InputError as damage:
        raise Lost(str(damage)) from None
    if len(chosen) != 1:
        raise Lost(f"{len(chosen)} records of '{file.name}' are “{' '.join(before)}”; one must be")
    rows = {row.lane.contender: row for row in analyse.rows(chosen[0])}
    if contender not in rows:
        raise Lost(f"“{contender}” did not run in that record; there are: {', '.join(rows)}")
    value = _metric(rows[contender], metric)
    if value is None:
        raise Lost(f"the record has no {metric} for “{contender}”")
    return value


def _meant(held: Record, word: str) -> bool:
    if "=" in word:
        pairs = (pair.split("=", 1) for pair in word.split(","))
        return all(str(held.case.get(key)) == value for key, value in pairs)
    return held.workload == word or (len(word) >= 4 and held.id.startswith(word))


def _metric(row: Row, metric: str) -> Derived | None:
    kind, _, name = metric.partition(".")
    if kind == "quality" and name in row.quality:
        return float(row.quality[name]), q.NONE
    if kind == "stage" and name in row.stages:
        return row.stages[name], q.TIME
    if kind == "extras":
        value = _at(dict(row.lane.extras), name)
        return (float(value), None) if isinstance(value, int | float) else None
    if metric not in METRICS:
        raise Lost(
            f"there is no metric “{metric}”; there are: {', '.join(METRICS)}, quality.NAME, stage.NAME, extras.NAME"
        )
    dims, take = METRICS[metric]
    found = take(row)
    return None if found is None else (found, dims)
