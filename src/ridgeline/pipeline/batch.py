"""What may come in and go out of a stream, and who is to blame when something else does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

from ridgeline.errors import BatchError

Tensors = dict[str, Any]
Out = Callable[[int], Mapping[str, Any] | None]
Take = Callable[[int, Tensors], Any]


class blamed:  # reads as a sentence after `with`
    """Whatever is raised inside comes out as a BatchError that names the batch."""

    __slots__ = ("index", "who")

    def __init__(self, index: int, who: str) -> None:
        self.index, self.who = index, who

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, BatchError):
            raise blaming(self.index, self.who, error) from error


def blaming(index: int, who: str, error: Exception) -> BatchError:
    """The same for a `try`, which costs a batch nothing where a context does."""
    return BatchError(index, f"{who} raised {type(error).__name__}: {error}")


def numbered(batches: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, Tensors]]:
    """(index, tensors in host memory), one at a time; arrays are seen as tensors, not copied."""
    end, index = object(), 0
    with blamed(0, "the source"):
        source = iter(batches)
    while True:
        try:
            batch: Any = next(source, end)
            if batch is end:
                return
            given = _tensors(index, batch)
        except BatchError:
            raise
        except Exception as error:
            raise blaming(index, "the source", error) from error
        del batch
        yield index, given
        del given  # while the next one is made, this one is not ours to hold
        index += 1


def answered(index: int, answer: Any, device: Any) -> Tensors:
    """fn's answer, checked: named tensors on the device."""
    import torch

    if type(answer) is not dict and not isinstance(answer, Mapping):  # asking an abstract class takes longer
        raise BatchError(index, f"fn gave a {type(answer).__name__}; give a dict of tensors")
    for name, tensor in answer.items():
        if not isinstance(tensor, torch.Tensor):
            raise BatchError(index, f"fn gave '{name}' as {type(tensor).__name__}; give a tensor")
        if tensor.device != device:
            raise BatchError(index, f"fn gave '{name}' on {tensor.device}; leave it on {device}")
    return {name: tensor.detach() for name, tensor in answer.items()}


def refuse_reuse(index: int, answer: Tensors, held: set[int]) -> None:
    """An answer in the memory of an earlier one would be overwritten while that one is still wanted."""
    for name, tensor in answer.items():
        if memory(tensor) in held:
            raise reused(index, name)


def reused(index: int, name: str) -> BatchError:
    return BatchError(index, f"fn gave '{name}' in the memory of an earlier result; give fresh tensors (clone)")


def targets(index: int, out: Out | None, answer: Tensors) -> Tensors:
    """Where the caller wants the results: by name, those it gave room for."""
    if out is None:
        return {}
    try:
        room = dict(out(index) or {})
    except Exception as error:
        raise blaming(index, "out", error) from error
    for name, target in room.items():
        if name not in answer:
            raise BatchError(index, f"out gave room for '{name}', fn gives {', '.join(answer) or 'nothing'}")
        wanted = answer[name]
        if target.shape != wanted.shape or target.dtype != wanted.dtype or target.device.type != "cpu":
            gave = f"{_words(target)} on {target.device}"
            raise BatchError(index, f"out gave '{name}' as {gave}; the result is {_words(wanted)}, for the host")
    return room


def memory(tensor: Any) -> int:
    """Where a tensor's storage begins; unlike every other one's while it lives. 0 is no memory at all."""
    return int(tensor.untyped_storage().data_ptr()) or -id(tensor)


def _tensors(index: int, batch: Any) -> Tensors:
    if type(batch) is not dict and not isinstance(batch, Mapping):
        raise BatchError(index, f"the source gave a {type(batch).__name__}; give dicts of tensors or arrays")
    return {name: _tensor(index, name, value) for name, value in batch.items()}


def _tensor(index: int, name: str, value: Any) -> Any:
    import numpy as np
    import torch

    if isinstance(value, np.ndarray):
        plain = value.flags.writeable and not any(step < 0 for step in value.strides)
        return torch.from_numpy(value if plain else value.copy())  # torch knows neither read-only nor backwards
    if not isinstance(value, torch.Tensor):
        raise BatchError(index, f"the source gave '{name}' as {type(value).__name__}; give a tensor or an array")
    if value.device.type != "cpu":
        raise BatchError(index, f"the source gave '{name}' on {value.device}; give host memory")
    return value.detach() if value.requires_grad else value


def _words(tensor: Any) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
