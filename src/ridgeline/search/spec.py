"""What an index is made of, in FAISS's words.

>>> parse("IVF1024,PQ48,Refine(Flat)")
Spec(codec='PQ', lists=1024, parts=48, refine='Flat')
>>> str(parse("ivf64,sq8"))
'IVF64,SQ8'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.errors import InputError

FORMS = "Flat, SQ8, IVFn,Flat, IVFn,SQ8 or IVFn,PQm, each with ,Refine(Flat) or ,Refine(SQ8) if wanted, or Auto"
FLAT_ROWS = 200_000  # Auto: up to here a scan of everything is quick enough to stay exact
MOST_LISTS = 65_536


@dataclass(frozen=True)
class Spec:
    """`codec` is how a vector is kept; with `lists` only some of it is looked at; `refine` ranks again."""

    codec: str  # Flat, SQ8 or PQ
    lists: int | None = None
    parts: int | None = None  # of PQ: bytes per vector
    refine: str | None = None  # Flat or SQ8

    def __str__(self) -> str:
        words = [f"IVF{self.lists}"] if self.lists else []
        words.append(f"PQ{self.parts}" if self.codec == "PQ" else self.codec)
        return ",".join(words + ([f"Refine({self.refine})"] if self.refine else []))

    @property
    def trains(self) -> bool:
        """Whether it must see vectors before it can take any."""
        return self.lists is not None or self.codec != "Flat" or self.refine == "SQ8"

    @property
    def exact(self) -> bool:
        """Whether every search looks at every value that was given."""
        return self == Spec("Flat") or self == Spec("Flat", refine="Flat")


AUTO = "Auto"


def parse(text: str) -> Spec | None:
    """The spec that `text` writes; None for Auto, which waits to see how many vectors there are."""
    if not isinstance(text, str):
        raise InputError(f"the spec is {text!r}; give a string: {FORMS}.")
    words = [word.strip() for word in text.split(",")]
    if words == [""]:
        raise InputError(f"the spec is empty; give {FORMS}.")
    if len(words) == 1 and words[0].lower() == "auto":
        return None
    lists = refine = parts = None
    if found := re.fullmatch(r"ivf(\d+)", words[0], re.IGNORECASE):
        lists = int(found[1])
        if not 1 <= lists <= MOST_LISTS:
            raise _bad(text, words[0], f"an index has 1 to {MOST_LISTS} lists")
        words = words[1:]
        if not words:
            raise _bad(text, f"IVF{lists}", f"say how vectors are kept, as in IVF{lists},Flat")
    if len(words) > 1 and (found := re.fullmatch(r"refine\((.*)\)", words[-1], re.IGNORECASE)):
        refine = {"flat": "Flat", "sq8": "SQ8"}.get(found[1].strip().lower())
        if refine is None:
            raise _bad(text, words[-1], "there are Refine(Flat) and Refine(SQ8)")
        words = words[:-1]
    codec = {"flat": "Flat", "sq8": "SQ8"}.get(words[0].lower())
    if codec is None and (found := re.fullmatch(r"pq(\d+)", words[0], re.IGNORECASE)):
        codec, parts = "PQ", int(found[1])
        if not parts:
            raise _bad(text, words[0], "PQ keeps 1 part or more")
        if lists is None:
            raise _bad(text, words[0], f"PQ needs lists: IVF1024,{words[0]}")
    if codec is None:
        raise _bad(text, words[0], f"give {FORMS}")
    if len(words) > 1:
        raise _bad(text, words[1], f"give {FORMS}")
    return Spec(codec, lists, parts, refine)


def chosen(count: int) -> Spec:
    """What Auto means for so many vectors: exact while that is quick, then four lists per square root."""
    if count <= FLAT_ROWS:
        return Spec("Flat")
    return Spec("Flat", lists=min(MOST_LISTS, 1 << round(4 * count**0.5).bit_length() - 1))


def fitting(spec: Spec, dim: int) -> None:
    """Refuse parts that do not divide the dimension."""
    if spec.parts and dim % spec.parts:
        near = [m for m in range(1, dim + 1) if dim % m == 0]
        best = min(near, key=lambda m: (abs(m - (spec.parts or 0)), -m))
        raise InputError(f"'PQ{spec.parts}' does not divide {dim} dimensions into equal parts; use PQ{best}.")


def _bad(text: str, part: str, cure: str) -> InputError:
    return InputError(f"the spec '{text}' has a part '{part}' that is not understood: {cure}.")
