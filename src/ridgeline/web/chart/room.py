"""Room for labels: boxes that are taken, and whether a text may stand somewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float


def free(boxes: Sequence[Box], taken: Sequence[Box], limits: Box) -> bool:
    """Whether all of `boxes` lie within the limits and touch none that is taken.

    >>> page = Box(0, 0, 100, 100)
    >>> taken = [Box(10, 0, 20, 9)]
    >>> free([Box(0, 0, 9, 9)], taken, page), free([Box(5, 0, 14, 9)], taken, page)
    (True, False)
    """
    return all(
        limits.left <= box.left
        and limits.top <= box.top
        and box.right <= limits.right
        and box.bottom <= limits.bottom
        and not any(_touch(box, other) for other in taken)
        for box in boxes
    )


def slanted(x: float, y: float, angle: float, half: float, size: float) -> list[Box]:
    """The room of a turned line of text, centred on its baseline at (x, y): small squares along it."""
    # The middle of the letters is a third of the size above the baseline.
    x, y = x + size / 3 * math.sin(angle), y - size / 3 * math.cos(angle)
    count = max(2, math.ceil(2 * half / (0.8 * size)))
    steps = (half * (2 * n / (count - 1) - 1) for n in range(count))
    r = 0.5 * size
    return [
        Box(
            x + s * math.cos(angle) - r,
            y + s * math.sin(angle) - r,
            x + s * math.cos(angle) + r,
            y + s * math.sin(angle) + r,
        )
        for s in steps
    ]


def _touch(a: Box, b: Box) -> bool:
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom
