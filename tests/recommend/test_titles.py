"""Title search, compared with difflib.

python -m pytest tests/recommend/test_titles.py
"""

from __future__ import annotations

from difflib import SequenceMatcher, get_close_matches

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.recommend.titles import SpellingIndex, TitleIndex, normalize_title

NAMES = st.lists(st.text("abcde 12", max_size=12) | st.text(max_size=8), unique=True, max_size=30)


@settings(max_examples=300, deadline=None)
@given(
    NAMES, st.text("abcde 12", max_size=12) | st.text(max_size=8), st.integers(1, 4), st.sampled_from([0.3, 0.6, 1.0])
)
def test_similar_spellings_equal_those_of_difflib(names, query, count, cutoff):
    assert SpellingIndex(names).find_similar(query, count, cutoff) == get_close_matches(query, names, count, cutoff)


@settings(max_examples=300, deadline=None)
@given(NAMES, st.text("abcde 12", max_size=12), st.sampled_from([0.01, 0.2]))
def test_matches_within_the_slack_are_complete(names, query, slack):
    all_matches = get_close_matches(query, names, 3, 0.3)
    ratios = [SequenceMatcher(None, name, query).ratio() for name in all_matches]
    within = [name for name, ratio in zip(all_matches, ratios, strict=True) if ratio >= ratios[0] - slack]
    assert SpellingIndex(names).find_similar(query, 3, 0.3, slack)[: len(within)] == within


@pytest.mark.parametrize(
    ("titles", "query"),
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
def test_a_title_in_any_script_is_found_as_it_is_written(titles, query):
    assert TitleIndex(titles, [1, 9]).find(query) == (0, True)
    assert TitleIndex(titles[::-1], [9, 1]).find(query) == (1, True)


def test_latin_titles_are_normalized_to_ascii():
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
    assert {title: normalize_title(title) for title in known} == known


@pytest.mark.parametrize("length", [40_000, 100_000])
def test_a_title_may_be_of_any_length(length):
    with pytest.raises(InputError, match=r"there is no title like 'x{79}…'"):
        TitleIndex(["Heat (1995)"], [1.0]).find("x" * length)
    long = TitleIndex(["Heat (1995)", "x" * length], [1.0, 1.0])
    assert long.find("x" * length) == (1, True)
    assert long.find("Haet") == (0, False)
    assert SpellingIndex(["x" * length]).find_similar("x" * (length - 1), 1, 0.9) == ["x" * length]


def test_a_misspelt_title_is_matched_and_nonsense_gets_suggestions():
    titles = ["Toy Story (1995)", "Toy Story 2 (1999)", "Usual Suspects, The (1995)", "Heat (1995)"]
    index = TitleIndex(titles, [5.0, 4.0, 3.0, 2.0])
    assert index.find("Toi Stroy") == (0, False)
    assert index.find("the usaul suspects") == (2, False)
    assert index.find("heat") == (3, True)
    with pytest.raises(InputError, match="there is no title like 'qqqq'"):
        index.find("qqqq")
