"""The functions that ranks run in the tests of device tensors: gloo and CPU tensors replace NCCL and a GPU."""

from __future__ import annotations


def _make_gloo_group(store, rank, size, timeout):
    import torch.distributed as dist

    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _treat_tensors_as_device_tensors() -> None:
    from ridgeline.fabric import communicator, device
    from ridgeline.fabric.arrays import is_tensor

    communicator.is_on_device = is_tensor
    communicator.DeviceGroup = lambda comm: device.DeviceGroup(comm, _make_gloo_group)


def find_wrong_device_calls(comm) -> list:
    """Every call with device tensors, compared by value; returns the names of the wrong ones."""
    import numpy as np
    import torch

    _treat_tensors_as_device_tensors()
    me, n, wrong = comm.rank, comm.size, []

    def check(name, actual, expected):
        if not torch.equal(actual, torch.as_tensor(expected, dtype=actual.dtype)):
            wrong.append((name, actual.tolist(), expected))

    x = torch.full((2, 3), float(me + 1))
    total = n * (n + 1) / 2
    out = torch.empty(2, 3)
    check("all_reduce into out", comm.all_reduce(x, out=out), [[total] * 3] * 2)
    check("its input", x, [[me + 1.0] * 3] * 2)
    check("all_reduce in place", comm.all_reduce(x), [[total] * 3] * 2)
    check("max", comm.all_reduce(torch.tensor([me]), "max"), [n - 1])
    strided = torch.full((3, 2), float(me)).t()
    check("not contiguous", comm.all_reduce(strided), [[n * (n - 1) / 2] * 3] * 2)
    check("all_gather", comm.all_gather(torch.tensor([me, 7])), [[r, 7] for r in range(n)])
    check("reduce_scatter", comm.reduce_scatter(torch.arange(2.0 * n)), [n * 2.0 * me, n * (2.0 * me + 1)])
    check("all_to_all", comm.all_to_all(torch.arange(n) + 10 * me), [10 * r + me for r in range(n)])
    check("broadcast", comm.broadcast(torch.tensor([me + 5.0]), 1), [6.0])
    check("reduce", comm.reduce(torch.tensor([me + 1.0]), 1), [total if me == 1 else me + 1.0])
    handles = [comm.all_reduce(torch.ones(1000), async_op=True) for _ in range(4)]
    for handle in handles:
        check("async", handle.wait()[:1], [float(n)])
    if me == 0:
        comm.send(torch.tensor([[4, 5]]), 1)
    elif me == 1:
        check("recv", comm.recv(torch.empty(1, 2, dtype=torch.int64), 0), [[4, 5]])
    with_arrays = comm.all_reduce(np.ones(3))  # arrays still use shared memory
    check("array", torch.from_numpy(with_arrays), [float(n)] * 3)
    half = comm.split(me % 2)
    check("split", half.all_reduce(torch.tensor([1.0])), [float(half.size)])
    counts = comm.stats()["device_ops"]
    if counts["all_reduce"]["calls"] != 8 or counts["all_gather"]["bytes"] != n * 16:
        wrong.append(("counts", counts, None))
    return wrong


def get_device_errors(comm) -> list:
    """The errors of wrong arguments, and an error of torch with rank and call."""
    import torch

    from ridgeline.errors import FabricError, InputError

    _treat_tensors_as_device_tensors()
    errors = []
    wrong_calls = [
        lambda: comm.all_reduce(torch.ones(3), out=torch.ones(4)),
        lambda: comm.all_gather(torch.ones(3), out=torch.ones(3 * comm.size, dtype=torch.float64)),
        lambda: comm.all_reduce(torch.ones(3), "median"),
    ]
    for call in wrong_calls:
        try:
            call()
        except InputError as error:
            errors.append(str(error))
    try:
        if comm.rank == 0:
            comm.all_reduce(torch.ones(3), timeout=0.5)
    except FabricError as error:
        errors.append(str(error))
    return errors


def find_wrong_gpu_calls(comm) -> list:
    """One rank on one GPU with NCCL: every call must return its input; returns the names of the wrong ones."""
    import torch

    wrong = []
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    expected = x.clone()
    for name, actual in (
        ("all_reduce", comm.all_reduce(x)),
        ("avg", comm.all_reduce(x, "avg")),
        ("all_gather", comm.all_gather(x)[0]),
        ("reduce_scatter", comm.reduce_scatter(x)),
        ("all_to_all", comm.all_to_all(x)),
        ("broadcast", comm.broadcast(x)),
        ("reduce", comm.reduce(x)),
        ("async", comm.all_reduce(x, async_op=True).wait()),
    ):
        torch.cuda.synchronize()
        wrong += [] if torch.equal(actual, expected) else [name]
    return wrong
