"""Hierarchical: inside each host, then between hosts, then inside again. `groups` are the ranks of each host.

hierarchical  Rings inside; between hosts a ring among the ranks of the same local number, each for its share of the
              data: a rank sends 1 / local of it through the network. Hosts with more ranks than others first add
              those to their neighbours.
leader_ring   The ranks of a host reduce to its first rank; these leaders form a ring. One connection for each host.
leader_tree   The same with trees between the leaders: fewer hops, for many hosts and little data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ridgeline.fabric.schedule_types import Ints, Round, WriteRounds, make_round
from ridgeline.fabric.schedules import tree
from ridgeline.fabric.schedules.ring import write_rings

Groups = Sequence[Sequence[int]]


def write(
    op: str, ranks: int, chunks: int, nodes: int, root: int, groups: Groups | None = None
) -> tuple[int, WriteRounds]:
    groups = groups or make_groups(ranks, nodes)
    nodes, local = len(groups), min(map(len, groups))
    inside = np.array([group[:local] for group in groups])
    across = inside.T
    wide = nodes * chunks  # chunks in the block of one local number
    pieces = local * wide
    blocks_inside = np.broadcast_to(np.arange(local) * wide, (nodes, local))
    blocks_across = np.arange(local)[:, None] * wide + np.arange(nodes)[None, :] * chunks
    # Ranks beyond those that every host has, and the ranks of their hosts that work for them
    extra = [(rank, group[k % local], k // local) for group in groups for k, rank in enumerate(group[local:])]
    count = 1 + max((turn for *_, turn in extra), default=-1)
    turns = [np.array([(a, b) for a, b, turn in extra if turn == k]).T for k in range(count)]

    def rounds() -> Iterator[Round]:
        for sources, targets in turns:
            yield make_round(sources, targets, 0, pieces, True)
        yield from write_rings(inside, blocks_inside, chunks, reduce=True, width=nodes)
        yield from write_rings(across, blocks_across, chunks, reduce=True)
        yield from write_rings(across, blocks_across, chunks, reduce=False)
        yield from write_rings(inside, blocks_inside, chunks, reduce=False, width=nodes)
        for sources, targets in turns:
            yield make_round(targets, sources, 0, pieces)

    return pieces, rounds


def write_leader_ring(
    op: str, ranks: int, chunks: int, nodes: int, root: int, groups: Groups | None = None
) -> tuple[int, WriteRounds]:
    groups = groups or make_groups(ranks, nodes)
    leaders = np.array([[group[0] for group in groups]])
    pieces = len(groups) * chunks
    blocks = np.arange(len(groups))[None, :] * chunks

    def rounds() -> Iterator[Round]:
        yield from _gather_inside(groups, pieces)
        yield from write_rings(leaders, blocks, chunks, reduce=True)
        yield from write_rings(leaders, blocks, chunks, reduce=False)
        yield from _spread_inside(groups, pieces)

    return pieces, rounds


def write_leader_tree(
    op: str, ranks: int, chunks: int, nodes: int, root: int, groups: Groups | None = None
) -> tuple[int, WriteRounds]:
    """Also of a broadcast and of a reduce: the root leads its host."""
    ordered = [list(group) for group in groups or make_groups(ranks, nodes)]
    if op != "all_reduce":
        for group in ordered:
            if root in group:
                group.remove(root)
                group.insert(0, root)
        ordered.sort(key=lambda group: group[0] != root)
    leaders = np.array([group[0] for group in ordered])
    pieces, write_across = tree.write(op, len(ordered), chunks, 1, 0)

    def rounds() -> Iterator[Round]:
        if op != "broadcast":
            yield from _gather_inside(ordered, pieces)
        for one in write_across():
            yield one._replace(source=leaders[one.source], target=leaders[one.target])
        if op != "reduce":
            yield from _spread_inside(ordered, pieces)

    return pieces, rounds


def make_groups(ranks: int, nodes: int) -> Groups:
    """Nodes with an equal number of ranks that follow each other."""
    local = ranks // nodes
    return [range(node * local, (node + 1) * local) for node in range(nodes)]


def group_ranks(hosts: Sequence[int | str]) -> tuple[tuple[int, ...], ...]:
    """The ranks of each host, in the order in which the hosts appear.

    >>> group_ranks(["a", "b", "a"])
    ((0, 2), (1,))
    """
    groups: dict[int | str, list[int]] = {}
    for rank, host in enumerate(hosts):
        groups.setdefault(host, []).append(rank)
    return tuple(map(tuple, groups.values()))


def _gather_inside(groups: Groups, width: int) -> Iterator[Round]:
    """All ranks of a host reduce to its first one: a binomial tree."""
    for targets, sources in _find_pairs(groups):
        yield make_round(sources, targets, 0, width, True)


def _spread_inside(groups: Groups, width: int) -> Iterator[Round]:
    """The first rank of each host sends to all others of it: the same tree, from its root."""
    for sources, targets in reversed(list(_find_pairs(groups))):
        yield make_round(sources, targets, 0, width)


def _find_pairs(groups: Groups) -> Iterator[tuple[Ints, Ints]]:
    """The pairs of each round: (nearer to the leader, farther)."""
    distance = 1
    while distance < max(map(len, groups)):
        pairs = [(group[k - distance], group[k]) for group in groups for k in range(distance, len(group), 2 * distance)]
        nearer, farther = np.array(pairs, np.int64).reshape(-1, 2).T
        yield nearer, farther
        distance *= 2
