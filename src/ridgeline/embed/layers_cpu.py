"""Encoder layers on a CPU: native code for models like BERT (float32 and int8 on x86, float16 on ARM), else oneDNN.

Weights are laid out once for oneDNN, which otherwise rearranges them in every call. Activation and residual are fused
where oneDNN can do it. (On ARM it computes gelu by the tanh formula element by element, a hundred times slower than
torch.)

A CPU without bfloat16 instructions emulates it: weights and results are rounded to bfloat16 and multiplied in float32,
as hardware does, at the speed of float32.
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from ridgeline.embed.config import Config
from ridgeline.embed.devices import has_bfloat16
from ridgeline.embed.layers import Embeddings, Layer, Layers, Linear, Norm, Packed
from ridgeline.errors import InputError
from ridgeline.native import FloatEncoder, HalfEncoder, chosen_instruction_set, mean_rows

# attr and algorithm, as torch's compiler passes them to oneDNN
_FUSED_ACTIVATIONS = {"gelu": ("gelu", "none"), "relu": ("relu", "")}
if platform.machine() == "x86_64":
    _FUSED_ACTIVATIONS |= {"gelu_new": ("gelu", "tanh"), "gelu_pytorch_tanh": ("gelu", "tanh"), "silu": ("swish", "")}


def choose_cpu_layers(config: Config, device: Any, dtype: Any) -> Layers:
    """Return the fastest layers for this CPU and this build of torch."""
    if dtype in (torch.float16, torch.int8) and not config.plain:
        name = str(dtype).removeprefix("torch.")
        raise InputError(f"dtype '{name}' on a CPU is for BERT and RoBERTa, not for {config.model_type}; use float32.")
    if dtype is torch.float16:
        return Float16Layers(config, device)
    if dtype is torch.int8:
        if not _fits_panels(config):
            raise InputError(
                f"dtype 'int8' needs a hidden width that is a multiple of 16, not {config.hidden}, and gelu or relu; "
                "use float32."
            )
        return FloatLayers(config, device, in_bytes=True)
    if dtype is torch.float32 and config.plain and _fits_panels(config) and _has_wide_vectors():
        return FloatLayers(config, device)
    if dtype is torch.bfloat16 and not has_bfloat16() and _onednn_works(torch.float32):
        return EmulatedBfloat16Layers(config, device, torch.float32)
    return (CpuLayers if _onednn_works(dtype) else Layers)(config, device, dtype)


class InvariantHeads(Layers):
    """Heads by oneDNN, with the same bits in any batch."""

    def prepare_head(self, weight: Any, bias: Any) -> Linear:
        return Linear(pack_weight(weight.float()), None if bias is None else bias.float())

    def head_linear(self, x: Any, layer: Linear) -> Any:
        return _multiply(x, layer, "none", "")

    def sum_tokens(self, values: Any) -> Any:
        texts, length, _ = values.shape
        return _average_rows(values.flatten(0, 1), torch.arange(texts + 1) * length, False) * length


class CpuLayers(InvariantHeads):
    """Linear layers by oneDNN with weights in its layout.

    A text has the same bits in any batch: a product sums in the same order for any number of rows except one, so a
    single row is multiplied as two; means are summed natively, because torch's order depends on the number of threads;
    and activations are computed by oneDNN, because torch computes the last elements of a thread in another way.
    """

    @property
    def batch_invariant(self) -> bool:  # type: ignore[override]
        return self.config.activation in _FUSED_ACTIVATIONS

    def prepare_linear(self, weight: Any, bias: Any) -> Linear:
        return Linear(pack_weight(weight.to(self.dtype)), None if bias is None else self.to_device(bias))

    def linear(self, x: Any, layer: Linear) -> Any:
        return _multiply(x, layer, "none", "")

    def up(self, x: Any, layer: Linear) -> Any:
        if self.config.activation not in _FUSED_ACTIVATIONS:
            return self.activate(self.linear(x, layer))
        name, algorithm = _FUSED_ACTIVATIONS[self.config.activation]
        return _multiply(x, layer, name, algorithm)

    def add_norm(self, x: Any, layer: Linear, residual: Any, norm: Norm) -> Any:
        return self.normalize(self._add(x, layer, residual), norm)

    def add(self, x: Any, layer: Linear, residual: Any, norm: Norm | None) -> Any:
        return self._add(x, layer, residual) if norm is None else super().add(x, layer, residual, norm)

    def _add(self, x: Any, layer: Linear, residual: Any) -> Any:
        if len(x) == 1:
            return _linear.binary(_repeat(x), _repeat(residual), layer.weight, layer.bias, "add")[:1]
        return _linear.binary(x, residual, layer.weight, layer.bias, "add")

    def normalize(self, x: Any, norm: Any) -> Any:
        if norm.rms:
            return super().normalize(x, norm)
        return F.layer_norm(x, (x.shape[-1],), norm.weight, norm.bias, norm.epsilon)  # sums in float32

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        if mode != "mean":
            return super().pool(hidden, packed, mode, unit)
        return _average_rows(hidden.float(), packed.offsets, unit)

    def average(self, hidden: Any, packed: Packed) -> Any:
        return _average_rows(hidden.float(), packed.offsets, False)


def _multiply(x: Any, layer: Linear, activation: str, algorithm: str) -> Any:
    if len(x) == 1:
        return _linear(_repeat(x), layer.weight, layer.bias, activation, [], algorithm)[:1]
    return _linear(x, layer.weight, layer.bias, activation, [], algorithm)


def _repeat(row: Any) -> Any:
    return torch.cat([row, row])


def _average_rows(rows: Any, offsets: Any, unit: bool) -> Any:
    """The mean of the rows of each text, float32; with `unit` scaled to length 1."""
    means = torch.empty(len(offsets) - 1, rows.shape[1])
    mean_rows(rows.contiguous().numpy(), offsets.numpy(), means.numpy(), unit, int(torch.get_num_threads()))
    empty = offsets.diff() == 0
    return means.masked_fill(empty[:, None], 0) if empty.any() else means


class EmulatedBfloat16Layers(CpuLayers):
    """bfloat16 emulated in float32."""

    def prepare_linear(self, weight: Any, bias: Any) -> Linear:
        return super().prepare_linear(_round_to_bfloat16(weight), bias)

    def to_device(self, tensor: Any) -> Any:
        return _round_to_bfloat16(super().to_device(tensor))

    def embed(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().embed(*words))

    def linear(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().linear(*words))

    def up(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().up(*words))

    def add_norm(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().add_norm(*words))

    def widen(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().widen(*words))

    def add(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().add(*words))

    def normalize(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().normalize(*words))

    def attention(self, *words: Any) -> Any:
        return _round_to_bfloat16(super().attention(*words))


def _round_to_bfloat16(tensor: Any) -> Any:
    return tensor.bfloat16().float()


_LAYOUT_TOKENS = 1024  # the batch size that the layout is chosen for


def pack_weight(weight: Any) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _LAYOUT_TOKENS)


class _OneDnnLinear:
    """torch's operator for oneDNN, looked up on first use: a build without oneDNN has none."""

    def __call__(self, *words: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise(*words)

    def binary(self, *words: Any) -> Any:
        return torch.ops.mkldnn._linear_pointwise.binary(*words)


_linear = _OneDnnLinear()


@cache
def _onednn_works(dtype: Any) -> bool:
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():
        return False
    weight, bias, x = (torch.linspace(-1, 1, n).to(dtype) for n in (64 * 32, 64, 8 * 32))
    weight, x = weight.view(64, 32), x.view(8, 32)
    try:
        with torch.inference_mode():
            packed_weight = pack_weight(weight)
            actual = _linear(x, packed_weight, bias, "gelu", [], "none") + _linear.binary(
                x, x[:, :1] + bias, packed_weight, bias, "add"
            )
            plain = F.linear(x, weight, bias)
            expected = F.gelu(plain) + plain + x[:, :1] + bias
    except (RuntimeError, NotImplementedError, AttributeError):  # this build or CPU does not support it
        return False
    tolerance = 1e-5 if dtype is torch.float32 else 0.02
    return bool(
        torch.allclose(actual.float(), expected.float(), rtol=tolerance, atol=tolerance * float(expected.abs().max()))
    )


WIDTH_MULTIPLE = 16  # heads and the MLP are padded to a multiple of this width
TOKENS_PER_BLOCK, THREADS_PER_BLOCK = 8, 2  # this many tokens are computed together, by this many threads
MAX_PRODUCT_BYTES = 256 << 20  # of the stored products of words
_ACTIVATIONS = {"gelu": "gelu", "relu": "relu"}  # all others are gelu by tanh
_NATIVE_ACTIVATIONS = ("gelu", "relu", "gelu_new", "gelu_pytorch_tanh")


def _fits_panels(config: Config) -> bool:
    return config.hidden % WIDTH_MULTIPLE == 0 and config.activation in _NATIVE_ACTIVATIONS


def _has_wide_vectors() -> bool:
    """Whether the native loops have AVX2 or AVX-512 here, and oneDNN computes the heads."""
    return chosen_instruction_set() in ("avx2", "avx512") and _onednn_works(torch.float32)


class NativeLayers(Layers, ABC):
    """All layers in one native call; the embeddings and the result are float32."""

    batch_invariant = True

    batch_tokens: ClassVar = {
        "cpu": 2_048
    }  # the overhead of a batch is 2 % with 256 tokens, nothing with more than this

    def __init__(self, config: Config, device: Any) -> None:
        super().__init__(config, device, torch.float32)

    @abstractmethod
    def make_stack(self, heads: int, head_width: int, scale: float, activation: str) -> Any:
        """Return the native layers, without weights."""

    def prepare_stack(self, words: Embeddings, layers: list[Layer]) -> Any:
        heads = self.config.heads
        width = self.config.hidden // heads
        padding_width = -width % WIDTH_MULTIPLE
        activation = _ACTIVATIONS.get(self.config.activation, "tanh")
        stack = self.make_stack(heads, width + padding_width, width**-0.5, activation)
        padding = -1 if self.config.padding is None else self.config.padding
        norm: Any = words.norm
        word, position, weight, bias = _to_arrays(words.word, words.position, norm.weight, norm.bias)
        stack.set_embedding(word, position, weight, bias, padding)
        for layer in layers:
            qkv, out = _pad_heads(layer.qkv, heads, padding_width), layer.out
            if layer is layers[0]:
                self.prepare_first(stack, words, qkv)
            if padding_width:  # padding meets padding
                columns = out.weight.view(-1, heads, width)
                out = Linear(F.pad(columns, (0, padding_width)).flatten(1), out.bias)
            up, down = _pad_inner(layer.up, layer.down)
            parts: tuple[Any, ...] = (qkv, out, layer.out_norm, up, down, layer.down_norm)
            stack.add(*_to_arrays(*(tensor for part in parts for tensor in (part.weight, part.bias))))
        return stack

    def prepare_first(self, stack: Any, words: Embeddings, qkv: Linear) -> None:
        """Prepare what the first layer can know beforehand."""

    def run_layers(self, ids: Any, packed: Packed, words: Embeddings, stack: Any) -> Any:
        rows = torch.empty(len(ids), self.config.hidden)
        stack(ids.int().numpy(), packed.offsets.numpy(), rows.numpy(), _choose_threads(len(ids)))
        return rows

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        if mode == "mean":
            return _average_rows(hidden, packed.offsets, unit)
        return super().pool(hidden, packed, mode, unit)

    def average(self, hidden: Any, packed: Packed) -> Any:
        return _average_rows(hidden, packed.offsets, False)

    def encode_means(self, ids: Any, offsets: Any, stack: Any) -> Any:
        vectors = np.empty((len(offsets) - 1, self.config.hidden), np.float32)
        stack.means(ids, offsets, vectors, True, _choose_threads(len(ids)))
        return vectors


class FloatLayers(NativeLayers, InvariantHeads):
    """float32, or products of 8-bit integers with a scale for each token and each output."""

    def __init__(self, config: Config, device: Any, *, in_bytes: bool = False) -> None:
        super().__init__(config, device)
        self._in_bytes = in_bytes

    def make_stack(self, heads: int, head_width: int, scale: float, activation: str) -> FloatEncoder:
        return FloatEncoder(
            self.config.hidden, heads, head_width, scale, self.config.epsilon, activation, self._in_bytes
        )


# float16 on an ARM CPU:
#
# Libraries sum in float16, which over 1,536 terms lowered cosines to 0.9999; here sums leave float16 after a few terms.
# Between the steps of a layer nothing is rearranged, no thread waits for another, and the data of a text stays in the
# cache of its core. The products of the first layer that depend only on a word are stored.


class Float16Layers(NativeLayers):
    """float16 with longer sums in float32."""

    def make_stack(self, heads: int, head_width: int, scale: float, activation: str) -> HalfEncoder:
        return HalfEncoder(self.config.hidden, heads, head_width, scale, self.config.epsilon, activation)

    def prepare_first(self, stack: HalfEncoder, words: Embeddings, qkv: Linear) -> None:
        if 2 * len(words.word) * len(qkv.bias) <= MAX_PRODUCT_BYTES:
            stack.cache_products(*_to_arrays(*_compute_first_products(words, qkv)))

    def pool(self, hidden: Any, packed: Packed, mode: str, unit: bool) -> Any:
        """Pool; values beyond the range of float16 (65,504) are an InputError."""
        pooled = super().pool(hidden, packed, mode, unit)
        _check_range(pooled.numpy())
        return pooled

    def encode_means(self, ids: Any, offsets: Any, stack: HalfEncoder) -> Any:
        vectors = super().encode_means(ids, offsets, stack)
        _check_range(vectors)
        return vectors


def _check_range(vectors: Any) -> None:
    if not np.isfinite(vectors).all():
        raise InputError("a value of this model lies beyond the range of float16; use dtype='float32'.")


def _choose_threads(tokens: int) -> int:
    return max(1, min(int(torch.get_num_threads()), THREADS_PER_BLOCK * -(-tokens // TOKENS_PER_BLOCK)))


def _to_arrays(*tensors: Any) -> list[Any]:
    return [tensor.numpy() for tensor in tensors]


def _compute_first_products(words: Embeddings, qkv: Linear) -> tuple[Any, ...]:
    """The parts of the first layer's queries, keys and values that do not depend on the text."""
    norm: Any = words.norm
    factors = qkv.weight * norm.weight
    return factors, words.position @ factors.T, factors.sum(1), qkv.weight @ norm.bias + qkv.bias


def _pad_inner(up: Linear, down: Linear) -> tuple[Linear, Linear]:
    """Pad the inner values of the MLP with zeros, which every activation keeps."""
    padding = -len(up.weight) % WIDTH_MULTIPLE
    if not padding:
        return up, down
    up = Linear(F.pad(up.weight, (0, 0, 0, padding)), F.pad(up.bias, (0, padding)))
    return up, Linear(F.pad(down.weight, (0, padding)), down.bias)


def _pad_heads(qkv: Linear, heads: int, padding_width: int) -> Linear:
    """Pad the queries, keys and values of every head with zeros."""
    weight = qkv.weight.view(3 * heads, -1, qkv.weight.shape[1])
    bias = qkv.bias.view(3 * heads, -1)
    return Linear(F.pad(weight, (0, 0, 0, padding_width)).flatten(0, 1), F.pad(bias, (0, padding_width)).flatten())
