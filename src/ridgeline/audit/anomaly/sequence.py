"""Sessions by the order of their events: how unlikely is each event after the two before it?

`Keys` gives each event a key, the finest description of it that recurs: its sentence as it is, else its sentence with
masked numbers, else its template. So a system call is known by its name or number, which the template miner takes for
a variable, while a line with a random id is known by its template.

`Transitions` is a language model of keys: counts of what followed the two keys before, the key before, and of all keys,
interpolated after Witten and Bell. It learns from sessions that have ended, so that a session is never compared with
itself.

>>> transitions = Transitions()
>>> for _ in range(50):
...     transitions.learn([START, START, 1, 2, 3, END])
>>> round(transitions.surprise(1, 2, 3), 2), round(transitions.surprise(1, 3, 2), 1)
(0.0, 5.3)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Self

START, END = -1, -2  # keys before the first and after the last event
RECURS = 3  # different sessions with a sentence that make it a key
SPAN = 50_000  # sentences in a generation; those of two generations are in memory
CONTEXTS = 65_536
TOTAL, KINDS = 50_000, 4_096  # of one context; beyond that, old counts are halved
OTHER = 10  # unknown keys that are assumed beside the known ones
_ALL = -3  # the context without a key before
_BITS = (1 << 56) - 1


class Keys:
    """Counts in how many sessions each sentence occurred."""

    def __init__(self, span: int = SPAN) -> None:
        self.span = span
        self._current: dict[int, list[int]] = {}  # hash of a sentence → number of sessions, the last session
        self._previous: dict[int, list[int]] = {}

    def find(self, sentences: Sequence[str], template: int) -> int:
        """Return the key of an event; `sentences` are its descriptions, the finest first."""
        for sentence in sentences:
            hashed = _hash(sentence)
            seen = self._current.get(hashed) or self._previous.get(hashed)
            if seen is not None and seen[0] >= RECURS:
                return hashed
        return template

    def learn(self, sentences: Sequence[str], session: int) -> None:
        for sentence in sentences:
            hashed = _hash(sentence)
            seen = self._current.get(hashed)
            if seen is None:
                seen = self._current[hashed] = self._previous.pop(hashed, [0, -1])
                if len(self._current) > self.span:
                    self._current, self._previous = {hashed: seen}, self._current
            if seen[1] != session:
                seen[0], seen[1] = seen[0] + 1, session

    def state(self) -> list[Any]:
        return [self.span, *([[k, *v] for k, v in part.items()] for part in (self._current, self._previous))]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        keys = cls(state[0])
        keys._current, keys._previous = ({row[0]: list(row[1:]) for row in part} for part in state[1:])
        return keys


class Transitions:
    def __init__(self) -> None:
        # context → total, and the count of each key that followed
        self._following: OrderedDict[int, tuple[int, dict[int, int]]] = OrderedDict()

    def surprise(self, second: int, last: int, key: int) -> float:
        """Return −log p of a key after the keys `second`, `last`; 0 if nothing was learnt."""
        following = self._following.get(_ALL)
        if following is None:
            return 0.0
        p = 1.0 / (len(following[1]) + OTHER)
        for context in (_ALL, last, _pair(second, last)):
            following = self._following.get(context)
            if following is None:
                break
            total, counts = following
            kinds = len(counts)
            p = (counts.get(key, 0) + kinds * p) / (total + kinds)
        return -math.log(p)

    def learn(self, keys: Sequence[int]) -> None:
        """Learn every key of a session from the third on; a whole session begins with START, START."""
        for second, last, key in zip(keys, keys[1:], keys[2:], strict=False):
            for context in (_ALL, last, _pair(second, last)):
                self._count(context, key)

    def _count(self, context: int, key: int) -> None:
        total, counts = self._following.pop(context, (0, {}))
        counts[key] = counts.get(key, 0) + 1
        total += 1
        if total > TOTAL or len(counts) > KINDS:
            counts = {key: count // 2 for key, count in counts.items() if count > 1}
            total = sum(counts.values())
        self._following[context] = total, counts  # at the end: the oldest context is the first
        if len(self._following) > CONTEXTS:
            self._following.popitem(last=False)

    def state(self) -> list[Any]:
        return [[context, list(counts.items())] for context, (_, counts) in self._following.items()]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        transitions = cls()
        for context, items in state:
            counts: Mapping[int, int] = dict(map(tuple, items))
            transitions._following[context] = sum(counts.values()), dict(counts)
        return transitions


@lru_cache(4_096)  # masked sentences recur, and each sentence is asked for twice
def _hash(sentence: str) -> int:
    # Larger than any template id, and the same in every process.
    return int.from_bytes(blake2b(sentence.encode("utf-8", "replace"), digest_size=7).digest(), "big") | 1 << 56


def _pair(second: int, last: int) -> int:
    return ((second * 1_000_003) ^ last) & _BITS | 1 << 57
