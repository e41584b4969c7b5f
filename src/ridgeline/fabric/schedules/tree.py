"""Trees: log₂ n hops up, log₂ n down, chunk after chunk.

An all-reduce uses two trees over the same ranks, each for half of the chunks (Sanders, Speck and Träff, 2009): who has
children in one is, but for one rank, a leaf in the other, so every link carries its share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.fabric.steps import Ints, Round, Writer, side_by_side, transfers


@dataclass(frozen=True)
class Tree:
    parent: Ints  # −1 for the root
    depth: Ints
    height: Ints


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, Writer]:
    if op == "all_reduce":
        place = np.arange(ranks)
        # Leaves are the even places: mirrored (even n) or turned by one (odd n) they are the odd ones.
        trees = [_tree(place), _tree(ranks - 1 - place if ranks % 2 == 0 else (place + 1) % ranks)]
    else:
        # A complete binary tree over distances from the root: place k hangs below (k − 1) // 2.
        place = np.arange(ranks)
        order = (place + root) % ranks
        parent = np.full(ranks, -1)
        parent[order[1:]] = order[(place[1:] - 1) // 2]
        trees = [_of(parent)]
    share = [np.arange(k, chunks, len(trees)) for k in range(len(trees))]

    def rounds() -> Iterator[Round]:
        up, down = op != "broadcast", op != "reduce"
        plans = [_waves(tree, own, up, down) for tree, own in zip(trees, share, strict=True)]
        for turn in range(max(length for length, _ in plans)):
            rows = [row for length, wave in plans if turn < length for row in wave(turn)]
            if rows:
                yield side_by_side(rows)

    return chunks, rounds


def _waves(tree: Tree, chunks: Ints, up: bool, down: bool) -> tuple[int, Callable[[int], list[Round]]]:
    """How many rounds a tree needs for its chunks, and the transfers of each: the k-th chunk is k rounds behind."""
    top, deep = int(tree.height.max()), int(tree.depth.max())
    by_height = [np.flatnonzero((tree.height == h) & (tree.parent >= 0)) for h in range(top + 1)]
    by_depth = [np.flatnonzero(tree.depth == d) for d in range(deep + 1)]
    begin = top if up else 0
    length = begin + (deep if down else 0) + len(chunks)

    def wave(turn: int) -> list[Round]:
        rows = []
        for k, chunk in enumerate(chunks.tolist()):
            late = turn - k
            if up and 0 <= late < top and by_height[late].size:
                low = by_height[late]
                rows.append(transfers(low, tree.parent[low], chunk, 1, True))
            if down and 1 <= late - begin + 1 <= deep:
                low = by_depth[late - begin + 1]
                rows.append(transfers(tree.parent[low], low, chunk))
        return rows

    return length, wave


def _tree(names: Ints) -> Tree:
    """The in-order binary tree over places 0 … n−1 (leaves are the even ones), its places renamed."""
    ranks = len(names)
    parent = np.full(ranks, -1)
    ahead = deque([(0, ranks, -1)])
    while ahead:
        low, high, above = ahead.popleft()
        if low >= high:
            continue
        middle = low + (1 << ((high - low).bit_length() - 1)) - 1
        parent[names[middle]] = above
        ahead += [(low, middle, int(names[middle])), (middle + 1, high, int(names[middle]))]
    return _of(parent)


def _of(parent: Ints) -> Tree:
    ranks = len(parent)
    depth, height = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for rank in range(ranks):
        steps, at = 0, rank
        while parent[at] >= 0:
            at, steps = int(parent[at]), steps + 1
            height[at] = max(height[at], steps)
        depth[rank] = steps
    return Tree(parent, depth, height)
