"""A DataLoader whose batches are resampled on the GPU, one ahead of the one in use: `on_device(loader)`.

loader = DataLoader(dataset, batch_size=64, collate_fn=ridgeline.collate(hz=50), num_workers=4, pin_memory=True)
for batch in on_device(loader): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ridgeline.errors import InputError
from ridgeline.trajectory.batch import Batch, Packed
from ridgeline.trajectory.collation import Collate


class OnDevice:
    """Iterates over the batches of a loader, on the device its `collate` names; `len` is the loader's.

    On a GPU the next batch is copied and resampled on a stream of its own while the caller works on the current one.
    On a CPU it is the loader itself.
    """

    def __init__(self, loader: Any) -> None:
        by = getattr(loader, "collate_fn", None)
        if not isinstance(by, Collate):
            raise InputError(f"on_device wants a DataLoader with collate_fn=ridgeline.collate(…); this has {by!r}.")
        self.loader, self.device = loader, by.how.device

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        if self.device == "cpu":
            yield from self.loader
            return
        import torch

        ours = torch.cuda.Stream(torch.device(self.device))
        source = iter(self.loader)
        ahead = _launched(source, ours)
        while ahead is not None:
            (batch, done), ahead = ahead, _launched(source, ours)
            theirs = torch.cuda.current_stream(batch.values.device)
            theirs.wait_event(done)  # of this batch only: the next one is already queued behind it
            for tensor in (batch.values, batch.mask, batch.times, batch.lengths, *batch.masks.values()):
                tensor.record_stream(theirs)
            yield batch


def on_device(loader: Any) -> OnDevice:
    """The batches of a DataLoader whose `collate_fn` is `ridgeline.collate(…)`, where they will be used."""
    return OnDevice(loader)


def _launched(source: Iterator[Batch | Packed], ours: Any) -> tuple[Batch, Any] | None:
    """The next batch and the event of its being ready; it is being made on the stream `ours`."""
    import torch

    with torch.cuda.stream(ours):
        found = next(source, None)
        if found is None:
            return None
        batch = found.resample() if isinstance(found, Packed) else found
        done = torch.cuda.Event()
        done.record(ours)
    return batch, done
