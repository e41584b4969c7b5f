"""Parts of recordings that a job handles by themselves: some episodes of an RLDS shard, or a whole recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.trajectory.readers import rlds
from ridgeline.trajectory.readers.streams import ReadOptions
from ridgeline.trajectory.stream import Stream


@dataclass(frozen=True)
class Portion:
    """Episodes of one RLDS shard, by the place of their records."""

    shard: str  # its name in the folder
    records: tuple[rlds.Record, ...]


def split_rlds(path: Path, episodes: int) -> list[Portion]:
    """Split an RLDS folder into portions of at most `episodes` episodes."""
    portions = []
    for shard in rlds.list_shards(path):
        records = rlds.list_records(shard)
        portions += [
            Portion(shard.name, tuple(records[first : first + episodes])) for first in range(0, len(records), episodes)
        ]
    return portions


def read_rlds_episode(
    path: Path, portion: Portion, number: int, topics: Sequence[str] | None = None, options: ReadOptions | None = None
) -> list[Stream]:
    """Return the streams of one episode of a portion."""
    return rlds.read_episode(path, path / portion.shard, portion.records[number], number, topics, options)
