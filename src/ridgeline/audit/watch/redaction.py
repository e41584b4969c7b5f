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
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from ridgeline.errors import InputError
from ridgeline.native import WordSearch

HIDDEN = "[redacted]"
NAMES = (
    "password", "passwd", "passphrase", "passcode", "pwd", "secret", "token", "apikey", "api_key", "access_key",
    "private_key", "authorization", "credential", "cookie", "session_key", "client_key", "psk", "signing_key",
    "verification_code", "one_time_code", "recovery_code", "auth_code", "mfa_code",
)  # fmt: skip
# `pass` and `otp` are secrets only as separate words: db_pass, dbPass, but not bypass, passed or hotplug …
_PASS = r"(?:(?<![^\W_])pass|(?-i:(?<=[a-z])Pass))"  # noqa: S105
_ONE_TIME = r"(?:(?<![^\W_])t?otp|(?-i:(?<=[a-z])(?:Otp|OTP)))"
# … and in a text only if a value is assigned to it: "PASS: test_login" and "second pass: done" are not passwords.
_ASSIGNED = r"\s*(?:=>|:=|=|:)\s*"
_VALUE_OF_NAME = r"[\"']\s*,\s*[\"']value[\"']\s*:\s*"  # "name":"DB_PASSWORD","value":"…"
# Digits may be a one-time password after a colon, too, and as the value of an option: npm publish --otp 123456.
_BEFORE_CODE = r"(?:\s*:\s*|(?<=-otp)\s+)(?=\d{4,10}(?!\w))"
# These follow an option that has no value: words of a sentence about it, another option, or a count.
_NO_VALUE = r"(?!-|\d(?!\S)|(?:options?|flag|argument|is|are|was|and|or|not|must|may|can|cannot|needs|requires)\b)"
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
_NAME = re.compile(r"[a-z0-9_.-]{1,40}")
_SHAPES = re.compile(
    r"(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z))"
    r"|(?P<bearer>\b(?:Bearer|Basic)[ ]+)[A-Za-z0-9._~+/=-]{8,}"
    r"|(?P<url>://[^\s:/]*:)[^\s@/]+(?:@[^\s@/?#\"'<>]+)*(?=@)"
    r"|(?P<address>://)[A-Za-z0-9_-]{20,}(?=@)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}|\bglpat-[\w-]{20,}|\bxox[abeoprs]-[\w-]{10,}"
    r"|\b(?:hf|npm)_[A-Za-z0-9]{30,}|\bsk-[\w-]{20,}"
    r"|\beyJ[A-Za-z0-9_-]{8,2000}+\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    re.DOTALL,
)
# _SHAPES matches only a text with one of these, or with all of _ADDRESS.
_SHAPED = (
    "-----BEGIN", "Bearer", "Basic", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "eyJ", "glpat-",
    "xoxa-", "xoxb-", "xoxe-", "xoxo-", "xoxp-", "xoxr-", "xoxs-", "hf_", "npm_", "sk-",
)  # fmt: skip
_ADDRESS = ("://", "@")
# Programs that take a password without naming it: words to look for first, which is faster than the pattern; the
# program; what comes before the password in its arguments.
_OPTIONS = (
    (
        ("curl", "wget", "http", "lftp"),
        r"curl|wget|https?|lftp",
        r"(?:-u|--user|--proxy-user|-U|-a|--auth)[ =]?(?P<quote>[\"'])?[^\s:\"']{1,100}:",
    ),
    (("smb", "rpcclient"), r"smb\w+|rpcclient", r"(?:-U|--user)[ =]?(?P<quote>[\"'])?[^\s%\"']{1,100}%"),
    (("mysql", "mariadb"), r"(?:mysql|mariadb)[\w-]*", r"-p"),
    (("7z", "rar"), r"7z[az]?|7zz|rar|unrar", r"-p"),
    (("sshpass", "mongo", "useradd", "usermod"), r"sshpass|mongo\w*|useradd|usermod", r"-p\s*"),
    ((" login",), r"(?:docker|podman|nerdctl|buildah|skopeo|helm registry|az) login", r"-p[ =]?"),
    (("redis-cli",), r"redis-cli", r"-a\s+"),
    (("ldap",), r"ldap\w+", r"-w\s*"),
    (("zip", "ipmitool", "sqlcmd", "bcp"), r"zip|unzip|ipmitool|sqlcmd|bcp", r"-P\s*"),
    (("snmp",), r"snmp\w+", r"-[AXc]\s*"),
    (("openssl",), r"openssl", r"(?:-k\s+|-pass(?:in|out)?\s+pass:)"),
    (("nmcli",), r"nmcli", r"password\s+"),
    (("htpasswd",), r"htpasswd", r"-[a-z]*b[a-z]*\s+\S{1,200}\s+\S{1,100}\s+"),
)


def _compile_option(program: str, option: str) -> re.Pattern[str]:
    """The option is near the program; its value is not hidden yet, and ends at a blank, or at the quote before it."""
    option_pattern = rf"(?P<before>(?<![\w-])(?:{program})(?:\s[^\n|;&]{{0,160}}?)?(?<=\s){option})"
    plain = rf"(?:{_QUOTED}|(?:[^\s\"';|&]|[;|&](?=[^\s\"']))+)"
    value = rf"(?(quote)[^\"'\n]+|{plain})" if "(?P<quote>" in option else plain
    return re.compile(rf"{option_pattern}(?!\[redacted\]){value}")


_ARGUMENTS = tuple((words, _compile_option(program, option)) for words, program, option in _OPTIONS)
_MOST_ARGUMENTS = 8  # passwords of one command
_DEEPEST = 64
_MOST_BLANKS = 3  # in a name, each of which may be written in four ways


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
        key = re.compile(rf"{inside}|(?:{word}|{one_time})$", re.IGNORECASE) if self.names else None
        self._key = key
        self._telling = re.compile(
            rf"{inside}|(?:pass|otp)(?![^\W_])"
        )  # searches lower-case text, which is much faster
        hints = {name.rpartition("_")[2] for name in self.names} | ({"pass", "otp"} if "password" in known else set())
        self._hints = tuple(hint for hint in hints if not any(other in hint for other in hints - {hint}))
        self._hides = lru_cache(4096)(lambda name: key is not None and key.search(name) is not None)
        self._words = _make_word_search(self.names, self._hides)
        # A value is quoted, or ends at the next blank, comma, semicolon or closing bracket; the value of an option ends
        # at the next blank or quote. The pattern starts at the secret part of a name and reads a bounded distance from
        # there: otherwise a line of one long word would take hours.
        self._text = re.compile(
            rf"(?P<option>(?<![\w-])--?(?!-|no-|ask-)[\w.-]{{0,60}}?(?:{inside}|{word})\s+){_NO_VALUE}"
            rf"(?:{_QUOTED}|[^\s\"']+)"
            rf"|(?P<name>(?:(?:{inside})[\w.-]{{0,60}}(?:[\"']?{_ASSIGNED}|{_VALUE_OF_NAME})|{word}(?:\s*=(?!=)\s*|[\"']{_ASSIGNED}))"
            rf"(?:(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)\s+)?)(?:{_QUOTED}|[^\s,;)\]}}\"']+)",
            re.IGNORECASE,
        )
        self._one_time = re.compile(  # apart from the others, which it would slow down
            rf"(?P<name>{one_time}(?:\s*=(?!=)\s*|[\"']{_ASSIGNED}|{_BEFORE_CODE}))(?:{_QUOTED}|[^\s,;)\]}}\"']+)",
            re.IGNORECASE,
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
            named = value.get("name", value.get("key")) if "value" in value else None
            hides_value = isinstance(named, str) and self._hides(named)  # {"name": "DB_PASSWORD", "value": …} of a pod
            return {
                key: HIDDEN
                if item not in (None, "") and (self._hides(str(key)) or (hides_value and key == "value"))
                else self(item, depth + 1)
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
        if any(map(text.__contains__, _SHAPED)) or all(map(text.__contains__, _ADDRESS)):
            text = _SHAPES.sub(_hide_shape, text)
        return _hide_arguments(text) if " -" in text or "nmcli" in text else text

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event with the secrets of its actor, subject and attributes hidden."""
        if self._key is None or not self._words.matches(event):  # nearly all: no word that a pattern needs
            return event
        hiding = ("actor", "subject", "attributes")
        return {name: self(value) if name in hiding else value for name, value in event.items()}

    def _hinted(self, text: str) -> bool:
        """Whether the patterns can match at all; faster than the patterns."""
        small = text.lower()
        return any(map(small.__contains__, self._hints)) and self._telling.search(small) is not None


def _make_word_search(names: Iterable[str], hides: Callable[[str], bool]) -> WordSearch:
    """Make the search for the words without which no pattern of `Redaction` matches; each use of them is a bit."""
    alone, dash, argument, scheme, at = (1 << k for k in range(5))
    words = [(word, alone, False) for name in names for word in _spell(name)]
    words += [(word, alone, False) for word in ("pass", "otp")] if "password" in names else []
    words += [(word, alone, True) for word in (*_SHAPED, "nmcli")]
    words += [(word, argument, True) for listed, _ in _ARGUMENTS for word in listed]
    words += [(" -", dash, True), (_ADDRESS[0], scheme, True), (_ADDRESS[1], at, True)]
    return WordSearch(words, [alone, dash | argument, scheme | at], hides)


def _spell(name: str) -> list[str]:
    """Return the ways to write a name: with `_`, `-`, a blank or nothing between its parts."""
    first, *others = name.split("_")
    if len(others) > _MOST_BLANKS:
        return [max(name.split("_"), key=len)]
    spelled = [first]
    for part in others:
        spelled = [before + blank + part for before in spelled for blank in ("_", "-", " ", "")]
    return spelled


def _hide_arguments(text: str) -> str:
    for words, pattern in _ARGUMENTS:
        if any(map(text.__contains__, words)):
            for _ in range(_MOST_ARGUMENTS):  # a match starts at the program, so each pass hides one per command
                text, hidden = pattern.subn(rf"\g<before>{HIDDEN}", text)
                if not hidden:
                    break
    return text


def _hide_shape(match: re.Match[str]) -> str:
    prefix = next((match[name] for name in ("bearer", "url", "address") if match[name]), "")
    return prefix + HIDDEN


redact = Redaction()
