"""Titles and searches in ten scripts, with a tiny random multilingual encoder: the mechanics, not the meaning.

python -m pytest tests/recommend/test_languages.py
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.embed import tiny

import ridgeline
from ridgeline.recommend import Catalogue, Dataset, Options, Ratings, Recommender
from ridgeline.recommend.data import Problems
from ridgeline.recommend.item_vectors import item_texts

TITLES = {
    "Latin": "Die Brücke am Fluß",
    "Cyrillic": "Летят журавли",
    "Greek": "Ο μελισσοκόμος",
    "Arabic": "باب الحديد",
    "Hebrew": "ביקור התזמורת",
    "Devanagari": "मदर इंडिया",
    "Thai": "ลุงบุญมีระลึกชาติ",
    "Han": "霸王别姬",
    "Kana": "となりのトトロ",
    "Hangul": "기생충",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("torch")
    from tokenizers import Tokenizer
    from tokenizers.models import Unigram
    from tokenizers.normalizers import NFKC
    from tokenizers.pre_tokenizers import Metaspace
    from tokenizers.processors import TemplateProcessing

    letters = sorted({"▁", *"".join(TITLES.values()), *"abcdefghijklmnopqrstuvwxyzDGenrsT.:,()0123456789"})
    vocabulary = [(word, 0.0) for word in tiny.SPECIAL["roberta"][:4]]
    vocabulary += [(letter, -5.0) for letter in letters] + [("<mask>", 0.0)]
    folder = tiny.make(
        tmp_path_factory.mktemp("many") / "languages",
        "xlm-roberta",
        limit=200,
        vocabulary=len(vocabulary),
        max_position_embeddings=256,
    )
    module = Tokenizer(Unigram(vocabulary, unk_id=3))
    module.normalizer, module.pre_tokenizer = NFKC(), Metaspace()
    module.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    module.add_special_tokens(tiny.SPECIAL["roberta"])
    module.save(str(folder / "tokenizer.json"))
    count, rng = len(TITLES), np.random.default_rng(0)
    genres = [("Drama",)] * count
    films = Catalogue(np.arange(count), list(TITLES.values()), np.full(count, 2000), genres, [()] * count)
    users, items = np.nonzero(rng.random((30, count)) < 0.7)
    ratings = Ratings(users, items, np.full(len(users), 5.0, np.float32), rng.integers(1, 10**9, len(users)))
    with ridgeline.Embedder(folder, device="cpu") as embedder:
        data = Dataset("many", "made", films, np.arange(30), ratings, Problems())
        yield Recommender.fit(data, embedder)


def test_every_item_is_found_by_its_own_words(model):
    texts = item_texts(model.catalogue)
    for row, title in enumerate(TITLES.values()):
        assert model.search(texts[row], Options(1))[0].title == title
    near = model.vectors @ model.vectors.T
    assert (near[~np.eye(len(near), dtype=bool)] < 0.9999).all(), "no script is one unknown token"


@pytest.mark.parametrize("script", TITLES)
def test_a_title_is_found_without_case_accents_or_the_last_letter(model, script):
    title = TITLES[script]
    row = list(TITLES).index(script)
    assert model.titles.find(title.upper())[0] == row
    assert model.titles.find(title[:-1] if len(title) > 5 else title)[0] == row
    assert title not in [a.title for a in model.new([title], title, Options(20))]


def test_items_in_every_script_arrive_and_are_found(model):
    for number, title in enumerate(TITLES.values()):
        model.add_items([{"id": f"new{number}", "title": title[::-1], "text": title * 2}])
    for number, title in enumerate(TITLES.values()):
        text = f"{title[::-1]}. {title * 2}"
        assert model.search(text, Options(1))[0].item == f"new{number}"
