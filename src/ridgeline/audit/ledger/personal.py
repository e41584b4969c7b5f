"""Personal data: fields that are encrypted per person before they enter the ledger, so that they can be erased.

    policy = Policy(personal=("attributes.email",), person="attributes.user", find=("ip",))
    write_policy(paths, policy)
    personal = Personal(paths, origin)
    events = personal.encrypt(events)        # as they are appended; Ledger.append does it

Each value becomes a token, `[personal:<key id>:<ciphertext>]`, under a key of the person whom the event names. The
ledger, its copies, indexes, templates and exports have only tokens. Destroying the key erases all values of the person,
and no hash or proof changes (`persons.py`).

Text that occurs in a personal field is also encrypted wherever else the same event has it, and `find` encrypts e-mail
addresses and the like inside of texts. The cipher is ChaCha20-Poly1305, with a random nonce for each value; the origin
of the log and the path of the field are authenticated too. Values are padded, so that the length tells little.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ridgeline.audit.ledger.layout import LedgerPaths
from ridgeline.audit.ledger.persons import PersonKey, PersonKeys
from ridgeline.errors import InputError, MissingExtra, StoreError, unknown
from ridgeline.store import publish

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

MARK = "[personal:"
TOKEN = re.compile(r"\[personal:([0-9a-f]{16}):([A-Za-z0-9_-]{8,})\]")
_ANY_TOKEN = re.compile(r"\[personal:([0-9a-f]{16}):[A-Za-z0-9_-]*\]?")  # also one that was cut off
_PIECES = re.compile(rf"({_ANY_TOKEN.pattern.replace('(', '(?:', 1)})")  # splits a text at its tokens
_FORGED = "[personal?:"  # what a sender wrote that looks like a token
NO_PERSON = "-"  # the person of events that name none
_PADDING = 32  # bytes
_NONCE = 12  # bytes
_SHORTEST = 3  # characters of a personal text that is searched in the other fields of its event
_SMALL = 10_000  # smaller numbers are not searched: they occur everywhere
_FORMAT = 1
_PATH = re.compile(r"(?:actor|subject|attributes(?:\.[^\s,.]+)+)")

_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_PATTERNS = {
    "email": r"[\w.+%-]{1,64}(?:@|%40)(?:[\w-]{1,63}\.){1,8}[a-zA-Z]{2,24}(?![\w-])",
    "ip": rf"(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w]|\.\d)"
    r"|(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}(?![\w:])"
    r"|(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){1,6}(?::[0-9a-fA-F]{1,4}){1,6}(?![\w:])",
    "phone": r"(?<![\w+])\+\d{1,3}[ ./-]?(?:\(\d{1,4}\)[ ./-]?)?\d(?:[ ./-]?\d){5,12}(?!\d)",
    "card": r"(?<![\w-])\d(?:[ -]?\d){12,18}(?![\w-])",
    "iban": r"(?<!\w)[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?(?!\w)",
}
KINDS = tuple(_PATTERNS)


@dataclass(frozen=True)
class Policy:
    """What is personal in the events of a log.

    personal  paths of fields: actor, subject, or attributes.NAME
    person    path of the field that names the person
    find      kinds of personal texts to find in all texts: email, ip, phone, card, iban
    """

    personal: tuple[str, ...] = ()
    person: str | None = None
    find: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for path in (*self.personal, *((self.person,) if self.person is not None else ())):
            if not _PATH.fullmatch(path):
                raise InputError(f"'{path[:80]}' is no field of an event; give actor, subject or attributes.NAME.")
        for kind in self.find:
            if kind not in KINDS:
                raise unknown("kind of personal text", kind, KINDS)
        if (self.personal or self.find) and self.person is None:
            raise InputError("personal fields need a person; give the field that names him with --subject PATH.")

    def __bool__(self) -> bool:
        return bool(self.personal or self.find)

    def to_json(self) -> dict[str, Any]:
        return {"personal": list(self.personal), "person": self.person, "find": list(self.find)}


def read_policy(paths: LedgerPaths) -> Policy:
    """Return the policy of a log; an empty one if it has none."""
    path = paths.personal
    try:
        words = json.loads(path.read_text(encoding="utf-8"))
        if words["format"] != _FORMAT:
            raise ValueError("of another version")
        return Policy(tuple(words["personal"]), words["person"], tuple(words["find"]))
    except FileNotFoundError:
        return Policy()
    except (ValueError, KeyError, TypeError, AttributeError, InputError) as error:
        raise StoreError(
            f"{path} is damaged ({error}), so it is unknown which fields are personal; restore it from a copy."
        ) from None


def write_policy(paths: LedgerPaths, policy: Policy) -> None:
    with publish(paths.personal, mode=0o600) as tmp:
        tmp.write_text(json.dumps({"format": _FORMAT, **policy.to_json()}, indent=1) + "\n", encoding="utf-8")


class Personal:
    """Encrypts the personal values of events, and decrypts tokens."""

    def __init__(self, paths: LedgerPaths, origin: str) -> None:
        self.policy = read_policy(paths)
        self.keys = PersonKeys(paths.persons)
        self._origin = origin
        self._ciphers: dict[bytes, ChaCha20Poly1305] = {}
        self._finder = (
            re.compile("|".join(f"(?P<{kind}>{_PATTERNS[kind]})" for kind in self.policy.find))
            if self.policy.find
            else None
        )

    def encrypt(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the events with tokens in place of their personal values; their keys are on the disk.

        Internal events (`ridgeline.…`) stay as they are. Raises `InputError`, with the number of the event, for a value
        that is no JSON.
        """
        if not self.policy:
            return [dict(event) if isinstance(event, Mapping) else event for event in events]
        plain = [event if _is_plain(event) else None for event in events]
        names = [NO_PERSON if event is None else self.name_person(event) for event in plain]
        keys = self.keys.get(name for name, event in zip(names, plain, strict=True) if event is not None)
        encrypted = list[dict[str, Any]]()
        for number, (given, event, name) in enumerate(zip(events, plain, names, strict=True)):
            try:
                encrypted.append(given if event is None else self._encrypt_event(event, keys[name]))  # type: ignore[arg-type]
            except (TypeError, ValueError, RecursionError):
                raise InputError(f"event {number} has a personal value that is no JSON; correct it.") from None
        return encrypted

    def decrypt(self, value: Any, keys: Mapping[str, bytes], path: str = "") -> Any:
        """Return the value with the tokens of these keys (id → key) decrypted; other tokens stay."""
        if isinstance(value, str):
            return self._decrypt_text(value, keys, path) if MARK in value else value
        if isinstance(value, Mapping):
            plain = {
                self._decrypt_text(name, keys, path) if MARK in name else name: item for name, item in value.items()
            }
            return {name: self.decrypt(item, keys, f"{path}.{name}" if path else name) for name, item in plain.items()}
        if isinstance(value, list):
            return [self.decrypt(item, keys, path) for item in value]
        return value

    def digest(self, data: bytes) -> str:
        """Return a digest that the log may hold: guesses cannot be tested without the secret of this machine."""
        if not self.policy:
            return hashlib.sha256(data).hexdigest()[:32]
        return hmac.new(self.keys.secret(), data, hashlib.sha256).hexdigest()[:32]

    def name_person(self, event: Mapping[str, Any]) -> str:
        """Return the person of an event, or `NO_PERSON`."""
        matches = list(_find(event, self.policy.person)) if self.policy.person is not None else []
        value = matches[0][0][matches[0][1]] if matches else None
        if value is None or value == "":
            return NO_PERSON
        return value if isinstance(value, str) else json.dumps(value, sort_keys=True)

    def _encrypt_event(self, event: Mapping[str, Any], key: PersonKey) -> dict[str, Any]:
        copy = {
            name: _copy(value) if name in ("actor", "subject", "attributes") else value for name, value in event.items()
        }
        texts = set[str]()
        for path in self.policy.personal:
            for parent, name in list(_find(copy, path)):
                value = parent[name]
                if value is None or isinstance(value, _Encrypted):
                    continue
                texts.update(_list_texts(value))
                parent[name] = _Encrypted(self._make_token(value, key, path))
        replace = self._make_replacer(texts, key)
        return {
            name: replace(value, name) if name in ("actor", "subject", "attributes") else value
            for name, value in copy.items()
        }

    def _make_replacer(self, texts: set[str], key: PersonKey) -> Callable[[Any, str], Any]:
        """Return a function that encrypts these texts, and what the policy finds, in all strings of a value."""
        texts = {form for text in texts if len(text) >= _SHORTEST for form in _list_forms(text)}
        known = sorted(texts, key=len, reverse=True)

        def replace(value: Any, path: str) -> Any:
            if isinstance(value, _Encrypted):
                return str.__str__(value)
            if isinstance(value, str):
                return replace_text(value, path)
            if isinstance(value, dict):
                return {replace_name(name, path): replace(item, f"{path}.{name}") for name, item in value.items()}
            if isinstance(value, list):
                return [replace(item, path) for item in value]
            if isinstance(value, int | float) and (str(value) in texts or self._is_kind(str(value))):
                return self._make_token(value, key, path)
            return value

        def replace_name(name: Any, path: str) -> Any:
            if not isinstance(name, str):
                return name  # the ledger refuses it
            # Texts are found as whole words; in the attributes' own names (host, message) only those of a kind.
            return replace_text(name, path, r"(?<!\w)(?:%s)(?!\w)" if path != "attributes" else None)

        def replace_text(text: str, path: str, form: str | None = "%s") -> str:
            if MARK in text:
                text = text.replace(MARK, _FORGED)
            matches = [known_text for known_text in known if known_text in text] if form is not None else []
            exact = re.compile(form % "|".join(map(re.escape, matches))) if form and matches else None
            for pattern in (exact, self._finder):
                if pattern is not None and pattern.search(text):
                    pieces = _PIECES.split(text)  # do not search in the tokens of the first pattern
                    pieces[::2] = [pattern.sub(encrypt_match(path), piece) for piece in pieces[::2]]
                    text = "".join(pieces)
            return text

        def encrypt_match(path: str) -> Callable[[re.Match[str]], str]:
            def encrypt(match: re.Match[str]) -> str:
                if match.lastgroup in _CHECKS and not _CHECKS[match.lastgroup](match[0]):
                    return match[0]
                return self._make_token(match[0], key, path)

            return encrypt

        return replace

    def _is_kind(self, text: str) -> bool:
        """Whether all of a text is what the policy finds, such as the number of a card."""
        match = self._finder.fullmatch(text) if self._finder is not None else None
        return match is not None and _CHECKS.get(match.lastgroup, bool)(match[0])

    def _make_token(self, value: Any, key: PersonKey, path: str) -> str:
        data = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
        data += b" " * (-len(data) % _PADDING)  # blanks after JSON mean nothing
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._cipher(key.secret).encrypt(nonce, data, self._context(key.id, path))
        return f"{MARK}{key.id}:{base64.urlsafe_b64encode(sealed).rstrip(b'=').decode()}]"

    def _decrypt_text(self, text: str, keys: Mapping[str, bytes], path: str) -> Any:
        entire = TOKEN.fullmatch(text)
        if entire is not None:
            return self._open_token(entire, keys, path)
        return TOKEN.sub(lambda match: str(self._open_token(match, keys, path)), text)

    def _open_token(self, match: re.Match[str], keys: Mapping[str, bytes], path: str) -> Any:
        """Return the value of a token; the token itself if its key is not given, or if it was not made here."""
        from cryptography.exceptions import InvalidTag

        secret = keys.get(match[1])
        if secret is None:
            return match[0]
        try:
            sealed = base64.urlsafe_b64decode(match[2] + "=" * (-len(match[2]) % 4))
            data = self._cipher(secret).decrypt(sealed[:_NONCE], sealed[_NONCE:], self._context(match[1], path))
            return json.loads(data)
        except (InvalidTag, ValueError, binascii.Error):
            return match[0]

    def _context(self, key_id: str, path: str) -> bytes:
        return f"{self._origin}\n{key_id}\n{path}".encode()

    def _cipher(self, secret: bytes) -> ChaCha20Poly1305:
        cipher = self._ciphers.get(secret)
        if cipher is None:
            try:
                from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
            except ImportError:
                raise MissingExtra("encrypting personal data", "ledger") from None
            if len(self._ciphers) >= 4096:
                self._ciphers.clear()
            cipher = self._ciphers[secret] = ChaCha20Poly1305(secret)
        return cipher


class _Encrypted(str):
    """A token that was made for this event; nothing in it is searched."""

    __slots__ = ()


def describe_token(text: str) -> str:
    """Return a text for a template or an embedding: a token says only that something personal was there.

    >>> describe_token("mail to [personal:0123456789abcdef:AAAAAAAAAAAA] sent")
    'mail to personal sent'
    """
    return _ANY_TOKEN.sub("personal", text) if MARK in text else text


def name_pseudonym(text: str) -> str:
    """Return a pseudonym in place of a value that is a token: the same for all values of one person.

    >>> name_pseudonym("[personal:0123456789abcdef:AAAAAAAAAAAA]")
    'person-0123456789abcdef'
    """
    match = _ANY_TOKEN.fullmatch(text) if text.startswith(MARK) else None
    return f"person-{match[1]}" if match is not None else text


def shorten_tokens(text: str) -> str:
    """Return a text for people: `[personal]` in place of each token."""
    return _ANY_TOKEN.sub("[personal]", text) if MARK in text else text


def list_key_ids(raw: bytes) -> set[str]:
    """Return the ids of the keys of all tokens in an entry."""
    if MARK.encode() not in raw:
        return set()
    return {match[1] for match in TOKEN.finditer(raw.decode("utf-8", "replace"))}


def _is_plain(event: Any) -> bool:
    """Whether an event may have personal values; one that the ledger will refuse, or its own, has none."""
    if not isinstance(event, Mapping) or not isinstance(event.get("attributes") or {}, Mapping):
        return False
    return not str(event.get("action", "")).startswith("ridgeline.")


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _copy(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_copy(item) for item in value]
    return value


def _find(event: Mapping[str, Any], path: str) -> Iterable[tuple[Any, Any]]:
    """Yield (parent, name) of the fields with this path; names may contain dots, and lists are searched."""
    yield from _find_below(event, path.split("."))


def _find_below(node: Any, names: list[str]) -> Iterable[tuple[Any, Any]]:
    if isinstance(node, list):
        for item in node:
            yield from _find_below(item, names)
    elif isinstance(node, Mapping):
        for count in range(len(names), 0, -1):
            name = ".".join(names[:count])
            if name in node:
                if count == len(names):
                    yield node, name
                else:
                    yield from _find_below(node[name], names[count:])


def _list_texts(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int) and abs(value) >= _SMALL:
        yield str(value)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _list_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_texts(item)


def _list_forms(text: str) -> Iterable[str]:
    """Yield a text as it is, as JSON inside of another text has it, and as a URL has it."""
    yield from {
        text,
        json.dumps(text)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        quote(text, safe=""),
        quote(text),
    }


def _is_card(text: str) -> bool:
    """Whether the digits have Luhn's check digit."""
    digits = [int(c) for c in text if c.isdigit()]
    doubled = [sum(divmod(2 * d, 10)) if k % 2 else d for k, d in enumerate(reversed(digits))]
    return sum(doubled) % 10 == 0 and len(set(digits)) > 1


def _is_iban(text: str) -> bool:
    """Whether the check digits are right (ISO 7064, mod 97)."""
    compact = text.replace(" ", "")
    return len(compact) >= 15 and int("".join(str(int(c, 36)) for c in compact[4:] + compact[:4])) % 97 == 1


_CHECKS: dict[str | None, Callable[[str], bool]] = {"card": _is_card, "iban": _is_iban}
