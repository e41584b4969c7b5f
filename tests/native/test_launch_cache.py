"""native.LaunchCache and resample over it, with tensors in host memory and a CUDA driver of the tests.

python -m pytest tests/native/test_launch_cache.py
"""

from __future__ import annotations

import ctypes
import gc
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.native.driver import driver, read

import ridgeline
from ridgeline.native import Launch, LaunchCache, TensorReader

torch = pytest.importorskip("torch")

__all__ = ["driver"]

PARAMETERS = [(8, 0, 0), (4, -1, 5), (8, 1, 0), (8, 2, 0), (8, 3, 0)]
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64]


class Call:
    """The four tensors of a call. Calling it with a cache returns whether the cache launched exactly these."""

    def __init__(self, driver: str, *tensors) -> None:
        self.driver, self.tensors = driver, tensors

    def __call__(self, cache) -> bool:
        before = read(self.driver, "launches", ctypes.c_uint, 1)[0]
        launched = cache(*self.tensors)
        now = read(self.driver, "launches", ctypes.c_uint, 1)[0]
        assert now == before + launched
        if launched:
            v, t, a, o = (tensor.data_ptr() for tensor in self.tensors)
            assert read(self.driver, "seen") == [v, 5, t, a, o]
        return launched


def tensors(batch=3, stamps=5, targets=4, channels=8, dtype=torch.float32, clock=torch.float64):
    return [
        torch.ones(batch, stamps, channels, dtype=dtype),
        torch.ones(batch, stamps, dtype=clock),
        torch.ones(batch, targets, dtype=clock),
        torch.ones(batch, targets, channels, dtype=dtype),
    ]


def make_strided(shape, dtype, gap, shift):
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
def cache() -> LaunchCache:
    return LaunchCache(TensorReader(torch.Tensor))


def test_a_call_in_the_cache_is_launched_with_its_addresses(driver, launch, cache):
    assert not Call(driver, *tensors())(cache)
    assert cache.add(*tensors(), launch)
    others = [tensors() for _ in range(3)]
    for four in (*others, *others):
        assert Call(driver, *four)(cache)
    assert read(driver, "function_seen", count=1) == [0xF00D]
    assert read(driver, "stream_seen", count=1) == [0]
    cache.clear()
    assert len(cache) == 0
    assert not Call(driver, *tensors())(cache)


def test_each_kind_of_call_has_its_launch(driver, cache):
    widths = list(range(1, 60))
    for width in widths:
        assert cache.add(*tensors(channels=width), Launch(width, 1, 32, 0, PARAMETERS, driver))
    assert len(cache) == len(widths)
    gc.collect()  # the cache keeps the launches alive
    for width in [*widths[::-1], *widths[::7], 3, 3]:
        assert Call(driver, *tensors(channels=width))(cache)
        assert read(driver, "function_seen", count=1) == [width]
    assert cache.add(*tensors(channels=3), Launch(99, 1, 32, 0, PARAMETERS, driver))  # anew
    assert len(cache) == len(widths)
    assert Call(driver, *tensors(channels=3))(cache)
    assert read(driver, "function_seen", count=1) == [99]


SPEC = st.tuples(
    st.lists(st.integers(1, 3), min_size=1, max_size=3), st.sampled_from(TYPES), st.integers(0, 2), st.integers(0, 3)
)
FOUR = st.tuples(SPEC, SPEC, SPEC, SPEC)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(FOUR, FOUR, st.lists(st.booleans(), min_size=4, max_size=4))
def test_the_key_is_exactly_what_a_kernel_was_compiled_for(driver, one, other, same):
    """Compared with a key that is built in Python."""
    other = [a if equal else b for a, b, equal in zip(one, other, same, strict=True)]
    before, after = ([make_strided(*spec) for spec in four] for four in (one, other))

    def describe(four):
        return [(t.dtype, t.shape, t.stride(), t.device, t.data_ptr() % 16) for t in four]

    cache = LaunchCache(TensorReader(torch.Tensor))
    assert cache.add(*before, Launch(1, 1, 32, 0, PARAMETERS, driver))
    assert Call(driver, *after)(cache) == (describe(before) == describe(after))


def test_overlapping_tensors_are_not_launched(driver, launch, cache):
    memory = torch.ones(4096)
    values, times, at, _ = tensors()
    assert cache.add(values, times, at, memory[:96].view(3, 4, 8), launch)
    first = memory[:120].view(3, 5, 8)
    for start, fine in ((0, False), (104, False), (116, False), (120, True), (4000, True)):
        out = memory[start : start + 96].view(3, 4, 8)
        assert Call(driver, first, times, at, out)(cache) == fine
        for clock in (0, 1):
            clocks = [times, at]
            clocks[clock] = memory[:32].view(torch.float64)[: clocks[clock].numel()].view(clocks[clock].shape)
            assert Call(driver, values, *clocks, out)(cache) == (start >= 32)
    wide = torch.ones(3, 5, 16)
    four = [wide[..., :8], times, at, wide[:, :4, 8:]]  # only numpy can tell that they do not overlap
    assert cache.add(*four, launch)
    assert not Call(driver, *four)(cache)
    once = torch.ones(1, 4, 8).expand(3, 4, 8)
    assert cache.add(values, times, at, once, launch)
    assert not Call(driver, values, times, at, once)(cache)
    none = [t[:0] for t in tensors()]
    assert cache.add(*none, launch)
    assert Call(driver, *none)(cache)  # empty tensors never overlap


def test_tensors_that_cannot_be_read_are_not_launched(driver, launch, cache):
    four = tensors()
    assert cache.add(*four, launch)
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
        assert not Call(driver, values, *four[1:])(cache), name
    for name in ("turned", "no numbers", "deep", "on no device", "no tensor"):
        assert not cache.add(strange[name], *four[1:], launch), name
    assert len(cache) == 1
    assert Call(driver, *four)(cache)


def test_a_call_in_another_context_is_not_launched(driver, launch, cache):
    assert cache.add(*tensors(), launch)
    context = ctypes.c_void_p.in_dll(ctypes.CDLL(driver), "context")
    original = context.value
    try:
        for other in (78, None):
            context.value = other
            assert not Call(driver, *tensors())(cache)
    finally:
        context.value = original
    assert Call(driver, *tensors())(cache)


def test_a_type_without_the_exchange_api_is_refused():
    class Silent:
        pass

    class Wrong:
        __dlpack_c_exchange_api__ = "text"

    for kind in (Silent, Wrong):
        with pytest.raises(RuntimeError, match="C functions"):
            TensorReader(kind)


def test_resample_launches_calls_that_are_in_the_cache(driver, launch, cache, monkeypatch):
    module = sys.modules[ridgeline.resample.__module__]
    *three, out = tensors()
    assert cache.add(*three, out, launch)
    monkeypatch.setattr(module, "_reader", TensorReader(torch.Tensor))
    monkeypatch.setattr(module, "_launches", {"cubic": cache})
    monkeypatch.setattr(module, "_resample_any", lambda *_, **__: "general")
    options = {"out": out, "check": False, "kind": "cubic"}
    for defaults in ({}, {"outside": "clamp"}, {"max_gap": None, "sort": False}):
        before = read(driver, "launches", ctypes.c_uint, 1)[0]
        assert ridgeline.resample(*three, **options, **defaults) is out
        assert read(driver, "launches", ctypes.c_uint, 1) == [before + 1]
        assert read(driver, "seen") == [three[0].data_ptr(), 5, *(t.data_ptr() for t in (*three[1:], out))]
    before = read(driver, "launches", ctypes.c_uint, 1)
    for other in (
        {"check": True}, {"out": None}, {"kind": "slerp"}, {"kind": [(slice(0, 2), "cubic")]}, {"outside": "nan"},
        {"max_gap": 1.0}, {"return_mask": True},
    ):  # fmt: skip
        assert ridgeline.resample(*three, **{**options, **other}) == "general"
    assert ridgeline.resample(three[0][1:], *three[1:], **options) == "general"
    assert read(driver, "launches", ctypes.c_uint, 1) == before


def test_resample_reports_an_error_of_the_driver_and_keeps_no_reference(driver, launch, cache, monkeypatch):
    module = sys.modules[ridgeline.resample.__module__]
    four = tensors()
    assert cache.add(*four, launch)
    monkeypatch.setattr(module, "_reader", TensorReader(torch.Tensor))
    monkeypatch.setattr(module, "_launches", {"linear": cache})
    error = ctypes.c_int.in_dll(ctypes.CDLL(driver), "answer")
    gc.collect()
    before = [sys.getrefcount(t) for t in four]
    for _ in range(100):
        ridgeline.resample(*four[:3], out=four[3], check=False)
        ridgeline.resample(*four[:3], out=four[3])
    error.value = 700
    try:
        with pytest.raises(RuntimeError, match="700"):
            ridgeline.resample(*four[:3], out=four[3], check=False)
    finally:
        error.value = 0
    assert [sys.getrefcount(t) for t in four] == before
