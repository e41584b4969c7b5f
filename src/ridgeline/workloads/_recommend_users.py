"""Task `users` of the workload `recommend`: weighted sums of item vectors, one for each user, by three ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ridgeline.lab import OURS
from ridgeline.recommend import ByVectors, Histories
from ridgeline.recommend.models import Semantic, taste

NUMPY, TORCH = "NumPy gather + reduceat", "torch embedding_bag"
BLOCK = 2_048


def user_vectors(contender: str, model: Semantic, device: str) -> Callable[[Histories], Any]:
    if contender == OURS and device != "cpu":
        ranker = ByVectors(model.items, device)
        return lambda users: ranker.users(users).cpu().numpy()
    if contender == OURS:
        return model.users
    return {NUMPY: _numpy, TORCH: _torch}[contender](model.items, device)


def _numpy(items: Any, device: str) -> Callable[[Histories], Any]:
    """Rows gathered and summed, a block of users at a time."""

    def find(users: Histories) -> Any:
        weights, found = taste(users), np.empty((len(users), items.shape[1]), np.float32)
        for first in range(0, len(users), BLOCK):
            last = min(first + BLOCK, len(users))
            begin, end = users.starts[first], users.starts[last]
            rows = items[users.items[begin:end]] * weights[begin:end, None]
            found[first:last] = np.add.reduceat(rows, users.starts[first:last] - begin)
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    return find


def _torch(items: Any, device: str) -> Callable[[Histories], Any]:
    """`embedding_bag`: torch's own operation for this."""
    import torch

    table = torch.from_numpy(items).to(device)

    def find(users: Histories) -> Any:
        rows, starts, weights = (torch.from_numpy(a).to(device) for a in (users.items, users.starts[:-1], taste(users)))
        found = torch.nn.functional.embedding_bag(rows, table, starts, mode="sum", per_sample_weights=weights)
        return torch.nn.functional.normalize(found).cpu().numpy()

    return find
