"""The shortcuts of scoring give what the plain definitions give."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.audit.anomaly import template
from ridgeline.audit.anomaly.calibration import GIVEN, STANDS_OUT, Scale, _add_parts
from ridgeline.audit.anomaly.detector import EVENT_PARTS
from ridgeline.audit.anomaly.sentences import LONGEST, describe_event
from ridgeline.audit.anomaly.sessions import NAMES, STEPS, Session, find_step

WORDS = st.one_of(
    st.sampled_from(
        ["Jun", "14", "15:16:01", "Mon,", "3", "Feb", "2025", "9:05", "0x1f", "fe80::1", "٣٤", "²", "a1b2c3", "-7", ":"]
    ),
    st.text(max_size=6),
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_a_masked_text_is_that_of_all_patterns(text):
    words = template._MOMENT.sub(template.MASK, text[: template.LONGEST]).split()[: template.WORDS]
    plain = [template._RUN.sub(template.MASK, template._VARIABLE.sub(template.MASK, word)) for word in words]
    assert template.mask(text) == " ".join(word[: template.LETTERS] for word in plain)


@given(st.dictionaries(st.sampled_from(["n", "message", "_pid", "b", *NAMES[:3]]) | st.text(max_size=4), VALUES))
def test_a_sentence_has_the_values_as_json(attributes):
    def show(value):
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)

    names = [name for name in sorted(attributes) if name not in NAMES and not name.startswith("_")]
    expected = " ".join(["act", *(f"{name}={show(attributes[name])[:LONGEST]}" for name in names)])
    assert describe_event({"action": "act", "attributes": attributes}) == expected


@given(st.lists(st.dictionaries(st.sampled_from(EVENT_PARTS), st.floats(0, 12)), min_size=1, max_size=40))
def test_the_parts_that_stand_out_are_those_with_a_rare_surprise(surprises):
    scale = Scale(EVENT_PARTS)
    for raw in surprises:
        weights = {
            part: surprise if part in GIVEN else min(surprise, scale.parts[part].rarity(surprise))
            for part, surprise in raw.items()
            if surprise > 0
        }
        weights = {part: weight for part, weight in weights.items() if weight > STANDS_OUT or part in GIVEN}
        new = weights.get("template", 0.0) + sum(weights.get(part, 0.0) for part in GIVEN)
        if new <= STANDS_OUT:
            new, weights = 0.0, {part: weight for part, weight in weights.items() if part not in GIVEN}
        others = [weight for part, weight in weights.items() if part not in ("template", *GIVEN)]
        total, parts = scale.weigh(raw)
        assert (total, parts) == (_add_parts([new, *others]) if weights else 0.0, weights)
        scale.learn(raw, total)


@given(st.lists(st.floats(0, 9), max_size=40))
def test_a_session_has_its_most_unlikely_ten_events_in_a_row(surprises):
    session, most = Session("s", True), 0.0
    for k, surprise in enumerate(surprises):
        session.take_key(k, k, surprise)
        most = max(most, sum(surprises[max(0, k - 9) : k + 1]))
    assert session.order_most == most
    assert session.order_window == surprises[-10:]


def test_a_count_reaches_a_new_step_where_its_step_changes():
    assert [n for n in range(1, 5000) if find_step(n) != find_step(n - 1)] == [n for n in STEPS if n < 5000]
