"""The nearest spelling, held against difflib.

python -m pytest tests/recommend/test_titles.py
"""

from __future__ import annotations

from difflib import SequenceMatcher, get_close_matches

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend.titles import Spellings, Titles, folded

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


@pytest.mark.parametrize(
    ("titles", "wanted"),
    [
        (["Сталкер (1979)", "Осень (1979)"], "Сталкер (1979)"),
        (["Ёлки (2010)", "Осень (2010)"], "ЕЛКИ (2010)"),
        (["七人の侍 (1954)", "ゴジラ (1954)"], "七人の侍"),
        (["かき (1990)", "がき (1990)"], "かき (1990)"),
        (["काला (2018)", "कल (2018)"], "काला (2018)"),
        (["기생충 (2019)", "엑시트 (2019)"], "기생충 (2019)"),
        (["Ο Θίασος (1975)", "Ο Μύθος (1975)"], "ο θιασοσ (1975)"),
        (["★ (1979)", "♥ (1979)"], "★ (1979)"),
        (["Straße (1979)", "Gasse (1979)"], "STRASSE (1979)"),
    ],
)
def test_a_title_in_any_script_is_found_as_it_is_written(titles, wanted):
    assert Titles(titles, [1, 9]).find(wanted) == (0, True)
    assert Titles(titles[::-1], [9, 1]).find(wanted) == (1, True)


def test_latin_titles_are_folded_to_ascii():
    known = {
        "Amélie!": "amelie",
        "Schindler's List (1993)": "schindler s list 1993",
        "Schindler’s List": "schindlers list",
        "8½ (1963)": "812 1963",
        "I ❤️ Huckabees": "i huckabees",
        "Cité des enfants perdus, La (1995)": "la cite des enfants perdus 1995",
        "Hawaiʻi": "hawaii",
        "2012 (2009)": "2012 2009",
        "!!!": "!!!",
    }
    assert {title: folded(title) for title in known} == known


@pytest.mark.parametrize("length", [40_000, 100_000])
def test_a_title_may_be_of_any_length(length):
    with pytest.raises(InputError, match=r"there is no title like 'x{79}…'"):
        Titles(["Heat (1995)"], [1.0]).find("x" * length)
    long = Titles(["Heat (1995)", "x" * length], [1.0, 1.0])
    assert long.find("x" * length) == (1, True)
    assert long.find("Haet") == (0, False)
    assert Spellings(["x" * length]).near("x" * (length - 1), 1, 0.9) == ["x" * length]


def test_a_slip_in_a_title_finds_it_and_nonsense_names_the_nearest():
    titles = ["Toy Story (1995)", "Toy Story 2 (1999)", "Usual Suspects, The (1995)", "Heat (1995)"]
    found = Titles(titles, [5.0, 4.0, 3.0, 2.0])
    assert found.find("Toi Stroy") == (0, False)
    assert found.find("the usaul suspects") == (2, False)
    assert found.find("heat") == (3, True)
    with pytest.raises(InputError, match="there is no title like 'qqqq'"):
        found.find("qqqq")
