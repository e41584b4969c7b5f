"""The products with what follows them, against plain torch in float64; interpreted where there is no GPU.

python -m pytest tests/kernels/test_products.py
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.test_encoder import TYPES, activated, close, made, pytestmark, quick  # noqa: E402, F401

from ridgeline.kernels.encoder import encoder

# Of 16 bits: float32 has no quick product, and its tiles do not fit into a multiprocessor.


@quick
@given(st.sampled_from([1, 63, 130]), st.sampled_from([(256, 64), (512, 192)]), st.sampled_from(TYPES[1:]),
       st.sampled_from(encoder.ACTIVATIONS))  # fmt: skip
def test_a_product_with_its_bias_and_activation(tokens, shape, dtype, kind):
    width, depth = shape
    x, weight, bias = (
        made(tokens, depth, dtype=dtype),
        made(width, depth, dtype=dtype, seed=1),
        made(width, dtype=dtype, seed=2),
    )
    y = x.double() @ weight.double().T + bias.double()
    close(encoder.linear_activate(x, weight, bias, kind), activated(y, kind), dtype)


def test_shapes_that_do_not_fit_or_do_not_pay_are_said_to_be_so():
    for width, depth, tokens, wanted in (
        (1536, 384, encoder.PAYS, True),
        (1536, 384, encoder.PAYS - 1, False),
        (100, 64, encoder.PAYS, False),
        (256, 100, encoder.PAYS, False),
    ):
        assert encoder.multiplies(torch.empty(width, depth, device="meta"), tokens) is wanted
