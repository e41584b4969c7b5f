"""Rules: conditions on events that always raise an alert, whatever the anomaly score is.

    ridgeline audit watch LOG … --rule 'action == "FirewallDisabled"' --severity high --rules rules.toml

A file of rules is TOML; `where` is in the filter language of every `--where`:

    [[rule]]
    name = "rollback by a stranger"
    where = "action == 'DeploymentRolledBack' and actor not in ('deploy', 'root')"
    severity = "critical"

>>> rule = make_rule("action == 'FirewallDisabled'", "high")
>>> rule.name, rule.matches({"action": "FirewallDisabled"}), rule.matches({"action": "PortAdded"})
("action == 'FirewallDisabled'", True, False)
>>> worst(["low", "critical", "high"])
'critical'
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.audit.ledger.event import compile_filter
from ridgeline.errors import InputError, PointedError, unknown
from ridgeline.store import explain_errors

SEVERITIES = ("low", "medium", "high", "critical")
DEFAULT_SEVERITY = "medium"  # of a rule that has no severity, and of an alert by its score alone
_LONGEST = 200  # characters of a name
_KEYS = ("name", "where", "severity")


@dataclass(frozen=True)
class Rule:
    """An alert about every event for which `matches` is true."""

    name: str
    severity: str
    matches: Callable[[Mapping[str, Any]], bool]


def make_rule(where: str, severity: str = DEFAULT_SEVERITY, name: str | None = None) -> Rule:
    """Make a rule of a condition; its name is the condition itself if it has none.

    Raises:
        PointedError: the condition cannot be read, or names no field of an event.
    """
    if severity not in SEVERITIES:
        raise unknown("severity", severity, SEVERITIES)
    return Rule(name or " ".join(where.split())[:_LONGEST], severity, compile_filter(where))


def read_rules(path: Path) -> list[Rule]:
    """Read a file of rules; raise `InputError` that names the file and the rule."""
    with explain_errors(path):
        data = path.read_bytes()
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no TOML: {str(error).rstrip('.')}.") from None
    rules = table.get("rule")
    if set(table) != {"rule"} or not isinstance(rules, list) or not rules:
        raise InputError(f"{path} has no rules; a rule is a table [[rule]] with name, where and severity.")
    return [_parse_rule(words, f"rule {number} of {path}") for number, words in enumerate(rules, start=1)]


def _parse_rule(words: object, place: str) -> Rule:
    if not isinstance(words, dict):
        raise InputError(f"{place} is no table; write [[rule]] with name, where and severity.")
    for key, value in words.items():
        if key not in _KEYS:
            raise InputError(f"{place} has an unknown name '{key}'; there are: {', '.join(_KEYS)}.")
        if not isinstance(value, str) or not value.strip() or len(value) > 10 * _LONGEST:
            raise InputError(f"{place}: {key} is {value!r}; give a text.")
    if "where" not in words:
        raise InputError(f"{place} has no condition; give where = \"action == '…'\".")
    try:
        return make_rule(
            words["where"], words.get("severity", DEFAULT_SEVERITY), words.get("name", "")[:_LONGEST] or None
        )
    except PointedError as error:
        raise PointedError(f"{place}: {error}") from None
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


def find_rules(rules: Sequence[Rule], event: Mapping[str, Any]) -> list[Rule]:
    """Return the rules that an event matches."""
    return [rule for rule in rules if rule.matches(event)]


def worst(severities: Iterable[str]) -> str:
    """Return the highest severity; `DEFAULT_SEVERITY` if there is none."""
    return max(severities, key=SEVERITIES.index, default=DEFAULT_SEVERITY)
