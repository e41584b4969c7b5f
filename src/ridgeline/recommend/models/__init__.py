"""The models of the recommender. All have one interface: `fit`, `scores`, `similar`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.recommend.models.baselines import DecayedPopularity as DecayedPopularity
    from ridgeline.recommend.models.baselines import Model as Model
    from ridgeline.recommend.models.baselines import Popularity as Popularity
    from ridgeline.recommend.models.baselines import RandomModel as RandomModel
    from ridgeline.recommend.models.baselines import RecentPopularity as RecentPopularity
    from ridgeline.recommend.models.content import Semantic as Semantic
    from ridgeline.recommend.models.content import Tfidf as Tfidf
    from ridgeline.recommend.models.ease import MAX_ITEMS as MAX_ITEMS
    from ridgeline.recommend.models.ease import Ease as Ease
    from ridgeline.recommend.models.fold_in import FoldIn as FoldIn
    from ridgeline.recommend.models.hybrid import Hybrid as Hybrid
    from ridgeline.recommend.models.itemknn import NEIGHBOURS as NEIGHBOURS
    from ridgeline.recommend.models.itemknn import ItemKnn as ItemKnn
    from ridgeline.recommend.models.neighbour_ease import NeighbourEase as NeighbourEase
    from ridgeline.recommend.models.neighbour_ease import make_ease as make_ease

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "baselines": ["DecayedPopularity", "Model", "Popularity", "RandomModel", "RecentPopularity"],
        "content": ["Semantic", "Tfidf"],
        "ease": ["Ease", "MAX_ITEMS"],
        "fold_in": ["FoldIn"],
        "hybrid": ["Hybrid"],
        "itemknn": ["ItemKnn", "NEIGHBOURS"],
        "neighbour_ease": ["NeighbourEase", "make_ease"],
    },
)
