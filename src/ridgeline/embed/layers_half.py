"""float16 on an ARM CPU: products in half precision, twice as many at a time as in float32; the rest in float32.

The sums inside a product are float16, too, so the vectors are near those of float32 and not equal to them (lowest
cosine 0.99993 over hostile texts). What lies between the products stays in float32: torch's own gelu and attention are
several times slower in float16 here, and the residual keeps its digits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Layers, Linear, Norm
from ridgeline.embed.layers_cpu import packed
from ridgeline.errors import InputError
from ridgeline.machine.clock import now_ns

REFERENCE = 8  # times the float32 product: a library without a kernel for float16 needs hundreds


class HalfLayers(Layers):
    """Hidden states are float32; every linear layer rounds its input and gives float32 back."""

    def __init__(self, config: Config, device: Any) -> None:
        super().__init__(config, device, torch.float32)

    def linear_of(self, weight: Any, bias: Any) -> Linear:
        return Linear(packed(weight.half()), bias.half().to_mkldnn())

    def linear(self, x: Any, layer: Linear) -> Any:
        # oneDNN converts by all threads and with the CPU's instructions; torch's own takes ten times as long.
        return F.linear(x.to_mkldnn(torch.float16), layer.weight, layer.bias).to_dense(torch.float32)

    def up(self, x: Any, layer: Linear) -> Any:
        return self.activated(self.linear(x, layer))

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        summed = self.linear(x, layer).add_(residual)
        return F.layer_norm(summed, (summed.shape[1],), norm.weight, norm.bias, norm.epsilon)

    def pool(self, *words: Any) -> Any:
        """What left the range of float16 (65,504) would be no vector; it is said, never returned."""
        found = super().pool(*words)
        if not bool(torch.isfinite(found).all()):
            raise InputError("a value of this model lies beyond the range of float16; use dtype='float32'.")
        return found


@cache
def works() -> bool:
    """Whether this build of torch multiplies float16 with the CPU's instructions; some do it number by number."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        with torch.inference_mode():
            wide = torch.arange(64.0 * 256).sin().view(64, 256)
            narrow, none = wide.to_mkldnn(torch.float16), torch.zeros(64)
            weight, zeros = packed(wide.half()), none.half().to_mkldnn()
            found = F.linear(narrow, weight, zeros).to_dense(torch.float32)
            near = torch.allclose(found, wide @ wide.t(), rtol=0.02, atol=0.5)
            own, usual = _took(narrow, weight, zeros), _took(wide.to_mkldnn(), packed(wide), none.to_mkldnn())
            return near and own < REFERENCE * usual
    except (RuntimeError, NotImplementedError, AttributeError):  # this build has it not
        return False


def _took(*words: Any) -> int:
    def one() -> int:
        began = now_ns()
        F.linear(*words)
        return now_ns() - began

    return min(one() for _ in range(5))
