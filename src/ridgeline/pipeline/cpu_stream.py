"""The stream without a GPU: one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from weakref import ReferenceType, ref

from ridgeline.machine import now_ns
from ridgeline.pipeline.batch import (
    Out,
    Take,
    Tensors,
    WrapErrors,
    check_result,
    enumerate_batches,
    get_out_tensors,
    get_storage_address,
    make_reuse_error,
)
from ridgeline.pipeline.timeline import Log


def stream_on_cpu(
    batches: Iterable[Mapping[str, Any]],
    fn: Callable[[Tensors], Mapping[str, Any]],
    out: Out | None,
    take: Take | None,
    log: Log,
) -> Iterator[Any]:
    import torch

    device, start = torch.device("cpu"), now_ns()
    last: dict[int, Any] = {}  # keeps the last result alive, so that a fresh tensor cannot get its address
    results_in_use = _LiveStorages()
    for index, batch in enumerate_batches(batches):
        start_s = (now_ns() - start) / 1e9
        with WrapErrors(index, "fn"):
            result = check_result(index, fn(dict(batch)), device)
        computed_s = (now_ns() - start) / 1e9
        batch_addresses = {get_storage_address(tensor) for tensor in batch.values()}
        addresses = {name: get_storage_address(tensor) for name, tensor in result.items()}
        fresh = {name: address for name, address in addresses.items() if address not in batch_addresses}
        for name, address in fresh.items():
            if address in last or address in results_in_use:
                raise make_reuse_error(index, name)
        output: Any
        if take is not None:
            with WrapErrors(index, "take"):
                output = take(index, result)
        else:
            targets = get_out_tensors(index, out, result)
            with WrapErrors(index, "its copy into out"):
                # The caller owns its result: a tensor in the memory of the batch is copied, a fresh one is not.
                output = {
                    name: targets[name].copy_(tensor)
                    if name in targets
                    else tensor
                    if name in fresh
                    else tensor.clone()
                    for name, tensor in result.items()
                }
            for name, address in fresh.items():
                if name not in targets and address > 0:  # empty tensors have no memory
                    results_in_use.add(address, result[name])
        log.add(index, (start_s, start_s, start_s, computed_s, computed_s, (now_ns() - start) / 1e9))
        last = {address: result[name] for name, address in fresh.items()}
        del batch, result
        yield output


class _LiveStorages:
    """The addresses of results that the caller received without a copy, while any tensor still uses their memory.

    torch keeps one object per storage while any tensor, view or array uses it. A weak reference to that object tells
    whether the memory is in use; an address that was freed and allocated again is not refused.
    """

    def __init__(self) -> None:
        self._storages: dict[int, ReferenceType[Any]] = {}
        self._limit = 256

    def add(self, address: int, tensor: Any) -> None:
        if len(self._storages) >= self._limit:  # remove dead references, seldom enough to cost nothing
            self._storages = {place: storage for place, storage in self._storages.items() if storage() is not None}
            self._limit = max(256, 2 * len(self._storages))
        self._storages[address] = ref(tensor.untyped_storage())

    def __contains__(self, address: int) -> bool:
        storage = self._storages.get(address)
        return storage is not None and storage() is not None
