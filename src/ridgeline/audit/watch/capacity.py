"""How busy a watcher will be at a rate of events, given its measured capacity.

>>> forecasts = {f.what: f for f in forecast(1000.0)}
>>> f"{forecasts['1,200 per hour'].utilisation:.6f}", f"{forecasts['1 M per day'].utilisation:.4f}"
('0.000333', '0.0116')
>>> forecasts["1 M per hour"].backlog_per_hour, round(forecasts["1 M per hour"].utilisation, 3)
(0.0, 0.278)
>>> round(forecast(100.0, {"1 M per hour": 1e6 / 3600})[0].backlog_per_hour)
640000
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.errors import InputError

HOUR = 3600.0
RATES = {
    "1,200 per hour": 1_200 / HOUR,
    "10,000 per hour": 10_000 / HOUR,
    "1 M per day": 1e6 / (24 * HOUR),
    "1 M per hour": 1e6 / HOUR,
}


@dataclass(frozen=True)
class Forecast:
    """What one rate of events means for a watcher of a given capacity."""

    what: str
    rate: float  # events per second
    utilisation: float  # share of the time the watcher is busy; above 1 it falls behind
    wait_s: float | None  # mean wait: Poisson arrivals, constant service time (M/D/1); None above 1
    backlog_per_hour: float  # growth of the backlog: entries recorded and not scored


def forecast(capacity: float, rates: Mapping[str, float] = RATES) -> list[Forecast]:
    """Forecast each rate (name → events per second) for a watcher that scores `capacity` events per second."""
    if not capacity > 0:
        raise InputError(f"the capacity is {capacity:g} events per second; give the measured value, above 0.")
    forecasts = []
    for what, rate in rates.items():
        busy = rate / capacity
        wait = busy / (2 * (1 - busy)) / capacity if busy < 1 else None
        forecasts.append(Forecast(what, rate, busy, wait, max(0.0, rate - capacity) * HOUR))
    return forecasts
