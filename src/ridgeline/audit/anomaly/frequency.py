"""How unusual a value is, by its frequency among earlier values, without assuming a distribution.

>>> seen = Frequencies()
>>> for _ in range(99):
...     _ = seen.add("root")
>>> seen.add("guest")
0.01

The answer is a conformal p-value: the share of all values, the new one included, that are as rare or rarer. If values
come in random order, at most a share p of them get a p-value of p or less, whatever their number of kinds: in a field
that always changes no value is unusual, in a field that never changes a new value is.

Values older than one to two `span`s are forgotten.

`Hours` answers the same question for the time of day. It counts days: an hour with many events is one hour of one day.

>>> usual = Hours()
>>> day, hour = 86_400 * 10**9, 3_600 * 10**9
>>> for d in range(30):
...     usual.learn("backup.run", d * day + 3 * hour)
>>> round(usual.p("backup.run", 30 * day + 3 * hour), 2), round(usual.p("backup.run", 30 * day + 14 * hour), 2)
(1.0, 0.03)
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Self

SPAN = 20_000
USUAL = 0.1  # a value with this share is usual: p is 1
HOUR_NS = 3_600 * 10**9
ACTIONS = 4_096
DAYS = 60  # beyond that, old days count for half


class Frequencies:
    """Counts of values in the current and the previous generation; a generation has `span` values."""

    __slots__ = ("_counts", "_current", "_fresh", "_kinds", "_total", "span")

    def __init__(self, span: int = SPAN) -> None:
        self.span = span
        self._counts: dict[Hashable, int] = {}  # both generations together
        self._current: dict[Hashable, int] = {}
        self._kinds: dict[int, int] = {}  # count → how many values have it
        self._total = self._fresh = 0  # values in both generations, in the current one

    def __len__(self) -> int:
        return self._total

    def __contains__(self, value: Hashable) -> bool:
        return value in self._counts

    def count(self, value: Hashable) -> int:
        return self._counts.get(value, 0)

    def distinct(self) -> int:
        return len(self._counts)

    def most(self, n: int) -> list[tuple[Hashable, int]]:
        """Return the `n` most frequent values with their counts; of equal counts the older value first."""
        return Counter(self._counts).most_common(n)

    def p(self, value: Hashable) -> float:
        """Return p of one more value, without adding it."""
        count, total = self._counts.get(value, 0) + 1, self._total + 1
        if count > USUAL * total:
            return 1.0
        # The value's own count rises by one: it moves from the values with count - 1 to those with count.
        rarer = count + sum(k * n for k, n in self._kinds.items() if k <= count)
        return (rarer - (count - 1)) / total

    def add(self, value: Hashable) -> float:
        """Add one more value and return its p."""
        p = self.p(value)
        self.learn(value)
        return p

    def learn(self, value: Hashable) -> None:
        counts, current, kinds = self._counts, self._current, self._kinds
        before = counts.get(value, 0)
        counts[value] = count = before + 1
        current[value] = current.get(value, 0) + 1
        if before:
            left = kinds[before] - 1
            if left:
                kinds[before] = left
            else:
                del kinds[before]
        kinds[count] = kinds.get(count, 0) + 1
        self._total += 1
        self._fresh += 1
        if self._fresh >= self.span:  # the current generation becomes the previous one
            self._take(self._current, {})

    def state(self) -> list[Any]:
        return [self.span, *([list(item) for item in counts.items()] for counts in (self._counts, self._current))]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        frequencies = cls(state[0])
        frequencies._take(dict(map(tuple, state[1])), dict(map(tuple, state[2])))
        return frequencies

    def _take(self, counts: dict[Hashable, int], current: dict[Hashable, int]) -> None:
        self._counts, self._current = counts, current
        self._kinds = dict(Counter(counts.values()))
        self._total, self._fresh = sum(counts.values()), sum(current.values())


class Contexts:
    """Frequencies of a value in a context: the actors of an action, what follows a template. Bounded."""

    __slots__ = ("_by_context", "most", "span")

    def __init__(self, span: int, most: int) -> None:
        self.span, self.most = span, most
        # Not a plain dict: finding its first key scans all slots that were deleted at its front.
        self._by_context: OrderedDict[Hashable, Frequencies] = OrderedDict()

    def get(self, context: Hashable) -> Frequencies | None:
        return self._by_context.get(context)

    def p(self, context: Hashable, value: Hashable) -> float:
        frequencies = self._by_context.get(context)
        return frequencies.p(value) if frequencies is not None else 1.0

    def add(self, context: Hashable, value: Hashable) -> None:
        frequencies = self._by_context.get(context)
        if frequencies is None:
            frequencies = self._by_context[context] = Frequencies(self.span)
            if len(self._by_context) > self.most:
                self._by_context.popitem(last=False)
        elif len(self._by_context) > self.most // 2:  # far below the limit the order does not matter yet
            self._by_context.move_to_end(context)
        frequencies.learn(value)

    def state(self) -> list[Any]:
        return [
            self.span,
            self.most,
            [[context, frequencies.state()] for context, frequencies in self._by_context.items()],
        ]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        contexts = cls(state[0], state[1])
        contexts._by_context = OrderedDict(
            (context, Frequencies.restore(state_of_context)) for context, state_of_context in state[2]
        )
        return contexts


class Hours:
    def __init__(self) -> None:
        # action → [last day, days, then for each of 24 hours (UTC) the last day and the days]
        self._by_context: dict[str, list[int]] = {}

    def p(self, action: str, time: int) -> float:
        """Return the share of days, today included, with this action at this hour or an adjacent one."""
        days_by_hour = self._by_context.get(action)
        if days_by_hour is None:
            return 1.0
        day, hour = divmod(time // HOUR_NS, 24)
        days = days_by_hour[1] - (days_by_hour[0] == day)
        usual_days = 0
        for at in (2 + 2 * hour, 2 + 2 * ((hour - 1) % 24), 2 + 2 * ((hour + 1) % 24)):
            at_hour = days_by_hour[at + 1] - (days_by_hour[at] == day)
            if at_hour > usual_days:
                usual_days = at_hour
        return (usual_days + 1) / (days + 1)

    def learn(self, action: str, time: int) -> None:
        day, hour = divmod(time // HOUR_NS, 24)
        days_by_hour = self._by_context.get(action)
        if days_by_hour is None:
            if len(self._by_context) >= ACTIONS:
                del self._by_context[next(iter(self._by_context))]
            days_by_hour = self._by_context[action] = [-1, 0] + [-1, 0] * 24
        for at in (0, 2 + 2 * hour):
            if days_by_hour[at] != day:
                days_by_hour[at] = day
                days_by_hour[at + 1] += 1
        if days_by_hour[1] > DAYS:
            days_by_hour[1::2] = [(n + 1) // 2 for n in days_by_hour[1::2]]

    def state(self) -> list[Any]:
        return [[action, days_by_hour] for action, days_by_hour in self._by_context.items()]

    @classmethod
    def restore(cls, state: Sequence[Any]) -> Self:
        hours = cls()
        hours._by_context = {action: list(days_by_hour) for action, days_by_hour in state}
        return hours
