"""The nearest spelling, held against difflib.

python -m pytest tests/recommend/test_titles.py
"""

from __future__ import annotations

from difflib import SequenceMatcher, get_close_matches

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend.titles import Spellings, Titles

NAMES = st.lists(st.text("abcde 12", max_size=12) | st.text(max_size=8), unique=True, max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    NAMES, st.text("abcde 12", max_size=12) | st.text(max_size=8), st.integers(1, 4), st.sampled_from([0.3, 0.6, 1.0])
)
def test_the_nearest_spellings_are_those_of_difflib(names, wanted, count, cutoff):
    assert Spellings(names).near(wanted, count, cutoff) == get_close_matches(wanted, names, count, cutoff)


@settings(max_examples=300, deadline=None)
@given(NAMES, st.text("abcde 12", max_size=12), st.sampled_from([0.01, 0.2]))
def test_with_a_slack_none_within_it_is_missing(names, wanted, slack):
    whole = get_close_matches(wanted, names, 3, 0.3)
    ratios = [SequenceMatcher(None, name, wanted).ratio() for name in whole]
    within = [name for name, ratio in zip(whole, ratios, strict=True) if ratio >= ratios[0] - slack]
    assert Spellings(names).near(wanted, 3, 0.3, slack)[: len(within)] == within


def test_a_slip_in_a_title_finds_it_and_nonsense_names_the_nearest():
    titles = ["Toy Story (1995)", "Toy Story 2 (1999)", "Usual Suspects, The (1995)", "Heat (1995)"]
    found = Titles(titles, [5.0, 4.0, 3.0, 2.0])
    assert found.find("Toi Stroy") == (0, False)
    assert found.find("the usaul suspects") == (2, False)
    assert found.find("heat") == (3, True)
    with pytest.raises(InputError, match="there is no title like 'qqqq'"):
        found.find("qqqq")
