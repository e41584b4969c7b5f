"""The encoder kernels against plain torch in float64: interpreted everywhere, compiled on a GPU.

python -m pytest tests/kernels/test_encoder.py
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
CUDA = torch.cuda.is_available()
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402

from ridgeline.kernels import encoder as encoder_layers  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
# exp overflows to infinity, as intended; NumPy, inside the interpreter, warns.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
TYPES = [torch.float32, torch.float16, torch.bfloat16]
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking takes minutes in the interpreter
quick = settings(deadline=None, max_examples=12, phases=PHASES, suppress_health_check=list(HealthCheck))
few = settings(quick, max_examples=5)  # the interpreter is slow
lengths_of = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def make_tensor(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(DEVICE, dtype)


def make_offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0)


def close(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype, times: float = 1) -> None:
    tolerance = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}[dtype]
    assert got.shape == want.shape
    assert not got.isnan().any()
    error = (got.double() - want).abs().max().item() / max(1.0, want.abs().max().item())
    assert error <= times * tolerance, error


@quick
@given(lengths_of, st.sampled_from([8, 48, 384]), st.sampled_from(TYPES), st.booleans(), st.integers(0, 5))
def test_tokens_are_embedded_with_their_position(lengths, width, dtype, positions, spare):
    offsets, total = make_offsets(lengths), sum(lengths)
    word, position = make_tensor(50, width, dtype=dtype), make_tensor(48, width, dtype=dtype, seed=1)
    weight, bias = make_tensor(width, dtype=dtype, seed=2), make_tensor(width, dtype=dtype, seed=3)
    ids = torch.randint(0, 50, (total + spare,), generator=torch.Generator().manual_seed(4), dtype=torch.int32).to(
        DEVICE
    )
    places = torch.cat([torch.arange(n) for n in lengths]).to(DEVICE)
    given_places = None
    if positions:
        places = places + 3
        given_places = F.pad(places, (0, spare)).int()
    got = encoder_layers.embed_tokens(ids, offsets, word, position, weight, bias, 1e-12, given_places)
    hidden = word[ids[:total].long()].double() + position[places].double()
    want = F.layer_norm(hidden, (width,), weight.double(), bias.double(), 1e-12)
    close(got[:total], want, dtype)
    assert (got[total:] == 0).all()


@quick
@given(st.integers(1, 70), st.sampled_from([8, 48, 384]), st.sampled_from(TYPES))
def test_sum_of_product_bias_and_residual_is_normalised(tokens, width, dtype):
    x, residual = make_tensor(tokens, width, dtype=dtype), make_tensor(tokens, width, dtype=dtype, seed=1)
    x_bias, weight, bias = (make_tensor(width, dtype=dtype, seed=k) for k in (2, 3, 4))
    want = F.layer_norm(
        x.double() + x_bias.double() + residual.double(), (width,), weight.double(), bias.double(), 1e-12
    )
    close(encoder_layers.add_and_normalize(x, x_bias, residual, weight, bias, 1e-12), want, dtype)


@quick
@given(
    st.integers(1, 9), st.sampled_from([8, 1536]), st.sampled_from(TYPES), st.sampled_from(encoder_layers.ACTIVATIONS)
)
def test_bias_and_activation(tokens, width, dtype, kind):
    x, bias = 3 * make_tensor(tokens, width, dtype=dtype), make_tensor(width, dtype=dtype, seed=1)
    y = x.double() + bias.double()
    close(
        encoder_layers.activate(x, bias, kind),
        apply_activation(y, kind),
        torch.float16 if kind == "gelu_16" and dtype == torch.float32 else dtype,
    )


def apply_activation(y: torch.Tensor, kind: str) -> torch.Tensor:
    if kind in ("relu", "silu"):
        return F.relu(y) if kind == "relu" else F.silu(y)
    return F.gelu(y, approximate="tanh" if kind == "gelu_tanh" else "none")


def test_gelu_for_16_bits_is_right_to_more_than_they_can_show():
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.tensor([-6e4, -100.0, 100.0, 6e4])]).to(DEVICE).view(1, -1)
    got = encoder_layers.activate(x.clone(), torch.zeros(x.shape[1], device=DEVICE), "gelu_16")
    assert (got.double() - F.gelu(x.double())).abs().max() < 6e-5


@quick
@given(st.lists(st.sampled_from([1, 2, 15, 16, 17, 33, 64, 65, 130]), min_size=1, max_size=4), st.sampled_from(TYPES),
       st.sampled_from([16, 32, 64]))  # fmt: skip
def test_each_text_attends_to_itself_only(lengths, dtype, depth):
    heads, offsets = 2, make_offsets(lengths)
    qkv = make_tensor(sum(lengths), 3 * heads * depth, dtype=dtype)
    got = encoder_layers.attend(qkv, offsets, heads, depth, max(lengths))
    want = []
    for part in qkv.double().split(lengths):
        q, k, v = part.view(len(part), 3, heads, depth).permute(1, 2, 0, 3)
        want.append((torch.softmax(q @ k.transpose(1, 2) * depth**-0.5, -1) @ v).transpose(0, 1).reshape(len(part), -1))
    close(got, torch.cat(want), dtype)


@quick
@given(lengths_of, st.sampled_from([8, 48, 384]), st.sampled_from(TYPES), st.sampled_from(["mean", "max", "cls"]),
       st.booleans())  # fmt: skip
def test_each_text_is_pooled_into_one_vector(lengths, width, dtype, mode, unit):
    hidden, offsets = make_tensor(sum(lengths), width, dtype=dtype), make_offsets(lengths)
    got = encoder_layers.pool(hidden, offsets, mode, unit)
    parts = hidden.double().split(lengths)
    want = torch.stack([p[0] if mode == "cls" else p.amax(0) if mode == "max" else p.mean(0) for p in parts])
    close(got, F.normalize(want, dim=1) if unit else want, torch.float32)


def test_zero_vectors_stay_zero_and_empty_inputs_stay_empty():
    zeros = torch.zeros(3, 8, device=DEVICE)
    assert (encoder_layers.pool(zeros, make_offsets([3]), "mean", True) == 0).all()
    none = torch.zeros(0, 24, device=DEVICE)
    assert encoder_layers.attend(none, make_offsets([]), 2, 4, 1).shape == (0, 8)
    assert encoder_layers.pool(none, make_offsets([]), "max", False).shape == (0, 24)
