"""What ranks do in the tests of device tensors: gloo and CPU tensors stand in for NCCL and a GPU."""

from __future__ import annotations


def _gloo(store, rank, size, timeout):
    import torch.distributed as dist

    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _every_tensor_is_on_a_device() -> None:
    from ridgeline.fabric import communicator, device
    from ridgeline.fabric.arrays import is_tensor

    communicator.on_device = is_tensor
    communicator.DeviceGroup = lambda comm: device.DeviceGroup(comm, _gloo)


def device_calls(comm) -> list:
    """Every call with tensors that go the device's way, by value: names of those that came out wrong."""
    import numpy as np
    import torch

    _every_tensor_is_on_a_device()
    me, n, wrong = comm.rank, comm.size, []

    def check(name, got, wanted):
        if not torch.equal(got, torch.as_tensor(wanted, dtype=got.dtype)):
            wrong.append((name, got.tolist(), wanted))

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
    later = [comm.all_reduce(torch.ones(1000), async_op=True) for _ in range(4)]
    for handle in later:
        check("async", handle.wait()[:1], [float(n)])
    if me == 0:
        comm.send(torch.tensor([[4, 5]]), 1)
    elif me == 1:
        check("recv", comm.recv(torch.empty(1, 2, dtype=torch.int64), 0), [[4, 5]])
    with_arrays = comm.all_reduce(np.ones(3))  # arrays still go by shared memory
    check("array", torch.from_numpy(with_arrays), [float(n)] * 3)
    half = comm.split(me % 2)
    check("split", half.all_reduce(torch.tensor([1.0])), [float(half.size)])
    counts = comm.stats()["device_ops"]
    if counts["all_reduce"]["calls"] != 8 or counts["all_gather"]["bytes"] != n * 16:
        wrong.append(("counts", counts, None))
    return wrong


def device_slips(comm) -> list:
    """What is refused before anything is sent, and torch's own errors with rank and call named."""
    import torch

    from ridgeline.errors import FabricError, InputError

    _every_tensor_is_on_a_device()
    said = []
    slips = [
        lambda: comm.all_reduce(torch.ones(3), out=torch.ones(4)),
        lambda: comm.all_gather(torch.ones(3), out=torch.ones(3 * comm.size, dtype=torch.float64)),
        lambda: comm.all_reduce(torch.ones(3), "median"),
    ]
    for slip in slips:
        try:
            slip()
        except InputError as error:
            said.append(str(error))
    try:
        if comm.rank == 0:
            comm.all_reduce(torch.ones(3), timeout=0.5)
    except FabricError as error:
        said.append(str(error))
    return said


def on_a_gpu(comm) -> list:
    """One rank on one GPU, by NCCL itself: every call gives back what one rank must get."""
    import torch

    wrong = []
    x = torch.arange(6.0, device="cuda").reshape(2, 3)
    wanted = x.clone()
    for name, got in (
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
        wrong += [] if torch.equal(got, wanted) else [name]
    return wrong
