"""A span of a log with its proofs: every entry between the first and the last of the time asked for, none left out,
and the later entries that speak of them (alerts, labels, prunings).

Paths of neighbours share most of their hashes, so each hash stands once and a path is a list of numbers.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from typing import Any

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.event import PRUNE, decode
from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.ledger.ledger import Ledger
from ridgeline.audit.ledger.retention import read_history
from ridgeline.audit.watch import own
from ridgeline.errors import InputError

FORMAT = 1
MOST = 50_000  # entries of one report: it must open in a browser


def collect(ledger: Ledger, start: int | None, end: int | None, control_map: str | None) -> dict[str, Any]:
    """The report as data; `start` and `end` in ns. What was pruned cannot be in it, and the data say so."""
    checkpoint = ledger.checkpoint()
    history = read_history(Home(ledger.path))
    kept = int(history[-1]["to"]) if history else 0
    first, last = _span(ledger, kept, checkpoint.size, start, end)
    if last - first > MOST:
        raise InputError(
            f"{last - first:,} entries are asked for; a report holds {MOST:,}: narrow it with --from, --to."
        )
    chosen = list(range(first, last))
    chosen += [i for i, e in own.own_events(ledger, own.ALERT, own.LABEL, PRUNE, start=last) if _about(e, first, last)]
    hashes: dict[bytes, int] = {}
    rows = []
    for index, raw in _raws(ledger, chosen):
        path = ledger.prove_inclusion(index, checkpoint.size)
        if merkle.root_from_inclusion(index, checkpoint.size, merkle.leaf_hash(raw), path) != checkpoint.root:
            raise InputError(f"entry {index} does not lead to the signed root; see: ridgeline audit verify.")
        row: dict[str, Any] = {"index": index, "entry": raw.decode("utf-8")}
        whole = ledger.whole(decode(raw))
        if "stored" in decode(raw):
            row["stored"] = {**whole, "time": str(whole["time"])}
        row["path"] = [hashes.setdefault(node, len(hashes)) for node in path]
        rows.append(row)
    return {
        "format": FORMAT,
        "ridgeline": version("ridgeline"),
        "origin": ledger.origin,
        "key": str(ledger.verifier),
        "made": str(time.time_ns()),
        "from": None if start is None else str(start),
        "to": None if end is None else str(end),
        "first": first,
        "last": last - 1,
        "control_map": control_map,
        "pruned_before": kept,
        "checkpoint": str(checkpoint),
        "hashes": [node.hex() for node in hashes],
        "rows": rows,
    }


def _span(ledger: Ledger, kept: int, size: int, start: int | None, end: int | None) -> tuple[int, int]:
    """The first entry in the time asked for, and the one after the last."""
    if start is None and end is None:
        return kept, size
    first, last = size, kept
    for index, event in enumerate(ledger.entries(kept, size), start=kept):
        if (start is None or event["time"] >= start) and (end is None or event["time"] < end):
            first, last = min(first, index), index + 1
    if first >= last:
        raise InputError("the log has no entry in the time that was asked for.")
    return first, last


def _about(event: dict[str, Any], first: int, last: int) -> bool:
    entry = event["attributes"].get("entry")
    return event["action"] == PRUNE or (isinstance(entry, int) and first <= entry < last)


def _raws(ledger: Ledger, chosen: list[int]) -> Any:
    at = 0
    while at < len(chosen):  # in runs, so that a bundle is read once
        run = at
        while run + 1 < len(chosen) and chosen[run + 1] == chosen[run] + 1:
            run += 1
        yield from ledger.raws(chosen[at], chosen[run] + 1)
        at = run + 1
