"""Why, in words: a sentence for each part that stands out, the strongest first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from ridgeline.audit.anomaly.history import History, Seen
from ridgeline.audit.anomaly.sessions import Session

LONGEST = 120
LISTED, LETTERS = 100, 400  # counts of a session; so many are more than so many letters


def of_event(history: History, event: Seen, session: Session, parts: Mapping[str, float]) -> str:
    known = history.known[event.template]
    told = []
    for part in sorted(parts, key=lambda part: -parts[part]):
        if part == "template":
            times = history.templates.count(event.template)
            often = f"seen {times} times among" if times > 1 else "seen once among" if times else "never seen in"
            told.append(f"{quoted(known.text)} was {often} the last {len(history.templates):,} events")
        elif part == "tone":
            told.append(f"{quoted(known.text)} sounds like trouble")
        elif part == "actor":
            held = history.actors_of(event)
            times = held.count(event.actor)
            first = [f"{who or 'nobody named'} {n:,}" for who, n in held.most(2)]
            told.append(
                f"{event.actor or 'nobody named'} did this {times} times of {len(held):,} (mostly {', '.join(first)})"
            )
        elif part == "subject":
            held_words = history.subjects.get(event.template)
            times = held_words.count(event.words) if held_words else 0
            told.append(f"{quoted(event.words)} was seen {times} times for {quoted(known.text)}")
        elif part == "time":
            told.append(f"{event.action} is unusual at {event.time // (3_600 * 10**9) % 24:02d}:00 UTC")
        elif part == "count":
            count = session.counts.get(event.template, 0) + 1
            reached = history.steps.get(event.template, [0])
            where = f"session {session.key}" if session.named else "a minute"
            told.append(f"{quoted(known.text)} came {count:,} times in {where}, which few of {reached[0]:,} do")
        elif part == "order":
            before = quoted(text_of(history, session.last)) if session.last >= 0 else "the beginning"
            told.append(f"{quoted(known.text)} seldom follows {before}")
        elif part == "label":
            told.append("it is like an event that was labelled bad")
    if known.near and {"new", "meaning"} & set(parts):
        other, cosine = known.near[0]
        told.append(f"the most similar normal event is {quoted(text_of(history, other))} (cosine {cosine:.2f})")
    return "; ".join(told)


def of_session(history: History, session: Session, parts: Mapping[str, float]) -> str:
    told = []
    for part in sorted(parts, key=lambda part: -parts[part]):
        if part == "counts":
            held = history.counts[session.named]
            _, distance = held.surprise(session.counts)
            some = islice(session.counts.items(), LISTED)
            listed = ", ".join(f"{n} × {quoted(text_of(history, t), 60)}" for t, n in some)
            how = (
                f"no session had these counts (distance to the nearest {distance:.2f})"
                if distance
                else "few sessions had these counts"
            )
            told.append(f"{how}: {listed[:LETTERS]}")
        elif part == "end":
            told.append(f"it ended with {quoted(text_of(history, session.last))}")
    if session.why and len(told) < len(parts):
        told.append(session.why)
    return f"{session.key.replace(chr(0), ' ').strip()}: {'; '.join(told)}"


def text_of(history: History, template: int) -> str:
    known = history.known.get(template)
    return known.text if known else "?"


def quoted(text: str, most: int = LONGEST) -> str:
    return f"'{text if len(text) <= most else text[: most - 1] + '…'}'"
