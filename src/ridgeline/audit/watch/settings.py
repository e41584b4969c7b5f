"""How a watcher works: one frozen set of settings, checked once."""

from __future__ import annotations

from dataclasses import dataclass

from ridgeline.errors import InputError

# What comes later in a batch makes what came first wait: on a CPU a few sentences that are new take tens of ms. So
# beside a CPU nobody waits for more than a few, but what is there already goes together: a batch has its own cost.
SMALL, LARGE = 128, 512


@dataclass(frozen=True)
class Settings:
    batch: int | None = None  # entries scored together, at most; None: LARGE, and beside a CPU SMALL are waited for
    wait_ms: float = 50.0  # how long the first of them waits for more
    alert_rate: float | None = None  # share of events that may be alerts; the detector's own if None
    model: str = "all-MiniLM-L6-v2"
    device: str = "auto"
    save_s: float = 60.0  # how often what was learnt is saved
    score: bool = True  # False: only record

    def __post_init__(self) -> None:
        if self.batch is not None and not 1 <= self.batch <= 8192:
            raise InputError(f"--batch is {self.batch}; give 1 to 8192 events.")
        if not 0 <= self.wait_ms <= 60_000:
            raise InputError(f"--wait is {self.wait_ms:g} ms; give 0 to 60000.")
        if self.alert_rate is not None and not 0 < self.alert_rate < 1:
            raise InputError(f"--alert-rate is {self.alert_rate:g}; give a share between 0 and 1, such as 0.001.")
