"""Recommender: no rated items, filters, equal results after saving, and one sentence for wrong arguments.

python -m pytest tests/recommend/test_recommender.py
"""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

import ridgeline
from ridgeline.errors import InputError, StoreError
from ridgeline.recommend import Histories, Options, Ratings, Recommender, demo
from ridgeline.recommend.data import build_histories
from ridgeline.recommend.item_vectors import check_vectors, export_vectors, is_repeatable, item_texts
from ridgeline.recommend.models import Hybrid
from ridgeline.recommend.recommender import write_recommendations
from ridgeline.recommend.titles import move_article_first, normalize_title

PARTS = ("ease", "semantic", "popularity", "itemknn", "recent")


def find_rated(user: int) -> set[int]:
    data = demo.draw_dataset()
    return set(data.catalogue.ids[data.ratings.items[data.user_ids[data.ratings.users] == user]].tolist())


def ids(results) -> list[int]:
    return [a.item for a in results]


@pytest.mark.parametrize("user", [1, 77, 240])
def test_rated_items_are_never_recommended_even_disliked_ones(model, user):
    results = model.recommend(user, Options(300))
    assert not set(ids(results)) & find_rated(user)
    assert len(results) == len(model.catalogue) - len(find_rated(user))
    assert [a.score for a in results] == sorted((a.score for a in results), reverse=True)


def test_options_filter_by_genre_and_years(model):
    results = model.recommend(5, Options(8, "horror", (1970, 1989)))
    assert results
    assert all("Horror" in a.genres for a in results)
    years = dict(zip(model.catalogue.titles, model.catalogue.years.tolist(), strict=True))
    assert all(1970 <= years[a.title] <= 1989 for a in results)
    assert all("Horror" in a.genres for a in model.search("a shark", Options(5, "Horror")))


def test_reasons_are_the_users_own_likes(model):
    data = demo.draw_dataset()
    r = data.ratings
    liked = {move_article_first(data.catalogue.titles[i]) for i in r.items[(r.users == 2) & (r.stars >= 4)]}
    for a in model.recommend(3):
        assert a.why
        assert set(a.why) <= liked


def test_recommendations_follow_the_genres_that_a_user_likes(model):
    """The made-up users like two genres each: recommendations have more of them than the catalogue."""
    data = demo.draw_dataset()
    r, c = data.ratings, data.catalogue
    better = 0
    for user in range(40):
        liked = r.items[(r.users == user) & (r.stars >= 4)]
        genres = [g for i in liked for g in c.genres[i]]
        top = max(sorted(set(genres)), key=genres.count)
        share = np.mean([top in a.genres for a in model.recommend(user + 1)])
        better += share > np.mean([top in g for g in c.genres])
    assert better >= 32


def test_a_new_user_gets_recommendations_without_a_fit(model):
    named = ["Toy Story (1995)", "Spirited Away"]
    first = model.new(named)
    assert not {"Toy Story (1995)", "Spirited Away (2001)"} & {a.title for a in first}
    assert all(set(a.why) <= {"Toy Story (1995)", "Spirited Away (2001)"} for a in first)
    assert ids(model.new(["Alien", "The Thing"])) != ids(first)
    durations = []
    for _ in range(5):
        start = time.perf_counter()
        model.new(named)
        durations.append(time.perf_counter() - start)
    assert min(durations) < 20  # only guards against a hang


def test_a_text_changes_the_recommendations_with_and_without_titles(model):
    assert len(model.new([], "trains in the snow")) == 10
    with pytest.raises(InputError, match="needs liked titles or a text"):
        model.new([], " ")


def test_the_text_weight_goes_from_the_likes_alone_to_the_text_alone(model):
    row, text = model.titles.find("Alien")[0], "trains in the snow"
    by_likes, by_text = model.new(["Alien"]), model.new([], text, Options(11))
    assert model.new(["Alien"], text, text_weight=0) == by_likes
    assert (
        ids(model.new(["Alien"], text, text_weight=1))
        == [i for i in ids(by_text) if i != model.catalogue.ids[row]][:10]
    )
    shares = [
        len(set(ids(model.new(["Alien"], text, text_weight=w))) & set(ids(by_likes))) for w in (0, 0.25, 0.5, 0.75, 1)
    ]
    assert shares == sorted(shares, reverse=True)
    assert shares[2] < 10
    for wrong in (-0.1, 1.5, float("nan")):
        with pytest.raises(InputError, match=r"text weight is .*; give 0 \(likes alone\) to 1"):
            model.new(["Alien"], text, text_weight=wrong)


def test_opposite_texts_give_different_films_beside_a_liked_one(model):
    """One very large score of EASE must not outweigh every text."""
    loud = copy_with(model, hybrid=copy.copy(model.hybrid))
    loud.hybrid.weights = {**model.hybrid.weights, "ease": 1000.0}
    results = [ids(loud.new(["Alien"], text, Options(5))) for text in ("a wedding in spring", "soldiers at war")]
    assert len(set(results[0]) & set(results[1])) <= 3


def test_a_blend_shows_the_rank_by_likes_and_by_text(model):
    complete = Options(len(model.catalogue))
    by_likes = ids(model.new(["Alien"], options=complete))
    alien = model.catalogue.ids[model.titles.find("Alien")[0]]
    by_text = [i for i in ids(model.new([], "trains in the snow", complete)) if i != alien]
    for a in model.new(["Alien"], "trains in the snow"):
        assert a.basis == "likes and text"
        assert a.ranks == {"likes": by_likes.index(a.item) + 1, "text": by_text.index(a.item) + 1}


def test_similar_leaves_out_the_film_itself(model):
    matched, exact, results = model.similar("toy story")
    assert (matched, exact) == ("Toy Story (1995)", True)
    assert matched not in {a.title for a in results}
    assert model.similar("Toi Stroy")[:2] == ("Toy Story (1995)", False)


def test_wrong_arguments_give_one_sentence(model):
    with pytest.raises(InputError, match="no title like 'xqzzw'"):
        model.similar("xqzzw")
    with pytest.raises(InputError, match="no user '9999'"):
        model.recommend(9999)
    with pytest.raises(InputError, match=r"no genre 'Horor'; did you mean 'Horror'\?.*There are: .*Western"):
        model.recommend(1, Options(5, "Horor"))
    with pytest.raises(InputError, match="text is empty"):
        model.search("  ")
    with pytest.raises(InputError, match="k is 0"):
        Options(0)


def copy_with(model: Recommender, **changes) -> Recommender:
    copy = Recommender.__new__(Recommender)
    copy.__dict__ = {**model.__dict__, **changes}
    return copy


def drop_likes(model: Recommender, row: int) -> Recommender:
    """The same model, fitted as if nobody had liked an item."""
    rows = np.flatnonzero(model.likes.items != row)
    likes = model.likes
    ratings = Ratings(likes.users[rows], likes.items[rows], likes.stars[rows], likes.times[rows])
    likes = build_histories(ratings, len(likes), likes.width)
    parts = [copy.copy(getattr(model.hybrid, name)) for name in PARTS]
    return copy_with(model, likes=likes, hybrid=Hybrid(*parts, model.hybrid.weights).fit(likes))


def test_a_user_without_likes_gets_what_most_users_like_and_no_reason(model):
    empty = np.zeros(len(model.user_ids) + 1, np.int64)
    nothing = np.zeros(0)
    no_likes = Histories(empty, nothing.astype(int), nothing, nothing, model.likes.width, empty[1:])
    results = copy_with(model, likes=no_likes).recommend(1)
    counts = np.bincount(model.likes.items, minlength=len(model.catalogue))
    counts[np.isin(model.catalogue.ids, list(find_rated(1)))] = -1
    assert [a.score for a in results] == np.sort(counts)[::-1][:10].tolist()
    assert {a.basis for a in results} == {"popularity"}
    assert not any(a.why for a in results)
    assert model.recommend(1)[0].basis == "likes"


def test_a_user_of_items_that_no_other_user_likes_gets_similar_texts(model):
    row = model.titles.find("Alien")[0]
    lonely = drop_likes(model, row)
    results = lonely.new(["Alien"])
    nearest = np.argsort(-(model.hybrid.semantic.items @ model.hybrid.semantic.items[row]), kind="stable")
    assert ids(results) == model.catalogue.ids[nearest[nearest != row][:10]].tolist()
    assert {a.basis for a in results} == {"meaning"}


def test_all_users_get_the_fallback_of_single_requests(model):
    lonely = drop_likes(model, 0)
    starts = lonely.likes.starts.copy()
    starts[0] = starts[1]  # the first user likes nothing
    lonely.likes = replace(lonely.likes, starts=starts)
    items, _ = lonely.top(np.arange(3), 10)
    for user in (1, 2, 3):
        assert ids(lonely.recommend(user)) == lonely.catalogue.ids[items[user - 1]].tolist()
    assert lonely.recommend(1)[0].basis == "popularity"


def test_a_saved_model_gives_the_same_recommendations(model, saved):
    model = copy_with(model, _live=None)  # requests of other tests make it live: then scores are sums in float32
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
    from ridgeline.recommend import recommender

    monkeypatch.setattr(recommender, "MODEL_FORMAT", 99)
    model.save(tmp_path / "m")
    monkeypatch.undo()
    with pytest.raises(StoreError, match="has format 99"):
        Recommender.load(tmp_path / "m")


def test_the_file_for_all_users_equals_single_requests(model, tmp_path):
    rows = write_recommendations(model, tmp_path / "all.parquet", 10)
    table = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert rows == len(table) == 10 * len(model.user_ids)
    for user in (1, 100, 240):
        user_rows = [r for r in table if r["user"] == user]
        assert [r["rank"] for r in user_rows] == list(range(1, 11))
        assert [r["item"] for r in user_rows] == ids(model.recommend(user))


def test_a_recommendation_does_not_depend_on_other_users(model):
    """Also where one user gave twice the stars of all others."""
    other = Recommender.__new__(Recommender)
    stars = model.likes.stars.copy()
    stars[: model.likes.starts[1]] *= 2
    other.__dict__ = {**model.__dict__, "likes": replace(model.likes, stars=stars)}
    parts = (*other.hybrid.weights, "semantic")
    other.hybrid = Hybrid(*(getattr(other.hybrid, n) for n in PARTS), dict.fromkeys(parts, 1.0))
    all_users = np.arange(len(model.user_ids))
    together, scores = other.top(all_users, 10)
    for part in (all_users[3:9], all_users[::-7], all_users[[5]]):
        rows, part_scores = other.top(part, 10)
        assert (rows == together[part]).all()
        assert np.allclose(part_scores, scores[part], atol=1e-4)
    for user in (1, 2, 100):
        assert ids(other.recommend(user)) == other.catalogue.ids[together[user - 1]].tolist()


def test_many_first_searches_at_once_load_one_encoder(saved, monkeypatch):
    loaded = []

    class SlowEmbedder(ridgeline.Embedder):
        def __init__(self, *arguments, **settings):
            loaded.append(1)
            time.sleep(0.05)  # so that all searches arrive while it loads
            super().__init__(*arguments, **settings)

    monkeypatch.setattr("ridgeline.embed.Embedder", SlowEmbedder)
    with Recommender.load(saved) as fresh, ThreadPoolExecutor(32) as threads:
        results = list(threads.map(lambda _: ids(fresh.search("a heist", Options(3))), range(32)))
    assert len(loaded) == 1
    assert all(result == results[0] for result in results)


def test_titles_are_found_however_they_are_written():
    assert move_article_first("Usual Suspects, The (1995)") == "The Usual Suspects (1995)"
    assert normalize_title("Amélie!") == "amelie"
    assert normalize_title("Seven Samurai, The") == "the seven samurai"


def test_item_texts_leave_out_what_is_not_known():
    c = demo.load_catalogue()
    assert item_texts(c)[0].startswith("Alien (1979). Genres: Horror, Sci-Fi. Themes: spaceship, ")
    bare = demo.draw_dataset().without_themes().catalogue
    assert item_texts(bare)[0] == "Alien (1979). Genres: Horror, Sci-Fi."
    assert item_texts(c, "{year}: {title}")[0] == "1979: Alien (1979)"
    for wrong in ("{titel}", "{title", "nothing"):
        with pytest.raises(InputError):
            item_texts(c, wrong)
    for wrong in ("{year:d}", "{title!z}", "{title!r}", "{title:{year}}", "{title:>99999999999}"):
        with pytest.raises(InputError, match=r"gives '(title|year)' a format; write \{(title|year)\} alone"):
            item_texts(c, wrong)


def test_check_vectors_reports_bad_vectors():
    drawn = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    vectors = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    report = check_vectors(vectors)
    assert report["ok"]
    assert (report["count"], report["dim"], report["bytes"], report["duplicates"]) == (20, 8, 640, 0)
    vectors[3] = np.nan
    vectors[4] *= 2
    vectors[6] = vectors[5]
    results = check_vectors(vectors)
    assert (results["ok"], results["not_finite"], results["not_unit"], results["duplicates"]) == (False, 1, 1, 1)


def test_exported_vectors_have_the_ids_of_their_rows(model, tmp_path):
    export_vectors(model, tmp_path / "out")
    items, users = np.load(tmp_path / "out/items.npy"), np.load(tmp_path / "out/users.npy")
    assert (items == model.vectors).all()
    assert np.load(tmp_path / "out/item_ids.npy").tolist() == model.catalogue.ids.tolist()
    assert len(users) == len(np.load(tmp_path / "out/user_ids.npy")) == 240
    assert np.allclose(np.linalg.norm(users, axis=1), 1, atol=1e-5)


def test_an_encoder_that_is_not_repeatable_is_detected(model, embedder):
    texts = item_texts(model.catalogue)
    assert is_repeatable(embedder.encode, texts, model.vectors)
    assert not is_repeatable(lambda some: embedder.encode([*some[1:], some[0]]), texts, model.vectors)
