"""A limit of requests per second for each client: a token bucket that holds the requests of one second.

rates = RequestRates(50)
wait_s = rates.take("10.0.0.7", time.monotonic())  # 0.0: go ahead
"""

from __future__ import annotations

import math
from collections import OrderedDict

from ridgeline.errors import InputError

MAX_CLIENTS = 10_000  # whose requests are counted; the one that asked longest ago is forgotten


class RequestRates:
    """Counts the requests of each client; for one thread."""

    def __init__(self, per_second: float) -> None:
        if not 0 < per_second < math.inf:
            raise InputError(f"the rate is {per_second:g}; give a number of requests per second above 0.")
        self.per_second = per_second
        self._capacity = max(1.0, per_second)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by client: requests, at which second

    def take(self, client: str, now_s: float) -> float:
        """Count a request; return 0.0, or, for one too many, the seconds after which the client may ask again."""
        left, last_s = self._left.pop(client, (self._capacity, now_s))
        left = min(self._capacity, left + (now_s - last_s) * self.per_second)
        is_allowed = left >= 1
        self._left[client] = (left - is_allowed, now_s)
        if len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return 0.0 if is_allowed else (1 - left) / self.per_second
