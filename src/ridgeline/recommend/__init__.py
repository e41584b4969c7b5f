"""Ratings and texts → recommendations, with tested metrics.

data = read("ml-latest-small")
with Embedder() as embedder:
    model = Recommender.fit(data, embedder)
model.recommend(1, Options(k=10))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.recommend.data import Catalogue as Catalogue
    from ridgeline.recommend.data import Dataset as Dataset
    from ridgeline.recommend.data import Histories as Histories
    from ridgeline.recommend.data import Ratings as Ratings
    from ridgeline.recommend.data import build_histories as build_histories
    from ridgeline.recommend.demo import run_demo as run_demo
    from ridgeline.recommend.diversity import check_diversity as check_diversity
    from ridgeline.recommend.diversity import choose_diverse as choose_diverse
    from ridgeline.recommend.evaluation import EvaluationSettings as EvaluationSettings
    from ridgeline.recommend.evaluation import Split as Split
    from ridgeline.recommend.evaluation import evaluate as evaluate
    from ridgeline.recommend.evaluation import join_given as join_given
    from ridgeline.recommend.evaluation import mask_scores as mask_scores
    from ridgeline.recommend.evaluation import measure as measure
    from ridgeline.recommend.evaluation import parse_metrics as parse_metrics
    from ridgeline.recommend.evaluation import split_dataset as split_dataset
    from ridgeline.recommend.evaluation import split_likes as split_likes
    from ridgeline.recommend.evaluation_page import render_report as render_report
    from ridgeline.recommend.http_service import create_app as create_app
    from ridgeline.recommend.item_vectors import TEMPLATE as TEMPLATE
    from ridgeline.recommend.item_vectors import check_vectors as check_vectors
    from ridgeline.recommend.item_vectors import encode_cached as encode_cached
    from ridgeline.recommend.item_vectors import export_vectors as export_vectors
    from ridgeline.recommend.item_vectors import is_repeatable as is_repeatable
    from ridgeline.recommend.item_vectors import item_texts as item_texts
    from ridgeline.recommend.live import Change as Change
    from ridgeline.recommend.live import read_new_items as read_new_items
    from ridgeline.recommend.live import read_new_ratings as read_new_ratings
    from ridgeline.recommend.ranking import SMALL_BATCH_USERS as SMALL_BATCH_USERS
    from ridgeline.recommend.ranking import EaseRanker as EaseRanker
    from ridgeline.recommend.ranking import StageCallback as StageCallback
    from ridgeline.recommend.ranking import VectorRanker as VectorRanker
    from ridgeline.recommend.ranking import top_k as top_k
    from ridgeline.recommend.readers import read as read
    from ridgeline.recommend.readers import read_ratings as read_ratings
    from ridgeline.recommend.recommender import Options as Options
    from ridgeline.recommend.recommender import Recommendation as Recommendation
    from ridgeline.recommend.recommender import Recommender as Recommender
    from ridgeline.recommend.recommender import parse_years as parse_years
    from ridgeline.recommend.recommender import write_recommendations as write_recommendations
    from ridgeline.recommend.refits import refit as refit
    from ridgeline.recommend.request_rates import RequestRates as RequestRates
    from ridgeline.recommend.score import parse_ranking_metrics as parse_ranking_metrics
    from ridgeline.recommend.score import score_run as score_run
    from ridgeline.recommend.serving import ServedModel as ServedModel
    from ridgeline.recommend.serving import ServedModels as ServedModels
    from ridgeline.recommend.serving import parse_shares as parse_shares
    from ridgeline.recommend.versions import RefitRules as RefitRules
    from ridgeline.recommend.versions import parse_refit as parse_refit
    from ridgeline.recommend.weights import preference_weights as preference_weights

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "data": ["Catalogue", "Dataset", "Histories", "Ratings", "build_histories"],
        "demo": ["run_demo"],
        "diversity": ["check_diversity", "choose_diverse"],
        "evaluation": [
            "EvaluationSettings",
            "Split",
            "evaluate",
            "join_given",
            "mask_scores",
            "measure",
            "parse_metrics",
            "split_dataset",
            "split_likes",
        ],
        "evaluation_page": ["render_report"],
        "http_service": ["create_app"],
        "item_vectors": [
            "TEMPLATE",
            "check_vectors",
            "encode_cached",
            "export_vectors",
            "is_repeatable",
            "item_texts",
        ],
        "live": ["Change", "read_new_items", "read_new_ratings"],
        "ranking": ["SMALL_BATCH_USERS", "EaseRanker", "StageCallback", "VectorRanker", "top_k"],
        "readers": ["read", "read_ratings"],
        "recommender": ["Options", "Recommendation", "Recommender", "parse_years", "write_recommendations"],
        "refits": ["refit"],
        "request_rates": ["RequestRates"],
        "score": ["parse_ranking_metrics", "score_run"],
        "serving": ["ServedModel", "ServedModels", "parse_shares"],
        "versions": ["RefitRules", "parse_refit"],
        "weights": ["preference_weights"],
    },
)
