"""Sort events by the controls of SOC 2 or PCI DSS, by their words: a first proposal for an auditor.

>>> find_controls({"action": "firewall.rule.delete", "subject": "deny all", "actor": "guest", "attributes": {}}, "pci")
('1.2.7', '10.2.1.7')
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ridgeline.errors import unknown

# control, its subject, the words of an event that concern it (matched in action, subject, actor, message)
_ACCESS = r"\b(?:log[io]n|logon|logout|sshd?|session|auth\w*|pam_\w+|sudo|su)\b"
_FAILED = r"fail|invalid|denied|refused|unauthor|incorrect|illegal"
_ACCOUNT = (
    r"\b(?:useradd|userdel|usermod|groupadd|passwd|adduser|deluser|credential\w*)\b"
    r"|\b(?:user|group|account|role)\b.*\b(?:add|creat|delet|remov|chang)"
)
_BOUNDARY = r"firewall|iptables|nftables|\bnft\b|\bport\b.*\bopen|network\.|\bovs\b|bridge|\broute"
_SYSTEM = r"\b(?:create\w*|delete\w*|remove\w*|install\w*|wipe|destroy\w*|add\w*)\b"
_CONFIG = r"systemd\.|\bunit\b|config|package|\b(?:apt|dpkg|yum|dnf)\b|kernel|module|deploy|upgrade|reload"
_OURS = r"^ridgeline\.(?:watch\.(?:start|stop|drops|gap|down|up)|ledger\.prune)"
MAPS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "soc2": (
        ("CC6.1", "logical access", _ACCESS),
        ("CC6.2", "users registered, changed, removed", _ACCOUNT),
        ("CC6.6", "protection at the boundary", _BOUNDARY),
        ("CC7.1", "changes to configuration", _CONFIG),
        ("CC7.2", "anomalies and failed access", _FAILED),
        ("CC8.1", "changes to infrastructure", _SYSTEM),
        ("CC4.1", "the monitoring itself", _OURS),
    ),
    "pci": (
        ("1.2.7", "network security controls", _BOUNDARY),
        ("8.2.4", "accounts and identifiers", _ACCOUNT),
        ("10.2.1.2", "actions with administrative access", r"\broot\b|\bsudo\b|\buid 0\b|admin"),
        ("10.2.1.4", "invalid access attempts", rf"(?:{_ACCESS}).*(?:{_FAILED})|(?:{_FAILED}).*(?:{_ACCESS})"),
        ("10.2.1.5", "identification and authentication", _ACCESS),
        ("10.2.1.6", "audit logs started, stopped, paused", _OURS),
        ("10.2.1.7", "system-level objects created, deleted", _SYSTEM),
    ),
}
_READY = {
    name: tuple((control, re.compile(words, re.IGNORECASE)) for control, _, words in rows)
    for name, rows in MAPS.items()
}


def check_map(name: str) -> str:
    if name not in MAPS:
        raise unknown("control map", name, MAPS)
    return name


def find_controls(event: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the controls of map `name` that an event concerns."""
    text = " ".join(
        str(part)
        for part in (event["action"], event["subject"], event["actor"], event["attributes"].get("message"))
        if part
    )
    return tuple(control for control, words in _READY[name] if words.search(text))


def find_own_controls(event: Mapping[str, Any], name: str) -> list[str]:
    """Return the controls that an internal event concerns: by its action only, since its subject names a source."""
    return [control for control, words in _READY[name] if words.pattern == _OURS and words.search(event["action"])]


def find_title(name: str, control: str) -> str:
    return next((what for known, what, _ in MAPS[name] if known == control), "")
