"""The watcher: it records the events of its sources in the log and scores them, until the sources end or `stop`.

    ridgeline audit watch LOG --dbus system --journal --http :8080

The sources run in one event loop. One task per source takes a batch and appends it before it takes the next. The ledger
and the scorer run in threads.

A source that fails is started again, with growing pauses, from its last position in the log; an event and an alert say
that it is down.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.sources.source import Batch, Source
from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.delivery import Failed
from ridgeline.audit.watch.intake import Intake
from ridgeline.audit.watch.notify import Notifier
from ridgeline.audit.watch.redaction import Redaction
from ridgeline.audit.watch.rules import Rule
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
_RETRY_S, _LONGEST_RETRY_S = 0.5, 30.0  # between two starts of a source that fails
_UP_S = 1.0  # a source that runs for so long without an error works again
_LOOK_BACK = 10_000  # entries before the start, among which an outage may have no alert yet
_LOG = "the log"  # named like a source if it cannot be written


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
    rules      conditions that raise an alert, beside the score
    retry      start a source again that fails; False: it stays down, for input that ends
    notify     called with a sentence if a source is down or works again
    notifier   makes the notifier that gets every alert, from the function that it calls for notices it gives up
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
        rules: Sequence[Rule] = (),
        retry: bool = True,
        notify: Callable[[str], None] = lambda sentence: None,
        notifier: Callable[[Failed], Notifier] | None = None,
    ) -> None:
        self._on_status, self._retry, self._print = tick, retry, notify
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            raise InputError(f"the source {max(names, key=names.count)} was given twice.")
        self._ledger, self._sources, self._settings = ledger, sources, settings
        ledger.append([])  # locks the log, so that it has one watcher
        self._first = ledger.size
        self._places = WatchPaths(LedgerPaths(ledger.path))
        self._places.watch.mkdir(mode=0o700, exist_ok=True)
        redaction = redaction if redaction is not None else Redaction()
        start_record = {
            "sources": names,
            "model": settings.model if settings.score else None,
            "redacted": len(redaction.names),
            **({"rules": [f"{rule.name} ({rule.severity})" for rule in rules]} if rules else {}),
        }
        self._webhooks = [Webhook(url, self._record_undelivered, report=notify) for url in map(check_url, webhooks)]
        self._notifiers = [notifier(self._record_undelivered)] if notifier is not None else []
        self._deliveries = [hook.delivery for hook in self._webhooks]
        self._deliveries += [delivery for notifier in self._notifiers for delivery in notifier.deliveries]
        outlets = [*outlets, *self._webhooks, *self._notifiers]
        self.scorer = Scorer(ledger, self._places, settings, outlets, start_record, encode, rules)
        self.intake = Intake(ledger, self.scorer.backlog, redaction)
        self.intake.on_failure, self.intake.on_recovery = self._report_log_down, self._report_log_up
        self._down: dict[str, float] = {}  # source → since when (monotonic clock)
        self._start_s = time.monotonic()
        self._stops = self._left = self.undelivered = 0
        self._stopping = asyncio.Event()
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
            for each in self._notifiers:
                each.close()
            self._left = len(self.scorer.backlog) if self._settings.score else 0
            if started:
                self._record_stop()
            with suppress(OSError):
                self._places.status.unlink(missing_ok=True)  # no watcher is running
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
            "failing": {delivery.name: delivery.problem for delivery in self._deliveries if delivery.problem},
            "down": {source.name: int(source.name in self._down) for source in self._sources},
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
        finishing = asyncio.create_task(asyncio.to_thread(self._finish_alerts))
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
            await asyncio.gather(*pumps, ticking, finishing, return_exceptions=True)

    async def _pump(self, source: Source) -> None:
        """Take the batches of a source until it ends; if it fails, start it again."""
        pause, started = _RETRY_S, False
        while True:
            start_s, rising = time.monotonic(), None
            try:
                position = await asyncio.to_thread(self._ledger.get_position, source.name)
                if source.name in self._down:
                    rising = asyncio.create_task(self._await_up(source.name))
                async with aclosing(source.batches(position)) as batches:
                    async for batch in batches:
                        started = True
                        await asyncio.to_thread(self._take, source.name, batch)
                        if self.scorer.error is not None:
                            self._stop()
                await self._report_up(source.name)
                return
            except (RidgelineError, OSError) as error:
                # The failure of the only source at its start, or in input that ends, ends the watcher.
                if len(self._sources) == 1 and (self._stops or not (started and self._retry)):
                    raise
                await self._report_down(source.name, str(error))
                if self._stops or not self._retry:
                    return
            finally:
                if rising is not None:
                    rising.cancel()
            pause = _RETRY_S if time.monotonic() - start_s > _LONGEST_RETRY_S else pause
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
            if self._stopping.is_set():
                return
            pause = min(2 * pause, _LONGEST_RETRY_S)

    async def _await_up(self, source: str) -> None:
        await asyncio.sleep(_UP_S)
        await self._report_up(source)

    async def _report_down(self, source: str, why: str) -> None:
        """Record that a source is down, once for each outage, and alert."""
        if source in self._down:
            return
        self._down[source] = time.monotonic()
        self.troubles.append(why)
        again = "; the watcher tries again" if self._retry else ""
        self._notify(f"{source} is down: {why.rstrip('.')}{again}.")
        await asyncio.to_thread(self._record_outage, source, {"what": why})

    async def _report_up(self, source: str) -> None:
        since = self._down.pop(source, None)
        if since is not None:
            seconds = round(time.monotonic() - since, 3)
            self._notify(f"{source} works again after {seconds:.1f} s.")
            up = internal_events.make_event(internal_events.UP, source, {"seconds": seconds})
            await asyncio.to_thread(self.intake.append_internal, [up])

    def _report_log_down(self, why: str) -> None:
        """Alert at once; the log records it when it can be written again."""
        self.troubles.append(why)
        self._notify(f"{_LOG} cannot be written: {why}")
        event = internal_events.make_event(internal_events.DOWN, _LOG, {"what": why})
        self.scorer.send_alert({**_make_outage_alert(None, None, _LOG, why), "event": event})

    def _report_log_up(self, why: str, seconds: float) -> None:
        self._notify(f"{_LOG} can be written again after {seconds:.1f} s.")
        self._record_outage(_LOG, {"what": why, "seconds": round(seconds, 3)}, sent=True)

    def _record_outage(self, source: str, words: dict[str, Any], sent: bool = False) -> None:
        """Record an outage and its alert; `sent`: the outlets have the alert already."""
        event = internal_events.make_event(internal_events.DOWN, source, words)
        receipt = self.intake.append_internal([event])[0]
        self._record_alert(receipt.index, receipt.leaf_hash, event, sent)

    def _record_alert(self, entry: int, leaf: bytes, event: dict[str, Any], sent: bool = False) -> None:
        """Record the alert of an outage, whose event is an entry already."""
        alert = _make_outage_alert(entry, leaf.hex(), str(event["subject"]), str(event["attributes"].get("what")))
        self.intake.append_internal([internal_events.make_event(internal_events.ALERT, f"entry {entry}", alert)])
        if not sent:
            self.scorer.send_alert({**alert, "event": event})

    def _finish_alerts(self) -> None:
        """Alert for the outages whose watcher was killed between their event and their alert."""
        if not self._first:
            return
        actions = (internal_events.DOWN, internal_events.ALERT)
        start, down, alerted = max(0, self._first - _LOOK_BACK), dict[int, dict[str, Any]](), set[Any]()
        for entry, event in internal_events.read_internal_events(
            self._ledger, *actions, start=start, end=min(self._first, self._ledger.checkpoint().size)
        ):
            if event["action"] == internal_events.DOWN:
                down[entry] = event
            else:
                alerted.add(event["attributes"]["entry"])
        for entry in sorted(down.keys() - alerted):
            self._record_alert(entry, self._ledger.leaf(entry), down[entry])

    def _notify(self, sentence: str) -> None:
        """Print a note. One that cannot be printed ends no watcher: without descriptors, no module can be loaded."""
        with suppress(OSError, ImportError):
            self._print(sentence)

    def _take(self, source: str, batch: Batch) -> None:
        try:
            receipts = self.intake.take(source, batch)
        except BaseException as error:
            if batch.failed is None:
                raise
            batch.failed(error)
            if not isinstance(error, RidgelineError):
                raise
            return  # its client knows, and sends again
        if batch.taken is not None:
            batch.taken(receipts)

    def _stop(self) -> None:
        self._stops += 1
        self._stopping.set()
        self.intake.stopping.set()
        for source in self._sources:
            source.stop()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            with suppress(RidgelineError, OSError):  # the disk is full: the next second may be better
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
        subject = f"entry {alert['entry']}" if alert["entry"] is not None else None
        words = {"entry": alert["entry"], "receiver": alert["receiver"], "why": why}
        self.intake.append_internal([internal_events.make_event(internal_events.UNDELIVERED, subject, words)])

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


def _make_outage_alert(entry: int | None, leaf: str | None, source: str, why: str) -> dict[str, Any]:
    return {
        "entry": entry,
        "leaf": leaf,
        "kind": "outage",
        "score": None,
        "severity": "high",
        "fired": ["outage"],
        "reason": f"{source} is down: {why}",
        "parts": {},
        "nearest": [],
    }
