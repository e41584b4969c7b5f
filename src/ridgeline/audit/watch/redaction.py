"""Redaction keeps secrets out of the log: values under names like `password`, and values after such names in a text.

>>> redact({"user": "ann", "api_token": "x1", "env": {"PASSWORD": "y"}})
{'user': 'ann', 'api_token': '[redacted]', 'env': {'PASSWORD': '[redacted]'}}
>>> redact("login password=hunter2 from 10.0.0.1")
'login password=[redacted] from 10.0.0.1'
>>> redact("mysql --password hunter2 -e quit; mysql -u ann -phunter2; curl -u ann:hunter2 https://x.example")
'mysql --password [redacted] -e quit; mysql -u ann -p[redacted]; curl -u ann:[redacted] https://x.example'

An entry can only be removed by pruning its bundle, so events are redacted before they reach the ledger. Redaction knows
names and a few formats (PEM keys, bearer tokens, URLs with passwords); it cannot find a secret inside a sentence.
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
# `pass` and `otp` are secrets only as separate words: db_pass, dbPass, but not bypass, passed or hotplug …
_PASS = r"(?:(?<![^\W_])pass|(?-i:(?<=[a-z])Pass))"  # noqa: S105
_ONE_TIME = r"(?:(?<![^\W_])t?otp|(?-i:(?<=[a-z])(?:Otp|OTP)))"
# … and in a text only if a value is assigned to it: "PASS: test_login" and "second pass: done" are not passwords.
_ASSIGNED = r"\s*(?:=>|:=|=|:)\s*"
# These follow an option that has no value: words of a sentence about it, another option, or a count.
_NO_VALUE = r"(?!-|\d(?!\S)|(?:options?|flag|argument|is|are|was|and|or|not|must|may|can|cannot|needs|requires)\b)"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
_NAME = re.compile(r"[a-z0-9_.-]{1,40}")
_SHAPES = re.compile(
    r"(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))"
    r"|(?P<bearer>\b(?:Bearer|Basic)[ ]+)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<url>://[^\s:/]*:)[^\s@/]+(?:@[^\s@/?#\"'<>]+)*(?=@)"
    # Options of programs that take a password without naming it; the distance to the program's name is bounded.
    r"|(?P<user>\b(?:curl|wget|https?|lftp)\s[^\n|;&]{0,160}?(?<=\s)(?:-u|--user|--proxy-user|-U|-a|--auth)[ =]?"
    r"(?P<quote>[\"'])?[^\s:\"']{1,100}:)(?(quote)[^\"'\n]+|[^\s\"']+)"
    rf"|(?P<attached>\b(?:mysql|mariadb)[\w-]*\s[^\n|;&]{{0,160}}?(?<=\s)-p)(?:{_QUOTED}|[^\s\"';|&]+)"
    rf"|(?P<sshpass>\bsshpass\s+-p\s*)(?:{_QUOTED}|[^\s\"']+)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{8,2000}+\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    re.DOTALL,
)
_SHAPED = re.compile(r"-----BEGIN|Bearer|Basic|://|AKIA|ASIA|gh[pousr]_|eyJ")
_PROGRAMS = ("sshpass", "curl", "wget", "lftp", "mysql", "mariadb", "http ", "https ")  # faster than in the pattern
_PLAIN = {str, int, float, bool, type(None)}
_DEEPEST = 64


class Redaction:
    """Hides the values of secret names.

    names  the names to hide (default: `NAMES`); `()` hides nothing
    more   further names
    """

    def __init__(self, names: Iterable[str] = NAMES, more: Iterable[str] = ()) -> None:
        known = {name.strip().lower().replace("-", "_") for name in (*names, *more)}
        for name in known:
            if not _NAME.fullmatch(name):
                raise InputError(f"'{name}' cannot be a name to redact; give letters, digits, '_', '.' or '-'.")
        self.names = tuple(sorted(known))
        inside = "|".join(re.escape(name).replace("_", "[-_ ]?") for name in self.names)
        word = _PASS if "password" in known else r"(?!)"
        one_time = _ONE_TIME if "password" in known else r"(?!)"
        self._key = re.compile(rf"{inside}|(?:{word}|{one_time})$", re.IGNORECASE) if self.names else None
        self._telling = re.compile(
            rf"{inside}|(?:pass|otp)(?![^\W_])"
        )  # searches lower-case text, which is much faster
        hints = {name.rpartition("_")[2] for name in self.names} | ({"pass", "otp"} if "password" in known else set())
        self._hints = tuple(hint for hint in hints if not any(other in hint for other in hints - {hint}))
        self._hides = lru_cache(4096)(lambda name: self._key is not None and self._key.search(name) is not None)
        # A value is quoted, or ends at the next blank, comma, semicolon or closing bracket; the value of an option ends
        # at the next blank or quote. The pattern starts at the secret part of a name and reads a bounded distance from
        # there: otherwise a line of one long word would take hours.
        self._text = re.compile(
            rf"(?P<option>(?<![\w-])--?(?!-|no-|ask-)[\w.-]{{0,60}}?(?:{inside}|{word})\s+){_NO_VALUE}"
            rf"(?:{_QUOTED}|[^\s\"']+)"
            rf"|(?P<name>(?:(?:{inside})[\w.-]{{0,60}}[\"']?{_ASSIGNED}|{word}(?:\s*=(?!=)\s*|[\"']{_ASSIGNED}))"
            rf"(?:(?:Bearer|Basic)\s+)?)(?:{_QUOTED}|[^\s,;)\]}}\"']+)",
            re.IGNORECASE,
        )
        self._one_time = re.compile(  # apart from the others, which it would slow down
            rf"(?P<name>{one_time}(?:\s*=(?!=)\s*|[\"']{_ASSIGNED}))(?:{_QUOTED}|[^\s,;)\]}}\"']+)", re.IGNORECASE
        )

    def __call__(self, value: Any, depth: int = 0) -> Any:
        """Return the value with its secrets hidden."""
        if self._key is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if depth > _DEEPEST:
            return value  # the ledger refuses deeper nesting
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
            text = self._one_time.sub(rf"\g<name>{HIDDEN}", text) if "otp" in text.lower() else text
        if _may_have_shape(text):
            text = _SHAPES.sub(_hide_shape, text)
        return text

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event with the secrets of its actor, subject and attributes hidden."""
        if self._key is None or self._harmless(event):
            return event
        hiding = ("actor", "subject", "attributes")
        return {name: self(value) if name in hiding else value for name, value in event.items()}

    def _hinted(self, text: str) -> bool:
        """Whether the patterns can match at all; faster than the patterns."""
        small = text.lower()
        return any(map(small.__contains__, self._hints)) and self._telling.search(small) is not None

    def _harmless(self, event: dict[str, Any]) -> bool:
        """Whether one search over all texts shows that the event has no secret: flat attributes, no secret name."""
        attributes = event.get("attributes") or {}
        if type(attributes) is not dict or any(map(self._hides, attributes)):
            return False
        texts = [event.get("actor"), event.get("subject"), *attributes.values()]
        if not all(type(text) in _PLAIN for text in texts):
            return False
        joined = "\n".join([text for text in texts if type(text) is str])
        return not self._hinted(joined) and not _may_have_shape(joined)


def _may_have_shape(text: str) -> bool:
    return _SHAPED.search(text) is not None or (" -" in text and any(map(text.__contains__, _PROGRAMS)))


def _hide_shape(match: re.Match[str]) -> str:
    prefix = next((match[name] for name in ("bearer", "url", "user", "attached", "sshpass") if match[name]), "")
    return prefix + HIDDEN


redact = Redaction()
