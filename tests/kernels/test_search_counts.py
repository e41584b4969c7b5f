"""How many kernels the settings of a search compile: the same few for every k, nprobe and number of queries.

python -m pytest tests/kernels/test_search_counts.py
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.search.test_cuda import CUDA, make_gpu_index  # noqa: E402

from ridgeline.kernels import search as kernels  # noqa: E402, F401
from ridgeline.kernels.search import (  # noqa: E402
    inverted_lists,
    product_codes,
    queries,
    rescore,
    scalar_codes,
    scan,
    top_k,
)

pytestmark = pytest.mark.skipif(CUDA, reason="the kernels are compiled here, and not interpreted")
MODULES = (inverted_lists, product_codes, queries, rescore, scalar_codes, scan, top_k)
MOST = 10
ROWS, DIM, LISTS = 1_200, 48, 70


class Recorder:
    """Stands for a kernel: records what a launch is specialised on, as Triton does, and launches nothing."""

    def __init__(self, name: str, kernel, seen: set) -> None:
        self.name, self.kernel, self.seen = name, kernel, seen

    def __getitem__(self, grid):
        def launch(*arguments, **options):
            free = set(self.kernel.kwargs.get("do_not_specialize") or ())
            unaligned = set(self.kernel.kwargs.get("do_not_specialize_on_alignment") or ())
            names = self.kernel.fn.__annotations__
            key = [self.name, tuple(sorted(options.items()))]
            for name, value in zip(self.kernel.arg_names, arguments, strict=True):
                if "constexpr" in str(names.get(name, "")) or value is None:
                    key.append(value)
                elif torch.is_tensor(value):
                    key.append((value.dtype, name in unaligned or value.data_ptr() % 16 == 0))
                elif isinstance(value, int) and name not in free:
                    key.append("one" if value == 1 else value % 16 == 0)
                else:
                    key.append(type(value))
            self.seen.add(tuple(key))
            for name, value in zip(self.kernel.arg_names, arguments, strict=True):
                if name in ("picked_tiles", "begin", "end"):  # other code reads these numbers
                    value.zero_()

        return launch


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set:
    found: set = set()
    for module in MODULES:
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel") and hasattr(kernel, "arg_names"):
                monkeypatch.setattr(module, name, Recorder(name, kernel, found))
    return found


@pytest.mark.parametrize("spec", ["Flat", f"IVF{LISTS},Flat", f"IVF{LISTS},SQ8", f"IVF{LISTS},PQ4,Refine(Flat)"])
def test_every_k_nprobe_and_number_of_queries_uses_the_same_few_kernels(spec: str, seen: set):
    vectors = np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)
    index = make_gpu_index(spec, "cosine", dtype="float16")
    if not index.trained:
        index.train(vectors)
    index.add(vectors)
    values = torch.from_numpy(vectors)
    for nprobe in (1, 5, 33, 64) if "IVF" in spec else (None,):
        for k in (1, 10, 20, 100):
            for count in (1, 2, 7, 16, 33):
                index.search(values[:count], k, nprobe=nprobe)
    assert 3 < len(seen) <= MOST, sorted(key[0] for key in seen)
