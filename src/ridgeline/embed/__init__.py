"""Texts → unit vectors.

import ridgeline

vectors = ridgeline.Embedder().encode(["first text", "second text"])  # float32 [2, 384]
"""

from __future__ import annotations

from ridgeline.embed.embedder import Embedder
from ridgeline.embed.pooled import EmbedderPool
from ridgeline.embed.tokenizer import Tokenizer, load_tokenizer
from ridgeline.embed.tokens import Tokens

__all__ = ["Embedder", "EmbedderPool", "Tokenizer", "Tokens", "load_tokenizer"]
