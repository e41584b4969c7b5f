"""The products with what follows them, against plain torch in float64; interpreted where there is no GPU.

python -m pytest tests/kernels/test_products.py
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

import torch.nn.functional as F  # noqa: E402
from tests.kernels.test_encoder import TYPES, activated, close, made, pytestmark, quick  # noqa: E402, F401

from ridgeline.kernels import encoder  # noqa: E402


@quick
@given(st.sampled_from([1, 63, 130]), st.sampled_from([(128, 64), (256, 192)]), st.sampled_from(TYPES),
       st.sampled_from(encoder.ACTIVATIONS))  # fmt: skip
def test_a_product_with_its_bias_and_activation(tokens, shape, dtype, kind):
    width, depth = shape
    assert encoder.multiplies(width, depth)
    x, weight, bias = (
        made(tokens, depth, dtype=dtype),
        made(width, depth, dtype=dtype, seed=1),
        made(width, dtype=dtype, seed=2),
    )
    y = x.double() @ weight.double().T + bias.double()
    loose = torch.float16 if kind == "gelu_16" and dtype == torch.float32 else dtype
    close(encoder.linear_activate(x, weight, bias, kind), activated(y, kind), loose)


@quick
@given(st.sampled_from([1, 63, 130]), st.sampled_from([(128, 64), (256, 192), (384, 128)]), st.sampled_from(TYPES))
def test_a_product_with_its_bias_and_residual_is_normalised(tokens, shape, dtype):
    width, depth = shape
    assert encoder.normalises(width, depth)
    x, weight, residual = (
        made(tokens, depth, dtype=dtype),
        made(width, depth, dtype=dtype, seed=1),
        made(tokens, width, dtype=dtype, seed=2),
    )
    own, scale, shift = (made(width, dtype=dtype, seed=k) for k in (3, 4, 5))
    y = x.double() @ weight.double().T + own.double() + residual.double()
    want = F.layer_norm(y, (width,), scale.double(), shift.double(), 1e-12)
    close(encoder.linear_add_norm(x, weight, own, residual, scale, shift, 1e-12), want, dtype)


def test_widths_that_do_not_fit_are_said_to_be_so():
    assert not encoder.multiplies(100, 64)
    assert not encoder.normalises(1024, 64)
    assert not encoder.normalises(384, 100)
