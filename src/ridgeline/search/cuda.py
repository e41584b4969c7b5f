"""Search on a GPU: vectors, queries and answers are its tensors, and the kernels of `kernels/search_*` do the work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ridgeline.errors import InputError
from ridgeline.kernels.search import kmeans as search_kmeans
from ridgeline.search import cuda_codes
from ridgeline.search.arrays import Array
from ridgeline.search.cuda_engine import Asked, CudaEngine, refuse
from ridgeline.search.cuda_rows import Inverted, Stored, no_lists
from ridgeline.search.cuda_steps import Refiner
from ridgeline.search.engine import Recipe
from ridgeline.search.inputs import finite_norms, is_tensor, matrix, refuse_shape
from ridgeline.search.replay import Replays
from ridgeline.search.spec import fitting
from ridgeline.search.tensors import Grown, seen

AT_A_TIME = 1 << 18  # rows looked at at once
PQ_SAMPLE = 65_536


@dataclass(frozen=True)
class Cuda:
    device: str

    def take_in(self, vectors: Any, dim: int | None, metric: str, what: str) -> Any:
        """float32 on this GPU. Queries that are on a GPU already are not waited for: see `Index.search`."""
        if is_tensor(vectors):
            refuse_shape(tuple(vectors.shape), dim, what)
            if vectors.dtype.is_complex:
                raise InputError(f"the {what} are of type {vectors.dtype}; give real numbers.")
            values = vectors.detach()
            values = values if values.dtype in (torch.float32, torch.float16, torch.bfloat16) else values.float()
        else:
            values = seen(matrix(vectors, dim, what))
        if what == "queries":
            if not values.is_cuda:
                finite_norms(values.float().numpy(), what)
            return Asked(values)
        with spared(self.device, values.numel() * 4, f"the {what}"):
            return _checked(values, torch.device(self.device), metric, what)

    def give_back(self, values: Any, like: Any) -> Any:
        if isinstance(values, np.ndarray):
            values = torch.from_numpy(values)
        if is_tensor(like):
            return values.to(like.device)
        return values.cpu().numpy()

    def trained(self, recipe: Recipe, vectors: torch.Tensor, seed: int = 0) -> CudaEngine:
        spec, by = recipe.spec, "ip" if recipe.metric == "cosine" else "l2"
        fitting(spec, recipe.dim)
        if spec.trains and not len(vectors):
            raise InputError(f"'{spec}' cannot learn from no vectors; train with some that are like those to come.")
        centres, residual = None, vectors
        with spared(self.device, 0, f"training '{spec}'"):
            if spec.lists is not None:
                if len(vectors) < spec.lists:
                    raise InputError(
                        f"'{spec}' needs {spec.lists} vectors or more to learn from and was given {len(vectors)}; "
                        "give more or use fewer lists."
                    )
                sample = search_kmeans.sample_of(vectors, spec.lists, seed)
                quick = sample.half() if by == "ip" and sample.is_cuda else sample
                centres = search_kmeans.train(quick, spec.lists, metric=by, seed=seed)
            if spec.codec == "PQ" and centres is not None:
                sample = search_kmeans.sample_of(vectors, 1, seed, PQ_SAMPLE)
                residual = sample - centres[search_kmeans.assign(sample, centres, metric=by)[0].long()]
            codec = cuda_codes.trained(recipe, spec.codec, residual, seed)
            refiner = None
            if spec.refine is not None:
                finer = cuda_codes.trained(recipe, spec.refine, vectors, seed)
                refiner = Refiner(finer, _nothing(finer, recipe.dim, vectors.device))
            return CudaEngine(recipe, self.device, _empty(recipe, codec, centres, vectors.device), refiner, Replays())

    def restored(self, recipe: Recipe, arrays: Mapping[str, Array]) -> CudaEngine:
        device = torch.device(self.device)

        def tensor(name: str) -> torch.Tensor:
            return torch.from_numpy(np.array(arrays[name])).to(device)

        spec = recipe.spec
        with spared(self.device, sum(array.nbytes for array in arrays.values()), "the saved index"):
            codec = cuda_codes.known(recipe, spec.codec, arrays, "", device)
            stored = _empty(recipe, codec, tensor("centres") if spec.lists else None, device)
            codes = codec.restored(tensor("codes"))
            count = len(codes)
            bias = None if stored.bias is None else Grown(2 * tensor("biases"), count)
            lists = stored.lists
            if lists is not None:
                starts = tensor("offsets").int()
                sizes = starts.diff()
                near = torch.repeat_interleave(torch.arange(len(sizes), device=device, dtype=torch.int32), sizes)
                lists = Inverted(lists.centres, near, tensor("rows").long(), starts, int(sizes.max()))
            kept = Stored(codec, Grown(codes, count), bias, stored.longest, lists, stored.by)
            longest = torch.maximum(kept.longest, kept._measured(codes, None if lists is None else lists.near)[0])
            refiner = None
            if spec.refine is not None:
                finer = cuda_codes.known(recipe, spec.refine, arrays, "refine_", device)
                fine = finer.restored(tensor("refine_codes"))
                refiner = Refiner(finer, Grown(fine, len(fine)))
            whole = Stored(codec, kept.codes, bias, longest, lists, stored.by)
            return CudaEngine(recipe, self.device, whole, refiner, Replays())


def open_place(device: str) -> Cuda:
    index = torch.device(device).index
    return Cuda(f"cuda:{torch.cuda.current_device() if index is None else index}")


@contextmanager
def spared(device: str, wanted: int, what: str) -> Iterator[None]:
    """Says what was asked of a GPU's memory when that was too much."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        free, whole = torch.cuda.mem_get_info(torch.device(device))
        asked = f" ({wanted / 1e9:.1f} GB)" if wanted else ""
        raise InputError(
            f"{what}{asked} do not fit into {device}: {free / 1e9:.1f} of {whole / 1e9:.1f} GB are free; "
            "use SQ8, Index.sharded over several GPUs, or device='cpu'."
        ) from error


def _checked(values: torch.Tensor, device: torch.device, metric: str, what: str) -> torch.Tensor:
    """On the device, finite, and of unit length for cosine; piece by piece, for there may be no room for a copy."""
    given = values.to(device).float()
    out = torch.empty_like(given) if metric == "cosine" else given
    for at in range(0, len(given), AT_A_TIME):
        part = given[at : at + AT_A_TIME]
        norms = part.double().norm(dim=1)
        if not bool(torch.isfinite(norms).all()):
            refuse(given, at + int((~torch.isfinite(norms)).nonzero()[0]), what)
        if metric == "cosine":
            out[at : at + AT_A_TIME] = part / torch.where(norms > 0, norms, 1.0)[:, None]
    return out


def _nothing(codec: cuda_codes.Codes, dim: int, device: Any) -> Grown:
    return Grown(codec.encode(torch.zeros((0, dim), device=device)), 0)


def _empty(recipe: Recipe, codec: cuda_codes.Codes, centres: torch.Tensor | None, device: Any) -> Stored:
    bias = Grown(torch.empty(0, device=device), 0) if recipe.metric == "l2" else None
    return Stored(
        codec,
        _nothing(codec, recipe.dim, device),
        bias,
        torch.zeros(1, device=device),
        None if centres is None else no_lists(centres),
        "ip" if recipe.metric == "cosine" else "l2",
    )
