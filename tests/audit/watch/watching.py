"""Shared by the tests of the watcher: a watcher with an encoder that needs no model."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from tests.audit.threads import run_in_thread

from ridgeline.audit import Ledger
from ridgeline.audit.ledger.merkle import leaf_hash
from ridgeline.audit.sources.files import LineFile
from ridgeline.audit.sources.lines import parse_json_line
from ridgeline.audit.watch import internal_events, make_rule
from ridgeline.audit.watch.scorer import Settings
from ridgeline.audit.watch.watcher import Watcher
from ridgeline.cli import main

BASE = 1_700_000_000_000_000_000
ODD = 1_100  # one odd event among the first 1,200 …
ODD_RULE = make_rule("action == 'firewall.rule.delete'", "high", "odd")  # … which alerts whatever the detector says


def encode(texts: list[str]) -> np.ndarray:
    """A bag of words, hashed: alike texts are near each other."""
    vectors = np.zeros((len(texts), 64), np.float32)
    for row, text in enumerate(texts):
        for word in text.lower().replace(".", " ").replace("=", " ").split():
            vectors[row, sha256(word.encode()).digest()[0] % 64] += 1
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def event(i: int) -> dict:
    """Ordinary ones, now and then another, and once a very odd one."""
    if i == ODD:
        words = {
            "source": "t",
            "actor": "guest",
            "action": "firewall.rule.delete",
            "subject": "deny all inbound traffic",
        }
        return {"time": BASE + i * 10**9, **words, "attributes": {"chain": "INPUT"}}
    if i % 97 == 96:
        return {"time": BASE + i * 10**9, "source": "t", "actor": "guest", "action": "disk.wipe", "subject": f"d{i}"}
    return {
        "time": BASE + i * 10**9,
        "source": "t",
        "actor": "root",
        "action": "unit.start",
        "subject": f"web{i % 7}",
        "attributes": {"pid": i},
    }


def write_events(path: Path, start: int, end: int) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event(i)) + "\n" for i in range(start, end))


def jsonl(path: Path, follow: bool = False, **more) -> LineFile:
    return LineFile(path, "jsonl", parse_json_line, follow=follow, **more)


def watch(log: Path, *sources, outlets=(), rules=(), retry=False, **settings):
    """One whole run of a watcher over the log."""
    more = {"batch": 64, "wait_ms": 5.0, **settings}
    with Ledger.open(log) as ledger:
        watcher = Watcher(ledger, sources, Settings(**more), outlets=outlets, encode=encode, rules=rules, retry=retry)
        return run_in_thread(watcher.run)


def make(log: Path) -> Path:
    Ledger.create(log, origin="example.test/watched").close()
    return log


def entries(log: Path) -> list[dict]:
    with Ledger.open(log) as ledger:
        return list(ledger.entries())


def outside_events(log: Path) -> list[dict]:
    """The events from outside, in order."""
    return [e for e in entries(log) if not internal_events.is_internal(e)]


def scores(log: Path) -> dict[int, int]:
    """Entry → recorded score; each is bound to the entries it speaks of, and none came twice."""
    by_entry: dict[int, int] = {}
    with Ledger.open(log) as ledger:
        leaves = [leaf_hash(raw) for _, raw in ledger.raw_entries()]
        everything = list(ledger.entries())
        for _, event in internal_events.read_internal_events(ledger, internal_events.SCORES):
            words = event["attributes"]
            span = range(words["first"], words["first"] + words["count"])
            bound = sha256(b"".join(leaves[i] for i in span)).hexdigest()
            assert words["leaves_sha256"] == bound
            for entry, score in zip(span, words["scores"], strict=True):
                assert (score is None) == internal_events.is_internal(everything[entry])
                if score is not None:
                    assert entry not in by_entry, "scored twice"
                    by_entry[entry] = score
    return by_entry


def in_order(log: Path) -> list[int]:
    """The scores of the events from outside, in their order; every one has one."""
    by_entry, everything = scores(log), entries(log)
    return [by_entry[i] for i, e in enumerate(everything) if not internal_events.is_internal(e)]


def run_command(capsys, *words: object) -> tuple[int, str, str]:
    """A command in this process: exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as left:
        run_in_thread(lambda: main([str(word) for word in words]))
    return (int(left.value.code or 0), *capsys.readouterr())
