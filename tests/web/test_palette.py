"""Colours differ for colour-blind readers and contrast with the background, in light and dark."""

from __future__ import annotations

import itertools
import re

import pytest

from ridgeline.web import read_asset

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
SIGHT = {
    "usual": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.01182, 0.04294, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.3039),
    ),
}


def themes():
    light, dark = read_asset("base.css").split("prefers-color-scheme: dark", 1)
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))
        for name, text in (("light", light), ("dark", dark))
    }


def linear(colour):
    shares = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]


def luminance(colour):
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(colour), strict=True))


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def lab(rgb):
    r, g, b = (min(1.0, max(0.0, c)) for c in rgb)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
def test_every_two_hues_are_distinguishable(theme, sight):
    colours = [themes()[theme][f"hue-{n}"] for n in range(1, 8)]
    seen = {c: lab([sum(m * v for m, v in zip(row, linear(c), strict=True)) for row in SIGHT[sight]]) for c in colours}
    for a, b in itertools.combinations(colours, 2):
        assert sum((p - q) ** 2 for p, q in zip(seen[a], seen[b], strict=True)) ** 0.5 > 18, (a, b)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_marks_and_text_stand_out_from_the_card(theme):
    colours = themes()[theme]
    assert all(contrast(colours[f"hue-{n}"], colours["card"]) >= 3 for n in range(1, 8))
    for text in ("ink", "ink-soft", "link", "good", "bad", "warn"):
        for ground in ("card", "paper"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
