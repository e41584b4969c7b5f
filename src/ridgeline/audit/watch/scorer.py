"""The scorer: a thread that takes small batches from the backlog, scores them, and records the scores in the log.

Its state follows from the log: after a restart it loads the saved state and replays the rest; it does not record a
score twice. One internal event has the scores of a batch, and one more has each alert. An alert names what fired: the
score, rules (rules.py), or both. Without a model the thread only evaluates the rules.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ridgeline.audit.watch import internal_events
from ridgeline.audit.watch.background import BackgroundProcess
from ridgeline.audit.watch.backlog import Backlog, Piece
from ridgeline.audit.watch.intake import Intake
from ridgeline.audit.watch.rules import Rule, find_rules, worst
from ridgeline.audit.watch.scheduling import ObjectFreezer
from ridgeline.audit.watch.state import SavedState, WatchPaths, find_state, read_checked, write_checked, write_state
from ridgeline.errors import InputError, RidgelineError, StoreError
from ridgeline.machine import now_ns, parse_devices

if TYPE_CHECKING:
    from ridgeline.audit.anomaly.detector import Detector, Judgement
    from ridgeline.audit.ledger.ledger import Ledger
    from ridgeline.audit.watch.meaning import Encode, Meaning

Alert = dict[str, Any]
Outlet = Callable[[Alert], None]
ENCODING = "encoding fresh sentences"
SCORE = "score"  # what fired, if it was the anomaly score
_TIMES = 2_000  # number of recent events whose wait is remembered
# The first event of a batch waits for the others: on a CPU a few new sentences take tens of milliseconds. So a scorer
# on a CPU waits only for SMALL events, but takes up to LARGE that are available: each batch has a fixed cost.
SMALL, LARGE = 128, 512


class Scorer:
    """Runs from `start` to `finish`; `error` is the exception that stopped it early.

    outlets       called with every alert
    start_record  the attributes of the start event
    encode        texts → unit vectors, in place of the model of the settings
    rules         conditions that raise an alert
    """

    def __init__(
        self,
        ledger: Ledger,
        places: WatchPaths,
        settings: Settings,
        outlets: Sequence[Outlet],
        start_record: dict[str, Any],
        encode: Encode | None = None,
        rules: Sequence[Rule] = (),
    ) -> None:
        self._encode, self._rules = encode, rules
        self._ledger, self._places, self._settings, self._outlets = ledger, places, settings, outlets
        self._start_record = start_record  # attributes of the start event
        saved_settings = {"model": settings.model, "alert_rate": settings.alert_rate}
        self._saved_settings = saved_settings
        if settings.score:
            self._state = find_state(places, ledger, saved_settings)
        else:
            checked = read_checked(places, ledger) if rules else ledger.size
            self._state = SavedState(checked, ledger.size)
        self.backlog = Backlog(ledger, self._state.position, lambda: ledger.size)
        self.intake: Intake | None = None
        self.scored = self.alerts = 0
        self._counting = threading.Lock()
        self.waits: deque[float] = deque(maxlen=_TIMES)  # seconds from the disk to the recorded score
        self.stage_ns: Counter[str] = Counter()  # total nanoseconds of each stage
        self.on_recorded: Callable[[Piece], None] = lambda piece: (
            None
        )  # called after the scores of a piece are recorded
        self.ready = threading.Event()
        self.error: BaseException | None = None
        self._saving: BackgroundProcess | None = None  # the copy of this process that saves the state
        self._saved = 0.0  # start of the last save
        self._freezer = ObjectFreezer()
        self._cut = False
        self._thread = threading.Thread(target=self._run, name="audit-scorer", daemon=True)

    @property
    def position(self) -> int:
        return self.backlog.position

    def start(self, intake: Intake) -> None:
        self.intake = intake
        self._thread.start()

    def finish(self, cut: bool = False) -> None:
        """Score the rest of the backlog (`cut`: leave it for the next start), save, and end."""
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
                self._record_only()
                return
            detector, meaning = self._load_models()
            self._append_internal(
                [
                    internal_events.make_event(
                        internal_events.START, None, {**self._start_record, "position": self._state.position}
                    )
                ]
            )
            self.ready.set()
            self._saved, batch = time.monotonic(), self._settings.batch or (LARGE if self._on_gpu() else SMALL)
            while not self._cut:
                until = self._state.recorded if self.position < self._state.recorded else None
                most = LARGE if self._settings.batch is None else batch
                piece = self.backlog.take(batch, self._settings.wait_ms / 1000, until, most)
                if piece is None:
                    break
                self._score(detector, meaning, piece)
                self._save_if_due(detector, meaning)
                self._freezer.freeze_if_due()
            self._finish_saving(detector, meaning)
            self._save(detector, meaning)
        except BaseException as error:
            self.error = error
        finally:
            if self._saving is not None:  # it must not write after this thread has ended
                with suppress(RidgelineError):
                    self._saving.result()
            self.ready.set()

    def _on_gpu(self) -> bool:
        """Whether the encoder, which is loaded by now, runs on a GPU."""
        if self._encode is not None:
            return False
        from ridgeline.embed import resolve_torch_device

        return str(resolve_torch_device(parse_devices(self._settings.device)[0]).type) == "cuda"

    def _record_only(self) -> None:
        """Without scores: evaluate the rules, and discard the backlog, so that memory stays free."""
        alerted = self._read_alerted() if self._rules else set()
        if self._rules:
            self._save_checked()  # a killed first watcher must not leave entries unchecked
        self._append_internal([internal_events.make_event(internal_events.START, None, self._start_record)])
        self.ready.set()
        self._saved = time.monotonic()
        while not self._cut and (piece := self.backlog.take(8192, 0.0)) is not None:
            if not self._rules:
                continue
            self._record_rule_alerts(piece, alerted)
            if time.monotonic() - self._saved > self._settings.save_s:
                self._saved = time.monotonic()
                self._save_checked()
        if self._rules:
            self._save_checked()

    def _read_alerted(self) -> set[int]:
        """Read which of the entries to check have an alert: the last watcher was killed after it recorded them."""
        events = internal_events.read_internal_events(self._ledger, internal_events.ALERT, start=self.position)
        return {int(event["attributes"]["entry"]) for _, event in events}

    def _record_rule_alerts(self, piece: Piece, alerted: set[int]) -> None:
        alerts = []
        for k, event in enumerate(piece.events):
            if not internal_events.is_internal(event) and piece.first + k not in alerted:
                fired = find_rules(self._rules, {**event, "index": piece.first + k})
                if fired:
                    alerts.append(_make_alert(piece.first + k, internal_events.leaf_hex(piece.leaves, k), fired))
        self._append_internal([_make_alert_event(alert) for alert in alerts])
        self._send(alerts, piece)

    def _save_checked(self) -> None:
        with suppress(RidgelineError):  # then the next start checks some entries again
            write_checked(self._places, self._ledger, self.position)

    def _load_models(self) -> tuple[Detector, Meaning]:
        from ridgeline.audit.watch.meaning import Meaning, make_encoder

        encode = self._time_encoder(self._encode or make_encoder(self._settings.model, self._settings.device))
        encode(["ready"])  # load the model before the start event
        meaning = Meaning(self._places.meaning, str(self._ledger.verifier), self._settings.model, encode)
        detector = self._detector(meaning)
        if self.position > meaning.complete:  # the index was deleted, or is behind
            meaning.catch_up(self._ledger, self.position)
        meaning.share_miner(detector.miner, self.position)
        return detector, meaning

    def _time_encoder(self, encode: Encode) -> Encode:
        def encode_timed(texts: list[str]) -> Any:
            start_ns = now_ns()
            try:
                return encode(texts)
            finally:
                self.stage_ns[ENCODING] += now_ns() - start_ns

        return encode_timed

    @contextmanager
    def _timed_stage(self, stage: str) -> Iterator[None]:
        """Count the time of a stage without the encoder's time, which is a stage of its own."""
        start_ns, encoding_ns = now_ns(), self.stage_ns[ENCODING]
        yield
        self.stage_ns[stage] += now_ns() - start_ns - (self.stage_ns[ENCODING] - encoding_ns)

    def _detector(self, meaning: Meaning) -> Detector:
        from ridgeline.audit.anomaly.detector import Detector

        if self._state.detector is not None:
            try:
                return Detector.load(self._state.detector, meaning.embed)
            except (StoreError, KeyError, TypeError, ValueError):
                self.backlog.position = 0  # damaged, or of another version: learn again from the log
        rate = self._settings.alert_rate
        return Detector(meaning.embed) if rate is None else Detector(meaning.embed, alert_rate=rate)

    def _score(self, detector: Detector, meaning: Meaning, piece: Piece) -> None:
        judgements: dict[int, Judgement] = {}
        pending: list[int] = []

        def score() -> None:
            new = detector.score([piece.events[k] for k in pending], [piece.first + k for k in pending])
            judgements.update(zip(pending, new, strict=True))
            pending.clear()

        with self._timed_stage("scoring"):
            for k, event in enumerate(piece.events):
                if not internal_events.is_internal(event):
                    pending.append(k)
                elif event["action"] == internal_events.LABEL:
                    score()  # in log order: earlier events are scored without the label
                    _apply_label(detector, event)
                elif event["action"] in (internal_events.START, internal_events.UP):
                    score()
                    detector.restart(int(event["time"]))  # no watcher ran, or it missed some events
            score()
            # Use the times of the events, so that a replay gives the same result.
            ended = detector.end_sessions(max(int(piece.events[k]["time"]) for k in judgements)) if judgements else []
            ended += detector.find_absent() if judgements else []
        with self._timed_stage("indexing"):
            templates = [judgements[k].template if k in judgements else -1 for k in range(len(piece.events))]
            meaning.add(piece.first, piece.events, templates)
        if judgements and piece.end > self._state.recorded:
            self._record(piece, judgements, [judgement for judgement in ended if judgement.alert])

    def _record(self, piece: Piece, judgements: dict[int, Judgement], sessions: list[Judgement]) -> None:
        start_ns = now_ns()
        scores = [judgements[k].score if k in judgements else None for k in range(len(piece.events))]
        alerts = []
        for k in sorted(judgements):
            fired = find_rules(self._rules, {**piece.events[k], "index": piece.first + k}) if self._rules else []
            if fired or judgements[k].alert:
                leaf = internal_events.leaf_hex(piece.leaves, k)
                alerts.append(_make_alert(piece.first + k, leaf, fired, judgements[k]))
        alerts += [
            _make_alert(judgement.entry, self._ledger.leaf(judgement.entry).hex(), [], judgement, kind)
            for judgement in sessions
            for kind in ["absence" if "absence" in judgement.parts else "session"]
        ]
        events = [internal_events.make_scores_event(piece.first, scores, piece.leaves)]
        self._append_internal([*events, *map(_make_alert_event, alerts)])
        self.stage_ns["recording scores"] += now_ns() - start_ns
        self._state = SavedState(self.position, piece.end, self._state.detector)
        self.on_recorded(piece)
        self.scored += len(judgements)
        if piece.arrival_s is not None:
            self.waits.extend([time.monotonic() - piece.arrival_s] * len(judgements))
        self._send(alerts, piece)

    def _send(self, alerts: list[Alert], piece: Piece) -> None:
        """Give alerts that are in the log to the outlets."""
        for alert in alerts:
            k = int(alert["entry"]) - piece.first
            self.send_alert({**alert, "event": piece.events[k] if k >= 0 else self._ledger.entry(alert["entry"])})

    def send_alert(self, alert: Alert) -> None:
        """Count an alert and give it, with its event, to the outlets; any thread may call it."""
        with self._counting:
            self.alerts += 1
        for outlet in self._outlets:
            with suppress(OSError):  # stdout may be closed: the log has the alert
                outlet(alert)

    def _append_internal(self, events: list[dict[str, Any]]) -> None:
        if self.intake is not None and events:
            self.intake.append_internal(events)

    def _save_if_due(self, detector: Detector, meaning: Meaning) -> None:
        """Save the state regularly in a copy of this process, so that no event waits for it."""
        if self._saving is not None:
            if not self._saving.running:
                self._finish_saving(detector, meaning)
        elif time.monotonic() - self._saved > self._settings.save_s:
            self._saved = time.monotonic()
            meaning.encode_missing()
            try:
                self._saving = BackgroundProcess(lambda: self._write_state(detector, meaning))
            except OSError:  # no memory or no descriptors for another process
                self._save(detector, meaning)

    def _finish_saving(self, detector: Detector, meaning: Meaning) -> None:
        """Wait for the copy that saves, if there is one; if it failed, save in this process."""
        saving, self._saving = self._saving, None
        if saving is not None:
            try:
                meaning.mark_saved(saving.result())
            except RidgelineError:
                self._save(detector, meaning)

    def _save(self, detector: Detector, meaning: Meaning) -> None:
        """Save the state. Scoring continues on a full disk: the state follows from the log, and is saved later."""
        meaning.encode_missing()
        with suppress(StoreError, OSError):
            meaning.mark_saved(self._write_state(detector, meaning))

    def _write_state(self, detector: Detector, meaning: Meaning) -> dict[str, int]:
        now = meaning.write()
        state = SavedState(self.position, max(self._state.recorded, self._state.position), None)
        write_state(self._places, self._ledger, detector, state, self._saved_settings)
        return now


def _apply_label(detector: Detector, event: dict[str, Any]) -> None:
    words = event["attributes"]
    if internal_events.well_formed(event):
        with suppress(InputError):  # the entry is so old that the detector has forgotten it
            detector.label(words["entry"], words["verdict"])


def _make_alert(
    entry: int, leaf: str, rules: Sequence[Rule], judgement: Judgement | None = None, kind: str = "event"
) -> Alert:
    """Make an alert about an entry that rules match, or whose score is too high, or both.

    `kind` is "event"; "session" for the session or minute that the event ended; "absence" if it was the last of events
    that came at even intervals.
    """
    scored = judgement is not None and judgement.alert
    reasons = [f"rule '{rule.name}' ({rule.severity})" for rule in rules]
    if judgement is not None and scored:
        reasons.append(judgement.reason)
    return {
        "entry": entry,
        "leaf": leaf,
        "kind": kind,
        "score": round(judgement.score, 6) if judgement is not None else None,
        "severity": worst(rule.severity for rule in rules),
        "fired": [rule.name for rule in rules] + ([SCORE] if scored else []),
        "reason": "; ".join(reasons),
        "parts": {name: round(float(value), 6) for name, value in judgement.parts.items()} if judgement else {},
        "nearest": [int(entry) for entry in judgement.nearest] if judgement else [],
    }


def _make_alert_event(alert: Alert) -> dict[str, Any]:
    return internal_events.make_event(internal_events.ALERT, f"entry {alert['entry']}", alert)


@dataclass(frozen=True)
class Settings:
    batch: int | None = None  # most entries scored together; None: LARGE, but on a CPU wait for SMALL only
    wait_ms: float = 50.0  # milliseconds that the first of them waits for more
    alert_rate: float | None = None  # share of events that may be alerts; None: the detector's default
    model: str = "all-MiniLM-L6-v2"
    device: str = "auto"
    save_s: float = 60.0  # seconds between two saves
    score: bool = True  # False: record only

    def __post_init__(self) -> None:
        if self.batch is not None and not 1 <= self.batch <= 8192:
            raise InputError(f"--batch is {self.batch}; give 1 to 8192 events.")
        if not 0 <= self.wait_ms <= 60_000:
            raise InputError(f"--wait is {self.wait_ms:g} ms; give 0 to 60000.")
        if self.alert_rate is not None and not 0 < self.alert_rate < 1:
            raise InputError(f"--alert-rate is {self.alert_rate:g}; give a share between 0 and 1, such as 0.001.")
