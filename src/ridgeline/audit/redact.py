"""Secrets stay out of the log: values under telling names, and what follows such names in a line of text.

>>> redact({"user": "ann", "api_token": "x1", "env": {"PASSWORD": "y"}})
{'user': 'ann', 'api_token': '[redacted]', 'env': {'PASSWORD': '[redacted]'}}
>>> redact("login password=hunter2 from 10.0.0.1")
'login password=[redacted] from 10.0.0.1'

An entry cannot be taken back without pruning its whole bundle, so this happens before anything reaches the ledger. It
knows names and a few shapes; a secret in the middle of a sentence it cannot know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ridgeline.errors import InputError

HIDDEN = "[redacted]"
NAMES = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "apikey", "api_key", "access_key",
    "private_key", "authorization", "credential", "cookie", "session_key", "client_key", "psk", "signing_key",
)  # fmt: skip
_NAME = re.compile(r"[a-z0-9_.-]{1,40}")
_SHAPES = re.compile(
    r"(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))"
    r"|(?P<bearer>\b(?:Bearer|Basic)[ ]+)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<url>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s@/]+(?=@)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    re.DOTALL,
)
_SHAPED = re.compile(r"-----BEGIN|Bearer|Basic|://|AKIA|ASIA|gh[pousr]_|eyJ")
_PLAIN = {str, int, float, bool, type(None)}
_DEEPEST = 60


class Redaction:
    """The list of names, in a form that is quick to ask; `names=()` hides nothing."""

    def __init__(self, names: Iterable[str] = NAMES, more: Iterable[str] = ()) -> None:
        known = {name.strip().lower().replace("-", "_") for name in (*names, *more)}
        for name in known:
            if not _NAME.fullmatch(name):
                raise InputError(f"'{name}' cannot be a name to redact; give letters, digits, '_', '.' or '-'.")
        self.names = tuple(sorted(known))
        inside = "|".join(re.escape(name).replace("_", "[-_ ]?") for name in self.names)
        self._key = re.compile(inside, re.IGNORECASE) if self.names else None
        self._hints = tuple({name.rpartition("_")[2] for name in self.names})
        self._hides = lru_cache(4096)(lambda name: self._key is not None and self._key.search(name) is not None)
        # A value is quoted, or goes to the next blank, comma, semicolon or closing bracket.
        self._text = re.compile(
            rf"(?P<name>[\w.-]*(?:{inside})[\w.-]*[\"']?\s*(?:=|:)\s*(?:(?:Bearer|Basic)\s+)?)"
            r"(?P<value>\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?|[^\s,;)\]}\"']+)",
            re.IGNORECASE,
        )

    def __call__(self, value: Any, depth: int = 0) -> Any:
        """The value with secrets hidden; itself where it has none."""
        if self._key is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if depth > _DEEPEST:
            return value  # the ledger refuses what is nested deeper
        if isinstance(value, dict):
            return {
                key: HIDDEN if self._hides(str(key)) and item not in (None, "") else self(item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self(item, depth + 1) for item in value]
        return value

    def text(self, text: str) -> str:
        if self._key is None:
            return text
        if self._hinted(text) and self._key.search(text):
            text = self._text.sub(rf"\g<name>{HIDDEN}", text)
        if _SHAPED.search(text):
            text = _SHAPES.sub(_shape, text)
        return text

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event whose actor, subject and attributes hide what they must; itself where they hide nothing."""
        if self._key is None or self._harmless(event):
            return event
        hiding = ("actor", "subject", "attributes")
        return {name: self(value) if name in hiding else value for name, value in event.items()}

    def _hinted(self, text: str) -> bool:
        """Quicker than the patterns, and misses nothing that they find."""
        return any(map(text.lower().__contains__, self._hints))

    def _harmless(self, event: dict[str, Any]) -> bool:
        """Whether one look at all its texts is enough: flat attributes without a telling name, no hint anywhere."""
        attributes = event.get("attributes") or {}
        if type(attributes) is not dict or any(map(self._hides, attributes)):
            return False
        texts = [event.get("actor"), event.get("subject"), *attributes.values()]
        if not all(type(text) in _PLAIN for text in texts):
            return False
        joined = "\n".join([text for text in texts if type(text) is str])
        return not self._hinted(joined) and _SHAPED.search(joined) is None


def _shape(found: re.Match[str]) -> str:
    return (found["bearer"] or found["url"] or "") + HIDDEN


redact = Redaction()
