"""The contenders of the audit workload: the ledger and the scorer of the watcher without its sources, and a peer.

The peer encodes the text of every event and looks for the nearest earlier one. It records into the same ledger.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.audit import Ledger
from ridgeline.audit.anomaly import describe_event
from ridgeline.audit.ledger import LedgerPaths
from ridgeline.audit.sources import Batch
from ridgeline.audit.watch import (
    Encode,
    Intake,
    Scorer,
    Settings,
    WatchPaths,
    freeze_objects,
    make_encoder,
    redact,
    short_switches,
)
from ridgeline.errors import RidgelineError
from ridgeline.machine import now_ns

Event = dict[str, Any]
_VERBS = ("started", "stopped", "reloaded", "created", "removed", "mounted", "accepted", "refused", "opened", "closed")
_THINGS = ("web server", "session of user", "network bridge", "disk volume", "login from", "firewall rule", "container")
_WORDS = ("alpha", "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "hazel", "ivory", "jade", "kelp")


class Lines:
    """Draws log-like events: a stock of sentences with changing numbers, and `fresh` new sentences per thousand."""

    def __init__(self, stock: int, fresh: float, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._stock, self.fresh, self.fresh_count = stock, fresh, 0

    def take(self, count: int) -> list[Event]:
        at = time.time_ns()
        fresh = self._rng.random(count) < self.fresh / 1000
        which = self._rng.zipf(1.5, count) % self._stock
        return [self._event(at + k, bool(fresh[k]), int(which[k])) for k in range(count)]

    def _event(self, at: int, fresh: bool, which: int) -> Event:
        if fresh:
            self.fresh_count += 1
            number, words, check = self.fresh_count, list[str](), 0
            for _ in range(6):  # words, not digits: a new sentence, not a new value in an old one
                number, rest = divmod(number, len(_WORDS))
                words.append(_WORDS[rest])
                check += rest
            # Any two differ in at least two words, so the miner never treats one as a variable and they stay new.
            words.append(_WORDS[check % len(_WORDS)])
            text = f"{' '.join(words)} happened on node {int(self._rng.integers(1000))}"
        else:
            thing = _THINGS[which % len(_THINGS)]
            text = f"{thing} {int(self._rng.integers(10_000))} {_VERBS[which // len(_THINGS) % len(_VERBS)]}"
        message = f"{text}, pid {int(self._rng.integers(32_768))}"
        words_of = {"time": at, "source": "bench", "actor": "root", "action": "log.line", "subject": "daemon"}
        return {**words_of, "attributes": {"message": message}}


class Ours:
    """Ledger, intake and scorer: the parts of `audit watch`."""

    def __init__(
        self,
        folder: Path,
        model: str,
        device: str,
        batch: int | None,
        wait_ms: float = 2.0,
        encode: Encode | None = None,
    ) -> None:
        """`encode` replaces the model."""
        self._stack = ExitStack()
        self._stack.enter_context(short_switches())
        self.ledger = Ledger.create(folder / "log", origin="bench/audit")
        self.ledger.append([])
        places = WatchPaths(LedgerPaths(self.ledger.path))
        places.watch.mkdir()
        settings = Settings(batch, wait_ms, model=model, device=device)
        self.scorer = Scorer(self.ledger, places, settings, (), {}, encode)
        self.intake = Intake(self.ledger, self.scorer.backlog, redact)
        self.scorer.start(self.intake)
        self.scorer.ready.wait()
        self._raise()
        freeze_objects()
        self.given = self._sending_ns = 0

    @property
    def stage_ns(self) -> Counter[str]:
        """Total nanoseconds of each stage; these clocks always run."""
        return self.scorer.stage_ns + Counter({"recording events": self._sending_ns})

    def send(self, events: list[Event]) -> None:
        """Record events; they are on the disk when this returns."""
        start_ns = now_ns()
        self.intake.take("bench", Batch(events))
        self._sending_ns += now_ns() - start_ns
        self.given += len(events)

    def settle(self) -> None:
        """Wait until every event is scored and its score is recorded."""
        while self.scorer.scored < self.given:
            self._raise()
            time.sleep(0.0005)

    def close(self) -> None:
        self.scorer.finish(cut=True)
        self.ledger.close()
        self._stack.close()

    def _raise(self) -> None:
        if self.scorer.error is not None:
            raise RidgelineError("the scorer stopped.") from self.scorer.error


class EveryEvent:
    """The peer: encode every event and find the nearest of the last `capacity` events."""

    def __init__(self, folder: Path, model: str, device: str, capacity: int = 10_000) -> None:
        self.ledger = Ledger.create(folder / "log", origin="bench/audit")
        self._encode: Callable[[list[str]], Any] = make_encoder(model, device)
        self._known = self._encode(["ready"])
        self._capacity = capacity
        self.given = self.scored = 0

    def send(self, events: list[Event]) -> None:
        self.ledger.append(events)
        vectors = self._encode([describe_event(event) for event in events])
        scores = 1.0 - (vectors @ self._known.T).max(axis=1)
        self._known = np.concatenate([self._known, vectors])[-self._capacity :]
        words = {"scores": [round(float(s), 4) for s in scores]}
        self.ledger.append([{"source": "bench", "action": "bench.scores", "attributes": words}])
        self.given += len(events)
        self.scored += len(events)

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self.ledger.close()
