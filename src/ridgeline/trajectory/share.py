"""A rank's share of a dataset, for `DataLoader(dataset, sampler=dataset.share())` under torchrun.

>>> [list(Share(5, rank, 2, shuffle=False)) for rank in (0, 1)]
[[0, 2, 4], [1, 3, 0]]

It stands where torch's DistributedSampler would and speaks its protocol (`set_epoch`), so a dataset is split once,
by whichever of the two the loader was given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np

from ridgeline.errors import InputError, unknown
from ridgeline.trajectory.timeline import Array

UNEVEN = ("repeat", "drop", "keep")


class Share:
    """The items of one rank, in the order of this epoch.

    rank, world  from torch.distributed where it is initialised, else from RANK and WORLD_SIZE, else 0 of 1
    uneven       where the ranks do not divide the items: "repeat" gives every rank the same number by repeating the
                 first few of the epoch's order, "drop" by leaving out its last few, "keep" gives each item to one
                 rank only, so that some ranks have one more
    """

    def __init__(
        self,
        items: int,
        rank: int | None = None,
        world: int | None = None,
        *,
        shuffle: bool = True,
        seed: int = 0,
        uneven: str = "repeat",
    ) -> None:
        if uneven not in UNEVEN:
            raise unknown("way to share unevenly", uneven, UNEVEN)
        self.items, self.shuffle, self.seed, self.uneven = items, shuffle, seed, uneven
        self.rank, self.world = _place(rank, world)
        self.epoch = 0
        if uneven == "drop" and items < self.world:
            raise InputError(f"{items} items are too few for {self.world} ranks; use uneven='repeat' or fewer ranks.")

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch's order; call it on every rank before the epoch, as with DistributedSampler."""
        self.epoch = epoch

    @property
    def repeated(self) -> int:
        """How many items of an epoch are given twice."""
        return -self.items % self.world if self.uneven == "repeat" and self.items else 0

    @property
    def dropped(self) -> int:
        """How many items of an epoch are given to nobody."""
        return self.items % self.world if self.uneven == "drop" else 0

    def __len__(self) -> int:
        return len(range(self.rank, self.items + self.repeated - self.dropped, self.world))

    def __iter__(self) -> Iterator[int]:
        order: Array = np.arange(self.items)
        if self.shuffle:
            order = np.random.default_rng((self.seed, self.epoch)).permutation(self.items)
        everyone = np.resize(order, self.items + self.repeated - self.dropped)
        yield from everyone[self.rank :: self.world].tolist()

    def __repr__(self) -> str:
        more = f", {self.repeated} repeated" if self.repeated else f", {self.dropped} dropped" if self.dropped else ""
        return f"Share(rank {self.rank} of {self.world}: {len(self)} of {self.items} items{more}, epoch {self.epoch})"


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    if (rank is None) != (world is None):
        raise InputError("rank= and world= go together; give both or neither.")
    if rank is None or world is None:
        rank, world = _told_by_torch() or _told_by_launcher()
    if not 0 <= rank < world:
        raise InputError(f"rank {rank} of {world} is no place; ranks go from 0 to {world - 1}.")
    return rank, world


def _told_by_torch() -> tuple[int, int] | None:
    torch = sys.modules.get("torch")  # a program that has not imported it has no process group either
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _told_by_launcher() -> tuple[int, int]:
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world is None:
        return 0, 1
    try:
        return int(rank or ""), int(world or "")
    except ValueError:
        raise InputError(
            f"RANK={rank} and WORLD_SIZE={world} name no place; set both, or start with torchrun."
        ) from None
