"""Batches: what may enter and leave a stream, and the error that names the batch if something else does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from ridgeline.errors import BatchError

Tensors = dict[str, Any]
Out = Callable[[int], Mapping[str, Any] | None]
Take = Callable[[int, Tensors], Any]


class WrapErrors:
    """A context that turns any exception inside into a BatchError with the batch number."""

    __slots__ = ("index", "source")

    def __init__(self, index: int, source: str) -> None:
        self.index, self.source = index, source

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, BatchError):
            raise make_batch_error(self.index, self.source, error) from error


def make_batch_error(index: int, source: str, error: Exception) -> BatchError:
    """The same for a `try`: it costs a batch nothing, a context does."""
    return BatchError(index, f"{source} raised {type(error).__name__}: {error}")


def enumerate_batches(batches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Tensors]]:
    """Yield (index, tensors in host memory), one batch at a time; arrays become tensors without a copy."""
    end, index = object(), 0
    with WrapErrors(0, "the source"):
        source = iter(batches)
    while True:
        try:
            batch: Any = next(source, end)
            if batch is end:
                return
            tensors = _convert_batch(index, batch)
        except BatchError:
            raise
        except Exception as error:
            raise make_batch_error(index, "the source", error) from error
        del batch
        yield index, tensors
        del tensors  # the source may reuse this memory for the next batch
        index += 1


def check_result(index: int, result: Any, device: Any) -> Tensors:
    """Check that the result of fn is a dict of tensors on the device, and detach them."""
    import torch

    if type(result) is not dict and not isinstance(result, Mapping):  # isinstance of an abstract class is slow
        raise BatchError(index, f"fn gave a {type(result).__name__}; give a dict of tensors")
    for name, tensor in result.items():
        if not isinstance(tensor, torch.Tensor):
            raise BatchError(index, f"fn gave '{name}' as {type(tensor).__name__}; give a tensor")
        if tensor.device != device:
            raise BatchError(index, f"fn gave '{name}' on {tensor.device}; leave it on {device}")
    return {name: tensor.detach() for name, tensor in result.items()}


def refuse_reuse(index: int, result: Tensors, busy_addresses: set[int]) -> None:
    """Raise if the result lies in the memory of an earlier result that is still in use: it would be overwritten."""
    for name, tensor in result.items():
        if get_storage_address(tensor) in busy_addresses:
            raise make_reuse_error(index, name)


def make_reuse_error(index: int, name: str) -> BatchError:
    return BatchError(index, f"fn gave '{name}' in the memory of an earlier result; give fresh tensors (clone)")


def get_out_tensors(index: int, out: Out | None, result: Tensors) -> Tensors:
    """The caller's tensors for this result, by name; not every name needs one."""
    if out is None:
        return {}
    try:
        targets = dict(out(index) or {})
    except Exception as error:
        raise make_batch_error(index, "out", error) from error
    for name, target in targets.items():
        if name not in result:
            raise BatchError(index, f"out gave a tensor for '{name}', fn gives {', '.join(result) or 'nothing'}")
        tensor = result[name]
        if target.shape != tensor.shape or target.dtype != tensor.dtype or target.device.type != "cpu":
            actual = f"{_describe(target)} on {target.device}"
            raise BatchError(index, f"out gave '{name}' as {actual}; the result is {_describe(tensor)}, for the host")
    return targets


def get_storage_address(tensor: Any) -> int:
    """The start of a tensor's storage: unique while the tensor lives. An empty tensor has a negative number."""
    return int(tensor.untyped_storage().data_ptr()) or -id(tensor)


def _convert_batch(index: int, batch: Any) -> Tensors:
    if type(batch) is not dict and not isinstance(batch, Mapping):
        raise BatchError(index, f"the source gave a {type(batch).__name__}; give dicts of tensors or arrays")
    return {name: _convert_tensor(index, name, value) for name, value in batch.items()}


def _convert_tensor(index: int, name: str, value: Any) -> Any:
    import numpy as np
    import torch

    if isinstance(value, np.ndarray):
        shareable = value.flags.writeable and not any(step < 0 for step in value.strides)
        # torch supports neither read-only arrays nor negative strides
        return torch.from_numpy(value if shareable else value.copy())
    if not isinstance(value, torch.Tensor):
        raise BatchError(index, f"the source gave '{name}' as {type(value).__name__}; give a tensor or an array")
    if value.device.type != "cpu":
        raise BatchError(index, f"the source gave '{name}' on {value.device}; give host memory")
    return value.detach() if value.requires_grad else value


def _describe(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
