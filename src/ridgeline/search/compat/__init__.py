"""The calls of other libraries on Ridgeline's indexes: `from ridgeline.search.compat import faiss`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.search.compat import faiss as faiss

__getattr__, __dir__, __all__ = attach(__name__, {".": ["faiss"]})
