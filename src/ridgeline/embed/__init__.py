"""Texts → unit vectors.

import ridgeline

vectors = ridgeline.Embedder().encode(["first text", "second text"])  # float32 [2, 384]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.embed.config import Config as Config
    from ridgeline.embed.config import read_config as read_config
    from ridgeline.embed.devices import choose_cpu_dtype as choose_cpu_dtype
    from ridgeline.embed.devices import resolve_torch_device as resolve_torch_device
    from ridgeline.embed.embedder import Embedder as Embedder
    from ridgeline.embed.embedder import TooLong as TooLong
    from ridgeline.embed.embedder import TruncationWarning as TruncationWarning
    from ridgeline.embed.embedder_pool import EmbedderPool as EmbedderPool
    from ridgeline.embed.encoder import Encoder as Encoder
    from ridgeline.embed.encoder import read_head as read_head
    from ridgeline.embed.fetch import fetch_model as fetch_model
    from ridgeline.embed.file_job import OUTPUT_FORMATS as OUTPUT_FORMATS
    from ridgeline.embed.file_job import JobResult as JobResult
    from ridgeline.embed.file_job import Progress as Progress
    from ridgeline.embed.file_job import embed_file as embed_file
    from ridgeline.embed.file_job import verify_file as verify_file
    from ridgeline.embed.heads import TokenVectors as TokenVectors
    from ridgeline.embed.layers import Layers as Layers
    from ridgeline.embed.layers import Packed as Packed
    from ridgeline.embed.models import DEFAULT as DEFAULT
    from ridgeline.embed.models import find_model as find_model
    from ridgeline.embed.models import list_models as list_models
    from ridgeline.embed.reranker import Reranker as Reranker
    from ridgeline.embed.text_files import TextFormat as TextFormat
    from ridgeline.embed.text_files import read_texts as read_texts
    from ridgeline.embed.tokenizer import Tokenizer as Tokenizer
    from ridgeline.embed.tokenizer import load_tokenizer as load_tokenizer
    from ridgeline.embed.tokens import Tokens as Tokens
    from ridgeline.embed.weights import read_encoder as read_encoder

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "config": ["Config", "read_config"],
        "devices": ["choose_cpu_dtype", "resolve_torch_device"],
        "embedder": ["Embedder", "TooLong", "TruncationWarning"],
        "embedder_pool": ["EmbedderPool"],
        "encoder": ["Encoder", "read_head"],
        "fetch": ["fetch_model"],
        "file_job": ["JobResult", "OUTPUT_FORMATS", "Progress", "embed_file", "verify_file"],
        "heads": ["TokenVectors"],
        "layers": ["Layers", "Packed"],
        "models": ["DEFAULT", "find_model", "list_models"],
        "reranker": ["Reranker"],
        "text_files": ["TextFormat", "read_texts"],
        "tokenizer": ["Tokenizer", "load_tokenizer"],
        "tokens": ["Tokens"],
        "weights": ["read_encoder"],
    },
)
