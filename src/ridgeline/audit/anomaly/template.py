"""Texts → templates: what stays the same once numbers, addresses and other variable parts are masked.

>>> miner = Miner()
>>> miner.learn("session 4711 opened for root from 10.0.0.7:22").text
'session <*> opened for root from <*>'
>>> miner.learn("session 12 opened for root from 10.9.9.9:22")
Template(id=0, text='session <*> opened for root from <*>', new=False)

Two steps, in the spirit of Drain but without a similarity threshold:

1. Masking: times, addresses, hexadecimal words and all digits become `<*>`. It looks at one text only.
2. A word is a variable once so many different words (`VALUES`) were seen in its place, all other words being equal.
   The first word never is: it is the action of an event. Texts with variables are patterns, which others may match.

Step 2 is a closure over the set of texts, so `find` answers the same whatever order they were learnt in (ids and `new`
do depend on it), as long as the limits on memory were not reached. A template's text is its own template.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

MASK: Final = "<*>"
VALUES = 4  # different words in one place make it a variable
WORDS, LETTERS = 64, 120  # of a text, of a masked word: what is looked at
LONGEST = 8_000  # more than WORDS × LETTERS with spaces, so that no template is cut
PLACES = 200_000  # places remembered that may turn out to be variable; beyond, the oldest gives way
VARIABLES = 50_000
TEMPLATES = 50_000  # beyond, new texts share one template per first word
RECENT = 100_000  # texts whose template is known at once

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
    """`id` stays; `text` may gain a mask when a word of it turns out to be a variable. `new`: made by this text."""

    id: int
    text: str
    new: bool = False


def mask(text: str) -> str:
    """A text with its variable parts as `<*>`, its words one space apart; masking it again changes nothing.

    >>> mask("2005-06-03-15.42.50 R02-M1 kernel: 63543 exceptions at 0x1fa3 on fe80::1 by blk_-160899")
    '<*> R<*>-M<*> kernel: <*> exceptions at <*> on <*> by blk_<*>'
    """
    # Every pattern needs a digit and takes it away, so a second time there is nothing to find.
    return " ".join([_word(word) for word in _MOMENT.sub(MASK, text[:LONGEST]).split()[:WORDS]])


@lru_cache(RECENT)
def _word(word: str) -> str:
    found = _RUN.sub(MASK, _VARIABLE.sub(MASK, word)) if _DIGIT.search(word) or MASK in word else word
    return found[:LETTERS]


class Miner:
    """Templates of texts, learnt one at a time."""

    def __init__(self, values: int = VALUES) -> None:
        self.values = values
        self._texts: list[str] = []  # id → text; templates that became one keep their ids and share its text
        self._ids: dict[str, int] = {}  # text → id
        self._noted: OrderedDict[str, None] = OrderedDict()  # masked texts that were counted, oldest first
        self._places: OrderedDict[Place, tuple[str, ...]] = OrderedDict()  # the words seen there, oldest first
        self._variables: dict[Place, None] = {}  # places that are variable
        # first word, length → where the variables are → texts with them: as many lookups as there are sets of places
        self._patterns: dict[tuple[str, int], dict[tuple[int, ...], set[str]]] = {}
        self._known: dict[str, int] = {}  # masked text → id, as long as no place becomes a variable

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, id: int) -> str:
        return self._texts[id]

    def learn(self, text: str) -> Template:
        """The template of a text; made if there is none."""
        id = self._known.get(text)  # as it is, if it is masked already
        if id is None:
            masked = mask(text)
            id = self._known.get(masked)
        if id is not None:
            return Template(id, self._texts[id])
        if masked not in self._noted:
            self._note(masked)
        found, count = self._resolved(masked), len(self._texts)
        id = self._ids.get(found)
        if id is None:
            id = self._made(found)
        if len(self._known) >= RECENT:
            self._known.clear()
        self._known[masked] = id
        return Template(id, self._texts[id], new=len(self._texts) > count)

    def find(self, text: str) -> str:
        """The text of the template a text would have; nothing is learnt."""
        return self._resolved(mask(text))

    def state(self) -> dict[str, Any]:
        """All that was learnt, as JSON has it: a few long texts, which take a tenth of the time of many short ones."""
        first = _first_ids(self._texts)
        return {
            "values": self.values,
            "texts": _lines(self._texts),
            "ids": {text: id for text, id in self._ids.items() if first[text] != id},
            "noted": _lines(self._noted),
            "places": _lines(["\t".join((*place, *held)) for place, held in self._places.items()]),
            "variables": list(self._variables),
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        made = cls(state["values"])
        made._texts = _split(state["texts"])
        made._ids = _first_ids(made._texts) | state["ids"]
        made._noted = OrderedDict.fromkeys(_split(state["noted"]))
        for before, after, *held in (line.split("\t") for line in _split(state["places"])):
            made._places[before, after] = tuple(held)
        for before, after in state["variables"]:
            made._remember((before, after))
        return made

    def _made(self, text: str) -> int:
        if len(self._texts) >= TEMPLATES:
            text = f"{text.partition(' ')[0]} {MASK}"
        return self._given(text, len(self._texts))

    def _given(self, text: str, id: int) -> int:
        """The id of a text that is a template from now on."""
        id = self._ids.setdefault(text, id)
        if id == len(self._texts):
            self._texts.append(text)
        return id

    def _resolved(self, masked: str) -> str:
        """The text with every place masked that is known to be a variable."""
        variables, text = self._variables, masked
        while True:
            for place, word in _places(text):
                if word != MASK and place in variables:
                    text = _filled(place, MASK)
                    break
            else:
                found = self._matching(text)
                if found == text:
                    return text
                text = found

    def _matching(self, text: str) -> str:
        """The pattern that has all words of a text but for its own variables, the closest; else the text.

        It is needed where several variables have values that were never seen, so that no single place is known.
        """
        words = text.split(" ")
        best: tuple[int, list[str]] | None = None
        for holes, held in self._patterns.get((words[0], len(words)), {}).items():
            found = words.copy()
            for at in holes:
                found[at] = MASK
            if " ".join(found) in held:
                best = (len(holes), found) if best is None else min(best, (len(holes), found))
        return " ".join(best[1]) if best is not None else text

    def _remember(self, place: Place) -> None:
        self._variables[place] = None
        text = _filled(place, MASK)
        words = text.split(" ")
        holes = tuple(at for at, word in enumerate(words) if word == MASK)
        self._patterns.setdefault((words[0], len(words)), {}).setdefault(holes, set()).add(text)

    def _note(self, masked: str) -> None:
        """Count a text at each of its places, and so the texts that come of it where one is a variable."""
        waiting = [masked]
        while waiting:
            text = waiting.pop()
            if text in self._noted:
                continue
            self._noted[text] = None
            for place, word in _places(text):
                if self._is_variable(place, word):
                    waiting.append(_filled(place, MASK))
        while len(self._noted) > RECENT:
            self._noted.popitem(last=False)
        while len(self._places) > PLACES:
            self._places.popitem(last=False)

    def _is_variable(self, place: Place, word: str) -> bool:
        """Whether it is one, now that this word was seen there too."""
        if place in self._variables:
            return True
        held = self._places.get(place, ())
        if word == MASK or word in held or len(self._variables) >= VARIABLES:
            return False
        held = (*held, word)
        if len(held) < self.values:
            self._places[place] = held
            return False
        self._places.pop(place, None)
        self._remember(place)
        self._merge(place, held)
        return True

    def _merge(self, place: Place, words: tuple[str, ...]) -> None:
        """Templates that differ at this place only are one from now on; it goes by the oldest id."""
        self._known.clear()
        old = [id for word in words if (id := self._ids.pop(_filled(place, word), None)) is not None]
        if not old:
            return
        text = self._resolved(_filled(place, MASK))
        kept = self._ids.setdefault(text, min(old))
        for id in [kept, *old]:
            self._texts[id] = text


def _first_ids(texts: list[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for id, text in enumerate(texts):
        found.setdefault(text, id)
    return found


def _lines(texts: Iterable[str]) -> str:
    """Each with an end of line, which no masked text holds, nor a tab."""
    return "".join([f"{text}\n" for text in texts])


def _split(lines: str) -> list[str]:
    return lines.split("\n")[:-1]


def _places(text: str) -> Iterator[tuple[Place, str]]:
    """Every word but the first, with what is before and after it."""
    start = text.find(" ")
    while start >= 0:
        end = text.find(" ", start + 1)
        if end < 0:
            yield (text[:start], ""), text[start + 1 :]
        else:
            yield (text[:start], text[end + 1 :]), text[start + 1 : end]
        start = end


def _filled(place: Place, word: str) -> str:
    before, after = place
    return f"{before} {word} {after}" if after else f"{before} {word}"
