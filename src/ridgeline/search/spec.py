"""Specs of indexes, in the syntax of FAISS.

>>> parse_spec("IVF1024,PQ48,Refine(Flat)")
Spec(codec='PQ', lists=1024, parts=48, refine='Flat', links=None, bits=None, rotated=False)
>>> str(parse_spec("ivf64,sq8"))
'IVF64,SQ8'
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ridgeline.errors import InputError

FORMS = (
    "Flat, SQ8, RaBitQb, IVFn,Flat, IVFn,SQ8, IVFn,PQm, OPQm,IVFn,PQm or IVFn,RaBitQb, each with ,Refine(Flat) or "
    ",Refine(SQ8) if wanted, HNSWm, or Auto"
)
FLAT_ROWS = 200_000  # Auto: up to this size an exact scan is fast enough
# Auto on a CPU: a scan of 20,000 rows takes some 4 ms and finds all neighbours. Building a graph of them takes as long
# as 1,300 scans, and one of more than a million rows many times as long as training lists.
GRAPH_ROWS, MAX_GRAPH_ROWS = 20_000, 1_000_000
GRAPH_LINKS = 32
MAX_LISTS = 65_536
MIN_LINKS, MAX_LINKS = 4, 512  # of HNSW
MAX_BITS = 4  # of RaBitQ


@dataclass(frozen=True)
class Spec:
    """The codec of vectors, inverted lists of which a search reads some, and the codec that ranks again."""

    codec: str  # Flat, SQ8, PQ or RaBitQ
    lists: int | None = None
    parts: int | None = None  # of PQ: bytes per vector
    refine: str | None = None  # Flat or SQ8
    links: int | None = None  # HNSW: links of a row in the upper layers, and half of those in the lowest one
    bits: int | None = None  # of RaBitQ: per dimension
    rotated: bool = False  # OPQ: a learnt rotation before PQ

    def __str__(self) -> str:
        if self.links:
            return f"HNSW{self.links}"
        words = [f"OPQ{self.parts}"] if self.rotated else []
        words += [f"IVF{self.lists}"] if self.lists else []
        words.append(f"{self.codec}{self.parts or self.bits or ''}")
        return ",".join(words + ([f"Refine({self.refine})"] if self.refine else []))

    @property
    def trains(self) -> bool:
        """Whether it needs training vectors."""
        return self.lists is not None or self.codec != "Flat" or self.refine == "SQ8"

    @property
    def exact(self) -> bool:
        """Whether every search compares every vector at full precision."""
        return self == Spec("Flat") or self == Spec("Flat", refine="Flat")


AUTO = "Auto"


def parse_spec(text: str) -> Spec | None:
    """Parse a spec; None for Auto, which is chosen when the number of vectors is known."""
    if not isinstance(text, str):
        raise InputError(f"the spec is {text!r}; give a string: {FORMS}.")
    words = [word.strip() for word in text.split(",")]
    if words == [""]:
        raise InputError(f"the spec is empty; give {FORMS}.")
    if len(words) == 1 and words[0].lower() == "auto":
        return None
    if match := re.fullmatch(r"hnsw(\d*)", words[0], re.IGNORECASE):
        links = int(match[1] or 32)
        if not MIN_LINKS <= links <= MAX_LINKS:
            raise _make_error(text, words[0], f"a row has {MIN_LINKS} to {MAX_LINKS} links")
        if [word.lower() for word in words[1:]] not in ([], ["flat"]):
            raise _make_error(text, words[1], f"HNSW keeps the vectors themselves: HNSW{links}")
        return Spec("Flat", links=links)
    lists = refine = parts = bits = None
    rotated_parts, rotation = None, ""
    if match := re.fullmatch(r"opq(\d+)", words[0], re.IGNORECASE):
        rotated_parts, rotation, words = int(match[1]), words[0], words[1:] or [""]
    if match := re.fullmatch(r"ivf(\d+)", words[0], re.IGNORECASE):
        lists = int(match[1])
        if not 1 <= lists <= MAX_LISTS:
            raise _make_error(text, words[0], f"an index has 1 to {MAX_LISTS} lists")
        words = words[1:]
        if not words:
            raise _make_error(text, f"IVF{lists}", f"say how vectors are kept, as in IVF{lists},Flat")
    if len(words) > 1 and (match := re.fullmatch(r"refine\((.*)\)", words[-1], re.IGNORECASE)):
        refine = {"flat": "Flat", "sq8": "SQ8"}.get(match[1].strip().lower())
        if refine is None:
            raise _make_error(text, words[-1], "there are Refine(Flat) and Refine(SQ8)")
        words = words[:-1]
    codec = {"flat": "Flat", "sq8": "SQ8"}.get(words[0].lower())
    if codec is None and (match := re.fullmatch(r"pq(\d+)", words[0], re.IGNORECASE)):
        codec, parts = "PQ", int(match[1])
        if not parts:
            raise _make_error(text, words[0], "PQ keeps 1 part or more")
        if lists is None:
            raise _make_error(text, words[0], f"PQ needs lists: IVF1024,{words[0]}")
    if codec is None and (match := re.fullmatch(r"rabitq(\d*)", words[0], re.IGNORECASE)):
        codec, bits = "RaBitQ", int(match[1] or 1)
        if not 1 <= bits <= MAX_BITS:
            raise _make_error(text, words[0], f"RaBitQ has 1 to {MAX_BITS} bits per dimension")
    if codec is None:
        raise _make_error(text, words[0], f"give {FORMS}")
    if len(words) > 1:
        raise _make_error(text, words[1], f"give {FORMS}")
    if rotated_parts is not None and rotated_parts != parts:
        raise _make_error(
            text, rotation, f"the rotation is learnt for PQ with as many parts: {rotation},IVF1024,PQ{rotated_parts}"
        )
    return Spec(codec, lists, parts, refine, bits=bits, rotated=rotated_parts is not None)


def choose_spec(count: int, *, graph: bool = False) -> Spec:
    """The spec of Auto for `count` vectors: exact while that is fast, then a graph where there may be one, then four
    lists per square root.
    """
    if graph and GRAPH_ROWS <= count <= MAX_GRAPH_ROWS:
        return Spec("Flat", links=GRAPH_LINKS)
    if count <= FLAT_ROWS:
        return Spec("Flat")
    return Spec("Flat", lists=min(MAX_LISTS, 1 << round(4 * count**0.5).bit_length() - 1))


def check_dimension(spec: Spec, dim: int) -> None:
    """Raise InputError if the parts of PQ do not divide the dimension."""
    if spec.parts and dim % spec.parts:
        divisors = [m for m in range(1, dim + 1) if dim % m == 0]
        best = min(divisors, key=lambda m: (abs(m - (spec.parts or 0)), -m))
        raise InputError(f"'PQ{spec.parts}' does not divide {dim} dimensions into equal parts; use PQ{best}.")


def _make_error(text: str, part: str, cure: str) -> InputError:
    return InputError(f"the spec '{text}' has a part '{part}' that is not understood: {cure}.")
