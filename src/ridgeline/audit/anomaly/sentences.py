"""An event as a sentence: what the miner and the encoder read.

>>> sentence({"action": "firewall.rule.delete", "actor": "guest", "subject": "deny all", "attributes": {"n": 1}})
'firewall.rule.delete deny all n=1'

The action comes first, because the miner never takes the first word for a variable. Who, when and in which session are
left out: the detector looks at them apart, and the same deed of somebody else is the same deed. Attributes that begin
with an underscore (as the journal's do) say where an event came from, not what happened: they are left out too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ridgeline.audit.anomaly.sessions import NAMES

LONGEST = 400  # letters of one attribute's value
_WORDS = re.compile(r"[^\W\d_]+")


def sentence(event: Mapping[str, Any]) -> str:
    """Action, subject and attributes (by name), one space apart."""
    words = [str(event.get("action") or "event").replace(" ", "_")]
    subject = event.get("subject")
    if subject:
        words.append(str(subject))
    attributes = event.get("attributes")
    if attributes:
        said = [name for name in sorted(attributes) if name not in NAMES and name[:1] != "_"]
        words += [f"{name}={_value(attributes[name])}" for name in said]
    return " ".join(words)


def spoken(template: str) -> str:
    """A template's words without masks and punctuation: what the encoder reads, which was taught on prose.

    >>> spoken("firewall.rule.delete deny all n=<*>")
    'firewall rule delete deny all n'
    """
    return " ".join(_WORDS.findall(template)) or template


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value[:LONGEST]
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)[:LONGEST]
