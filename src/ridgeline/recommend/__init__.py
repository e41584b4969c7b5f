"""Ratings and texts → recommendations, with metrics that can be believed.

data = read("ml-latest-small")
with Embedder() as embedder:
    model = Recommender.fit(data, embedder)
model.recommend(1)
"""

from __future__ import annotations

from ridgeline.recommend.data import Catalogue, Dataset, Ratings
from ridgeline.recommend.evaluate import Settings, evaluate
from ridgeline.recommend.read import read
from ridgeline.recommend.recommender import Answer, Recommender, Wish

__all__ = ["Answer", "Catalogue", "Dataset", "Ratings", "Recommender", "Settings", "Wish", "evaluate", "read"]
