"""Texts → unit vectors. So far: texts → tokens."""

from ridgeline.embed.tokenizer import Tokenizer, load_tokenizer
from ridgeline.embed.tokens import Tokens

__all__ = ["Tokenizer", "Tokens", "load_tokenizer"]
