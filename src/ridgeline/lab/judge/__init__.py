"""From records to verdicts: statistics, comparisons, limits, scaling laws, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.judge.analyse import Row as Row
    from ridgeline.lab.judge.analyse import rate_unit as rate_unit
    from ridgeline.lab.judge.compare import Change as Change
    from ridgeline.lab.judge.cost import Plan as Plan
    from ridgeline.lab.judge.cost import Service as Service
    from ridgeline.lab.judge.cost import Versus as Versus
    from ridgeline.lab.judge.findings import Standing as Standing
    from ridgeline.lab.judge.findings import standings as standings
    from ridgeline.lab.judge.findings import times as times
    from ridgeline.lab.judge.history import Series as Series
    from ridgeline.lab.judge.limiting import RESOURCES as RESOURCES
    from ridgeline.lab.judge.limiting import percent as percent
    from ridgeline.lab.judge.prices import HOURS_A_YEAR as HOURS_A_YEAR
    from ridgeline.lab.judge.prices import OLD_DAYS as OLD_DAYS
    from ridgeline.lab.judge.prices import Price as Price
    from ridgeline.lab.judge.rates import parse_rate as parse_rate
    from ridgeline.lab.judge.rates import parse_time as parse_time
    from ridgeline.lab.judge.scaling import Scaling as Scaling
    from ridgeline.lab.judge.stats import Estimate as Estimate
    from ridgeline.lab.judge.verdict import Comparison as Comparison
    from ridgeline.lab.judge.verdict import Validity as Validity

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "analyse": ["Row", "rate_unit"],
        "compare": ["Change"],
        "cost": ["Plan", "Service", "Versus"],
        "findings": ["Standing", "standings", "times"],
        "history": ["Series"],
        "limiting": ["RESOURCES", "percent"],
        "prices": ["HOURS_A_YEAR", "OLD_DAYS", "Price"],
        "rates": ["parse_rate", "parse_time"],
        "scaling": ["Scaling"],
        "stats": ["Estimate"],
        "verdict": ["Comparison", "Validity"],
    },
)
