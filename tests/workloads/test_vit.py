"""Vision transformers: exact counts, and errors for impossible sizes.

python -m pytest tests/workloads/test_vit.py
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline import workloads
from ridgeline.errors import InputError
from ridgeline.workloads.vit import OUTPUTS, Vit, build

torch = pytest.importorskip("torch")

shapes = st.builds(
    lambda channels, rows, columns, patch, depth, heads, width, mlp, output: Vit(
        (channels, rows * patch, columns * patch), patch, depth, heads, heads * width, mlp, output
    ),
    st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.sampled_from([2, 4, 7]), st.integers(0, 3),
    st.integers(1, 3), st.sampled_from([4, 8]), st.integers(1, 40), st.sampled_from(OUTPUTS),
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(shapes, st.integers(1, 3))
def test_parameters_flops_and_bytes_are_those_that_torch_counts(vit, batch):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = build(vit)
    images = torch.randn(batch, *vit.image)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.inference_mode():
        answer = model(images)
    assert sum(p.numel() for p in model.parameters()) == vit.parameters
    assert counter.get_total_flops() == vit.flops(batch)
    assert answer.shape == (batch, *vit.shape)
    assert answer.numel() * 4 == vit.down_bytes(batch, 4)
    assert images.numel() * 4 == vit.up_bytes(batch, 4)


def test_a_seed_gives_the_same_weights_and_does_not_change_the_global_random_state():
    vit = Vit((3, 8, 8), 4, 1, 2, 8, 16)
    torch.manual_seed(7)
    before = torch.rand(1)
    torch.manual_seed(7)
    first, second, other = build(vit), build(vit), build(vit, seed=1)
    assert torch.equal(torch.rand(1), before)
    images = torch.randn(2, 3, 8, 8)
    assert torch.equal(first(images), second(images))
    assert not torch.equal(first(images), other(images))


def test_the_control_returns_its_input():
    vit = Vit((1, 4, 4), 2, 0, 1, 12, 1, "tokens")  # an answer larger than the image
    images = torch.arange(32.0).view(2, 1, 4, 4)
    answer = build(vit)(images)
    assert answer.shape == (2, 5, 12)
    assert torch.equal(answer.flatten(1)[:, :16], images.flatten(1))
    assert torch.equal(answer.flatten(1)[:, 16:32], images.flatten(1))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"image": (3, 225, 224)}, "an image of 225×224 is not cut evenly into patches of 16"),
        ({"heads": 5}, "5 heads do not share 768 dimensions evenly"),
        ({"output": "logits"}, "logits"),
        ({"depth": -1}, "depth -1"),
        ({"patch_size": 0}, "patch_size is 0"),
    ],
)
def test_impossible_sizes_are_an_error(sizes, message):
    with pytest.raises(InputError, match=message):
        Vit(**sizes)


def test_a_shared_module_is_not_a_workload():
    assert "vit" not in workloads.list_workloads()
    assert {"embed", "search", "ledger", "spin", "trajectory"} <= set(workloads.list_workloads())
