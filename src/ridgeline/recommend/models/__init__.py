"""One small file per model, one interface: `fit`, `scores`, `similar`."""

from __future__ import annotations

from typing import Protocol, Self

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories
from ridgeline.recommend.models.ease import Ease
from ridgeline.recommend.models.era import Era
from ridgeline.recommend.models.hybrid import Hybrid
from ridgeline.recommend.models.itemknn import ItemKnn
from ridgeline.recommend.models.popularity import Popularity
from ridgeline.recommend.models.random import Chance
from ridgeline.recommend.models.semantic import Semantic
from ridgeline.recommend.models.tfidf import Tfidf

__all__ = ["Chance", "Ease", "Era", "Hybrid", "ItemKnn", "Model", "Popularity", "Semantic", "Tfidf"]


class Model(Protocol):
    """Learns from histories; then scores every item for any users, also for those it never saw."""

    name: str

    def fit(self, train: Histories) -> Self: ...

    def scores(self, users: Histories) -> Real:
        """float32 [n, items]: high is liked; seen items are not left out here."""

    def similar(self, item: int) -> Real:
        """float32 [items]: how near every item is to this one."""
