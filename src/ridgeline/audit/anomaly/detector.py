"""`Detector`: events as they come → how unusual each is, and why, in words. Online, without labels, bounded.

    detector = Detector(embedder.encode)
    for judgement in detector.score(events, entries):
        if judgement.alert: print(judgement.entry, judgement.score, judgement.reason)
    for judgement in detector.ended(now): ...        # sessions and windows that are over, each as a whole

An event is asked eight questions, each answered by a p-value against recent history (`Frequencies`):

    template   how rare is this sentence, once its variable parts are masked? (`new`: it was never seen)
    meaning    if it is new: how far, as an embedding, from the nearest normal one?
    tone       if it is new: does it sound like trouble, more than others did?
    actor      who does this, usually?
    subject    which words, usually, in the variable places of this template?
    time       on how many days did this happen at this hour?
    count      how often does it come in one session or minute?
    order      what comes before it there, usually?

A session that has ended is asked for its worst event in each of these, what came last (`end`), and its counts as a
whole (`counts`). `evidence.py` makes one calibrated score of the answers. Everything is learnt from every event, alerts
too: what goes on happening stops being unusual. What a person labels stays labelled.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ridgeline.audit.anomaly import reasons
from ridgeline.audit.anomaly.calibration import MEMORY
from ridgeline.audit.anomaly.evidence import Scale, score_of
from ridgeline.audit.anomaly.history import History, Seen
from ridgeline.audit.anomaly.neighbours import ROUTINE, TROUBLE
from ridgeline.audit.anomaly.sentences import sentence, spoken
from ridgeline.audit.anomaly.sessions import NAMES, OPEN, Session, Sessions
from ridgeline.audit.anomaly.template import Miner, mask
from ridgeline.errors import InputError, StoreError
from ridgeline.store import publish_dir, verify

Embed = Callable[[list[str]], NDArray[np.float32]]

EVENT_PARTS = ("template", "new", "meaning", "tone", "actor", "subject", "time", "count", "order")
SESSION_PARTS = (*EVENT_PARTS, "end", "counts")
ALERT_RATE = 0.001
WARM = 100  # judged before the first alert
TOLD = 0.25  # the score from which on a reason is given
LABEL = 1.5  # how far beyond the line of alerts an event goes that is just like a bad one
REMEMBERED = 50_000  # entries that can be labelled
FORMAT = 5


@dataclass(frozen=True, slots=True)
class Judgement:
    """`parts` holds what stands out, in nats; `nearest` entries of the normal events most like it."""

    entry: int
    score: float  # in [0, 1]; 0.5 is where alerts begin
    alert: bool
    reason: str
    parts: dict[str, float]
    nearest: tuple[int, ...]
    template: int


class Detector:
    """Scores events one after the other; how they are cut into calls makes no difference.

    embed        texts → unit vectors, float32 [n, dim]; asked for templates that are new, and only once
    alert_rate   the share of ordinary events that may be alerts
    sessions     attributes that say which events belong together
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
        self._embed = embed
        self._miner = Miner()
        self._history = History()
        self._sessions = Sessions(sessions)
        self._events = Scale(EVENT_PARTS, memory)
        self._wholes = {True: Scale(SESSION_PARTS, memory), False: Scale(SESSION_PARTS, memory)}
        self._new: dict[int, tuple[str, str, NDArray[np.float32]]] = {}  # templates on their way in
        self._over: list[Session] = []  # windows that ended and were not judged yet
        self._recent: OrderedDict[int, tuple[int, str]] = OrderedDict()  # entry → template, actor

    @property
    def miner(self) -> Miner:
        """Its templates; whoever shares them learns nothing into them."""
        return self._miner

    def score(
        self, events: Sequence[Mapping[str, Any]], entries: Sequence[int], *, learn: bool = True
    ) -> list[Judgement]:
        """A judgement for each event, in their order; `learn=False` leaves the history as it was."""
        if len(events) != len(entries):
            raise InputError(f"there are {len(events)} events and {len(entries)} entries; give one entry for each.")
        seen = self._mined(events, entries)
        return [self._judged(event, look, learn) for event, look in zip(events, seen, strict=True)]

    def ended(self, now: int | None = None, *, learn: bool = True) -> list[Judgement]:
        """Sessions and windows that are over by `now` (ns; all if None), each judged as a whole at its last entry."""
        over, self._over = self._over + self._sessions.ended(now), []
        return [self._whole(session, learn) for session in over]

    def label(self, entry: int, verdict: Literal["normal", "bad"]) -> None:
        """What a person says of an event: from now on alike ones score lower, or higher."""
        if verdict not in ("normal", "bad"):
            raise InputError(f"'{verdict}' is no verdict; say normal or bad.")
        found = self._recent.get(entry)
        if found is None:
            raise InputError(f"entry {entry} is not among the last {REMEMBERED:,} events that were scored.")
        self._history.neighbours.label(*found, bad=verdict == "bad")

    def save(self, folder: Path) -> None:
        """The whole of it, in one step."""
        history, vectors = self._history.state()
        state = {
            "format": FORMAT,
            "alert_rate": self.alert_rate,
            "miner": self._miner.state(),
            "history": history,
            "sessions": self._sessions.state(),
            "events": self._events.state(),
            "wholes": [self._wholes[True].state(), self._wholes[False].state()],
            "over": [session.state() for session in self._over],
            "recent": [[entry, *found] for entry, found in self._recent.items()],
        }
        with publish_dir(folder) as tmp:
            (tmp / "detector.json").write_text(json.dumps(state), encoding="utf-8")
            np.save(tmp / "templates.npy", vectors)

    @classmethod
    def load(cls, folder: Path, embed: Embed) -> Self:
        """As it was saved: it goes on with the same scores."""
        verify(folder)
        try:
            state = json.loads((Path(folder) / "detector.json").read_text(encoding="utf-8"))
            vectors = np.load(Path(folder) / "templates.npy")
        except (OSError, ValueError) as error:
            raise StoreError(f"{folder} holds no detector ({error}); remove it, and it is learnt anew.") from None
        if state.get("format") != FORMAT:
            raise StoreError(f"{folder} was written by another version; remove it, and it is learnt anew.")
        try:
            return cls._restored(state, vectors, embed)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StoreError(
                f"{folder} holds no whole detector ({error!r}); remove it, and it is learnt anew."
            ) from None

    @classmethod
    def _restored(cls, state: Mapping[str, Any], vectors: NDArray[np.float32], embed: Embed) -> Self:
        made = cls(embed, alert_rate=state["alert_rate"])
        made._miner = Miner.restore(state["miner"])
        made._history = History.restore(state["history"], vectors)
        made._sessions = Sessions.restore(state["sessions"])
        made._events = Scale.restore(state["events"])
        made._wholes = {named: Scale.restore(held) for named, held in zip((True, False), state["wholes"], strict=True)}
        made._over = [Session.restore(row) for row in state["over"]]
        made._recent = OrderedDict((entry, (template, actor)) for entry, template, actor in state["recent"])
        return made

    def _mined(self, events: Sequence[Mapping[str, Any]], entries: Sequence[int]) -> list[Seen]:
        """Events with their templates; those that are new are embedded all at once."""
        seen, texts = [], {}
        for event, entry in zip(events, entries, strict=True):
            words = mask(sentence(event))
            template = self._miner.learn(words)
            actor, action = str(event.get("actor") or ""), str(event.get("action") or "")
            seen.append(Seen(entry, int(event.get("time") or 0), actor, action, words, template.id))
            if template.id not in self._history.known and template.id not in texts:
                texts[template.id] = (template.text, action)
        if texts:
            if not self._history.neighbours.listens:
                voices = np.asarray(self._embed([*TROUBLE, *ROUTINE]), np.float32)
                self._history.neighbours.listen(voices[: len(TROUBLE)], voices[len(TROUBLE) :])
            vectors = np.asarray(self._embed([spoken(text) for text, _ in texts.values()]), np.float32)
            for (id, (text, action)), vector in zip(texts.items(), vectors, strict=True):
                self._new[id] = (text, action, vector)
        return seen

    def _judged(self, event: Mapping[str, Any], look: Seen, learn: bool) -> Judgement:
        history, template = self._history, look.template
        if template in self._new:
            history.meet(template, *self._new.pop(template), learn=learn)
        session, over = self._sessions.of(event, look.time)
        if over is not None:
            self._over.append(over)
            del self._over[:-OPEN]
        raw = history.of_event(look, session)
        total, parts = self._events.weigh(raw)
        rarity = self._events.rarity(total)
        warm = self._events.sums.count >= WARM
        if history.neighbours.labelled:
            leaning = history.neighbours.leaning(template, look.actor)
            if leaning > 0.0:
                parts["label"] = leaning * LABEL * -math.log(self.alert_rate)
                rarity, warm = rarity + parts["label"], True
            rarity *= 1.0 + min(0.0, leaning)
        score = score_of(rarity, self.alert_rate)
        alert = warm and score >= 0.5
        reason = reasons.of_event(history, look, session, parts) if parts and score >= TOLD else ""
        nearest = history.nearest_entries(template)
        if learn:
            history.learn_event(look, session, alert)
            self._events.learn(raw, total)
        session.take(look.entry, look.time, template, raw, parts, reason)
        self._recent[look.entry] = (template, look.actor)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return Judgement(look.entry, score, alert, reason, parts, nearest, template)

    def _whole(self, session: Session, learn: bool) -> Judgement:
        history, scale = self._history, self._wholes[session.named]
        raw = history.of_session(session)
        total, parts = scale.weigh(raw)
        score = score_of(scale.rarity(total), self.alert_rate)
        alert = scale.sums.count >= WARM and score >= 0.5
        reason = reasons.of_session(history, session, parts) if parts and score >= TOLD else ""
        if learn:
            history.learn_session(session)
            scale.learn(raw, total)
        return Judgement(session.entry, score, alert, reason, parts, (), session.last)
