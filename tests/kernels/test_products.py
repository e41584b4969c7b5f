"""Products with bias and activation against plain torch in float64; interpreted without a GPU.

python -m pytest tests/kernels/test_products.py
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.test_encoder import TYPES, apply_activation, close, make_tensor, pytestmark, quick  # noqa: E402, F401

from ridgeline.kernels.encoder import products  # noqa: E402
from ridgeline.kernels.encoder.activations import ACTIVATIONS  # noqa: E402

# 16 bits only: float32 has no fast product, and its tiles do not fit into a multiprocessor.


@quick
@given(st.sampled_from([1, 63, 130]), st.sampled_from([(256, 64), (512, 192)]), st.sampled_from(TYPES[1:]),
       st.sampled_from(ACTIVATIONS))  # fmt: skip
def test_a_product_with_its_bias_and_activation(tokens, shape, dtype, kind):
    width, depth = shape
    x, weight, bias = (
        make_tensor(tokens, depth, dtype=dtype),
        make_tensor(width, depth, dtype=dtype, seed=1),
        make_tensor(width, dtype=dtype, seed=2),
    )
    y = x.double() @ weight.double().T + bias.double()
    close(products.linear(x, weight, bias, kind), apply_activation(y, kind), dtype)


def test_unsupported_and_slow_shapes_are_reported():
    for width, depth, tokens, expected in (
        (1536, 384, products.MIN_LINEAR_TOKENS, True),
        (1536, 384, products.MIN_LINEAR_TOKENS - 1, False),
        (100, 64, products.MIN_LINEAR_TOKENS, False),
        (256, 100, products.MIN_LINEAR_TOKENS, False),
    ):
        assert products.linear_activate_pays(torch.empty(width, depth, device="meta"), tokens) is expected
