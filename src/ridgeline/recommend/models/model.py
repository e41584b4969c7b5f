"""The interface of a model: `fit`, `scores`, `similar`."""

from __future__ import annotations

from typing import Protocol, Self

from ridgeline.recommend.data import Real
from ridgeline.recommend.histories import Histories


class Model(Protocol):
    """Learns from histories; then scores every item for any users, also for those it never saw."""

    name: str

    def fit(self, train: Histories) -> Self: ...

    def scores(self, users: Histories) -> Real:
        """float32 [n, items]: high is liked; seen items are not left out here."""

    def similar(self, item: int) -> Real:
        """float32 [items]: how near every item is to this one."""
