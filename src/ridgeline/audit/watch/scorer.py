"""The thread that scores: takes micro-batches from the backlog, judges them, and writes its judgement into the log.

Everything it knows follows from the log: started anew it goes on from what was saved and replays the rest, and what was
scored before is not scored again. One event carries the scores of a whole micro-batch, one more stands for each alert.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ridgeline.audit.watch import own
from ridgeline.audit.watch.background import Aside
from ridgeline.audit.watch.backlog import Backlog, Piece
from ridgeline.audit.watch.intake import Intake
from ridgeline.audit.watch.scheduling import Tidy
from ridgeline.audit.watch.settings import LARGE, SMALL, Settings
from ridgeline.audit.watch.state import Left, Places, find_left, write_left
from ridgeline.errors import InputError, RidgelineError, StoreError
from ridgeline.machine import now_ns

if TYPE_CHECKING:
    from ridgeline.audit.anomaly.detector import Detector, Judgement
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.audit.watch.meaning import Meaning
    from ridgeline.audit.watch.vocabulary import Encode

Alert = dict[str, Any]
Outlet = Callable[[Alert], None]
ENCODING = "encoding fresh sentences"
_TIMES = 2_000  # of the last events, how long each waited for its score


class Scorer:
    """Runs from `start` to `finish`; `error` is what stopped it early."""

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        settings: Settings,
        outlets: Sequence[Outlet],
        began: dict[str, Any],
        encode: Encode | None = None,
    ) -> None:
        self._encode = encode
        self._ledger, self._places, self._settings, self._outlets = ledger, places, settings, outlets
        self._began = began  # what the start event says
        told = {"model": settings.model, "alert_rate": settings.alert_rate}
        self._told = told
        self._left = find_left(places, ledger, told) if settings.score else Left(ledger.size, ledger.size)
        self.backlog = Backlog(ledger, self._left.position, lambda: ledger.size)
        self.intake: Intake | None = None
        self.scored = self.alerts = 0
        self.waits: deque[float] = deque(maxlen=_TIMES)  # seconds from the disk to the score
        self.took: Counter[str] = Counter()  # nanoseconds of each stage so far
        self.heard: Callable[[Piece], None] = lambda piece: None  # called when its scores are recorded
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self._aside: Aside | None = None  # a copy of this process that saves
        self._saved = 0.0  # when the last one began
        self._tidy = Tidy()
        self._cut = False
        self._thread = threading.Thread(target=self._run, name="audit-scorer", daemon=True)

    @property
    def position(self) -> int:
        return self.backlog.position

    def start(self, intake: Intake) -> None:
        self.intake = intake
        self._thread.start()

    def finish(self, cut: bool = False) -> None:
        """Score what is left (`cut`: leave it for the next start), save, end."""
        self._cut = self._cut or cut
        self.backlog.close()
        self._thread.join()

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            if not self._settings.score:
                self._idle()
                return
            detector, meaning = self._minds()
            self._own([own.own(own.START, None, {**self._began, "position": self._left.position})])
            self.ready.set()
            self._saved, usual = time.monotonic(), self._settings.batch or (LARGE if self._on_gpu() else SMALL)
            while not self._cut:
                until = self._left.recorded if self.position < self._left.recorded else None
                most = LARGE if self._settings.batch is None else usual
                piece = self.backlog.take(usual, self._settings.wait_ms / 1000, until, most)
                if piece is None:
                    break
                self._judge(detector, meaning, piece)
                self._keep(detector, meaning)
                self._tidy.now_and_then()
            self._settled(detector, meaning)
            self._save(detector, meaning)
        except BaseException as error:
            self.error = error
        finally:
            if self._aside is not None:  # nobody writes there after us
                with suppress(RidgelineError):
                    self._aside.result()
            self.ready.set()

    def _on_gpu(self) -> bool:
        """Where the encoder computes, which is loaded by now."""
        if self._encode is not None:
            return False
        from ridgeline.embed import device_of

        return str(device_of(self._settings.device).type) == "cuda"

    def _idle(self) -> None:
        """Only record: what comes is passed over, so that memory stays free."""
        self._own([own.own(own.START, None, self._began)])
        self.ready.set()
        while self.backlog.take(8192, 0.0) is not None and not self._cut:
            pass

    def _minds(self) -> tuple[Detector, Meaning]:
        from ridgeline.audit.watch.encoding import encoder
        from ridgeline.audit.watch.meaning import Meaning

        encode = self._timed(self._encode or encoder(self._settings.model, self._settings.device))
        encode(["ready"])  # the model is loaded before the log says that we are
        meaning = Meaning(self._places.meaning, str(self._ledger.verifier), self._settings.model, encode)
        detector = self._detector(meaning)
        if self.position > meaning.complete:  # the index was deleted, or is behind: its miner comes to the same
            meaning.catch_up(self._ledger, self.position)
        meaning.share(detector.miner, self.position)
        return detector, meaning

    def _timed(self, encode: Encode) -> Encode:
        def timed(texts: list[str]) -> Any:
            began = now_ns()
            try:
                return encode(texts)
            finally:
                self.took[ENCODING] += now_ns() - began

        return timed

    @contextmanager
    def _clocked(self, stage: str) -> Iterator[None]:
        """The encoder's part of a stage is counted by itself."""
        began, encoded = now_ns(), self.took[ENCODING]
        yield
        self.took[stage] += now_ns() - began - (self.took[ENCODING] - encoded)

    def _detector(self, meaning: Meaning) -> Detector:
        from ridgeline.audit.anomaly.detector import Detector

        if self._left.detector is not None:
            try:
                return Detector.load(self._left.detector, meaning.embed)
            except (StoreError, KeyError, TypeError, ValueError):
                self.backlog.position = 0  # damaged, or of another version: it is learnt again from the log
        rate = self._settings.alert_rate
        return Detector(meaning.embed) if rate is None else Detector(meaning.embed, alert_rate=rate)

    def _judge(self, detector: Detector, meaning: Meaning, piece: Piece) -> None:
        judged: dict[int, Judgement] = {}
        run: list[int] = []

        def score() -> None:
            found = detector.score([piece.events[k] for k in run], [piece.first + k for k in run])
            judged.update(zip(run, found, strict=True))
            run.clear()

        with self._clocked("scoring"):
            for k, event in enumerate(piece.events):
                if not own.is_own(event):
                    run.append(k)
                elif event["action"] == own.LABEL:  # in its order: what came before was judged without it
                    score()
                    _label(detector, event)
            score()
            # By the events' own clock, so that a replay comes to the same.
            over = detector.ended(max(int(piece.events[k]["time"]) for k in judged)) if judged else []
        with self._clocked("indexing"):
            templates = [judged[k].template if k in judged else -1 for k in range(len(piece.events))]
            meaning.add(piece.first, piece.events, templates)
        if judged and piece.end > self._left.recorded:
            self._record(piece, judged, [judgement for judgement in over if judgement.alert])

    def _record(self, piece: Piece, judged: dict[int, Judgement], sessions: list[Judgement]) -> None:
        began = now_ns()
        scores = [judged[k].score if k in judged else None for k in range(len(piece.events))]
        found = [_alert(judged[k], own.leaf_of(piece.leaves, k), "event") for k in sorted(judged) if judged[k].alert]
        found += [_alert(judgement, self._ledger.leaf(judgement.entry).hex(), "session") for judgement in sessions]
        events = [own.scores_event(piece.first, scores, piece.leaves)]
        events += [own.own(own.ALERT, f"entry {alert['entry']}", alert) for alert in found]
        self._own(events)
        self.took["recording scores"] += now_ns() - began
        self._left = Left(self.position, piece.end, self._left.detector)
        self.heard(piece)
        self.scored += len(judged)
        self.alerts += len(found)
        if piece.told is not None:
            self.waits.extend([time.monotonic() - piece.told] * len(judged))
        for alert in found:
            k = int(alert["entry"]) - piece.first
            event = piece.events[k] if k >= 0 else self._ledger.entry(alert["entry"])
            for outlet in self._outlets:
                with suppress(OSError):  # nobody reads our stdout any more: the log has the alert
                    outlet({**alert, "event": event})

    def _own(self, events: list[dict[str, Any]]) -> None:
        if self.intake is not None:
            self.intake.own(events)

    def _keep(self, detector: Detector, meaning: Meaning) -> None:
        """Now and then, what was learnt, by a copy of this process: no event waits for that."""
        if self._aside is not None:
            if not self._aside.running:
                self._settled(detector, meaning)
        elif time.monotonic() - self._saved > self._settings.save_s:
            self._saved = time.monotonic()
            meaning.complete_vectors()
            try:
                self._aside = Aside(lambda: self._written(detector, meaning))
            except OSError:  # no room for another process
                self._save(detector, meaning)

    def _settled(self, detector: Detector, meaning: Meaning) -> None:
        """The end of the copy, if there is one; what it could not do is done here, and fails here."""
        aside, self._aside = self._aside, None
        if aside is not None:
            try:
                meaning.saved(aside.result())
            except RidgelineError:
                self._save(detector, meaning)

    def _save(self, detector: Detector, meaning: Meaning) -> None:
        meaning.complete_vectors()
        meaning.saved(self._written(detector, meaning))

    def _written(self, detector: Detector, meaning: Meaning) -> dict[str, int]:
        now = meaning.write()
        left = Left(self.position, max(self._left.recorded, self._left.position), None)
        write_left(self._places, self._ledger, detector, left, self._told)
        return now


def _label(detector: Detector, event: dict[str, Any]) -> None:
    words = event["attributes"]
    if own.well_formed(event):
        with suppress(InputError):  # of an entry so old that the detector has forgotten it
            detector.label(words["entry"], words["verdict"])


def _alert(judgement: Judgement, leaf: str, kind: str) -> Alert:
    """`kind`: the event itself, or the session (or minute) that it was the last of."""
    return {
        "entry": judgement.entry,
        "leaf": leaf,
        "kind": kind,
        "score": round(judgement.score, 6),
        "reason": judgement.reason,
        "parts": {name: round(float(value), 6) for name, value in judgement.parts.items()},
        "nearest": [int(entry) for entry in judgement.nearest],
    }
