"""The best k items of very many users: scored, masked and ranked on the device, a block of users at a time.

On a GPU the products are float16 with float32 sums; only the answers come back. What each user has seen goes over as
row and column numbers, never as a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.errors import InputError
from ridgeline.recommend.data import Real, Whole
from ridgeline.recommend.histories import Histories

BLOCK = {"cpu": 1_024, "cuda": 8_192}  # users: [BLOCK, items] scores are held

Found = tuple[Whole, Real]


def rank_vectors(users: NDArray[Any], items: NDArray[Any], seen: Histories, k: int, device: str = "cpu") -> Found:
    """(items int64 [n, k], scores float32 [n, k]) by products of vectors; seen ones left out, −1 where none is left."""
    import torch

    dtype = torch.float16 if device.startswith("cuda") else torch.float32
    right = torch.from_numpy(np.ascontiguousarray(items)).to(device, dtype).T
    left = torch.from_numpy(np.ascontiguousarray(users)).to(device, dtype)
    return _ranked(lambda first, last: (left[first:last] @ right).float(), len(left), seen, k, device)


def rank_ease(
    liked: Histories, kept: NDArray[Any], weights: NDArray[Any], seen: Histories, k: int, device: str = "cpu"
) -> Found:
    """The same by EASE's weights [K, K] over the items `kept`, from sparse histories; the other items score 0."""
    import torch

    matrix = liked.matrix()[:, kept].tocsr()
    dense = torch.from_numpy(np.asarray(weights)).to(device)
    columns = torch.from_numpy(np.asarray(kept, np.int64)).to(device)

    def scores(first: int, last: int) -> Any:
        part = matrix[first:last]
        found = torch.zeros((last - first, liked.width), device=device)
        if device.startswith("cuda"):
            arrays = (torch.from_numpy(a).to(device) for a in (part.indptr, part.indices, part.data))
            found[:, columns] = torch.sparse_csr_tensor(*arrays, size=part.shape) @ dense
        else:  # SciPy's product walks the few entries; torch's on a CPU is slower for so sparse a matrix
            found[:, columns] = torch.from_numpy(np.asarray(part @ dense.numpy()))
        return found

    return _ranked(scores, len(liked), seen, k, device)


def _ranked(scores: Callable[[int, int], Any], count: int, seen: Histories, k: int, device: str) -> Found:
    import torch

    if len(seen) != count:
        raise InputError(f"{len(seen)} histories of seen items for {count} users; give one for each.")
    if k < 1:
        raise InputError(f"k is {k}; ask for 1 or more.")
    block = BLOCK["cuda" if device.startswith("cuda") else "cpu"]
    k = min(k, seen.width)
    rows, values = np.full((count, k), -1, np.int64), np.full((count, k), -np.inf, np.float32)
    hidden = torch.from_numpy(np.asarray(seen.items, np.int64)).to(device)
    owners = torch.from_numpy(seen.users).to(device)
    for first in range(0, count, block):
        last = min(first + block, count)
        found = scores(first, last)
        mine = slice(int(seen.starts[first]), int(seen.starts[last]))
        found[owners[mine] - first, hidden[mine]] = -torch.inf
        best, at = found.topk(k, dim=1)
        values[first:last] = best.cpu().numpy()
        rows[first:last] = at.cpu().numpy()
    rows[np.isneginf(values)] = -1
    return rows, values
