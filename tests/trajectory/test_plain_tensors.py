"""The most common call with torch tensors takes a short path: it gives the same bits as the general path.

python -m pytest tests/trajectory/test_plain_tensors.py
"""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trajectory.test_plain import assert_same_bits, batches

from ridgeline import native, resample
from ridgeline.errors import InputError

torch = pytest.importorskip("torch")

READER = native.TensorReader(torch.Tensor)


def short_path(values, times, at, out=None, check=True):
    """The short path alone; None where resample takes the general path."""
    return native.resample_tensors(READER, values, times, at, out, check)


def make_inputs(dtype=torch.float32, clock=torch.float64):
    return torch.ones(2, 3, 4, dtype=dtype), torch.arange(3, dtype=clock).repeat(2, 1), torch.ones(2, 5, dtype=clock)


@settings(max_examples=200, deadline=None)
@given(batches(), st.booleans())
def test_the_short_path_and_the_general_path_give_the_same_bits(case, narrow):
    values, times, at = map(torch.tensor, case)
    if narrow:
        values = values.to(torch.bfloat16)
    general, mask = resample(values, times, at, return_mask=True)
    short = short_path(values, times, at)
    out = torch.full(general.shape, -7, dtype=general.dtype)
    assert short_path(values, times, at, out=out) is out
    for result in (short, out, resample(values, times, at), short_path(values, times, at, check=False)):
        assert result.dtype == values.dtype
        assert result.is_contiguous()
        assert_same_bits(result.double().numpy(), general.double().numpy())
    assert np.array_equal(mask.numpy(), case[2] == case[2])
    wide = torch.full((*out.shape[:2], out.shape[2] + 3), -7, dtype=out.dtype)
    assert short_path(values, times, at, out=wide[..., 3:]).data_ptr() == wide[..., 3:].data_ptr()
    assert_same_bits(wide[..., 3:].double().numpy(), general.double().numpy())
    assert (wide[..., :3] == -7).all()
    strided = torch.full((*out.shape[:2], 2 * out.shape[2]), -7, dtype=out.dtype)[..., ::2]
    swapped = values.permute(2, 0, 1).contiguous().permute(1, 2, 0)  # another memory order, strided channels
    assert short_path(swapped, times.t().contiguous().t(), at, out=strided) is strided
    assert_same_bits(strided.double().numpy(), general.double().numpy())


def test_the_short_path_takes_tensors_of_every_type():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for clock in (torch.float32, torch.float64, torch.int64):
            result = short_path(*make_inputs(dtype, clock))
            assert result.dtype == dtype
            assert result.shape == (2, 5, 4)
            assert (result == 1).all()


def test_the_short_path_refuses_other_tensors():
    values, times, at = make_inputs()
    out = torch.full((2, 5, 4), -7.0)
    with_gradient = torch.ones(2, 3, 4, requires_grad=True)
    conjugated = torch.ones(2, 3, 4, dtype=torch.complex64).conj().imag
    for wrong in (
        (values[0], times, at, out),
        (values, times[:, :2], at, out),
        (values, times[:1], at, out),
        (values, times, at[:1], out),
        (values, times, at.float(), out),
        (values, times.int(), at.int(), out),
        (values.int(), times, at, out),
        (values.to(torch.complex64), times, at, out),
        (values.to_sparse(), times, at, out),
        (values.to("meta"), times, at, out),
        (conjugated, times, at, out),
        (with_gradient, times, at, out),
        (torch.nn.Parameter(values, requires_grad=False), times, at, out),
        (values.numpy(), times, at, out),
        (values, times.numpy(), at, out),
        (values.tolist(), times, at, out),
        (values, times.flip(1), at, out),  # not in order
        (values, times * torch.nan, at, out),
        (values, times, at, out[:, :4]),
        (values, times, at, out.double()),
        (values, times, at, out.numpy()),
        (values, times, at, torch.zeros(2, 5, 4, dtype=torch.complex64).conj().imag),
        (values, torch.complex(times, -times).conj().imag, at, out),
        (values, times, at, out.to("meta")),
    ):
        assert short_path(*wrong[:3], out=wrong[3]) is None
        if wrong[3] is out:
            assert short_path(*wrong[:3]) is None
    assert (out == -7).all()


def test_errors_and_gradients_are_those_of_the_general_path():
    values, times, at = make_inputs()
    resample(values, times, at)  # the first call with tensors creates their reader
    with pytest.raises(InputError, match=r"trajectory 0.*index 1|index 1.*trajectory 0"):
        resample(values, times.flip(1), at)
    with_gradient = values.clone().requires_grad_()
    resample(with_gradient, times, at).sum().backward()
    assert with_gradient.grad is not None
    assert with_gradient.grad.sum() == 40
    with torch.inference_mode():
        assert resample(values, times, at).is_inference()
    with torch.no_grad():
        assert not resample(with_gradient, times, at).requires_grad


def test_empty_tensors_give_the_result_of_the_general_path():
    for shape, targets in (((0, 3, 4), 5), ((2, 3, 4), 0), ((2, 3, 0), 5), ((2, 0, 4), 5)):
        values, times, at = torch.ones(shape), torch.zeros(shape[:2]), torch.zeros(shape[0], targets)
        result, expected = short_path(values, times, at), resample(values, times, at, return_mask=True)[0]
        assert result.shape == expected.shape
        assert torch.equal(result.isnan(), expected.isnan())


def test_many_threads_get_right_results_and_leak_no_reference():
    values, times, at = make_inputs()
    out, wrong = torch.empty(2, 5, 4), []
    gc.collect()
    before = [sys.getrefcount(t) for t in (values, times, at, out)]

    def work():
        for _ in range(200):
            if not ((short_path(values, times, at) == 1).all() and (short_path(values, times, at, out=out) == 1).all()):
                wrong.append(out.clone())
            short_path(values, times.flip(1), at)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    gc.collect()
    assert [sys.getrefcount(t) for t in (values, times, at, out)] == before


def test_the_short_path_needs_a_reader():
    with pytest.raises(TypeError):
        native.resample_tensors(torch.Tensor, *make_inputs(), None, True)
