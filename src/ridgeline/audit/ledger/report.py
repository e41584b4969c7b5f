"""What a verification looked at and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ridgeline.audit.ledger import merkle
from ridgeline.audit.ledger.checkpoint import Checkpoint
from ridgeline.audit.ledger.tiles import Tiles
from ridgeline.errors import Unverified


@dataclass(frozen=True)
class Witnessed:
    """Up to where a witness vouches for a log, and since when (seconds since 1970)."""

    name: str
    size: int
    seconds: int


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: its kind in a word or two, and the sentence."""

    kind: str
    sentence: str


@dataclass(frozen=True)
class Pruned:
    """Payloads that were taken away: entries `start` to `end` (not included), by whom and when (ns)."""

    start: int
    end: int
    by: str
    time: int
    reason: str
    index: int  # of the event that says so


@dataclass
class Report:
    """What was looked at and what was found."""

    origin: str
    checkpoint: Checkpoint | None = None
    full: bool = True
    entries: int = 0  # whose payload was hashed
    pruned: list[Pruned] = field(default_factory=list)
    witnesses: list[Witnessed] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.findings

    def find(self, kind: str, sentence: str) -> None:
        self.findings.append(Finding(kind, sentence))


class Findings(Unverified):
    """A log that does not verify; `report` has every finding."""

    def __init__(self, report: Report) -> None:
        first, more = report.findings[0], len(report.findings) - 1
        rest = f" And {more} more; ridgeline audit verify lists them." if more else ""
        super().__init__(first.kind, first.sentence + rest)
        self.report = report


def pruned_by(index: int, event: dict[str, Any]) -> list[Pruned]:
    """What the event at `index` says was pruned, with the history it carries."""
    words = event["attributes"]
    try:
        rows = [*words.get("history", ()), {**words, "by": event["actor"], "at": str(event["time"]), "entry": index}]
        return [
            Pruned(int(r["from"]), int(r["to"]), str(r["by"]), int(r["at"]), str(r.get("reason", "")), int(r["entry"]))
            for r in rows
        ]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise Unverified("malformed", f"entry {index} says that something was pruned, but not what.") from None


def continues(then: Checkpoint, now: Checkpoint, tiles: Tiles, what: str) -> None:
    """Raise unless the log at `now` has `then` as its beginning.

    By a consistency proof, which leads to both roots: tiles that nobody has hashed yet may be anything.
    """
    if then.size > now.size:
        raise Unverified(
            "truncated", f"the log has {now.size} entries, but {what} has {then.size}: its tail was cut off."
        )
    path = merkle.consistency_path(then.size, now.size, tiles.node(now.size))
    try:
        merkle.check_consistency(then.size, now.size, then.root, now.root, path)
    except Unverified:
        raise Unverified(
            "fork", f"the first {then.size} entries are not those of {what}: the log was forked or rewritten."
        ) from None
