"""A watcher: its sources into the log, the log to the scorer, until the sources end or it is told to stop.

    ridgeline audit watch LOG --dbus system --journal --http :8080

Sources live in one event loop, each pulled by its own task, which appends what it got before it pulls again. The ledger
and the scorer work in threads.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.layout import Home
from ridgeline.audit.sources.source import Batch, Source
from ridgeline.audit.watch import own
from ridgeline.audit.watch.intake import Intake
from ridgeline.audit.watch.positions import Positions
from ridgeline.audit.watch.redaction import Redaction
from ridgeline.audit.watch.scheduling import prompt, set_aside
from ridgeline.audit.watch.scorer import Outlet, Scorer
from ridgeline.audit.watch.settings import Settings
from ridgeline.audit.watch.state import Places
from ridgeline.audit.watch.webhook import Webhook, checked
from ridgeline.errors import InputError, RidgelineError
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.audit.watch.vocabulary import Encode

_TICK_S = 1.0
_GRACE_S = 0.1  # before the model is loaded


@dataclass(frozen=True)
class Summary:
    """What a watcher did."""

    taken: dict[str, int]
    dropped: dict[str, int]
    refused: dict[str, int]
    scored: int
    alerts: int
    undelivered: int  # alerts that a webhook did not take
    size: int
    left: int  # entries that were not scored: the next start does it
    seconds: float
    interrupted: bool
    troubles: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Watcher:
    """One log, some sources; `run` returns when it is over."""

    def __init__(
        self,
        ledger: Ledger,
        sources: Sequence[Source],
        settings: Settings,
        *,
        redaction: Redaction | None = None,
        outlets: Sequence[Outlet] = (),
        webhooks: Sequence[str] = (),
        tick: Callable[[dict[str, Any]], None] = lambda status: None,
        encode: Encode | None = None,
    ) -> None:
        """`tick` is told the status every second; `encode`: texts → unit vectors, if not by the settings' model."""
        self._told = tick
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise InputError(f"the source {max(names, key=names.count)} was given twice.")
        self._ledger, self._sources, self._settings = ledger, sources, settings
        ledger.append([])  # takes the lock, so that only one watches
        self._places = Places(Home(ledger.path))
        self._places.watch.mkdir(mode=0o700, exist_ok=True)
        self._positions = Positions(self._places.positions, ledger)
        redaction = redaction if redaction is not None else Redaction()
        began = {
            "sources": names,
            "model": settings.model if settings.score else None,
            "redacted": len(redaction.names),
        }
        self._webhooks = [Webhook(url, self._undelivered) for url in map(checked, webhooks)]
        self.scorer = Scorer(ledger, self._places, settings, [*outlets, *self._webhooks], began, encode)
        self.intake = Intake(ledger, self.scorer.backlog, self._positions, redaction)
        self._began = time.monotonic()
        self._stops = self._left = self.undelivered = 0
        self._settled = False  # what was loaded is set aside
        self.troubles: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> Summary:
        """Watch until every source has ended, or Ctrl-C: then what is here is taken and scored, a second one leaves at
        once (what was acknowledged is in the log either way)."""
        with prompt():
            return self._run()

    def _run(self) -> Summary:
        try:
            asyncio.run(self._watch())
        finally:
            started = self.scorer.started
            if started:
                self.scorer.finish(cut=self._stops > 1)
            for webhook in self._webhooks:
                webhook.close()
            self._left = len(self.scorer.backlog) if self._settings.score else 0
            if started:
                self._farewell()
        if self.scorer.error is not None:
            raise self.scorer.error
        return self._summary()

    def stop(self) -> None:
        """As Ctrl-C does, from any thread."""
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._stop)

    def status(self) -> dict[str, Any]:
        """How it stands, for the page and for Prometheus."""
        waits = sorted(self.scorer.waits)
        return {
            "pid": os.getpid(),
            "at": time.time(),
            "seconds": time.monotonic() - self._began,
            "ready": self.scorer.ready.is_set(),
            "size": self._ledger.size,
            **self.intake.counts(),
            "scored": self.scorer.scored,
            "alerts": self.scorer.alerts,
            "undelivered": self.undelivered,
            "backlog": len(self.scorer.backlog) if self._settings.score else 0,
            "wait_p50_s": waits[len(waits) // 2] if waits else None,
            "wait_p99_s": waits[int(len(waits) * 0.99)] if waits else None,
        }

    async def _watch(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)
        ticking = asyncio.create_task(self._tick())
        pumps = [asyncio.create_task(self._pump(source)) for source in self._sources]
        try:
            # A source that cannot be reached says so at once, and then nothing was begun.
            await asyncio.wait(pumps, timeout=_GRACE_S, return_when=asyncio.FIRST_EXCEPTION)
            for pump in pumps:
                if pump.done():
                    pump.result()
            self.scorer.start(self.intake)
            await asyncio.gather(*pumps)
            while self.scorer.alive and self.scorer.error is None and len(self.scorer.backlog) and self._stops < 2:
                await asyncio.sleep(0.05)
        finally:
            for pump in pumps:
                pump.cancel()
            ticking.cancel()
            await asyncio.gather(*pumps, ticking, return_exceptions=True)

    async def _pump(self, source: Source) -> None:
        position = await asyncio.to_thread(self._positions.find, source.name)
        try:
            async for batch in source.batches(position):
                await asyncio.to_thread(self._take, source.name, batch)
                if self.scorer.error is not None:
                    self._stop()
        except RidgelineError as error:
            # One source that fails does not take the others with it; alone, its failure is ours.
            if len(self._sources) == 1:
                raise
            self.troubles.append(str(error))
            await asyncio.to_thread(self.intake.own, [own.own(own.GAP, source.name, {"what": str(error)})])

    def _take(self, source: str, batch: Batch) -> None:
        try:
            receipts = self.intake.take(source, batch)
        except BaseException as error:
            if batch.failed is not None:
                batch.failed(error)
            raise
        if batch.taken is not None:
            batch.taken(receipts)

    def _stop(self) -> None:
        self._stops += 1
        for source in self._sources:
            source.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            await asyncio.to_thread(self._housekeeping)
            if self.scorer.ready.is_set() and not self._settled:
                self._settled = True
                set_aside()
            if self.scorer.error is not None:
                self._stop()

    def _housekeeping(self) -> None:
        self.intake.settle()
        status = self.status()
        self._told(status)
        with publish(self._places.status) as tmp:
            tmp.write_text(json.dumps(status), encoding="utf-8")

    def _undelivered(self, alert: dict[str, Any], why: str) -> None:
        self.undelivered += 1
        self.intake.own([own.own(own.UNDELIVERED, f"entry {alert['entry']}", {"entry": alert["entry"], "why": why})])

    def _farewell(self) -> None:
        why = "interrupted" if self._stops else "its sources ended"
        told = self._summary().to_json()
        words = {k: told[k] for k in ("taken", "dropped", "refused", "scored", "alerts", "undelivered", "left")}
        self.intake.own([own.own(own.STOP, None, {"why": why, **words})])
        self._housekeeping()

    def _summary(self) -> Summary:
        return Summary(
            **self.intake.counts(),
            scored=self.scorer.scored,
            alerts=self.scorer.alerts,
            undelivered=self.undelivered,
            size=self._ledger.size,
            left=self._left,
            seconds=time.monotonic() - self._began,
            interrupted=self._stops > 0,
            troubles=self.troubles,
        )
