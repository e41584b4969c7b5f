"""One small file per model, one interface: `fit`, `scores`, `similar`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.recommend.models.ease import MOST as MOST
    from ridgeline.recommend.models.ease import Ease as Ease
    from ridgeline.recommend.models.era import Era as Era
    from ridgeline.recommend.models.hybrid import Hybrid as Hybrid
    from ridgeline.recommend.models.itemknn import NEIGHBOURS as NEIGHBOURS
    from ridgeline.recommend.models.itemknn import ItemKnn as ItemKnn
    from ridgeline.recommend.models.model import Model as Model
    from ridgeline.recommend.models.popularity import Popularity as Popularity
    from ridgeline.recommend.models.profile import taste as taste
    from ridgeline.recommend.models.random import Chance as Chance
    from ridgeline.recommend.models.semantic import Semantic as Semantic
    from ridgeline.recommend.models.tfidf import Tfidf as Tfidf

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "ease": ["Ease", "MOST"],
        "era": ["Era"],
        "hybrid": ["Hybrid"],
        "itemknn": ["ItemKnn", "NEIGHBOURS"],
        "model": ["Model"],
        "popularity": ["Popularity"],
        "profile": ["taste"],
        "random": ["Chance"],
        "semantic": ["Semantic"],
        "tfidf": ["Tfidf"],
    },
)
