"""Secrets stay out of the log: values under telling names, and what follows such names in a line of text.

>>> redact({"user": "ann", "api_token": "x1", "env": {"PASSWORD": "y"}})
{'user': 'ann', 'api_token': '[redacted]', 'env': {'PASSWORD': '[redacted]'}}
>>> redact("login password=hunter2 from 10.0.0.1")
'login password=[redacted] from 10.0.0.1'
>>> redact("mysql --password hunter2 -e quit")
'mysql --password [redacted] -e quit'

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
# A password too, but only as a word of its own (db_pass, dbPass, not bypass or passed) …
_PASS = r"(?:(?<![^\W_])pass|(?-i:(?<=[a-z])Pass))"  # noqa: S105
# … and in a text only where a value is assigned to it: "PASS: test_login" and "second pass: done" are none.
_ASSIGNED = r"\s*(?:=>|:=|=|:)\s*"
# What follows an option in a sentence about it, where no value does; and another option, or a count.
_NO_VALUE = r"(?!-|\d(?!\S)|(?:options?|flag|argument|is|are|was|and|or|not|must|may|can|cannot|needs|requires)\b)"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
_NAME = re.compile(r"[a-z0-9_.-]{1,40}")
_SHAPES = re.compile(
    r"(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))"
    r"|(?P<bearer>\b(?:Bearer|Basic)[ ]+)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<url>://[^\s:/]*:)[^\s@/]+(?:@[^\s@/?#\"'<>]+)*(?=@)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{8,2000}+\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    re.DOTALL,
)
_SHAPED = re.compile(r"-----BEGIN|Bearer|Basic|://|AKIA|ASIA|gh[pousr]_|eyJ")
_PLAIN = {str, int, float, bool, type(None)}
_DEEPEST = 64


class Redaction:
    """The list of names, in a form that is quick to ask; `names=()` hides nothing."""

    def __init__(self, names: Iterable[str] = NAMES, more: Iterable[str] = ()) -> None:
        known = {name.strip().lower().replace("-", "_") for name in (*names, *more)}
        for name in known:
            if not _NAME.fullmatch(name):
                raise InputError(f"'{name}' cannot be a name to redact; give letters, digits, '_', '.' or '-'.")
        self.names = tuple(sorted(known))
        inside = "|".join(re.escape(name).replace("_", "[-_ ]?") for name in self.names)
        word = _PASS if "password" in known else r"(?!)"
        self._key = re.compile(rf"{inside}|{word}$", re.IGNORECASE) if self.names else None
        self._telling = re.compile(rf"{inside}|pass(?![^\W_])")  # of small letters, which is much quicker
        hints = {name.rpartition("_")[2] for name in self.names} | ({"pass"} if "password" in known else set())
        self._hints = tuple(hint for hint in hints if not any(other in hint for other in hints - {hint}))
        self._hides = lru_cache(4096)(lambda name: self._key is not None and self._key.search(name) is not None)
        # A value is quoted, or goes to the next blank, comma, semicolon or closing bracket; that of an option to the
        # next blank or quote. A name is looked for where it is telling and not from its beginning, and a bounded way
        # on from there: else a line of one long word would take hours.
        self._text = re.compile(
            rf"(?P<option>(?<![\w-])--?(?!-|no-|ask-)[\w.-]{{0,60}}?(?:{inside}|{word})\s+){_NO_VALUE}"
            rf"(?:{_QUOTED}|[^\s\"']+)"
            rf"|(?P<name>(?:(?:{inside})[\w.-]{{0,60}}[\"']?{_ASSIGNED}|{word}(?:\s*=(?!=)\s*|[\"']{_ASSIGNED}))"
            rf"(?:(?:Bearer|Basic)\s+)?)(?:{_QUOTED}|[^\s,;)\]}}\"']+)",
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
        if self._hinted(text):
            text = self._text.sub(rf"\g<option>\g<name>{HIDDEN}", text)
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
        small = text.lower()
        return any(map(small.__contains__, self._hints)) and self._telling.search(small) is not None

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
