"""Ratings and texts → recommendations, with metrics that can be believed.

data = read("ml-latest-small")
with Embedder() as embedder:
    model = Recommender.fit(data, embedder)
model.recommend(1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.recommend.all_users import write_all as write_all
    from ridgeline.recommend.data import Catalogue as Catalogue
    from ridgeline.recommend.data import Dataset as Dataset
    from ridgeline.recommend.data import Ratings as Ratings
    from ridgeline.recommend.demo import shown as shown
    from ridgeline.recommend.evaluation import Settings as Settings
    from ridgeline.recommend.evaluation import evaluate as evaluate
    from ridgeline.recommend.evaluation import masked as masked
    from ridgeline.recommend.evaluation_page import report as report
    from ridgeline.recommend.histories import Histories as Histories
    from ridgeline.recommend.http_service import service as service
    from ridgeline.recommend.metrics import best as best
    from ridgeline.recommend.metrics import checked_metrics as checked_metrics
    from ridgeline.recommend.metrics import measured as measured
    from ridgeline.recommend.ranking import (
        FEW_USERS as FEW_USERS,
    )
    from ridgeline.recommend.ranking import (
        ByEase as ByEase,
    )
    from ridgeline.recommend.ranking import (
        ByVectors as ByVectors,
    )
    from ridgeline.recommend.ranking import (
        Done as Done,
    )
    from ridgeline.recommend.readers import read as read
    from ridgeline.recommend.recommender import (
        Answer as Answer,
    )
    from ridgeline.recommend.recommender import (
        Recommender as Recommender,
    )
    from ridgeline.recommend.recommender import (
        Wish as Wish,
    )
    from ridgeline.recommend.recommender import (
        years_of as years_of,
    )
    from ridgeline.recommend.splits import Split as Split
    from ridgeline.recommend.splits import divided as divided
    from ridgeline.recommend.splits import split_of as split_of
    from ridgeline.recommend.texts import TEMPLATE as TEMPLATE
    from ridgeline.recommend.texts import item_texts as item_texts
    from ridgeline.recommend.vector_cache import encode_kept as encode_kept
    from ridgeline.recommend.vectors import export as export
    from ridgeline.recommend.vectors import integrity as integrity
    from ridgeline.recommend.vectors import repeatable as repeatable

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "all_users": ["write_all"],
        "data": ["Catalogue", "Dataset", "Ratings"],
        "demo": ["shown"],
        "evaluation": ["Settings", "evaluate", "masked"],
        "evaluation_page": ["report"],
        "histories": ["Histories"],
        "http_service": ["service"],
        "metrics": ["best", "checked_metrics", "measured"],
        "ranking": ["ByEase", "ByVectors", "Done", "FEW_USERS"],
        "readers": ["read"],
        "recommender": ["Answer", "Recommender", "Wish", "years_of"],
        "splits": ["Split", "divided", "split_of"],
        "texts": ["TEMPLATE", "item_texts"],
        "vector_cache": ["encode_kept"],
        "vectors": ["export", "integrity", "repeatable"],
    },
)
