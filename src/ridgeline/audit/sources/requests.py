"""Requests that came with a key of their own, so that one sent again after a lost answer is not recorded again.

The log itself remembers them: what a keyed request brought is followed, in the same append, by an own event that names
the key (`watch/own.py`). So the memory is as durable as the events, and after a restart it is read back from there.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from ridgeline.errors import InputError

MOST = 100_000  # requests remembered; the oldest are forgotten first
LONGEST = 200  # characters of a key

Answer = Future[tuple[int, int]]  # index of its first event, size of the log


@dataclass(frozen=True)
class Known:
    """A request that is in the log: its events are `count` entries from `first` on."""

    key: str
    digest: str
    first: int
    count: int


@dataclass(frozen=True)
class _Open:
    digest: str
    answer: Answer


class Reused(InputError):
    """A key that stood before other events."""


def checked_key(key: str) -> str:
    """A key as it may be: visible ASCII, not too long."""
    if not 1 <= len(key) <= LONGEST or not all("!" <= letter <= "~" for letter in key):
        raise InputError(f"the idempotency-key must be 1 to {LONGEST} visible ASCII characters, such as a UUID.")
    return key


class Requests:
    """Safe to use from several threads."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._seen: OrderedDict[str, Known | _Open] = OrderedDict()  # the oldest first
        self._mutex = threading.Lock()

    def recall(self, known: Iterable[Known]) -> None:
        """What the log says of earlier requests, in its order."""
        for one in known:
            self.done(one)

    def begin(self, key: str, digest: str, answer: Answer) -> Known | Answer | None:
        """None: it is new, and `answer` will be its answer. Else what is known of it, or the answer it waits for."""
        with self._mutex:
            found = self._seen.get(key)
            if found is None:
                self._seen[key] = _Open(digest, answer)
                return None
        if found.digest != digest:
            raise Reused(f"the idempotency-key '{key}' stood before other events; give these a key of their own.")
        return found if isinstance(found, Known) else found.answer

    def done(self, known: Known) -> None:
        """It is on the disk."""
        with self._mutex:
            self._seen.pop(known.key, None)
            self._seen[known.key] = known
            while len(self._seen) > self._most:
                self._seen.popitem(last=False)

    def forget(self, key: str) -> None:
        """It did not get to the disk: whoever sends it again begins anew."""
        with self._mutex:
            if isinstance(self._seen.get(key), _Open):
                del self._seen[key]
