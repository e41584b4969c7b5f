"""An item as a sentence for the encoder.

>>> import numpy as np
>>> from ridgeline.recommend.data import Catalogue
>>> one = Catalogue(np.array([1]), ["Toy Story (1995)"], np.array([1995]), [("Animation", "Comedy")], [("pixar",)])
>>> item_texts(one)
['Toy Story (1995). Genres: Animation, Comedy. Themes: pixar.']
"""

from __future__ import annotations

import re
from string import Formatter

from ridgeline.errors import InputError, unknown
from ridgeline.recommend.data import Catalogue
from ridgeline.recommend.titles import spoken

TEMPLATE = "{title}. Genres: {genres}. Themes: {themes}."
FIELDS = ("title", "year", "genres", "themes")


def item_texts(catalogue: Catalogue, template: str = TEMPLATE) -> list[str]:
    """One text per item; a sentence of the template whose field is empty is left out."""
    try:
        fields = [(name, spec, how) for _, name, spec, how in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InputError(f"the template '{template}' cannot be read: {error}.") from None
    for name, spec, how in fields:
        if name not in FIELDS:
            raise unknown("field", name, FIELDS)
        if spec or how:
            raise InputError(f"the template '{template}' gives '{name}' a format; write {{{name}}} alone.")
    if not fields:
        raise InputError(f"the template '{template}' names no field; it may use {', '.join(FIELDS)}.")
    sentences = re.split(r"(?<=\.)\s+", template.strip())
    parts = [(s, [n for _, n, _, _ in Formatter().parse(s) if n]) for s in sentences]
    texts = []
    for row, title in enumerate(catalogue.titles):
        year = int(catalogue.years[row])
        values = {
            "title": spoken(title),
            "year": str(year) if year else "",
            "genres": ", ".join(catalogue.genres[row]),
            "themes": ", ".join(catalogue.themes[row]),
        }
        texts.append(" ".join(s.format(**values) for s, names in parts if all(values[n] for n in names)))
    return texts
