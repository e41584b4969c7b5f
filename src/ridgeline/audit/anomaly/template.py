"""Mine templates: the constant part of texts, with numbers, addresses and other variable parts masked.

>>> miner = Miner()
>>> miner.learn("session 4711 opened for root from 10.0.0.7:22").text
'session <*> opened for root from <*>'
>>> miner.learn("session 12 opened for root from 10.9.9.9:22")
Template(id=0, text='session <*> opened for root from <*>', new=False)

Two steps, in the spirit of Drain but without a similarity threshold:

1. Masking: times, addresses, hexadecimal words and all digits become `<*>`. It needs one text only.
2. A word is a variable once `VALUES` different words were seen in its place, with all other words equal. The first word
   never is one: it is the action of an event. Texts with variables are patterns, which other texts may match.

Step 2 is a closure over the set of texts, so the result of `find` does not depend on the order of learning (ids and
`new` do), as long as no memory limit is reached. The template of a template's text is that template.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

MASK: Final = "<*>"
VALUES = 4  # different words in one place that make it a variable
WORDS, LETTERS = 64, 120  # most words of a text, most characters of a masked word
LONGEST = 8_000  # more than WORDS × LETTERS with spaces, so that no template is cut
PLACES = 200_000  # places in memory that may become variable; beyond that, the oldest is forgotten
VARIABLES = 50_000
TEMPLATES = 50_000  # beyond that, new texts share one template per first word
RECENT = 100_000  # texts whose template is cached

_MOMENT = re.compile(  # Jun 14 15:16:01, Mon, 3 Feb 2025 9:05
    r"\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? +)?"
    r"(?:\d{1,2} +)?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]* +\d{1,4},? +\d{1,2}:\d\d[:\d.,]*"
)
_VARIABLE = re.compile(
    r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
    r"|\b[0-9a-fA-F]{1,2}(?::[0-9a-fA-F]{2}){5,}\b"  # a MAC address
    r"|(?<![\w:])(?=[0-9a-fA-F:]*\d)[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}(?![\w:])"  # IPv6
    r"|\b0[xX][0-9a-fA-F]+\b"
    r"|\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{6,}\b"  # a hash, an id
    r"|(?:(?<![^\W_])[-+])?\d+(?:[.,]\d+)*"  # a hyphen after a letter is no sign
)
_DIGIT = re.compile(r"\d")
# 2005-06-03, 10.0.0.7:22, 1/2: one value, not several.
_RUN = re.compile(r"<\*>(?:[-:./,_T+]?<\*>)+")

Place = tuple[str, str]  # the words before, the words after


@dataclass(frozen=True, slots=True)
class Template:
    """A template. `id` never changes; `text` gets a mask when a word becomes variable. `new`: this text created it."""

    id: int
    text: str
    new: bool = False


def mask(text: str) -> str:
    """Replace the variable parts of a text by `<*>` and separate its words by one space; it is idempotent.

    >>> mask("2005-06-03-15.42.50 R02-M1 kernel: 63543 exceptions at 0x1fa3 on fe80::1 by blk_-160899")
    '<*> R<*>-M<*> kernel: <*> exceptions at <*> on <*> by blk_<*>'
    """
    # Every pattern needs a digit and removes it, so a second masking matches nothing.
    text = text[:LONGEST]
    if ":" in text:  # every moment has one
        text = _MOMENT.sub(MASK, text)
    return " ".join(map(_word, text.split()[:WORDS]))


@lru_cache(RECENT)
def _word(word: str) -> str:
    if word.isdecimal():
        return MASK
    if _DIGIT.search(word) is None and MASK not in word:
        return word[:LETTERS]
    masked = _VARIABLE.sub(MASK, word)
    return (_RUN.sub(MASK, masked) if masked.count(MASK) > 1 else masked)[:LETTERS]


class Miner:
    """Learns the templates of texts, one text at a time."""

    def __init__(self, values: int = VALUES) -> None:
        self.values = values
        self._texts: list[str] = []  # id → text; merged templates keep their ids and share one text
        self._ids: dict[str, int] = {}  # text → id
        self._counted: OrderedDict[str, None] = OrderedDict()  # masked texts that were counted, oldest first
        self._places: OrderedDict[Place, tuple[str, ...]] = OrderedDict()  # the words seen there, oldest first
        self._variables: dict[Place, None] = {}  # places that are variable
        # (first word, length) → positions of the variables → texts; one lookup for each set of positions
        self._patterns: dict[tuple[str, int], dict[tuple[int, ...], set[str]]] = {}
        self._restore_known: dict[str, int] = {}  # masked text → id; cleared when a place becomes a variable

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, id: int) -> str:
        return self._texts[id]

    def learn(self, text: str) -> Template:
        """Return the template of a text; create it if it is new."""
        id = self._restore_known.get(text)  # the text may be masked already
        if id is None:
            masked = mask(text)
            id = self._restore_known.get(masked)
        if id is not None:
            return Template(id, self._texts[id])
        if masked not in self._counted:
            self._note(masked)
        text_found, count = self._resolve(masked), len(self._texts)
        id = self._ids.get(text_found)
        if id is None:
            id = self._add_template(text_found)
        if len(self._restore_known) >= RECENT:
            self._restore_known.clear()
        self._restore_known[masked] = id
        return Template(id, self._texts[id], new=len(self._texts) > count)

    def find(self, text: str) -> str:
        """Return the text of the template of a text, without learning."""
        return self._resolve(mask(text))

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values: a few long texts, which take a tenth of the time of many short ones."""
        first = _first_ids(self._texts)
        return {
            "values": self.values,
            "texts": _lines(self._texts),
            "ids": {text: id for text, id in self._ids.items() if first[text] != id},
            "noted": _lines(self._counted),
            "places": _lines(["\t".join((*place, *words)) for place, words in self._places.items()]),
            "variables": list(self._variables),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        miner = cls(state["values"])
        miner._texts = _split(state["texts"])
        miner._ids = _first_ids(miner._texts) | state["ids"]
        miner._counted = OrderedDict.fromkeys(_split(state["noted"]))
        for before, after, *words in (line.split("\t") for line in _split(state["places"])):
            miner._places[before, after] = tuple(words)
        for before, after in state["variables"]:
            miner._remember((before, after))
        return miner

    def _add_template(self, text: str) -> int:
        if len(self._texts) >= TEMPLATES:
            text = f"{text.partition(' ')[0]} {MASK}"
        return self._assign_id(text, len(self._texts))

    def _assign_id(self, text: str, id: int) -> int:
        """Give an id to a text that becomes a template."""
        id = self._ids.setdefault(text, id)
        if id == len(self._texts):
            self._texts.append(text)
        return id

    def _resolve(self, masked: str) -> str:
        """Mask every place of a text that is a known variable."""
        variables, text = self._variables, masked
        while True:
            for place, word in _places(text):
                if word != MASK and place in variables:
                    text = _fill(place, MASK)
                    break
            else:
                pattern = self._matching(text)
                if pattern == text:
                    return text
                text = pattern

    def _matching(self, text: str) -> str:
        """Return the pattern with the fewest variables that the text matches; else the text.

        It is needed if several variables have new values, so that no single place is known.
        """
        words = text.split(" ")
        best: tuple[int, list[str]] | None = None
        for holes, texts in self._patterns.get((words[0], len(words)), {}).items():
            candidate = words.copy()
            for at in holes:
                candidate[at] = MASK
            if " ".join(candidate) in texts:
                best = (len(holes), candidate) if best is None else min(best, (len(holes), candidate))
        return " ".join(best[1]) if best is not None else text

    def _remember(self, place: Place) -> None:
        self._variables[place] = None
        text = _fill(place, MASK)
        words = text.split(" ")
        holes = tuple(at for at, word in enumerate(words) if word == MASK)
        self._patterns.setdefault((words[0], len(words)), {}).setdefault(holes, set()).add(text)

    def _note(self, masked: str) -> None:
        """Count a text at each of its places, and the texts that result where a place is a variable."""
        waiting = [masked]
        while waiting:
            text = waiting.pop()
            if text in self._counted:
                continue
            self._counted[text] = None
            for place, word in _places(text):
                if self._is_variable(place, word):
                    waiting.append(_fill(place, MASK))
        while len(self._counted) > RECENT:
            self._counted.popitem(last=False)
        while len(self._places) > PLACES:
            self._places.popitem(last=False)

    def _is_variable(self, place: Place, word: str) -> bool:
        """Whether the place is a variable, now that it also had this word."""
        if place in self._variables:
            return True
        words = self._places.get(place, ())
        if word == MASK or word in words or len(self._variables) >= VARIABLES:
            return False
        words = (*words, word)
        if len(words) < self.values:
            self._places[place] = words
            return False
        self._places.pop(place, None)
        self._remember(place)
        self._merge(place, words)
        return True

    def _merge(self, place: Place, words: tuple[str, ...]) -> None:
        """Merge the templates that differ only at this place; the oldest id remains."""
        self._restore_known.clear()
        old = [id for word in words if (id := self._ids.pop(_fill(place, word), None)) is not None]
        if not old:
            return
        text = self._resolve(_fill(place, MASK))
        merged_id = self._ids.setdefault(text, min(old))
        for id in [merged_id, *old]:
            self._texts[id] = text


def _first_ids(texts: list[str]) -> dict[str, int]:
    first_ids: dict[str, int] = {}
    for id, text in enumerate(texts):
        first_ids.setdefault(text, id)
    return first_ids


def _lines(texts: Iterable[str]) -> str:
    """Join texts with newlines; a masked text has no newline and no tab."""
    return "".join([f"{text}\n" for text in texts])


def _split(lines: str) -> list[str]:
    return lines.split("\n")[:-1]


def _places(text: str) -> Iterator[tuple[Place, str]]:
    """Yield every word but the first, with the text before and after it."""
    start = text.find(" ")
    while start >= 0:
        end = text.find(" ", start + 1)
        if end < 0:
            yield (text[:start], ""), text[start + 1 :]
        else:
            yield (text[:start], text[end + 1 :]), text[start + 1 : end]
        start = end


def _fill(place: Place, word: str) -> str:
    before, after = place
    return f"{before} {word} {after}" if after else f"{before} {word}"
