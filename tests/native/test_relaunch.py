"""native.Relaunch and the door that asks it, with tensors in host memory and a CUDA driver of our own.

python -m pytest tests/native/test_relaunch.py
"""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.native.driver import driver, read

from ridgeline import native
from ridgeline.native import Launch, Relaunch, Tensors

torch = pytest.importorskip("torch")

__all__ = ["driver"]

PARAMETERS = [(8, 0, 0), (4, -1, 5), (8, 1, 0), (8, 2, 0), (8, 3, 0)]
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]


class Asked:
    """Four tensors of a call; `launched` says whether a relaunch was one of exactly these."""

    def __init__(self, driver: str, *tensors) -> None:
        self.driver, self.tensors = driver, tensors

    def __call__(self, relaunch) -> bool:
        before = read(self.driver, "launches", ctypes.c_uint, 1)[0]
        said = relaunch(*self.tensors)
        now = read(self.driver, "launches", ctypes.c_uint, 1)[0]
        assert now == before + said
        if said:
            v, t, a, o = (tensor.data_ptr() for tensor in self.tensors)
            assert read(self.driver, "seen") == [v, 5, t, a, o]
        return said


def tensors(batch=3, stamps=5, targets=4, channels=8, dtype=torch.float32, clock=torch.float64):
    return [
        torch.ones(batch, stamps, channels, dtype=dtype),
        torch.ones(batch, stamps, dtype=clock),
        torch.ones(batch, targets, dtype=clock),
        torch.ones(batch, targets, channels, dtype=dtype),
    ]


def laid(shape, dtype, gap, shift):
    """A tensor whose rows lie `gap` elements apart, and which begins `shift` elements after a multiple of 64 bytes."""
    *rows, width = shape
    step = width + gap
    count = step
    for n in rows:
        count *= n
    raw = torch.zeros(count + 128, dtype=dtype)
    first = -raw.data_ptr() % 64 // raw.element_size() + shift
    return raw[first : first + count].view(*rows, step)[..., :width]


@pytest.fixture
def launch(driver: str) -> Launch:
    return Launch(0xF00D, 12, 64, 0, PARAMETERS, driver)


@pytest.fixture
def relaunch() -> Relaunch:
    return Relaunch(Tensors(torch.Tensor))


def test_a_call_like_one_before_is_launched_with_its_own_addresses(driver, launch, relaunch):
    assert not Asked(driver, *tensors())(relaunch)
    assert relaunch.remember(*tensors(), launch)
    others = [tensors() for _ in range(3)]
    for four in (*others, *others):
        assert Asked(driver, *four)(relaunch)
    assert read(driver, "function_seen", count=1) == [0xF00D]
    assert read(driver, "stream_seen", count=1) == [0]
    relaunch.forget()
    assert len(relaunch) == 0
    assert not Asked(driver, *tensors())(relaunch)


def test_each_kind_of_call_finds_its_own_launch(driver, relaunch):
    widths = list(range(1, 60))
    for width in widths:
        assert relaunch.remember(*tensors(channels=width), Launch(width, 1, 32, 0, PARAMETERS, driver))
    assert len(relaunch) == len(widths)
    gc.collect()  # the launches are kept
    for width in [*widths[::-1], *widths[::7], 3, 3]:
        assert Asked(driver, *tensors(channels=width))(relaunch)
        assert read(driver, "function_seen", count=1) == [width]
    assert relaunch.remember(*tensors(channels=3), Launch(99, 1, 32, 0, PARAMETERS, driver))  # anew
    assert len(relaunch) == len(widths)
    assert Asked(driver, *tensors(channels=3))(relaunch)
    assert read(driver, "function_seen", count=1) == [99]


SPEC = st.tuples(
    st.lists(st.integers(1, 3), min_size=1, max_size=3), st.sampled_from(TYPES), st.integers(0, 2), st.integers(0, 3)
)
FOUR = st.tuples(SPEC, SPEC, SPEC, SPEC)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FOUR, FOUR, st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_a_kernel_was_compiled_for_and_nothing_else_tells_calls_apart(driver, one, other, same):
    """By the slow way: all of it said in Python and compared."""
    other = [a if alike else b for a, b, alike in zip(one, other, same, strict=True)]
    before, after = ([laid(*spec) for spec in four] for four in (one, other))

    def told(four):
        return [(t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % 16) for t in four]

    relaunch = Relaunch(Tensors(torch.Tensor))
    assert relaunch.remember(*before, Launch(1, 1, 32, 0, PARAMETERS, driver))
    assert Asked(driver, *after)(relaunch) == (told(before) == told(after))


def test_what_might_be_written_where_it_is_read_is_left_to_others(driver, launch, relaunch):
    memory = torch.ones(4096)
    values, times, at, _ = tensors()
    assert relaunch.remember(values, times, at, memory[:96].view(3, 4, 8), launch)
    first = memory[:120].view(3, 5, 8)
    for start, fine in ((0, False), (104, False), (116, False), (120, True), (4000, True)):
        out = memory[start : start + 96].view(3, 4, 8)
        assert Asked(driver, first, times, at, out)(relaunch) == fine
        for clock in (0, 1):
            clocks = [times, at]
            clocks[clock] = memory[:32].view(torch.float64)[: clocks[clock].numel()].view(clocks[clock].shape)
            assert Asked(driver, values, *clocks, out)(relaunch) == (start >= 32)
    apart = torch.ones(3, 5, 16)
    four = [apart[..., :8], times, at, apart[:, :4, 8:]]  # which only the ordinary way can know
    assert relaunch.remember(*four, launch)
    assert not Asked(driver, *four)(relaunch)
    once = torch.ones(1, 4, 8).expand(3, 4, 8)
    assert relaunch.remember(values, times, at, once, launch)
    assert not Asked(driver, values, times, at, once)(relaunch)
    none = [t[:0] for t in tensors()]
    assert relaunch.remember(*none, launch)
    assert Asked(driver, *none)(relaunch)  # and of nothing, nothing


def test_what_it_cannot_tell_is_left_to_others(driver, launch, relaunch):
    four = tensors()
    assert relaunch.remember(*four, launch)
    turned = torch.zeros(3, 5, 8, dtype=torch.complex64).conj().imag
    assert turned.is_neg()
    strange = {
        "with a gradient": four[0].clone().requires_grad_(),
        "of a type of its own": torch.nn.Parameter(four[0], requires_grad=False),
        "no tensor": four[0].numpy(),
        "no array either": object(),
        "apart": torch.ones(3, 5, 16)[..., ::2],
        "on no device": torch.ones(3, 5, 8, device="meta"),
        "sparse": torch.ones(3, 5, 8).to_sparse(),
        "no numbers": torch.tensor(1.0),
        "deep": torch.ones(3, 5, 8, 1),
        "turned": turned,
    }
    for name, values in strange.items():
        assert not Asked(driver, values, *four[1:])(relaunch), name
    for name in ("turned", "no numbers", "deep", "on no device", "no tensor"):
        assert not relaunch.remember(strange[name], *four[1:], launch), name
    assert len(relaunch) == 1
    assert Asked(driver, *four)(relaunch)


def test_where_another_context_is_current_it_is_not_launched(driver, launch, relaunch):
    assert relaunch.remember(*tensors(), launch)
    context = ctypes.c_void_p.in_dll(ctypes.CDLL(driver), "context")
    home = context.value
    try:
        for elsewhere in (78, None):
            context.value = elsewhere
            assert not Asked(driver, *tensors())(relaunch)
    finally:
        context.value = home
    assert Asked(driver, *tensors())(relaunch)


def test_a_type_that_offers_no_exchange_is_refused():
    class Silent:
        pass

    class Wrong:
        __dlpack_c_exchange_api__ = "here"

    for kind in (Silent, Wrong):
        with pytest.raises(RuntimeError, match="C functions"):
            Tensors(kind)


# ---- the door ----


def otherwise(*given, **named):
    return "the ordinary way"


@pytest.fixture
def door():
    return native.resample_door(otherwise, "otherwise(*given, **named)\n--\n\nSays so.")


def test_the_door_launches_plain_calls_of_a_known_kind(driver, launch, relaunch, door):
    assert relaunch.remember(*tensors(), launch)
    native.launch_again(door, "cubic", relaunch)
    *three, out = tensors()
    how = {"out": out, "check": False}
    for plain in ({}, {"outside": "clamp"}, {"max_gap": None, "sort": False}):
        before = read(driver, "launches", ctypes.c_uint, 1)[0]
        assert door(*three, **how, kind="cubic", **plain) is out
        assert read(driver, "launches", ctypes.c_uint, 1) == [before + 1]
        assert read(driver, "seen") == [three[0].data_ptr(), 5, *(t.data_ptr() for t in (*three[1:], out))]
    before = read(driver, "launches", ctypes.c_uint, 1)
    for other in (
        {"out": out, "kind": "cubic"},
        {"check": False, "kind": "cubic"},
        how,
        {**how, "kind": "linear"},
        {**how, "kind": "slerp"},
        {**how, "kind": [(slice(0, 2), "cubic")]},
        {**how, "kind": "cubic", "outside": "nan"},
        {**how, "kind": "cubic", "max_gap": 1.0},
        {**how, "kind": "cubic", "return_mask": True},
        {**how, "kind": "cubic", "check": 0},
    ):
        assert door(*three, **other) == "the ordinary way"
    assert door(three[0][1:], *three[1:], **how, kind="cubic") == "the ordinary way"
    assert door(*three, out, **how, kind="cubic") == "the ordinary way"
    assert read(driver, "launches", ctypes.c_uint, 1) == before
    native.launch_again(door, "linear", relaunch)
    assert door(*three, **how) is out
    assert door(*three, **how, kind="linear") is out
    assert read(driver, "launches", ctypes.c_uint, 1) == [before[0] + 2]


def test_the_door_says_what_the_driver_refused_and_keeps_nothing(driver, launch, relaunch, door):
    four = tensors()
    assert relaunch.remember(*four, launch)
    native.launch_again(door, "linear", relaunch)
    answer = ctypes.c_int.in_dll(ctypes.CDLL(driver), "answer")
    gc.collect()
    before = [sys.getrefcount(t) for t in four]
    for _ in range(100):
        door(*four[:3], out=four[3], check=False)
        door(*four[:3], out=four[3])
        door(four[0][1:], *four[1:3], out=four[3], check=False)
    answer.value = 700
    try:
        with pytest.raises(RuntimeError, match="700"):
            door(*four[:3], out=four[3], check=False)
    finally:
        answer.value = 0
    assert [sys.getrefcount(t) for t in four] == before
    for no_door in (otherwise, len, 3):
        with pytest.raises(TypeError):
            native.launch_again(no_door, "linear", relaunch)
    with pytest.raises(TypeError):
        native.launch_again(door, "linear", launch)
