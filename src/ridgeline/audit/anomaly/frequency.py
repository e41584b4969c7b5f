"""How unusual is a value, given those that came before? By frequency, without assuming a distribution.

>>> seen = Frequencies()
>>> for _ in range(99):
...     _ = seen.add("root")
>>> seen.add("guest")
0.01

The answer is a conformal p-value: the share of all values, the new one included, that are as rare as it or rarer. If
values come in no particular order, at most a share p of them get a value of p or less, however many kinds there are: in
a field that is new every time nothing is unusual, in one that never changes a new value is.

What is older than one to two `span`s is forgotten.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Self

SPAN = 20_000
USUAL = 0.1  # a value that makes up this share is usual: p is not worked out further


class Frequencies:
    """Counts of values in the present and the last generation; a generation has `span` values."""

    __slots__ = ("_counts", "_current", "_fresh", "_kinds", "_total", "span")

    def __init__(self, span: int = SPAN) -> None:
        self.span = span
        self._counts: dict[Hashable, int] = {}  # both generations together
        self._current: dict[Hashable, int] = {}
        self._kinds: dict[int, int] = {}  # count → how many values have it
        self._total = self._fresh = 0  # values in both generations, in the present one

    def __len__(self) -> int:
        return self._total

    def __contains__(self, value: Hashable) -> bool:
        return value in self._counts

    def count(self, value: Hashable) -> int:
        return self._counts.get(value, 0)

    def distinct(self) -> int:
        return len(self._counts)

    def most(self, n: int) -> list[tuple[Hashable, int]]:
        """The most frequent values, equal ones by when they came."""
        return Counter(self._counts).most_common(n)

    def p(self, value: Hashable) -> float:
        """As `add`, but nothing is remembered."""
        count, total = self._counts.get(value, 0) + 1, self._total + 1
        if count > USUAL * total:
            return 1.0
        # Its own count rises by one: it leaves those with count - 1 and stands with those of count.
        rarer = count + sum(k * n for k, n in self._kinds.items() if k <= count)
        return (rarer - (count - 1)) / total

    def add(self, value: Hashable) -> float:
        """p of one more value, which is remembered."""
        p = self.p(value)
        self.learn(value)
        return p

    def learn(self, value: Hashable) -> None:
        count = self._counts.get(value, 0) + 1
        self._counts[value] = count
        self._current[value] = self._current.get(value, 0) + 1
        kinds = self._kinds
        if count > 1:
            if kinds[count - 1] == 1:
                del kinds[count - 1]
            else:
                kinds[count - 1] -= 1
        kinds[count] = kinds.get(count, 0) + 1
        self._total += 1
        self._fresh += 1
        if self._fresh >= self.span:  # the present generation becomes the last one; the last is forgotten
            self._take(self._current, {})

    def state(self) -> list[Any]:
        return [self.span, *([list(item) for item in held.items()] for held in (self._counts, self._current))]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        made = cls(state[0])
        made._take(dict(map(tuple, state[1])), dict(map(tuple, state[2])))
        return made

    def _take(self, counts: dict[Hashable, int], current: dict[Hashable, int]) -> None:
        self._counts, self._current = counts, current
        self._kinds = dict(Counter(counts.values()))
        self._total, self._fresh = sum(counts.values()), sum(current.values())


class Contexts:
    """Frequencies of a value given another: who does this, what follows that. Those unused for longest are dropped."""

    __slots__ = ("_held", "most", "span")

    def __init__(self, span: int, most: int) -> None:
        self.span, self.most = span, most
        # An ordered one: the first key of a plain dict is looked for behind all that were taken from its front.
        self._held: OrderedDict[Hashable, Frequencies] = OrderedDict()

    def get(self, context: Hashable) -> Frequencies | None:
        return self._held.get(context)

    def p(self, context: Hashable, value: Hashable) -> float:
        found = self._held.get(context)
        return found.p(value) if found is not None else 1.0

    def add(self, context: Hashable, value: Hashable) -> None:
        found = self._held.get(context)
        if found is None:
            found = self._held[context] = Frequencies(self.span)
            if len(self._held) > self.most:
                self._held.popitem(last=False)
        elif len(self._held) > self.most // 2:  # with room to spare, who was used last does not matter yet
            self._held.move_to_end(context)
        found.learn(value)

    def state(self) -> list[Any]:
        return [self.span, self.most, [[context, held.state()] for context, held in self._held.items()]]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        made = cls(state[0], state[1])
        made._held = OrderedDict((context, Frequencies.restore(held)) for context, held in state[2])
        return made
