"""The calls of other libraries on Ridgeline's encoders: `from ridgeline.embed.compat import SentenceTransformer`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.embed.compat.sentence_transformers import CrossEncoder as CrossEncoder
    from ridgeline.embed.compat.sentence_transformers import MultiVectorEncoder as MultiVectorEncoder
    from ridgeline.embed.compat.sentence_transformers import SentenceTransformer as SentenceTransformer
    from ridgeline.embed.compat.sentence_transformers import SparseEncoder as SparseEncoder

__getattr__, __dir__, __all__ = attach(
    __name__, {"sentence_transformers": ["CrossEncoder", "MultiVectorEncoder", "SentenceTransformer", "SparseEncoder"]}
)
