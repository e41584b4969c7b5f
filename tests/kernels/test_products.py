"""Products with bias and activation against plain torch in float64; interpreted without a GPU.

python -m pytest tests/kernels/test_products.py
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.kernels.test_encoder import CUDA, TYPES, apply_activation, close, few, make_tensor, pytestmark, quick  # noqa: E402, F401

from ridgeline.kernels.encoder import activate_gate, products  # noqa: E402
from ridgeline.kernels.encoder.activations import ACTIVATIONS  # noqa: E402

# 16 bits only: float32 has no fast product, and its tiles do not fit into a multiprocessor.


@few
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


@few
@given(st.sampled_from([(40, 72), (130, 20)]), st.sampled_from(TYPES), st.integers(1, 70), st.booleans())
def test_a_row_has_the_same_bits_beside_any_others(shape, dtype, count, has_bias):
    width, depth = shape
    x, weight = make_tensor(70, depth, dtype=dtype), make_tensor(width, depth, dtype=dtype, seed=1)
    bias = make_tensor(width, dtype=dtype, seed=2) if has_bias else None
    together = products.linear(x, weight, bias)
    close(together, x.double() @ weight.double().T + (0 if bias is None else bias.double()), dtype)
    assert torch.equal(products.linear(x[:count], weight, bias), together[:count])
    assert torch.equal(products.linear(x[70 - count :], weight, bias), together[70 - count :])
    assert torch.equal(products.linear_by_library(x, weight, bias, [71]), together)


@few
@given(st.sampled_from([(40, 72), (136, 20)]), st.sampled_from(TYPES), st.integers(1, 70))
def test_a_product_is_added_to_a_total_with_the_same_bits_for_any_rows(shape, dtype, count):
    width, depth = shape
    total, x = make_tensor(70, width, dtype=dtype), make_tensor(70, depth, dtype=dtype, seed=1)
    weight = make_tensor(width, depth, dtype=dtype, seed=2)
    together = products.add_linear(total.clone(), x, weight)
    close(together, total.double() + x.double() @ weight.double().T, dtype)
    first, last = total.clone(), total.clone()
    products.add_linear(first[:count], x[:count], weight)
    assert torch.equal(first, torch.cat([together[:count], total[count:]]))
    assert torch.equal(products.linear_by_library(x, weight, None, [71], last), together)
    assert torch.equal(last, together)


def test_a_product_is_not_added_to_rows_that_are_not_aligned():
    total, x, weight = make_tensor(3, 10), make_tensor(3, 8), make_tensor(10, 8)
    with pytest.raises(ValueError, match="rows of 10 columns: give a multiple of 8"):
        products.add_linear(total, x, weight)


@few
@given(st.integers(1, 70), st.sampled_from([64, 40, 130]), st.sampled_from(TYPES[1:]), st.booleans(),
       st.sampled_from(["gelu", "silu"]))  # fmt: skip
def test_a_gate_and_what_it_multiplies_are_one_product(tokens, width, dtype, has_bias, kind):
    x, gate, up = make_tensor(tokens, 24, dtype=dtype), *(make_tensor(width, 24, dtype=dtype, seed=k) for k in (1, 2))
    gate_bias, up_bias = (make_tensor(width, dtype=dtype, seed=k) * has_bias for k in (3, 4))
    weight, bias = products.join_gate(gate, up), products.join_gate(gate_bias, up_bias) if has_bias else None
    want = apply_activation(x.double() @ gate.double().T + gate_bias.double(), kind)
    want = want * (x.double() @ up.double().T + up_bias.double())
    got = products.linear_gated(x, weight, bias, kind, width)
    close(got, want, dtype)
    passes = activate_gate(products.linear(x, weight), bias, kind, width, products.GATE_COLUMNS)
    close(passes, want, torch.bfloat16)  # rounded between the product and the activation


TILES = [
    products.LARGE_TILE,
    products.NARROW_TILE,
    products.SMALL_TILE,
    products.SMALL_GATED_TILE,
    products.Tile(128, 256, 64, 8, 3),
]


@pytest.mark.gpu
@pytest.mark.skipif(not CUDA, reason="this machine has no CUDA device")
@pytest.mark.parametrize("shape", [(2304, 768), (384, 1536), (768, 3072), (40, 72)])
@pytest.mark.parametrize("dtype", TYPES)
def test_tiles_of_every_shape_give_the_same_bits(shape, dtype):
    width, depth = shape
    x, weight, bias = (make_tensor(*s, dtype=dtype, seed=k) for k, s in enumerate([(3000, depth), shape, (width,)]))
    tiles = [products.FLOAT32_TILE, products.SMALL_FLOAT32_TILE] if dtype == torch.float32 else TILES
    together = products.linear(x, weight, bias, tile=tiles[0])
    close(together, x.double() @ weight.double().T + bias.double(), dtype, max(1, depth / 768))
    for tile in tiles:
        for rows in (1, 16, 65, 1000, 3000):
            assert torch.equal(products.linear(x[:rows], weight, bias, tile=tile), together[:rows]), (tile, rows)
    sizes = [size for size in (2048, 512) if products.library_agrees(weight, bias, size)]
    assert torch.equal(products.linear_by_library(x, weight, bias, sizes), together)
    total = make_tensor(3000, width, dtype=dtype, seed=3)
    added = products.add_linear(total.clone(), x, weight, tile=tiles[0])
    for tile in tiles:
        part = total[:65].clone()
        assert torch.equal(products.add_linear(part, x[:65], weight, tile=tile), added[:65]), tile
    sizes = [size for size in (2048, 512) if products.library_agrees(weight, None, size, add=True)]
    assert torch.equal(products.linear_by_library(x, weight, None, sizes, total), added)
