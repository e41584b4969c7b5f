"""Launch compiled kernels again without Triton (for native.Launch itself see tests/native/test_launch.py).

python -m pytest tests/kernels/test_launch.py
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from ridgeline.kernels import launch  # noqa: E402


class Kernel:
    """A compiled kernel as Triton returns it, without a GPU."""

    def __init__(self, signature: dict[str, str]) -> None:
        meta = SimpleNamespace(num_warps=4, shared=64, global_scratch_size=0)
        self.compiled = SimpleNamespace(metadata=meta, function=9, src=SimpleNamespace(signature=signature))

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.compiled


def test_every_parameter_has_the_bytes_that_the_kernel_reads():
    a, b = torch.ones(4), torch.ones(4)
    kernel = Kernel(
        {"a": "*fp32", "n": "i32", "x": "fp32", "none": "constexpr", "wide": "i64", "b": "*fp32", "C": "constexpr"}
    )
    arguments = (a, -3, 1.5, None, 1 << 40, b, 16)
    parameters = launch.pack_parameters(kernel.compiled, arguments, {5: 1})
    assert parameters == [(8, -1, a.data_ptr()), (4, -1, -3), (4, -1, 0x3FC00000), (8, -1, 1 << 40), (8, 1, 0)]
    kernel.compiled.metadata.global_scratch_size = 8
    with pytest.raises(RuntimeError, match="scratch"):
        launch.pack_parameters(kernel.compiled, arguments, {})


@pytest.mark.parametrize("early", [False, True])
def test_recorded_launches_run_again_with_other_tensors(monkeypatch, early):
    calls: list[tuple] = []

    def record_arguments(compiled, programs, arguments, slots, early):
        return programs, slots, early

    def record_launches(launches, stream, *addresses):
        for programs, slots, early in launches:
            calls.append((early, programs, stream, {k: addresses[v] for k, v in slots.items()}))

    monkeypatch.setattr(launch, "make_launch", record_arguments)
    monkeypatch.setattr(launch, "launch_all", record_launches)
    kernel = Kernel({"a": "*fp32", "b": "*fp32"})
    moving, fixed = torch.ones(4), torch.ones(4)

    def work() -> None:
        launch.launch_kernel(kernel, 7, moving, fixed, num_warps=4)
        launch.launch_kernel(kernel, 8, fixed, moving)

    sequence = launch.LaunchSequence(work, [moving], early)
    launch.launch_kernel(kernel, 9, fixed, fixed)  # not recorded
    sequence(5, 1000)
    assert calls == [(False, 7, 5, {0: 1000}), (early, 8, 5, {1: 1000})]
    assert [t is moving for t in sequence.tensors] == [True, False, False, True]


def test_launches_that_need_only_the_first_tensor_come_first(monkeypatch):
    """From the first launch that needs the result tensor on, all launches wait for its address."""
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr(launch, "make_launch", lambda compiled, programs, *_: programs)
    monkeypatch.setattr(launch, "launch_all", lambda some, _, *at: calls.extend((n, len(at)) for n in some))
    kernel = Kernel({"a": "*fp32", "b": "*fp32"})
    query, answer, fixed = torch.ones(4), torch.ones(4), torch.ones(4)

    def work() -> None:
        launch.launch_kernel(kernel, 7, query, fixed)
        launch.launch_kernel(kernel, 8, query, answer)
        launch.launch_kernel(kernel, 9, query, fixed)

    sequence = launch.LaunchSequence(work, [query, answer])
    sequence.begin(5, 1000)
    sequence.end(5, 1000, 2000)
    assert calls == [(7, 1), (8, 2), (9, 2)]
    calls.clear()
    single = launch.LaunchSequence(lambda: launch.launch_kernel(kernel, 3, query, fixed), [query, answer])
    single.begin(5, 1000)
    single.end(5, 1000, 2000)
    assert calls == [(3, 1)]
