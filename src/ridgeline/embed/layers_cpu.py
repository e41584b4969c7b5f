"""On a CPU: weights laid out once for oneDNN, which otherwise rearranges them in every call.

The activation and the residual ride along where oneDNN can fuse them. (On ARM it fuses gelu by the tanh formula number
by number, some hundred times slower than torch does it afterwards.)

A CPU without instructions for bfloat16 plays it: weights and every result are rounded to bfloat16 and multiplied in
float32, which is what hardware does, and as fast as float32.
"""

from __future__ import annotations

import platform
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.layers import Layers, Linear, Norm
from ridgeline.embed.place import knows_bfloat16

# attr and algorithm, as torch's own compiler passes them to oneDNN
_FUSED = {"gelu": ("gelu", "none"), "relu": ("relu", "")}
if platform.machine() == "x86_64":
    _FUSED |= {"gelu_new": ("gelu", "tanh"), "gelu_pytorch_tanh": ("gelu", "tanh")}


def cpu_layers(config: Config, device: Any, dtype: Any) -> Layers:
    """The best layers for this CPU and this build of torch."""
    if dtype is torch.float16:
        from ridgeline.embed.layers_half import HalfLayers

        return HalfLayers(config, device)
    if dtype is torch.bfloat16 and not knows_bfloat16():
        return RoundedLayers(config, device, torch.float32)
    return (CpuLayers if _works(dtype) else Layers)(config, device, dtype)


class CpuLayers(Layers):
    """The same steps with prepacked linear layers."""

    def linear_of(self, weight: Any, bias: Any) -> Linear:
        return Linear(packed(weight.to(self.dtype)), self.placed(bias))

    def linear(self, x: Any, layer: Linear) -> Any:
        return _linear(x, layer.weight, layer.bias, "none", [], "")

    def up(self, x: Any, layer: Linear) -> Any:
        if self.config.activation not in _FUSED:
            return self.activated(self.linear(x, layer))
        name, algorithm = _FUSED[self.config.activation]
        return _linear(x, layer.weight, layer.bias, name, [], algorithm)

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        summed = _linear.binary(x, residual, layer.weight, layer.bias, "add")
        return F.layer_norm(summed, (summed.shape[1],), norm.weight, norm.bias, norm.epsilon)


class RoundedLayers(Layers):
    """bfloat16 played in float32."""

    def placed(self, tensor: Any) -> Any:
        return _rounded(super().placed(tensor))

    def embed(self, *words: Any) -> Any:
        return _rounded(super().embed(*words))

    def linear(self, *words: Any) -> Any:
        return _rounded(super().linear(*words))

    def up(self, *words: Any) -> Any:
        return _rounded(super().up(*words))

    def add_norm(self, *words: Any) -> Any:
        return _rounded(super().add_norm(*words))

    def attention(self, *words: Any) -> Any:
        return _rounded(super().attention(*words))


def _rounded(tensor: Any) -> Any:
    return tensor.bfloat16().float()


_TOKENS = 1024  # the batch oneDNN chooses a layout for


def packed(weight: Any) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _TOKENS)


class _Linear:
    """torch's operator, looked up late: a build without oneDNN has none."""

    def __call__(self, *words: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise(*words)

    def binary(self, *words: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise.binary(*words)


_linear = _Linear()


@cache
def _works(dtype: Any) -> bool:
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    weight, bias, x = (torch.linspace(-1, 1, n).to(dtype) for n in (64 * 32, 64, 8 * 32))
    weight, x = weight.view(64, 32), x.view(8, 32)
    try:
        with torch.inference_mode():
            laid = packed(weight)
            found = _linear(x, laid, bias, "gelu", [], "none") + _linear.binary(x, x[:, :1] + bias, laid, bias, "add")
            plain = F.linear(x, weight, bias)
            wanted = F.gelu(plain) + plain + x[:, :1] + bias
    except (RuntimeError, NotImplementedError, AttributeError):  # this build or CPU has it not: plain torch does it
        return False
    room = 1e-5 if dtype is torch.float32 else 0.02
    return bool(torch.allclose(found.float(), wanted.float(), rtol=room, atol=room * float(wanted.abs().max())))
