"""The reason of a score in words: one sentence for each part that stands out, the strongest first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from ridgeline.audit.anomaly.history import History, ParsedEvent
from ridgeline.audit.anomaly.rhythm import Absence
from ridgeline.audit.anomaly.sessions import Session

LONGEST = 120
LISTED, LETTERS = 100, 400  # of a session's counts: at most this many, and this many characters


def explain_event(history: History, event: ParsedEvent, session: Session, parts: Mapping[str, float]) -> str:
    known = history.known[event.template]
    reasons = []
    for part in sorted(parts, key=lambda part: -parts[part]):
        if part == "template":
            times = history.templates.count(event.template)
            often = f"seen {times} times among" if times > 1 else "seen once among" if times else "never seen in"
            reasons.append(f"{quote(known.text)} was {often} the last {len(history.templates):,} events")
        elif part == "tone" and known.sounds_bad:
            reasons.append(f"{quote(known.text)} sounds like trouble")
        elif part == "actor":
            actors = history.choose_actors(event)
            times = actors.count(event.actor)
            first = [f"{actor or 'no actor'} {n:,}" for actor, n in actors.most(2)]
            reasons.append(
                f"{event.actor or 'no actor'} did this {times} times of {len(actors):,} (mostly {', '.join(first)})"
            )
        elif part == "subject":
            words = history.subjects.get(event.template)
            times = words.count(event.words) if words else 0
            reasons.append(f"{quote(event.words)} was seen {times} times for {quote(known.text)}")
        elif part == "time":
            reasons.append(f"{event.action} is unusual at {event.time // (3_600 * 10**9) % 24:02d}:00 UTC")
        elif part == "count":
            count = session.counts.get(event.template, 0) + 1
            reached = history.steps.get(event.template, [0])
            where = f"session {session.key}" if session.named else "a minute"
            reasons.append(f"{quote(known.text)} came {count:,} times in {where}, which few of {reached[0]:,} do")
        elif part == "order":
            before = quote(find_text(history, session.last)) if session.last >= 0 else "the beginning"
            reasons.append(f"{quote(known.text)} seldom follows {before}")
        elif part == "label":
            reasons.append("it is like an event that was labelled bad")
    if known.nearest_templates and {"new", "meaning"} & set(parts):
        other, cosine = known.nearest_templates[0]
        reasons.append(f"the most similar normal event is {quote(find_text(history, other))} (cosine {cosine:.2f})")
    return "; ".join(reasons)


def explain_session(history: History, session: Session, parts: Mapping[str, float]) -> str:
    reasons, counted = list[str](), False
    for part in sorted(parts, key=lambda part: -parts[part]):
        if part in ("counts", "rare_counts") and not counted:
            counted = True
            distance = history.counts[session.named].distances(session.key_counts)[part == "rare_counts"]
            some = islice(session.counts.items(), LISTED)
            listed = ", ".join(f"{n} × {quote(find_text(history, t), 60)}" for t, n in some)
            reasons.append(f"no session had these counts (distance to the nearest {distance:.2f}): {listed[:LETTERS]}")
        elif part in ("order", "overall"):
            surprise, template, before = session.odd_order
            end = history.measure_end(session)
            if end > surprise:
                reasons.append(f"it ended with {quote(find_text(history, session.last))}")
            else:
                after = quote(find_text(history, before)) if before >= 0 else "the beginning"
                reasons.append(f"{quote(find_text(history, template))} seldom follows {after}")
    if "label" in parts:
        reasons.insert(0, "a session with the same events was labelled bad")
    if session.why and "event" in parts:
        reasons.append(session.why)
    return f"{session.key.replace(chr(0), ' ').strip()}: {'; '.join(dict.fromkeys(reasons))}"


def explain_absence(history: History, absence: Absence) -> str:
    template, actor, subject = absence.key
    names = " of ".join(str(word) for word in (subject, actor) if word)
    what = f"{quote(find_text(history, template))} ({names})" if names else quote(find_text(history, template))
    interval, silence = show_seconds(absence.interval_s), show_seconds(absence.silent_s)
    return f"{what} came every {interval} and has not come for {silence}"


def show_seconds(seconds: float) -> str:
    if seconds < 300:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def find_text(history: History, template: int) -> str:
    known = history.known.get(template)
    return known.text if known else "?"


def quote(text: str, most: int = LONGEST) -> str:
    return f"'{text if len(text) <= most else text[: most - 1] + '…'}'"
