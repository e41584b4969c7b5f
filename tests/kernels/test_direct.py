"""Kernels launched again without Triton (native.Launch itself: tests/native/test_launch.py).

python -m pytest tests/kernels/test_direct.py
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline.kernels import direct  # noqa: E402


class Kernel:
    """What Triton gives back, without a GPU."""

    def __init__(self, signature: dict[str, str]) -> None:
        meta = SimpleNamespace(num_warps=4, shared=64, global_scratch_size=0)
        self.compiled = SimpleNamespace(metadata=meta, function=9, src=SimpleNamespace(signature=signature))

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.compiled


def test_every_parameter_stands_as_the_kernel_reads_it():
    a, b = torch.ones(4), torch.ones(4)
    kernel = Kernel(
        {"a": "*fp32", "n": "i32", "x": "fp32", "none": "constexpr", "wide": "i64", "b": "*fp32", "C": "constexpr"}
    )
    arguments = (a, -3, 1.5, None, 1 << 40, b, 16)
    found = direct.parameters(kernel.compiled, arguments, {5: 1})
    assert found == [(8, -1, a.data_ptr()), (4, -1, -3), (4, -1, 0x3FC00000), (8, -1, 1 << 40), (8, 1, 0)]
    kernel.compiled.metadata.global_scratch_size = 8
    with pytest.raises(RuntimeError, match="scratch"):
        direct.parameters(kernel.compiled, arguments, {})


@pytest.mark.parametrize("early", [False, True])
def test_what_was_launched_once_is_launched_again_with_other_tensors(monkeypatch, early):
    made: list[tuple] = []

    def make(compiled, programs, arguments, slots, early):
        return programs, slots, early

    def launched(launches, stream, *addresses):
        for programs, slots, early in launches:
            made.append((early, programs, stream, {k: addresses[v] for k, v in slots.items()}))

    monkeypatch.setattr(direct, "direct", make)
    monkeypatch.setattr(direct, "launch_all", launched)
    kernel = Kernel({"a": "*fp32", "b": "*fp32"})
    moving, fixed = torch.ones(4), torch.ones(4)

    def work() -> None:
        direct.launch(kernel, 7, moving, fixed, num_warps=4)
        direct.launch(kernel, 8, fixed, moving)

    sequel = direct.Sequel(work, [moving], early)
    direct.launch(kernel, 9, fixed, fixed)  # no longer noted
    sequel(5, 1000)
    assert made == [(False, 7, 5, {0: 1000}), (early, 8, 5, {1: 1000})]
    assert [t is moving for t in sequel.tensors] == [True, False, False, True]


def test_launches_that_need_the_first_tensor_alone_go_ahead_of_the_others(monkeypatch):
    """Whichever of them writes the answer first, all from there on wait for the place of it."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(direct, "direct", lambda compiled, programs, *_: programs)
    monkeypatch.setattr(direct, "launch_all", lambda some, _, *at: made.extend((n, len(at)) for n in some))
    kernel = Kernel({"a": "*fp32", "b": "*fp32"})
    query, answer, fixed = torch.ones(4), torch.ones(4), torch.ones(4)

    def work() -> None:
        direct.launch(kernel, 7, query, fixed)
        direct.launch(kernel, 8, query, answer)
        direct.launch(kernel, 9, query, fixed)

    sequel = direct.Sequel(work, [query, answer])
    sequel.begin(5, 1000)
    sequel.end(5, 1000, 2000)
    assert made == [(7, 1), (8, 2), (9, 2)]
    made.clear()
    lone = direct.Sequel(lambda: direct.launch(kernel, 3, query, fixed), [query, answer])
    lone.begin(5, 1000)
    lone.end(5, 1000, 2000)
    assert made == [(3, 1)]
