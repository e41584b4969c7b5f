"""What the audit workload times: events into a ledger and through the scorer, as in the watcher, without its sources.

The peer does what the watcher's forerunner was described to do: every event's own text through the encoder, then the
nearest of those before it. It records into the same ledger.
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
from ridgeline.audit.anomaly import sentence
from ridgeline.audit.ledger import Home
from ridgeline.audit.sources import Batch
from ridgeline.audit.watch import (
    Encode,
    Intake,
    Places,
    Positions,
    Scorer,
    Settings,
    encoder,
    prompt,
    redact,
    set_aside,
)
from ridgeline.errors import RidgelineError
from ridgeline.machine import now_ns

Event = dict[str, Any]
_VERBS = ("started", "stopped", "reloaded", "created", "removed", "mounted", "accepted", "refused", "opened", "closed")
_THINGS = ("web server", "session of user", "network bridge", "disk volume", "login from", "firewall rule", "container")
_WORDS = ("alpha", "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "hazel", "ivory", "jade", "kelp")


class Lines:
    """Log-like events: a fixed stock of sentences with changing numbers, and so many per thousand never seen before."""

    def __init__(self, stock: int, fresh: float, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._stock, self.fresh, self.made = stock, fresh, 0

    def take(self, count: int) -> list[Event]:
        at = time.time_ns()
        fresh = self._rng.random(count) < self.fresh / 1000
        which = self._rng.zipf(1.5, count) % self._stock
        return [self._event(at + k, bool(fresh[k]), int(which[k])) for k in range(count)]

    def _event(self, at: int, fresh: bool, which: int) -> Event:
        if fresh:
            self.made += 1
            number, words, check = self.made, list[str](), 0
            for _ in range(6):  # letters, not digits: a new sentence, not another value of an old one
                number, rest = divmod(number, len(_WORDS))
                words.append(_WORDS[rest])
                check += rest
            # Any two differ in two words or more, so the miner never takes one for a variable and they stay fresh.
            words.append(_WORDS[check % len(_WORDS)])
            text = f"{' '.join(words)} happened on node {int(self._rng.integers(1000))}"
        else:
            thing = _THINGS[which % len(_THINGS)]
            text = f"{thing} {int(self._rng.integers(10_000))} {_VERBS[which // len(_THINGS) % len(_VERBS)]}"
        message = f"{text}, pid {int(self._rng.integers(32_768))}"
        words_of = {"time": at, "source": "bench", "actor": "root", "action": "log.line", "subject": "daemon"}
        return {**words_of, "attributes": {"message": message}}


class Ours:
    """Ledger, intake, scorer: what `audit watch` is made of."""

    def __init__(
        self,
        folder: Path,
        model: str,
        device: str,
        batch: int | None,
        wait_ms: float = 2.0,
        encode: Encode | None = None,
    ) -> None:
        """`encode`: in place of the model."""
        self._stack = ExitStack()
        self._stack.enter_context(prompt())
        self.ledger = Ledger.create(folder / "log", origin="bench/audit")
        self.ledger.append([])
        places = Places(Home(self.ledger.path))
        places.watch.mkdir()
        settings = Settings(batch, wait_ms, model=model, device=device)
        self.scorer = Scorer(self.ledger, places, settings, (), {}, encode)
        self.intake = Intake(self.ledger, self.scorer.backlog, Positions(places.positions, self.ledger), redact)
        self.scorer.start(self.intake)
        self.scorer.ready.wait()
        self._raise()
        set_aside()
        self.given = self._sending_ns = 0

    @property
    def took(self) -> Counter[str]:
        """Nanoseconds of each stage so far, by clocks that are always on."""
        return self.scorer.took + Counter({"recording events": self._sending_ns})

    def send(self, events: list[Event]) -> None:
        """On the disk when this returns."""
        began = now_ns()
        self.intake.take("bench", Batch(events))
        self._sending_ns += now_ns() - began
        self.given += len(events)

    def settle(self) -> None:
        """Until all of it is scored and the scores are recorded."""
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
    """The peer: encode every event, look for the nearest one before it among the last `kept`."""

    def __init__(self, folder: Path, model: str, device: str, kept: int = 10_000) -> None:
        self.ledger = Ledger.create(folder / "log", origin="bench/audit")
        self._encode: Callable[[list[str]], Any] = encoder(model, device)
        self._known = self._encode(["ready"])
        self._kept = kept
        self.given = self.scored = 0

    def send(self, events: list[Event]) -> None:
        self.ledger.append(events)
        vectors = self._encode([sentence(event) for event in events])
        scores = 1.0 - (vectors @ self._known.T).max(axis=1)
        self._known = np.concatenate([self._known, vectors])[-self._kept :]
        words = {"scores": [round(float(s), 4) for s in scores]}
        self.ledger.append([{"source": "bench", "action": "bench.scores", "attributes": words}])
        self.given += len(events)
        self.scored += len(events)

    def settle(self) -> None:
        pass

    def close(self) -> None:
        self.ledger.close()
