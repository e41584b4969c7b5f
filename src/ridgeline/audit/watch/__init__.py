"""The watcher: events from sources into the ledger, then scored, and every score recorded beside what it speaks of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.watch.alerts import label_event as label_event
    from ridgeline.audit.watch.alerts import read_alerts as read_alerts
    from ridgeline.audit.watch.capacity import HOUR as HOUR
    from ridgeline.audit.watch.capacity import RATES as RATES
    from ridgeline.audit.watch.capacity import forecast as forecast
    from ridgeline.audit.watch.encoding import encoder as encoder
    from ridgeline.audit.watch.intake import Intake as Intake
    from ridgeline.audit.watch.meaning import open_meaning as open_meaning
    from ridgeline.audit.watch.own import known_keys as known_keys
    from ridgeline.audit.watch.positions import Positions as Positions
    from ridgeline.audit.watch.prometheus import metrics as metrics
    from ridgeline.audit.watch.redaction import NAMES as NAMES
    from ridgeline.audit.watch.redaction import Redaction as Redaction
    from ridgeline.audit.watch.redaction import redact as redact
    from ridgeline.audit.watch.scheduling import prompt as prompt
    from ridgeline.audit.watch.scheduling import set_aside as set_aside
    from ridgeline.audit.watch.scorer import Scorer as Scorer
    from ridgeline.audit.watch.settings import Settings as Settings
    from ridgeline.audit.watch.state import Places as Places
    from ridgeline.audit.watch.vocabulary import Encode as Encode
    from ridgeline.audit.watch.watcher import Watcher as Watcher

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "alerts": ["label_event", "read_alerts"],
        "capacity": ["HOUR", "RATES", "forecast"],
        "encoding": ["encoder"],
        "intake": ["Intake"],
        "meaning": ["open_meaning"],
        "own": ["known_keys"],
        "positions": ["Positions"],
        "prometheus": ["metrics"],
        "redaction": ["NAMES", "Redaction", "redact"],
        "scheduling": ["prompt", "set_aside"],
        "scorer": ["Scorer"],
        "settings": ["Settings"],
        "state": ["Places"],
        "vocabulary": ["Encode"],
        "watcher": ["Watcher"],
    },
)
