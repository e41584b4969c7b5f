"""The watcher: it records events from sources in the ledger, scores them, and records every score."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.audit.watch.background import BackgroundProcess as BackgroundProcess
    from ridgeline.audit.watch.capacity import HOUR as HOUR
    from ridgeline.audit.watch.capacity import RATES as RATES
    from ridgeline.audit.watch.capacity import forecast as forecast
    from ridgeline.audit.watch.delivery import Failed as Failed
    from ridgeline.audit.watch.doctor import examine_log as examine_log
    from ridgeline.audit.watch.doctor import examine_machine as examine_machine
    from ridgeline.audit.watch.incidents import group_alerts as group_alerts
    from ridgeline.audit.watch.intake import Intake as Intake
    from ridgeline.audit.watch.internal_events import make_label_event as make_label_event
    from ridgeline.audit.watch.internal_events import read_alerts as read_alerts
    from ridgeline.audit.watch.internal_events import read_request_keys as read_request_keys
    from ridgeline.audit.watch.keyed_append import KeyedAppend as KeyedAppend
    from ridgeline.audit.watch.meaning import Encode as Encode
    from ridgeline.audit.watch.meaning import Hit as Hit
    from ridgeline.audit.watch.meaning import Meaning as Meaning
    from ridgeline.audit.watch.meaning import make_encoder as make_encoder
    from ridgeline.audit.watch.meaning import open_meaning as open_meaning
    from ridgeline.audit.watch.notify import Notifier as Notifier
    from ridgeline.audit.watch.notify import QuietHours as QuietHours
    from ridgeline.audit.watch.notify import check_targets as check_targets
    from ridgeline.audit.watch.prometheus import format_metrics as format_metrics
    from ridgeline.audit.watch.redaction import NAMES as NAMES
    from ridgeline.audit.watch.redaction import Redaction as Redaction
    from ridgeline.audit.watch.redaction import redact as redact
    from ridgeline.audit.watch.rules import DEFAULT_SEVERITY as DEFAULT_SEVERITY
    from ridgeline.audit.watch.rules import Rule as Rule
    from ridgeline.audit.watch.rules import make_rule as make_rule
    from ridgeline.audit.watch.rules import read_rules as read_rules
    from ridgeline.audit.watch.scheduling import freeze_objects as freeze_objects
    from ridgeline.audit.watch.scheduling import short_switches as short_switches
    from ridgeline.audit.watch.scorer import Scorer as Scorer
    from ridgeline.audit.watch.scorer import Settings as Settings
    from ridgeline.audit.watch.state import WatchPaths as WatchPaths
    from ridgeline.audit.watch.watcher import Watcher as Watcher

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "background": ["BackgroundProcess"],
        "capacity": ["HOUR", "RATES", "forecast"],
        "delivery": ["Failed"],
        "doctor": ["examine_log", "examine_machine"],
        "incidents": ["group_alerts"],
        "intake": ["Intake"],
        "internal_events": ["make_label_event", "read_alerts", "read_request_keys"],
        "keyed_append": ["KeyedAppend"],
        "meaning": ["Encode", "Hit", "Meaning", "make_encoder", "open_meaning"],
        "notify": ["Notifier", "QuietHours", "check_targets"],
        "prometheus": ["format_metrics"],
        "redaction": ["NAMES", "Redaction", "redact"],
        "rules": ["DEFAULT_SEVERITY", "Rule", "make_rule", "read_rules"],
        "scheduling": ["freeze_objects", "short_switches"],
        "scorer": ["Scorer", "Settings"],
        "state": ["WatchPaths"],
        "watcher": ["Watcher"],
    },
)
