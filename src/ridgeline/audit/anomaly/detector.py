"""The detector: how unusual each event is, and why, in words. It works online, without labels, in bounded memory.

    detector = Detector(embedder.encode)
    for judgement in detector.score(events, entries):
        if judgement.alert: print(judgement.entry, judgement.score, judgement.reason)
    for judgement in detector.end_sessions(now): ...   # sessions and time windows that have ended

Eight questions about an event, each answered by a p-value against recent history (`Frequencies`):

    template   how rare is this sentence, with its variable parts masked? (`new`: it was never seen)
    meaning    if it is new: how far is its embedding from the nearest normal one?
    tone       if it is new: does it sound like trouble, more than others did?
    actor      which actors usually do this?
    subject    which words are usual in the variable places of this template?
    time       on how many days did this happen at this hour?
    count      how often does it occur in one session or minute?
    order      what usually comes before it there?

A session that has ended is judged as a whole:

    event        how unusual is its most unusual event?
    counts       how far are its counts from those of the nearest session?
    rare_counts  the same, with weight on what few sessions have
    order        how unlikely are ten events in a row, each after the two before it?
    overall      how unlikely are all its events, on average?

An event that came at even intervals and has stopped is an alert, too (`rhythm.py`).

A new template that sounds like routine raises no alert by itself. One that sounds like trouble, or has another unusual
part, does, even if others did shortly before. `calibration.py` turns the surprises into one score.

The detector learns from every event, alerts included: what keeps happening stops being unusual. Labels of a person
stay. An unusual session is not learnt as a whole until there were several like it.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.audit.anomaly import reasons
from ridgeline.audit.anomaly.calibration import MEMORY, Scale, SessionScale, scale_score
from ridgeline.audit.anomaly.history import History, ParsedEvent
from ridgeline.audit.anomaly.neighbours import ROUTINE, TROUBLE
from ridgeline.audit.anomaly.rhythm import Absence, Rhythms
from ridgeline.audit.anomaly.sentences import describe_event, strip_masks
from ridgeline.audit.anomaly.sessions import NAMES, OPEN, Session, Sessions, find_step
from ridgeline.audit.anomaly.template import Miner, mask
from ridgeline.audit.ledger.personal import name_pseudonym
from ridgeline.errors import InputError, StoreError
from ridgeline.store import publish_dir, verify

SessionKind = tuple[bool, tuple[tuple[int, int], ...]]  # whether it is named, and the steps of its counts
Embed = Callable[[list[str]], NDArray[np.float32]]

EVENT_PARTS = ("template", "new", "meaning", "tone", "actor", "subject", "time", "count", "order")
SESSION_PARTS = ("event", "counts", "rare_counts", "order", "overall")
NEWNESS = ("template", "new", "meaning", "tone")  # parts that only say that a template is new or rare
ALERT_RATE = 0.001
SESSION_RATE = 10  # a session has many events: it may raise alerts this many times as often as one event
HIGHEST_RATE = 0.5
HOLD = 5  # a session is learnt at once unless it is rarer than this many times the alert rate
WARM = 100  # events scored before the first alert
LIKELY = 10  # a part counts for or against an alert by newness if it is rarer than this many times the alert rate
BELOW, ABOVE = 0.95, 1.05  # rarity, in alert thresholds, of a new event that is held back or brought forward
REASON_SCORE = 0.25  # lowest score with a reason
LABEL = 1.5  # rarity, in alert thresholds, that an event like a bad one gains
REMEMBERED = 50_000  # entries that can be labelled
LABELLED = 1_024  # sessions with alerts that can be labelled, and kinds of sessions with a label
RECENT = 15  # times of events, of which the middle one is the clock: a host with a wrong clock does not move it
FORMAT = 7


class Judgement(NamedTuple):
    """The score of one event or session and the reason for it.

    `parts` has the surprises that stand out, in nats; `nearest` has the entries of the most similar normal events.
    """

    entry: int
    score: float  # in [0, 1]; alerts start at 0.5
    alert: bool
    reason: str
    parts: dict[str, float]
    nearest: tuple[int, ...]
    template: int


class Detector:
    """Scores events in order; how they are split into calls makes no difference.

    embed        texts → unit vectors, float32 [n, dim]; called once for each new template
    alert_rate   the share of ordinary events that may be alerts
    sessions     names of attributes that identify a session
    memory       events after which an old surprise counts for 1/e

    Set `trust` while the events are known to be normal: then sessions that raise alerts are learnt like all others.
    """

    def __init__(
        self,
        embed: Embed,
        *,
        alert_rate: float = ALERT_RATE,
        sessions: Sequence[str] = NAMES,
        memory: int = MEMORY,
    ) -> None:
        if not 0.0 < alert_rate < 1.0:
            raise InputError(f"alert_rate is {alert_rate}; give a share between 0 and 1, like 0.001.")
        self.alert_rate = alert_rate
        self.trust = False
        self._embed = embed
        self._miner = Miner()
        self._history = History()
        self._sessions = Sessions(sessions)
        self._events = Scale(EVENT_PARTS, memory)
        # True: of named sessions, False: of time windows
        session_rates = {True: min(SESSION_RATE * alert_rate, HIGHEST_RATE), False: alert_rate}
        self._session_scales = {
            named: SessionScale(SESSION_PARTS, memory, rate) for named, rate in session_rates.items()
        }
        self._new: dict[int, tuple[str, str, NDArray[np.float32]]] = {}  # new templates that no event has used yet
        self._over: list[Session] = []  # windows that have ended and are not judged yet
        self._recent: OrderedDict[int, tuple[int, str]] = OrderedDict()  # entry → template, actor
        self._alerts = OrderedDict[int, tuple[bool, dict[int, int]]]()  # last entry → a session that was an alert
        self._session_labels = OrderedDict[SessionKind, bool]()  # kind → labelled bad
        self._rhythms = Rhythms()
        self._times = deque[int](maxlen=RECENT)  # of the last events, ns

    @property
    def miner(self) -> Miner:
        """The template miner, for readers that do not add to it."""
        return self._miner

    def score(
        self, events: Sequence[Mapping[str, Any]], entries: Sequence[int], *, learn: bool = True
    ) -> list[Judgement]:
        """Return a judgement for each event, in order; `learn=False` does not change the history.

        `entries` are the indices of the events in the log.
        """
        if len(events) != len(entries):
            raise InputError(f"there are {len(events)} events and {len(entries)} entries; give one entry for each.")
        parsed_events = self._mine_templates(events, entries)
        return [self._judge_event(event, parsed, learn) for event, parsed in zip(events, parsed_events, strict=True)]

    def end_sessions(self, now: int | None = None, *, learn: bool = True) -> list[Judgement]:
        """Judge the sessions and windows that have ended by `now` (ns; None: all), each at its last entry."""
        sessions, self._over = self._over + self._sessions.end_sessions(now), []
        return [self._judge_session(session, learn) for session in sessions]

    def find_absent(self) -> list[Judgement]:
        """Return an alert for each event that was expected by now, each at the last such entry."""
        if len(self._times) < RECENT or self._events.sums.count < WARM:
            return []
        return [self._judge_absence(absence) for absence in self._rhythms.find_absent(int(median(self._times)))]

    def restart(self, now: int) -> None:
        """Say that no watcher ran until `now` (ns): what did not come meanwhile is not absent."""
        self._rhythms.restart(now)

    @property
    def drifts(self) -> bool:
        """Whether more sessions raise alerts than anomalies can be: what is normal has changed."""
        return any(scale.drifts for scale in self._session_scales.values())

    def label(self, entry: int, verdict: Literal["normal", "bad"]) -> None:
        """Label an event: similar events score lower ("normal") or higher ("bad") from now on.

        The label of the last event of a session that was an alert counts for sessions with the same events.
        """
        if verdict not in ("normal", "bad"):
            raise InputError(f"'{verdict}' is no verdict; give normal or bad.")
        session = self._alerts.get(entry)
        if session is not None:  # its alert was about all of it: its last event alone says nothing
            named, counts = session
            if verdict == "normal":
                self._history.counts[named].learn(counts)
            self._session_labels[_find_kind(named, counts)] = verdict == "bad"
            if len(self._session_labels) > LABELLED:
                self._session_labels.popitem(last=False)
            return
        event = self._recent.get(entry)
        if event is None:
            raise InputError(f"entry {entry} is not among the last {REMEMBERED:,} events that were scored.")
        self._history.neighbours.label(*event, bad=verdict == "bad")

    def save(self, folder: Path) -> None:
        """Save the detector into a new folder, in one step."""
        history, vectors = self._history.state()
        state = {
            "format": FORMAT,
            "alert_rate": self.alert_rate,
            "miner": self._miner.state(),
            "history": history,
            "sessions": self._sessions.state(),
            "events": self._events.state(),
            "wholes": [self._session_scales[True].state(), self._session_scales[False].state()],
            "over": [session.state() for session in self._over],
            "recent": [[entry, *event] for entry, event in self._recent.items()],
            "alerts": [[entry, named, list(counts.items())] for entry, (named, counts) in self._alerts.items()],
            "session_labels": [[named, kind, bad] for (named, kind), bad in self._session_labels.items()],
            "rhythms": self._rhythms.state(),
            "times": list(self._times),
        }
        with publish_dir(folder) as tmp:
            (tmp / "detector.json").write_text(json.dumps(state), encoding="utf-8")
            np.save(tmp / "templates.npy", vectors)

    @classmethod
    def load(cls, folder: Path, embed: Embed) -> Self:
        """Load a saved detector; it continues with the same scores. Raises `StoreError` if the folder is damaged."""
        verify(folder)
        try:
            state = json.loads((Path(folder) / "detector.json").read_text(encoding="utf-8"))
            vectors = np.load(Path(folder) / "templates.npy")
        except (OSError, ValueError) as error:
            raise StoreError(f"{folder} has no detector ({error}); remove it, and the watcher learns again.") from None
        if state.get("format") != FORMAT:
            raise StoreError(f"{folder} was written by another version; remove it, and the watcher learns again.")
        try:
            return cls._restore(state, vectors, embed)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StoreError(
                f"{folder} has no complete detector ({error!r}); remove it, and the watcher learns again."
            ) from None

    @classmethod
    def _restore(cls, state: Mapping[str, Any], vectors: NDArray[np.float32], embed: Embed) -> Self:
        detector = cls(embed, alert_rate=state["alert_rate"])
        detector._miner = Miner.restore(state["miner"])
        detector._history = History.restore(state["history"], vectors)
        detector._sessions = Sessions.restore(state["sessions"])
        detector._events = Scale.restore(state["events"])
        detector._session_scales = {
            named: SessionScale.restore(scale_state)
            for named, scale_state in zip((True, False), state["wholes"], strict=True)
        }
        detector._over = [Session.restore(row) for row in state["over"]]
        detector._recent = OrderedDict((entry, (template, actor)) for entry, template, actor in state["recent"])
        detector._alerts.update((e, (named, dict(map(tuple, counts)))) for e, named, counts in state["alerts"])
        labels = state["session_labels"]
        detector._session_labels.update(((named, tuple(map(tuple, kind))), bad) for named, kind, bad in labels)
        detector._rhythms = Rhythms.restore(state["rhythms"])
        detector._times.extend(state["times"])
        return detector

    def _mine_templates(self, events: Sequence[Mapping[str, Any]], entries: Sequence[int]) -> list[ParsedEvent]:
        """Find the templates of the events; embed all new templates at once."""
        parsed_events, texts = [], {}
        for event, entry in zip(events, entries, strict=True):
            sentence = describe_event(event)
            words = mask(sentence)
            template = self._miner.learn(words)
            sentences = (sentence,) if sentence == words else (sentence, words)
            actor, action = name_pseudonym(str(event.get("actor") or "")), str(event.get("action") or "")
            time = int(event.get("time") or 0)
            parsed_events.append(ParsedEvent(entry, time, actor, action, words, template.id, sentences))
            if template.id not in self._history.known and template.id not in texts:
                texts[template.id] = (template.text, action)
        if texts:
            if not self._history.neighbours.listens:
                voices = np.asarray(self._embed([*TROUBLE, *ROUTINE]), np.float32)
                self._history.neighbours.listen(voices[: len(TROUBLE)], voices[len(TROUBLE) :])
            vectors = np.asarray(self._embed([strip_masks(text) for text, _ in texts.values()]), np.float32)
            for (id, (text, action)), vector in zip(texts.items(), vectors, strict=True):
                self._new[id] = (text, action, vector)
        return parsed_events

    def _judge_event(self, event: Mapping[str, Any], parsed: ParsedEvent, learn: bool) -> Judgement:
        history, template = self._history, parsed.template
        if template in self._new:
            history.meet(template, *self._new.pop(template), learn=learn)
        session, over = self._sessions.assign(event, parsed.time)
        if over is not None:
            self._over.append(over)
            del self._over[:-OPEN]
        history.measure_order(parsed, session)
        raw = history.measure_event(parsed, session)
        total, parts = self._events.weigh(raw)
        rarity = self._weigh_newness(template, parts, self._events.rarity(total))
        warm = self._events.sums.count >= WARM
        if history.neighbours.labelled:
            leaning = history.neighbours.leaning(template, parsed.actor)
            if leaning > 0.0:
                parts["label"] = leaning * LABEL * -math.log(self.alert_rate)
                rarity, warm = rarity + parts["label"], True
            rarity *= 1.0 + min(0.0, leaning)
        score = scale_score(rarity, self.alert_rate)
        alert = warm and score >= 0.5
        reason = reasons.explain_event(history, parsed, session, parts) if parts and score >= REASON_SCORE else ""
        nearest = history.nearest_entries(template)
        if learn:
            history.learn_event(parsed, session, alert)
            self._events.learn(raw, total)
        session.take(parsed.entry, parsed.time, template, total, reason)
        if learn and parsed.time:
            key = template, parsed.actor, name_pseudonym(str(event.get("subject") or ""))
            self._rhythms.learn(key, parsed.time, parsed.entry)
            self._times.append(parsed.time)
        self._recent[parsed.entry] = (template, parsed.actor)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return Judgement(parsed.entry, score, alert, reason, parts, nearest, template)

    def _weigh_newness(self, template: int, parts: Mapping[str, float], rarity: float) -> float:
        """Let the meaning of a new template decide, not its newness."""
        if "new" not in parts:
            return rarity
        known = self._history.known[template]
        threshold, strong = -math.log(self.alert_rate), -math.log(min(1.0, LIKELY * self.alert_rate))
        others = max((parts[part] for part in parts if part not in NEWNESS), default=0.0)
        if not known.sounds_bad and others < strong:
            return min(rarity, BELOW * threshold)
        first = not known.seen and parts.get("template", 0.0) >= strong
        return max(rarity, ABOVE * threshold) if first else rarity

    def _judge_absence(self, absence: Absence) -> Judgement:
        excess = absence.silent_s / absence.limit_s  # from 1 on
        score, template = excess / (1.0 + excess), int(absence.key[0])
        reason = reasons.explain_absence(self._history, absence)
        parts = {"absence": -math.log(self.alert_rate) * excess}
        return Judgement(absence.entry, score, True, reason, parts, (absence.entry,), template)

    def _judge_session(self, session: Session, learn: bool) -> Judgement:
        history, scale = self._history, self._session_scales[session.named]
        raw = history.measure_session(session)
        total, parts = scale.weigh(raw)
        rarity, warm = scale.rarity(total), scale.sums.count >= WARM
        label = (
            self._session_labels.get(_find_kind(session.named, session.key_counts)) if self._session_labels else None
        )
        if label is not None:
            gain = LABEL * -math.log(scale.rate)
            rarity, warm = (rarity + gain, True) if label else (0.0, warm)
            parts |= {"label": gain} if label else {}
        score = scale_score(rarity, scale.rate)
        alert = warm and score >= 0.5
        reason = reasons.explain_session(history, session, parts) if parts and score >= REASON_SCORE else ""
        if learn:
            unusual = score >= scale_score(-math.log(min(1.0, HOLD * scale.rate)), scale.rate)
            history.learn_session(session, unusual=unusual and not scale.drifts and not self.trust)
            scale.learn(raw, total, alert and not self.trust)
        if alert:
            self._alerts[session.entry] = session.named, dict(session.key_counts)
            if len(self._alerts) > LABELLED:
                self._alerts.popitem(last=False)
        return Judgement(session.entry, score, alert, reason, parts, (), session.last)


def _find_kind(named: bool, counts: Mapping[int, int]) -> SessionKind:
    return named, tuple(sorted((key, find_step(count)) for key, count in counts.items()))
