"""What was seen, and how unusual the next thing is against it: the questions of the detector, one method each kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np

from ridgeline.audit.anomaly.counts import Counts
from ridgeline.audit.anomaly.frequency import Contexts, Frequencies
from ridgeline.audit.anomaly.hours import Hours
from ridgeline.audit.anomaly.neighbours import Arrival, Neighbours, Vectors
from ridgeline.audit.anomaly.sessions import Session, step_of

SETTLED = 10  # times a template is seen before it is normal
APART = 30  # events since it was last seen, after which a template comes for another time
# Anomalies are new things more often than merely rare ones: what was never seen is taken to be so many times as likely
# to be one as something known that is as rare.
NEW = math.log(10)
CONTEXTS, SPAN = 4_096, 1_000
ENOUGH = 20  # events of a template or an action, before it has actors of its own
STEPS_KEPT = 2_000  # sessions with a template; beyond, the old ones count for half
START, END = -1, -2
DIGITS = 5  # of a distance and a tone


@dataclass(slots=True)
class Known:
    """A template as it is known here."""

    text: str
    seen: int = 0
    times: int = 0  # the same, but those that came close upon each other are one
    last: int = 0  # how many events had been learnt with its last one
    alerts: int = 0
    entry: int = -1  # the last event with it
    meaning: float = 0.0  # how far it was from all others when it came, in nats
    tone: float = 0.0  # how bad it sounded, in nats
    near: list[tuple[int, float]] = field(default_factory=list)  # the nearest ones then, with cosine
    normal: bool = False  # seen, and not mostly as an alert: what others are held against


KNOWN = tuple(part.name for part in fields(Known))


@dataclass(frozen=True, slots=True)
class Seen:
    """An event as the detector looks at it."""

    entry: int
    time: int
    actor: str
    action: str
    words: str  # its sentence, masked
    template: int


class History:
    def __init__(self) -> None:
        self.templates = Frequencies()
        self.learnt = 0  # events
        self.known: dict[int, Known] = {}
        self.neighbours = Neighbours()
        self.actors = Contexts(SPAN, CONTEXTS)
        self.subjects = Contexts(SPAN, CONTEXTS)
        self.order = Contexts(SPAN, CONTEXTS)
        self.hours = Hours()
        self.steps: dict[int, list[int]] = {}  # template → sessions that reached each step of its count
        self.counts = {True: Counts(), False: Counts()}  # of named sessions, of windows

    def meet(self, template: int, text: str, action: str, vector: Vectors, learn: bool) -> None:
        """A template that is new: where it stands among those that are normal."""
        held = self.neighbours
        near = held.nearest(vector)
        known = self.known[template] = Known(text, near=near)
        # What differs by rounding alone is equally far, whatever order a machine adds in.
        arrival = Arrival(round(1.0 - near[0][1], DIGITS), round(held.tone(vector), DIGITS)) if near else None
        if arrival is not None:
            known.meaning, known.tone = held.surprises(action, arrival)
        held.learn(template, vector, action, arrival if learn else None)

    def of_event(self, event: Seen, session: Session) -> dict[str, float]:
        """Surprises by part, in nats; what does not surprise is left out."""
        found = {}
        template = event.template
        p = self.templates.p(template)
        if p < 1.0:
            found["template"] = -math.log(p)
        known = self.known[template]
        if known.seen < SETTLED:
            # A few in a row are not enough to be normal: newness wears off slowly. What comes again after other things
            # had their turn was normal once more: each such time halves it.
            share = min((1 + known.seen) ** -0.5, 0.5 ** max(0, known.times - 1))
            found["new"] = NEW * share
            found["meaning"], found["tone"] = known.meaning * share, known.tone * share
        if (p := self.actors_of(event).p(event.actor)) < 1.0:
            found["actor"] = -math.log(p)
        if (p := self.subjects.p(template, event.words)) < 1.0:
            found["subject"] = -math.log(p)
        if event.time and (p := self.hours.p(event.action, event.time)) < 1.0:
            found["time"] = -math.log(p)
        count = session.counts.get(template, 0) + 1
        if count > 1 and (p := self.p_count(template, count)) < 1.0:
            found["count"] = -math.log(p)
        # A rare template is rare after anything: what counts is how much rarer it is here.
        if (p := self.order.p(session.last, template)) < 1.0:
            found["order"] = max(0.0, -math.log(p) - found.get("template", 0.0))
        return found

    def actors_of(self, event: Seen) -> Frequencies:
        """Who does this: of this template, or of this action if it is rare, or at all if that is rare too."""
        for context in (event.template, event.action):
            found = self.actors.get(context)
            if found is not None and len(found) >= ENOUGH:
                return found
        return self.actors.get("") or _NOBODY

    def p_count(self, template: int, count: int) -> float:
        """The share of sessions that reached so many of it, where that is a new step."""
        step = step_of(count)
        if step_of(count - 1) == step:
            return 1.0
        reached = self.steps.get(template)
        if reached is None:
            return 1.0
        return ((reached[step] if step < len(reached) else 0) + 1) / (reached[0] + 1)

    def nearest_entries(self, template: int) -> tuple[int, ...]:
        """Entries of the normal events most like this one: with its template, or with those near it while it is new."""
        known = self.known[template]
        if known.seen >= SETTLED:
            return (known.entry,)
        near = (self.known.get(other) for other, _ in known.near)
        return tuple(other.entry for other in near if other is not None and other.entry >= 0)

    def learn_event(self, event: Seen, session: Session, alert: bool) -> None:
        template = event.template
        known = self.known[template]
        self.learnt += 1
        known.times += not known.seen or self.learnt - known.last > APART
        known.seen, known.last = known.seen + 1, self.learnt
        known.alerts += alert
        known.entry = event.entry
        if known.normal != (2 * known.alerts <= known.seen):
            known.normal = not known.normal
            self.neighbours.mark(template, known.normal)
        self.templates.learn(template)
        for context in (template, event.action, ""):
            self.actors.add(context, event.actor)
        self.subjects.add(template, event.words)
        if event.time:
            self.hours.learn(event.action, event.time)
        self.order.add(session.last, template)
        count = session.counts.get(template, 0) + 1
        step = step_of(count)
        if count == 1 or step_of(count - 1) != step:
            reached = self.steps.setdefault(template, [])
            reached.extend([0] * (step + 1 - len(reached)))
            reached[step] += 1
            if reached[0] > STEPS_KEPT:
                self.steps[template] = [n // 2 for n in reached]

    def of_session(self, session: Session) -> dict[str, float]:
        found = dict(session.most)
        if session.named and (p := self.order.p(session.last, END)) < 1.0:
            found["end"] = -math.log(p)
        surprise, _ = self.counts[session.named].surprise(session.counts)
        if surprise > 0.0:
            found["counts"] = surprise
        return found

    def learn_session(self, session: Session) -> None:
        if session.named:
            self.order.add(session.last, END)
        held = self.counts[session.named]
        held.learn(session.counts, held.surprise(session.counts)[1])

    def state(self) -> tuple[dict[str, Any], Vectors]:
        neighbours, vectors = self.neighbours.state()
        told = {
            "templates": self.templates.state(),
            "learnt": self.learnt,
            "known": [[id, [getattr(known, name) for name in KNOWN]] for id, known in self.known.items()],
            "neighbours": neighbours,
            "actors": self.actors.state(),
            "subjects": self.subjects.state(),
            "order": self.order.state(),
            "hours": self.hours.state(),
            "steps": list(self.steps.items()),
            "counts": [self.counts[True].state(), self.counts[False].state()],
        }
        return told, vectors

    @classmethod
    def restore(cls, state: Mapping[str, Any], vectors: Vectors) -> Self:
        made = cls()
        made.templates, made.learnt = Frequencies.restore(state["templates"]), int(state["learnt"])
        made.known = {id: _known(row) for id, row in state["known"]}
        made.neighbours = Neighbours.restore(state["neighbours"], np.asarray(vectors, np.float32))
        for id, known in made.known.items():
            known.normal = known.seen > 0 and 2 * known.alerts <= known.seen
            made.neighbours.mark(id, known.normal)
        made.actors = Contexts.restore(state["actors"])
        made.subjects = Contexts.restore(state["subjects"])
        made.order = Contexts.restore(state["order"])
        made.hours = Hours.restore(state["hours"])
        made.steps = {id: list(reached) for id, reached in state["steps"]}
        made.counts = {True: Counts.restore(state["counts"][0]), False: Counts.restore(state["counts"][1])}
        return made


def _known(row: Sequence[Any]) -> Known:
    made = Known(*row)
    made.near = [(template, cosine) for template, cosine in made.near]
    return made


_NOBODY = Frequencies()
