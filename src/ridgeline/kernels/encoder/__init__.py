"""Encoder kernels: the layers of a transformer encoder over packed texts, without padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.kernels.encoder.activations import ACTIVATIONS as ACTIVATIONS
    from ridgeline.kernels.encoder.attention import MAX_WIDTH as MAX_WIDTH
    from ridgeline.kernels.encoder.attention import AttentionKind as AttentionKind
    from ridgeline.kernels.encoder.attention import Distances as Distances
    from ridgeline.kernels.encoder.attention import attend as attend
    from ridgeline.kernels.encoder.attention import multiply_heads as multiply_heads
    from ridgeline.kernels.encoder.layers import activate as activate
    from ridgeline.kernels.encoder.layers import activate_gate as activate_gate
    from ridgeline.kernels.encoder.layers import add_and_normalize as add_and_normalize
    from ridgeline.kernels.encoder.layers import add_then_normalize as add_then_normalize
    from ridgeline.kernels.encoder.layers import embed_tokens as embed_tokens
    from ridgeline.kernels.encoder.layers import pool as pool
    from ridgeline.kernels.encoder.layers import prepare_heads as prepare_heads
    from ridgeline.kernels.encoder.products import ADDED_COLUMNS as ADDED_COLUMNS
    from ridgeline.kernels.encoder.products import GATE_COLUMNS as GATE_COLUMNS
    from ridgeline.kernels.encoder.products import join_gate as join_gate
    from ridgeline.kernels.encoder.products import library_agrees as library_agrees
    from ridgeline.kernels.encoder.products import linear as linear
    from ridgeline.kernels.encoder.products import linear_activate_pays as linear_activate_pays
    from ridgeline.kernels.encoder.products import linear_by_library as linear_by_library
    from ridgeline.kernels.encoder.products import linear_gated as linear_gated

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "activations": ["ACTIVATIONS"],
        "attention": ["MAX_WIDTH", "AttentionKind", "Distances", "attend", "multiply_heads"],
        "layers": [
            "activate",
            "activate_gate",
            "add_and_normalize",
            "add_then_normalize",
            "embed_tokens",
            "prepare_heads",
            "pool",
        ],
        "products": [
            "ADDED_COLUMNS",
            "GATE_COLUMNS",
            "join_gate",
            "library_agrees",
            "linear",
            "linear_by_library",
            "linear_activate_pays",
            "linear_gated",
        ],
    },
)
