"""Trees: log₂ n hops up, log₂ n down, chunk after chunk.

An all-reduce uses two trees over the same ranks, each for half of the chunks (Sanders, Speck and Träff, 2009): a rank
with children in one tree is a leaf in the other (except one rank), so every link carries its share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.fabric.schedule_types import Ints, Round, WriteRounds, make_round, merge_rounds


@dataclass(frozen=True)
class Tree:
    """A tree of ranks."""

    parent: Ints  # −1 for the root
    depth: Ints
    height: Ints


def write(op: str, ranks: int, chunks: int, nodes: int, root: int) -> tuple[int, WriteRounds]:
    if op == "all_reduce":
        place = np.arange(ranks)
        # Leaves are the even places; mirrored (even n) or rotated by one (odd n) they are the odd places.
        trees = [
            _make_inorder_tree(place),
            _make_inorder_tree(ranks - 1 - place if ranks % 2 == 0 else (place + 1) % ranks),
        ]
    else:
        # A complete binary tree over distances from the root: the parent of place k is (k − 1) // 2.
        place = np.arange(ranks)
        order = (place + root) % ranks
        parent = np.full(ranks, -1)
        parent[order[1:]] = order[(place[1:] - 1) // 2]
        trees = [_measure_tree(parent)]
    share = [np.arange(k, chunks, len(trees)) for k in range(len(trees))]

    def rounds() -> Iterator[Round]:
        up, down = op != "broadcast", op != "reduce"
        plans = [_plan_waves(tree, part, up, down) for tree, part in zip(trees, share, strict=True)]
        for turn in range(max(length for length, _ in plans)):
            rows = [row for length, wave in plans if turn < length for row in wave(turn)]
            if rows:
                yield merge_rounds(rows)

    return chunks, rounds


def _plan_waves(tree: Tree, chunks: Ints, up: bool, down: bool) -> tuple[int, Callable[[int], list[Round]]]:
    """The number of rounds of a tree for its chunks, and the transfers of each round: chunk k is k rounds behind."""
    top, deep = int(tree.height.max()), int(tree.depth.max())
    by_height = [np.flatnonzero((tree.height == h) & (tree.parent >= 0)) for h in range(top + 1)]
    by_depth = [np.flatnonzero(tree.depth == d) for d in range(deep + 1)]
    begin = top if up else 0
    length = begin + (deep if down else 0) + len(chunks)

    def wave(turn: int) -> list[Round]:
        rows = []
        for k, chunk in enumerate(chunks.tolist()):
            stage = turn - k
            if up and 0 <= stage < top and by_height[stage].size:
                low = by_height[stage]
                rows.append(make_round(low, tree.parent[low], chunk, 1, True))
            if down and 1 <= stage - begin + 1 <= deep:
                low = by_depth[stage - begin + 1]
                rows.append(make_round(tree.parent[low], low, chunk))
        return rows

    return length, wave


def _make_inorder_tree(names: Ints) -> Tree:
    """The in-order binary tree over places 0 … n−1 (leaves are the even ones), with the ranks `names` as places."""
    ranks = len(names)
    parent = np.full(ranks, -1)
    pending = deque([(0, ranks, -1)])
    while pending:
        low, high, above = pending.popleft()
        if low >= high:
            continue
        middle = low + (1 << ((high - low).bit_length() - 1)) - 1
        parent[names[middle]] = above
        pending += [(low, middle, int(names[middle])), (middle + 1, high, int(names[middle]))]
    return _measure_tree(parent)


def _measure_tree(parent: Ints) -> Tree:
    ranks = len(parent)
    depth, height = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    for rank in range(ranks):
        steps, current = 0, rank
        while parent[current] >= 0:
            current, steps = int(parent[current]), steps + 1
            height[current] = max(height[current], steps)
        depth[rank] = steps
    return Tree(parent, depth, height)
