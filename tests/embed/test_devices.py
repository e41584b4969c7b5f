"""One text uses few threads, and torch's number of threads is restored."""

from __future__ import annotations

import threading

import pytest

torch = pytest.importorskip("torch")

from ridgeline.embed import devices  # noqa: E402
from ridgeline.embed.devices import limit_threads, resolve_dtype  # noqa: E402
from ridgeline.errors import InputError  # noqa: E402


@pytest.fixture
def eight():
    usual = torch.get_num_threads()
    torch.set_num_threads(8)
    yield
    torch.set_num_threads(usual)


@pytest.mark.parametrize(("tokens", "threads"), [(1, 1), (8, 1), (9, 2), (28, 4), (64, 8), (500, 8)])
def test_a_thread_has_eight_tokens(eight, tokens, threads):
    with limit_threads(tokens):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 8


def test_an_error_restores_the_threads(eight):
    with pytest.raises(ValueError, match="x"), limit_threads(9):
        raise ValueError("x")
    assert torch.get_num_threads() == 8


def test_the_last_of_several_callers_restores_the_number(eight):
    first_in, first_out = threading.Event(), threading.Event()

    def first():
        with limit_threads(16):
            first_in.set()
            first_out.wait(60)

    thread = threading.Thread(target=first)
    thread.start()
    first_in.wait(60)
    with limit_threads(8):
        first_out.set()
        thread.join()
    assert torch.get_num_threads() == 8


def test_int8_is_refused_where_it_would_be_slow(monkeypatch):
    monkeypatch.setattr(devices, "multiplies_bytes", lambda: False)
    with pytest.raises(InputError, match=r"needs a CPU with AVX512-VNNI, AVX-VNNI or AMX .* use float32"):
        resolve_dtype("int8", torch.device("cpu"))
    with pytest.raises(InputError, match="for CPUs; on a GPU use float16"):
        resolve_dtype("int8", torch.device("cuda"))
    monkeypatch.setattr(devices, "multiplies_bytes", lambda: True)
    assert resolve_dtype("int8", torch.device("cpu")) is torch.int8
