"""What the packets of a video say about their order, and where one is missing.

A decoder of H.264 does not tell that a packet is missing or out of order: it predicts from another picture, and gives
a wrong one without an error. But its pictures are counted (`frame_num`). A decoder of H.265 refuses such pictures. AV1
and VP9 tell nothing, so a gap in their stamps counts as missing packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.trajectory.pictures import find_units
from ridgeline.trajectory.stream import Array

MOST_PLACES = 256  # between the place of a packet in the recording and its place by its stamp; more is another clock
_SLICES, _KEY_SLICE, _SEQUENCE = (1, 5), 5, 7  # types of units
_INTRA = 2  # type of a slice
_HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)
_GAP = 1.5  # times the median step of stamps
_HEAD = 64  # bytes of a slice that hold its number


@dataclass(frozen=True)
class PictureNumber:
    """The number of one coded picture of H.264."""

    number: int
    limit: int  # numbers begin again at 0 before this
    is_reference: bool
    is_key: bool
    is_frame: bool  # and not one of two fields that share a number, perhaps
    is_fresh: bool  # neither this picture nor a later one is predicted from those before


class NumberReader:
    """Reads the numbers of H.264 pictures; it remembers the parameters that slices depend on."""

    def __init__(self) -> None:
        self._bits, self._has_planes, self._may_skip, self._references, self._has_fields = 0, False, False, 0, False

    def read(self, data: bytes) -> tuple[PictureNumber, ...]:
        """Return the numbers of the pictures in a packet; empty if they are not known or not counted."""
        out: list[PictureNumber] = []
        for kind, start, end in find_units(data, "h264"):
            try:
                if kind == _SEQUENCE:
                    self._read_sequence(_Bits(data[start + 4 : end]))
                elif kind in _SLICES and self._bits and not self._may_skip:
                    bits = _Bits(data[start + 4 : min(end, start + _HEAD)])
                    is_first = bits.read_number() == 0
                    is_intra = bits.read_number() % 5 == _INTRA
                    if not is_first:
                        if out and not is_intra:
                            out[-1] = replace(out[-1], is_fresh=out[-1].is_key)
                        continue
                    bits.read_number()  # parameters
                    bits.skip(2 if self._has_planes else 0)
                    is_reference = bool(data[start + 3] >> 5 & 3)
                    is_key = kind == _KEY_SLICE
                    is_fresh = is_key or (is_intra and is_reference and self._references == 1)
                    number = bits.read(self._bits)
                    is_frame = not self._has_fields
                    out.append(PictureNumber(number, 1 << self._bits, is_reference, is_key, is_frame, is_fresh))
            except IndexError:  # damaged
                return ()
        return tuple(out)

    def _read_sequence(self, bits: _Bits) -> None:
        profile = bits.read(8)
        bits.skip(16)
        bits.read_number()
        has_planes = False
        if profile in _HIGH_PROFILES:
            chroma = bits.read_number()
            has_planes = chroma == 3 and bool(bits.read(1))
            bits.read_number()
            bits.read_number()
            bits.skip(1)
            if bits.read(1):
                for i in range(8 if chroma != 3 else 12):
                    if bits.read(1):
                        _skip_scaling(bits, 16 if i < 6 else 64)
        count = bits.read_number() + 4
        order = bits.read_number()
        if order == 0:
            bits.read_number()
        elif order == 1:
            bits.skip(1)
            for _ in range(2):
                bits.read_number()
            for _ in range(bits.read_number()):
                bits.read_number()
        self._references = bits.read_number()
        may_skip = bool(bits.read(1))
        bits.read_number()  # width
        bits.read_number()  # height
        self._bits, self._has_planes, self._may_skip = count, has_planes, may_skip
        self._has_fields = not bits.read(1)


def _skip_scaling(bits: _Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            code = bits.read_number()
            following = (last + ((code + 1) // 2 if code % 2 else -(code // 2))) % 256
        last = following or last


class _Bits:
    """The bits of a unit, from the highest of each byte on; IndexError at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data.replace(b"\0\0\3", b"\0\0")  # the encoder inserts a 3 so that no start code appears
        self._at = 0

    def read(self, count: int) -> int:
        value = 0
        for _ in range(count):
            value = value << 1 | self._data[self._at >> 3] >> (7 - (self._at & 7)) & 1
            self._at += 1
        return value

    def skip(self, count: int) -> None:
        self._at += count

    def read_number(self) -> int:
        """Read a number in Exp-Golomb code."""
        zeros = 0
        while not self.read(1):
            zeros += 1
            if zeros > 32:
                raise IndexError("no number")
        return (1 << zeros) - 1 + self.read(zeros)


def find_breaks(numbers: Sequence[tuple[PictureNumber, ...]]) -> Array:
    """Return the packets [S] before which a picture is missing, by the numbers of the pictures in each packet."""
    out = np.zeros(len(numbers), bool)
    last: int | None = None  # number of the last reference picture
    for i, pictures in enumerate(numbers):
        for picture in pictures:
            if last is not None and not picture.is_key:
                # The second of two fields repeats a number; so does a packet that was recorded twice.
                repeats = picture.number == last and (picture.is_reference or not picture.is_frame)
                out[i] |= not repeats and picture.number != (last + 1) % picture.limit
            if picture.is_reference:
                last = picture.number
    return out


def find_gaps(times: Array, periods: float = _GAP) -> Array:
    """Return the packets [S] before which the stamps have a gap of more than this many periods."""
    steps = np.diff(times, prepend=times[:1])
    positive = steps[steps > 0]
    return steps > periods * float(np.median(positive)) if positive.size else np.zeros(len(times), bool)


def find_missing(codec: str, numbers: Sequence[tuple[PictureNumber, ...]], times: Array) -> Array:
    """Return the packets [S] of a video before which one is missing, as far as its decoder does not tell."""
    if codec in ("av1", "vp9"):
        return find_gaps(times) | (np.diff(times, prepend=times[:1]) < 0)
    limit = max((picture.limit for pictures in numbers for picture in pictures), default=0)
    # After as many pictures as there are numbers, the next one has the number that is expected.
    return find_breaks(numbers) | find_gaps(times, limit - 1) if limit else find_breaks(numbers)


def are_regular(times: Array) -> bool:
    """Whether no two stamps, in order, are much nearer than the others: those of two clocks would be."""
    steps = np.diff(times)
    return bool(steps.size and steps.min() >= float(np.median(steps)) / 2)


def sort_packets(stamps: Array) -> Array | None:
    """Return the packets in the order of their stamps; None if that is the order of the recording, or too far off."""
    order = np.argsort(stamps, kind="stable")
    places = np.abs(order - np.arange(len(order))).max(initial=0)
    return order if 0 < places <= MOST_PLACES else None
