"""Encoder kernels: the layers of a transformer encoder over packed texts, without padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.kernels.encoder.layers import ACTIVATIONS as ACTIVATIONS
    from ridgeline.kernels.encoder.layers import activate as activate
    from ridgeline.kernels.encoder.layers import add_and_normalize as add_and_normalize
    from ridgeline.kernels.encoder.layers import attend as attend
    from ridgeline.kernels.encoder.layers import embed_tokens as embed_tokens
    from ridgeline.kernels.encoder.layers import linear_activate as linear_activate
    from ridgeline.kernels.encoder.layers import linear_activate_pays as linear_activate_pays
    from ridgeline.kernels.encoder.layers import pool as pool

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "layers": [
            "ACTIVATIONS",
            "activate",
            "add_and_normalize",
            "attend",
            "embed_tokens",
            "linear_activate",
            "linear_activate_pays",
            "pool",
        ],
    },
)
