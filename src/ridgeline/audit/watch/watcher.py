"""The watcher: it records the events of its sources in the log and scores them, until the sources end or `stop`.

    ridgeline audit watch LOG --dbus system --journal --http :8080

The sources run in one event loop. One task per source takes a batch and appends it before it takes the next. The ledger
and the scorer run in threads.
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

from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.sources.source import Batch, Source
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.intake import Intake
from ridgeline.audit.watch.redaction import Redaction
from ridgeline.audit.watch.scheduling import freeze_objects, short_switches
from ridgeline.audit.watch.scorer import Outlet, Scorer, Settings
from ridgeline.audit.watch.state import WatchPaths
from ridgeline.audit.watch.webhook import Webhook, check_url
from ridgeline.errors import InputError, RidgelineError
from ridgeline.store import publish

if TYPE_CHECKING:
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.audit.watch.meaning import Encode

_TICK_S = 1.0
_GRACE_S = 0.1  # before the model is loaded


@dataclass(frozen=True)
class Summary:
    """The counts of a finished watcher."""

    taken: dict[str, int]
    dropped: dict[str, int]
    refused: dict[str, int]
    scored: int
    alerts: int
    undelivered: int  # alerts that a webhook did not accept
    size: int
    left: int  # entries not yet scored: the next start scores them
    seconds: float
    interrupted: bool
    troubles: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


class Watcher:
    """Watches one log; `run` returns when all sources have ended or after `stop`.

    sources    the sources of events, with different names
    redaction  hides secrets (default: `Redaction()`)
    outlets    called with every alert
    webhooks   URLs that get every alert
    tick       called with the status every second
    encode     texts → unit vectors, in place of the model of the settings
    """

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

        self._on_status = tick
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise InputError(f"the source {max(names, key=names.count)} was given twice.")
        self._ledger, self._sources, self._settings = ledger, sources, settings
        ledger.append([])  # locks the log, so that it has one watcher
        self._places = WatchPaths(LedgerPaths(ledger.path))
        self._places.watch.mkdir(mode=0o700, exist_ok=True)
        redaction = redaction if redaction is not None else Redaction()
        start_record = {
            "sources": names,
            "model": settings.model if settings.score else None,
            "redacted": len(redaction.names),
        }
        self._webhooks = [Webhook(url, self._record_undelivered) for url in map(check_url, webhooks)]
        self.scorer = Scorer(ledger, self._places, settings, [*outlets, *self._webhooks], start_record, encode)
        self.intake = Intake(ledger, self.scorer.backlog, redaction)
        self._start_s = time.monotonic()
        self._stops = self._left = self.undelivered = 0
        self._frozen = False  # the loaded model is frozen
        self.troubles: list[str] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> Summary:
        """Watch until every source has ended, or Ctrl-C.

        The first Ctrl-C takes and scores what has arrived; the second one ends at once. The log has every acknowledged
        event in both cases.
        """
        with short_switches():
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
                self._record_stop()
        if self.scorer.error is not None:
            raise self.scorer.error
        return self._summary()

    def stop(self) -> None:
        """Stop like Ctrl-C; any thread may call it."""
        if self._loop is not None and self._loop.is_running():
            self._loop.call_soon_threadsafe(self._stop)

    def status(self) -> dict[str, Any]:
        """Return the status, for the page and for Prometheus."""
        waits = sorted(self.scorer.waits)
        return {
            "pid": os.getpid(),
            "at": time.time(),
            "seconds": time.monotonic() - self._start_s,
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
            # A source that cannot be reached fails at once; then do not start the scorer.
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
        position = await asyncio.to_thread(self._ledger.get_position, source.name)
        try:
            async for batch in source.batches(position):
                await asyncio.to_thread(self._take, source.name, batch)
                if self.scorer.error is not None:
                    self._stop()
        except RidgelineError as error:
            # The other sources continue if one fails; the failure of the only source ends the watcher.
            if len(self._sources) == 1:
                raise
            self.troubles.append(str(error))
            await asyncio.to_thread(
                self.intake.append_internal,
                [internal_events.make_event(internal_events.GAP, source.name, {"what": str(error)})],
            )

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
            await asyncio.to_thread(self._write_status)
            if self.scorer.ready.is_set() and not self._frozen:
                self._frozen = True
                freeze_objects()
            if self.scorer.error is not None:
                self._stop()

    def _write_status(self) -> None:
        status = self.status()
        self._on_status(status)
        with publish(self._places.status) as tmp:
            tmp.write_text(json.dumps(status), encoding="utf-8")

    def _record_undelivered(self, alert: dict[str, Any], why: str) -> None:
        self.undelivered += 1
        self.intake.append_internal(
            [
                internal_events.make_event(
                    internal_events.UNDELIVERED, f"entry {alert['entry']}", {"entry": alert["entry"], "why": why}
                )
            ]
        )

    def _record_stop(self) -> None:
        why = "interrupted" if self._stops else "its sources ended"
        summary = self._summary().to_json()
        words = {k: summary[k] for k in ("taken", "dropped", "refused", "scored", "alerts", "undelivered", "left")}
        self.intake.append_internal([internal_events.make_event(internal_events.STOP, None, {"why": why, **words})])
        self._write_status()

    def _summary(self) -> Summary:
        return Summary(
            **self.intake.counts(),
            scored=self.scorer.scored,
            alerts=self.scorer.alerts,
            undelivered=self.undelivered,
            size=self._ledger.size,
            left=self._left,
            seconds=time.monotonic() - self._start_s,
            interrupted=self._stops > 0,
            troubles=self.troubles,
        )
