"""What a person gets: nothing seen, nothing of another kind, the same after saving, sentences for slips.

python -m pytest tests/recommend/test_recommender.py
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from ridgeline.errors import InputError, StoreError
from ridgeline.recommend import Recommender, Wish, demo
from ridgeline.recommend.all_users import write_all
from ridgeline.recommend.models import Hybrid
from ridgeline.recommend.texts import item_texts
from ridgeline.recommend.titles import folded, spoken
from ridgeline.recommend.vectors import export, integrity, repeatable

PARTS = ("ease", "semantic", "popularity", "itemknn", "era")


def rated(user: int) -> set[int]:
    data = demo.dataset()
    return set(data.catalogue.ids[data.ratings.items[data.user_ids[data.ratings.users] == user]].tolist())


def ids(found) -> list[int]:
    return [a.item for a in found]


@pytest.mark.parametrize("user", [1, 77, 240])
def test_what_a_user_rated_is_never_recommended_not_even_what_they_disliked(model, user):
    found = model.recommend(user, Wish(300))
    assert not set(ids(found)) & rated(user)
    assert len(found) == len(model.catalogue) - len(rated(user))
    assert [a.score for a in found] == sorted((a.score for a in found), reverse=True)


def test_the_kind_that_was_asked_for(model):
    found = model.recommend(5, Wish(8, "horror", (1970, 1989)))
    assert found
    assert all("Horror" in a.genres for a in found)
    years = dict(zip(model.catalogue.titles, model.catalogue.years.tolist(), strict=True))
    assert all(1970 <= years[a.title] <= 1989 for a in found)
    assert all("Horror" in a.genres for a in model.search("a shark", Wish(5, "Horror")))


def test_reasons_are_the_users_own_likes(model):
    data = demo.dataset()
    r = data.ratings
    liked = {spoken(data.catalogue.titles[i]) for i in r.items[(r.users == 2) & (r.stars >= 4)]}
    for a in model.recommend(3):
        assert a.why
        assert set(a.why) <= liked


def test_a_taste_is_followed(model):
    """The made-up users like two genres each: recommendations have more of them than the catalogue."""
    data = demo.dataset()
    r, c = data.ratings, data.catalogue
    better = 0
    for user in range(40):
        liked = r.items[(r.users == user) & (r.stars >= 4)]
        genres = [g for i in liked for g in c.genres[i]]
        top = max(sorted(set(genres)), key=genres.count)
        share = np.mean([top in a.genres for a in model.recommend(user + 1)])
        better += share > np.mean([top in g for g in c.genres])
    assert better >= 32


def test_a_new_user_is_answered_without_a_refit_and_fast(model):
    named = ["Toy Story (1995)", "Spirited Away"]
    first = model.new(named)
    assert not {"Toy Story (1995)", "Spirited Away (2001)"} & {a.title for a in first}
    assert all(set(a.why) <= {"Toy Story (1995)", "Spirited Away (2001)"} for a in first)
    assert ids(model.new(["Alien", "The Thing"])) != ids(first)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        model.new(named)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.05


def test_words_alone_and_words_with_titles_move_the_answer(model):
    assert len(model.new([], "trains in the snow")) == 10
    assert ids(model.new(["Alien"], "trains in the snow")) != ids(model.new(["Alien"]))
    with pytest.raises(InputError, match="needs something to go by"):
        model.new([], " ")


def test_similar_leaves_out_the_film_itself(model):
    meant, exact, found = model.similar("toy story")
    assert (meant, exact) == ("Toy Story (1995)", True)
    assert meant not in {a.title for a in found}
    assert model.similar("Toi Stroy")[:2] == ("Toy Story (1995)", False)


def test_slips_get_a_sentence(model):
    with pytest.raises(InputError, match="no title like 'xqzzw'"):
        model.similar("xqzzw")
    with pytest.raises(InputError, match="no user '9999'"):
        model.recommend(9999)
    with pytest.raises(InputError, match=r"no genre 'Horor'; did you mean 'Horror'\?.*There are: .*Western"):
        model.recommend(1, Wish(5, "Horor"))
    with pytest.raises(InputError, match="text is empty"):
        model.search("  ")
    with pytest.raises(InputError, match="k is 0"):
        Wish(0)


def test_a_user_who_liked_nothing_gets_an_answer(model):
    bare = Recommender.__new__(Recommender)
    bare.__dict__ = {**model.__dict__, "likes": model.likes.taken(np.zeros(0, int))}
    empty = np.zeros(len(model.user_ids) + 1, np.int64)
    nothing = np.zeros(0)
    bare.likes = type(model.likes)(empty, nothing.astype(int), nothing, nothing, model.likes.width, empty[1:])
    found = bare.recommend(1)
    assert len(found) == 10
    assert not set(ids(found)) & rated(1)


def test_a_saved_model_answers_the_same(model, saved):
    with Recommender.load(saved, verify=True) as again:
        assert again.recommend(7) == model.recommend(7)
        assert again.new(["Alien"]) == model.new(["Alien"])
        assert again.similar("Heat") == model.similar("Heat")
        assert again.search("a heist") == model.search("a heist")


def test_a_damaged_or_foreign_model_is_refused(model, tmp_path):
    folder = tmp_path / "m"
    model.save(folder)
    with (folder / "ease_weights.npy").open("r+b") as file:
        file.seek(500)
        file.write(b"x")
    with pytest.raises(StoreError, match=r"ease_weights\.npy differs"):
        Recommender.load(folder, verify=True)
    model.index.save(tmp_path / "index")
    with pytest.raises(StoreError, match="is no recommender"):
        Recommender.load(tmp_path / "index")


def test_a_model_of_another_version_is_refused(model, tmp_path, monkeypatch):
    from ridgeline.recommend import files

    monkeypatch.setattr(files, "FORMAT", 99)
    model.save(tmp_path / "m")
    monkeypatch.undo()
    with pytest.raises(StoreError, match="has format 99"):
        Recommender.load(tmp_path / "m")


def test_everybody_gets_what_each_would_get(model, tmp_path):
    rows = write_all(model, tmp_path / "all.parquet", 10)
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert rows == len(table) == 10 * len(model.user_ids)
    for user in (1, 100, 240):
        own = [r for r in table if r["user"] == user]
        assert [r["rank"] for r in own] == list(range(1, 11))
        assert [r["item"] for r in own] == ids(model.recommend(user))


def test_who_else_is_asked_for_changes_nobodys_answer(model):
    """Also where one user gave twice the stars of all others."""
    other = Recommender.__new__(Recommender)
    stars = model.likes.stars.copy()
    stars[: model.likes.starts[1]] *= 2
    other.__dict__ = {**model.__dict__, "likes": replace(model.likes, stars=stars)}
    parts = (*other.hybrid.weights, "semantic")
    other.hybrid = Hybrid(*(getattr(other.hybrid, n) for n in PARTS), dict.fromkeys(parts, 1.0))
    everybody = np.arange(len(model.user_ids))
    together, scores = other.top(everybody, 10)
    for part in (everybody[3:9], everybody[::-7], everybody[[5]]):
        rows, own = other.top(part, 10)
        assert (rows == together[part]).all()
        assert np.allclose(own, scores[part], atol=1e-4)
    for user in (1, 2, 100):
        assert ids(other.recommend(user)) == other.catalogue.ids[together[user - 1]].tolist()


def test_titles_are_found_however_they_are_written():
    assert spoken("Usual Suspects, The (1995)") == "The Usual Suspects (1995)"
    assert folded("Amélie!") == "amelie"
    assert folded("Seven Samurai, The") == "the seven samurai"


def test_item_texts_leave_out_what_is_not_known():
    c = demo.catalogue()
    assert item_texts(c)[0].startswith("Alien (1979). Genres: Horror, Sci-Fi. Themes: spaceship, ")
    bare = demo.dataset().without_themes().catalogue
    assert item_texts(bare)[0] == "Alien (1979). Genres: Horror, Sci-Fi."
    assert item_texts(c, "{year}: {title}")[0] == "1979: Alien (1979)"
    for wrong in ("{titel}", "{title", "nothing"):
        with pytest.raises(InputError):
            item_texts(c, wrong)
    for wrong in ("{year:d}", "{title!z}", "{title!r}", "{title:{year}}", "{title:>99999999999}"):
        with pytest.raises(InputError, match=r"gives '(title|year)' a format; write \{(title|year)\} alone"):
            item_texts(c, wrong)


def test_the_integrity_of_vectors():
    drawn = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    told = integrity(vectors)
    assert told["ok"]
    assert (told["count"], told["dim"], told["bytes"], told["duplicates"]) == (20, 8, 640, 0)
    vectors[3] = np.nan
    vectors[4] *= 2
    vectors[6] = vectors[5]
    found = integrity(vectors)
    assert (found["ok"], found["not_finite"], found["not_unit"], found["duplicates"]) == (False, 1, 1, 1)


def test_vectors_go_out_with_the_ids_of_their_rows(model, tmp_path):
    export(model, tmp_path / "out")
    items, users = np.load(tmp_path / "out/items.npy"), np.load(tmp_path / "out/users.npy")
    assert (items == model.vectors).all()
    assert np.load(tmp_path / "out/item_ids.npy").tolist() == model.catalogue.ids.tolist()
    assert len(users) == len(np.load(tmp_path / "out/user_ids.npy")) == 240
    assert np.allclose(np.linalg.norm(users, axis=1), 1, atol=1e-5)


def test_an_encoder_that_changes_its_mind_is_seen(model, embedder):
    texts = item_texts(model.catalogue)
    assert repeatable(embedder.encode, texts, model.vectors)
    assert not repeatable(lambda some: embedder.encode([*some[1:], some[0]]), texts, model.vectors)
