"""The history of events, and how unusual the next event or session is against it."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from ridgeline.audit.anomaly.counts import Counts
from ridgeline.audit.anomaly.frequency import Contexts, Frequencies, Hours
from ridgeline.audit.anomaly.neighbours import SOUNDS_BAD, Arrival, Neighbours, Vectors
from ridgeline.audit.anomaly.sequence import END, Keys, Transitions
from ridgeline.audit.anomaly.sessions import STEPS, WINDOW, Session, find_step

SETTLED = 10  # occurrences before a template is normal
SEPARATE = 30  # events since the last occurrence, after which another one counts as a separate time
# Anomalies are new things more often than rare ones: a new template is assumed to be ten times as likely an anomaly as
# a known template that is as rare.
NEW = math.log(10)
CONTEXTS, SPAN = 4_096, 1_000
ENOUGH = 20  # events of a template or an action before its actors are used
MOST_SESSIONS = 2_000  # sessions with a template; beyond that, old ones count for half
PIECE = 4_096  # keys of a session that are learnt at once
DISTANCE, NATS = 32.0, 4.0  # scales of distances and of mean surprises, for the bins of their ranks
FIRST_OF_STEP = frozenset(STEPS)  # counts that reach a new step
KIND = 3  # unusual sessions with the same counts that are not learnt; further ones are
UNUSUAL = 1_024
DIGITS = 5  # of a rounded distance and tone


@dataclass(slots=True)
class KnownTemplate:
    """What the history knows of a template."""

    text: str
    seen: int = 0
    times: int = 0  # occurrences, but those close to each other count once
    last: int = 0  # number of the event of its last occurrence
    alerts: int = 0
    entry: int = -1  # entry of the last event with it
    meaning: float = 0.0  # surprise of its distance from all others when it was new, in nats
    tone: float = 0.0  # surprise of its tone, in nats
    sounds_bad: bool = False  # its tone is one of trouble, whatever the others'
    nearest_templates: list[tuple[int, float]] = field(
        default_factory=list
    )  # the nearest templates when it was new, with cosine
    normal: bool = False  # seen, and mostly without alert: others are compared with it


KNOWN = tuple(part.name for part in fields(KnownTemplate))


@dataclass(slots=True)  # not frozen: that takes three times the time to make
class ParsedEvent:
    """The features of an event that the detector uses."""

    entry: int
    time: int
    actor: str
    action: str
    words: str  # the masked sentence
    template: int
    sentences: tuple[str, ...] = ()  # the sentence, and the masked one if it differs


class History:
    def __init__(self) -> None:
        self.templates = Frequencies()
        self.learnt = 0  # events
        self.known: dict[int, KnownTemplate] = {}
        self.neighbours = Neighbours()
        self.actors = Contexts(SPAN, CONTEXTS)
        self.subjects = Contexts(SPAN, CONTEXTS)
        self.order = Contexts(SPAN, CONTEXTS)
        self.hours = Hours()
        self.steps: dict[int, list[int]] = {}  # template → number of sessions that reached each step of its count
        self.keys = Keys()
        # True: of named sessions, False: of time windows
        self.counts = {True: Counts(), False: Counts()}
        self.transitions = {True: Transitions(), False: Transitions()}
        self._unusual: OrderedDict[int, int] = OrderedDict()  # counts of unusual sessions → number of them

    def meet(self, template: int, text: str, action: str, vector: Vectors, learn: bool) -> None:
        """Add a new template: find the nearest normal templates and its surprises."""
        neighbours = self.neighbours
        nearest = neighbours.nearest(vector)
        known = self.known[template] = KnownTemplate(text, nearest_templates=nearest)
        # Round, so that the order of additions on a machine makes no difference.
        tone = round(neighbours.tone(vector), DIGITS)
        known.sounds_bad = tone >= SOUNDS_BAD
        arrival = Arrival(round(1.0 - nearest[0][1], DIGITS), tone) if nearest else None
        if arrival is not None:
            known.meaning, known.tone = neighbours.surprises(action, arrival)
        neighbours.learn(template, vector, action, arrival if learn else None)

    def measure_event(self, event: ParsedEvent, session: Session) -> dict[str, float]:
        """Return the surprises of an event by part, in nats; parts without surprise are left out."""
        surprises = {}
        template = event.template
        if (p := self.templates.p(template)) < 1.0:
            surprises["template"] = -math.log(p)
        known = self.known[template]
        if known.seen < SETTLED:
            # A few occurrences in a row do not make a template normal: newness falls slowly with them. An occurrence
            # after a pause halves it.
            share = min((1 + known.seen) ** -0.5, 0.5 ** max(0, known.times - 1))
            surprises["new"] = NEW * share
            surprises["meaning"], surprises["tone"] = known.meaning * share, known.tone * share
        if (p := self.choose_actors(event).p(event.actor)) < 1.0:
            surprises["actor"] = -math.log(p)
        if (p := self.subjects.p(template, event.words)) < 1.0:
            surprises["subject"] = -math.log(p)
        if event.time and (p := self.hours.p(event.action, event.time)) < 1.0:
            surprises["time"] = -math.log(p)
        count = session.counts.get(template, 0) + 1
        if count > 1 and count in FIRST_OF_STEP and (p := self.p_count(template, count)) < 1.0:
            surprises["count"] = -math.log(p)
        # A rare template is rare after any other: only count how much rarer it is after this one.
        if (p := self.order.p(session.last, template)) < 1.0:
            surprises["order"] = max(0.0, -math.log(p) - surprises.get("template", 0.0))
        return surprises

    def measure_order(self, event: ParsedEvent, session: Session) -> None:
        """Add the key of an event to its session, with the surprise of its order."""
        key = self.keys.find(event.sentences, event.template)
        second, last = session.keys[-2:]
        surprise = self.transitions[session.named].surprise(second, last, key)
        session.take_key(key, event.template, surprise)

    def choose_actors(self, event: ParsedEvent) -> Frequencies:
        """Return the actors of this template; if it is rare, those of its action; if that is rare too, all actors."""
        for context in (event.template, event.action):
            actors = self.actors.get(context)
            if actors is not None and len(actors) >= ENOUGH:
                return actors
        return self.actors.get("") or _NO_ACTORS

    def p_count(self, template: int, count: int) -> float:
        """Return the share of sessions that reached this count of a template; 1 if it is no new step."""
        reached = self.steps.get(template) if count in FIRST_OF_STEP else None
        if reached is None:
            return 1.0
        step = find_step(count)
        return ((reached[step] if step < len(reached) else 0) + 1) / (reached[0] + 1)

    def nearest_entries(self, template: int) -> tuple[int, ...]:
        """Return the entries of the most similar normal events: of this template, or of the nearest while it is new."""
        known = self.known[template]
        if known.seen >= SETTLED:
            return (known.entry,)
        nearest = (self.known.get(other) for other, _ in known.nearest_templates)
        return tuple(other.entry for other in nearest if other is not None and other.entry >= 0)

    def learn_event(self, event: ParsedEvent, session: Session, alert: bool) -> None:
        template = event.template
        known = self.known[template]
        self.learnt += 1
        self.keys.learn(event.sentences, session.number)
        if len(session.keys) > PIECE:  # do not keep all of a session that never ends
            self.transitions[session.named].learn(session.keys)
            session.keys = session.keys[-2:]
        seen = known.seen
        if not seen or self.learnt - known.last > SEPARATE:
            known.times += 1
        known.seen, known.last = seen + 1, self.learnt
        known.alerts += alert
        known.entry = event.entry
        if known.normal != (2 * known.alerts <= seen + 1):
            known.normal = not known.normal
            self.neighbours.mark(template, known.normal)
        self.templates.learn(template)
        add_actor, actor = self.actors.add, event.actor
        add_actor(template, actor)
        add_actor(event.action, actor)
        add_actor("", actor)
        self.subjects.add(template, event.words)
        if event.time:
            self.hours.learn(event.action, event.time)
        self.order.add(session.last, template)
        count = session.counts.get(template, 0) + 1
        if count in FIRST_OF_STEP:
            step = find_step(count)
            reached = self.steps.setdefault(template, [])
            reached.extend([0] * (step + 1 - len(reached)))
            reached[step] += 1
            if reached[0] > MOST_SESSIONS:
                self.steps[template] = [n // 2 for n in reached]

    def measure_session(self, session: Session) -> dict[str, float]:
        """Return how unusual a session is by part, each on its own scale, for the ranks."""
        end = self.measure_end(session)
        window = sum([*session.order_window[1 - WINDOW :], end])
        plain, weighted = self.counts[session.named].distances(session.key_counts)
        return {
            "event": session.weight,
            "counts": plain * DISTANCE,
            "rare_counts": weighted * DISTANCE,
            "order": max(session.order_most, window) / WINDOW * NATS,
            "overall": (session.order_sum + end) / (session.events + 1) * NATS,
        }

    def measure_end(self, session: Session) -> float:
        """Return the surprise, in nats, of the end of a session; a time window just ends."""
        second, last = session.keys[-2:]
        return self.transitions[True].surprise(second, last, END) if session.named else 0.0

    def learn_session(self, session: Session, unusual: bool) -> None:
        """Learn a session; an `unusual` one only when others with the same counts came before."""
        if unusual:
            kind = hash(frozenset(session.key_counts.items()))
            self._unusual[kind] = self._unusual.pop(kind, 0) + 1
            if len(self._unusual) > UNUSUAL:
                self._unusual.popitem(last=False)
            if self._unusual[kind] <= KIND:
                return
        self.transitions[session.named].learn([*session.keys, END] if session.named else session.keys)
        self.counts[session.named].learn(session.key_counts)

    def state(self) -> tuple[dict[str, Any], Vectors]:
        neighbours, vectors = self.neighbours.state()
        state = {
            "templates": self.templates.state(),
            "learnt": self.learnt,
            "known": [[id, [getattr(known, name) for name in KNOWN]] for id, known in self.known.items()],
            "neighbours": neighbours,
            "actors": self.actors.state(),
            "subjects": self.subjects.state(),
            "order": self.order.state(),
            "hours": self.hours.state(),
            "steps": list(self.steps.items()),
            "keys": self.keys.state(),
            "counts": [self.counts[True].state(), self.counts[False].state()],
            "transitions": [self.transitions[True].state(), self.transitions[False].state()],
            "unusual": list(self._unusual.items()),
        }
        return state, vectors

    @classmethod
    def restore(cls, state: Mapping[str, Any], vectors: Vectors) -> Self:
        history = cls()
        history.templates, history.learnt = Frequencies.restore(state["templates"]), int(state["learnt"])
        history.known = {id: _restore_known(row) for id, row in state["known"]}
        history.neighbours = Neighbours.restore(state["neighbours"], np.asarray(vectors, np.float32))
        for id, known in history.known.items():
            known.normal = known.seen > 0 and 2 * known.alerts <= known.seen
            history.neighbours.mark(id, known.normal)
        history.actors = Contexts.restore(state["actors"])
        history.subjects = Contexts.restore(state["subjects"])
        history.order = Contexts.restore(state["order"])
        history.hours = Hours.restore(state["hours"])
        history.steps = {id: list(reached) for id, reached in state["steps"]}
        history.keys = Keys.restore(state["keys"])
        for named, counts, transitions in zip((True, False), state["counts"], state["transitions"], strict=True):
            history.counts[named] = Counts.restore(counts)
            history.transitions[named] = Transitions.restore(transitions)
        history._unusual = OrderedDict(map(tuple, state["unusual"]))
        return history


def _restore_known(row: Sequence[Any]) -> KnownTemplate:
    known = KnownTemplate(*row)
    known.nearest_templates = [(template, cosine) for template, cosine in known.nearest_templates]
    return known


_NO_ACTORS = Frequencies()
