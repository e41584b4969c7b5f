"""Labelled data as units to score: sessions, or single lines or events.

    logs/hdfs_sessions        …_train.jsonl(.gz) and …_test.jsonl(.gz): sessions, already split
    sessions.jsonl(.gz)       one session or event per line, split in file order
    BGL.log(.gz)              Loghub lines: the label in the first column ("-" is normal), split in file order

A session has `label` (0 or 1, true or false, "-" or "normal" or another word) and its events in `templates`, `messages`
or `events`: texts, or events of the ledger. A row without them is one event with a label.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError
from ridgeline.store import explain_errors

Event = Mapping[str, Any]

SHARE = 0.5  # the first units, which are the training part
LISTS = ("templates", "messages", "events", "lines")
NORMAL = {"-", "", "0", "normal", "false", "none", "benign"}
ENDINGS = (".jsonl.gz", ".jsonl")
# label, seconds since 1970, a date, the node: BGL, Thunderbird, Spirit, Liberty
_HEADED = re.compile(r"\S+ (\d{9,10}) \d{4}\.\d{2}\.\d{2} (\S+) (.*)")
_STAMP = re.compile(r"\d{4}-\d{2}-\d{2}-\d{2}\.\d{2}\.\d{2}\.\d+ ")


@dataclass(frozen=True)
class Unit:
    """One session, line or event, which gets one score."""

    anomalous: bool
    events: tuple[Event, ...]


@dataclass(frozen=True)
class Labelled:
    """Units to learn from and units to score, in time order."""

    name: str
    kind: str  # "session", "line" or "event"
    split: str  # in words
    train: list[Unit]
    test: list[Unit]


def load(path: Path, share: float = SHARE) -> Labelled:
    """Read labelled data; raise `InputError` with the place of a bad row.

    path   a file, or the common beginning of the names of a training and a test file
    share  the first part of a single file, which is learnt from
    """
    if not 0.0 < share < 1.0:
        raise InputError(f"the share to learn from is {share}; give one between 0 and 1, like 0.5.")
    pair = _pair(path)
    if pair is not None:
        (train, kind), (test, _) = _sessions(pair[0]), _sessions(pair[1])
        split = f"{pair[0].name} to learn from, {pair[1].name} to judge"
    else:
        if not path.is_file():
            raise InputError(
                f"there is no {path}, and no {path.name}_train.jsonl with {path.name}_test.jsonl; "
                "give a file, or the common beginning of the names of two such files."
            )
        units, kind = _sessions(path) if _has_ending(path) else (_lines(path), "line")
        cut = int(len(units) * share)
        train, test = units[:cut], units[cut:]
        split = f"the first {share:.0%} in file order to learn from, the rest to judge"
    labelled = Labelled(path.name, kind, split, train, test)
    _refuse_useless(labelled, path)
    return labelled


def _refuse_useless(data: Labelled, path: Path) -> None:
    if all(unit.anomalous for unit in data.train):
        raise InputError(f"{path}: there is nothing normal to learn from ({len(data.train)} {data.kind}s).")
    bad = sum(unit.anomalous for unit in data.test)
    if not 0 < bad < len(data.test):
        raise InputError(
            f"{path}: of {len(data.test)} {data.kind}s to judge {bad} are anomalies; both kinds are needed "
            "(another --train share may help)."
        )


def _pair(path: Path) -> tuple[Path, Path] | None:
    for ending in ENDINGS:
        both = [path.with_name(f"{path.name}_{part}{ending}") for part in ("train", "test")]
        if all(p.is_file() for p in both):
            return both[0], both[1]
    return None


def _has_ending(path: Path) -> bool:
    return path.name.endswith((*ENDINGS, ".json", ".json.gz"))


def _text(path: Path) -> Iterator[tuple[int, str]]:
    opened = gzip.open if path.name.endswith(".gz") else open
    try:
        with explain_errors(path), opened(path, "rt", encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (EOFError, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is no complete gzip file ({error}); fetch it again.") from None


def _sessions(path: Path) -> tuple[list[Unit], str]:
    units, kinds = [], set()
    for number, line in _text(path):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{where} is not JSON ({error}); mend it.") from None
        if not isinstance(row, dict) or "label" not in row:
            raise InputError(f"{where} has no label; a row is an object with label and {' or '.join(LISTS)}.")
        listed = next((name for name in LISTS if name in row), None)
        if listed is None and "action" not in row:
            raise InputError(f"{where} has none of {', '.join(LISTS)} and no action; add one of them.")
        kinds.add("session" if listed else "event")
        label = _label(row["label"])
        if listed is None:
            units.append(Unit(label, ({k: v for k, v in row.items() if k != "label"},)))
            continue
        events = row[listed]
        if not isinstance(events, list) or not events:
            raise InputError(f"{where}: {listed} is no list with something in it.")
        name = str(row.get("id", number))
        units.append(Unit(label, tuple(_event(event, name, f"{where}, item {i}") for i, event in enumerate(events, 1))))
    if len(kinds) > 1:
        raise InputError(f"{path} mixes sessions and single events; keep them apart.")
    if not units:
        raise InputError(f"{path} is empty.")
    return units, kinds.pop()


def _label(value: Any) -> bool:
    return str(value).strip().lower() not in NORMAL


def _event(event: Any, session: str, where: str) -> Event:
    if isinstance(event, str):
        return {"time": 0, "source": "log", "action": "log.line", "subject": event, "attributes": {"session": session}}
    if not isinstance(event, dict):
        raise InputError(f"{where} is neither a text nor an event.")
    return {**event, "attributes": {**(event.get("attributes") or {}), "session": session}}


def _lines(path: Path) -> list[Unit]:
    units = []
    for number, line in _text(path):
        label, _, rest = line.partition(" ")
        if not rest.strip():
            raise InputError(f"{path}, line {number} has one word only; the label comes first, then the line.")
        units.append(Unit(label != "-", (line_event(line),)))
    if not any(not unit.anomalous for unit in units):
        raise InputError(f"{path}: no line begins with '-'; the first column must be the label, '-' is normal.")
    return units


def line_event(line: str) -> Event:
    """Make an event of a labelled line; node and time come from its header, if it has that of supercomputer logs.

    >>> line_event("- 1117838570 2005.06.03 R02 2005-06-03-15.42.50.675872 R02 RAS KERNEL INFO parity error")["subject"]
    'RAS KERNEL INFO parity error'
    """
    header = _HEADED.fullmatch(line)
    if not header:
        return {"time": 0, "source": "log", "actor": "", "action": "log.line", "subject": line.partition(" ")[2]}
    seconds, node, rest = header.groups()
    words = _STAMP.sub("", rest, count=1).split(" ")
    subject = " ".join(word for word in words if word not in (node, f"{node}/{node}"))
    return {"time": int(seconds) * 10**9, "source": "log", "actor": node, "action": "log.line", "subject": subject}
