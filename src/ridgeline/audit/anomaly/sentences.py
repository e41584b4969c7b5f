"""Describe an event as a sentence, for the template miner and the encoder.

>>> describe_event({"action": "firewall.rule.delete", "actor": "guest", "subject": "deny all", "attributes": {"n": 1}})
'firewall.rule.delete deny all n=1'

The action comes first, because the miner never treats the first word as a variable. The actor, the time and the session
are left out: the detector uses them separately, and the same action of another actor is the same action. An encrypted
personal value is the word "personal". Attributes
that begin with an underscore (as those of the journal) tell the origin of an event, not what happened: they are left
out too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ridgeline.audit.anomaly.sessions import NAMES
from ridgeline.audit.ledger.personal import describe_token

LONGEST = 400  # most characters of the value of an attribute
_ENCODE = json.JSONEncoder(ensure_ascii=False, sort_keys=True, default=str).encode
_HIDDEN = frozenset(NAMES)
_WORDS = re.compile(r"[^\W\d_]+")
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")  # between the words of CamelCase


def describe_event(event: Mapping[str, Any]) -> str:
    """Return action, subject and attributes (sorted by name), separated by one space."""
    words = [str(event.get("action") or "event").replace(" ", "_")]
    subject = event.get("subject")
    if subject:
        words.append(str(subject))
    attributes = event.get("attributes")
    if attributes:
        for name in sorted(attributes):
            if name not in _HIDDEN and name[:1] != "_":
                value = attributes[name]
                words.append(f"{name}={(value if type(value) is str else _describe_value(value))[:LONGEST]}")
    return describe_token(" ".join(words))


def strip_masks(template: str) -> str:
    """Return the words of a template without masks and punctuation: the encoder was trained on prose.

    >>> strip_masks("FirewallDisabled firewalld")
    'Firewall Disabled firewalld'
    >>> strip_masks("firewall.rule.delete deny all n=<*>")
    'firewall rule delete deny all n'
    """
    return " ".join(_WORDS.findall(_HUMP.sub(" ", template))) or template


def _describe_value(value: Any) -> str:
    if isinstance(value, str):
        return value
    return str(value) if type(value) is int else _ENCODE(value)
