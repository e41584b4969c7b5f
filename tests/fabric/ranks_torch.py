"""The functions that ranks run in the tests of the torch back end."""

from __future__ import annotations


def train_with_ddp(comm, backend, file) -> list:
    """Weights after a few steps of DDP."""
    import torch
    import torch.distributed as dist

    import ridgeline.fabric.torch  # noqa: F401

    torch.manual_seed(0)
    dist.init_process_group(backend, init_method=f"file://{file}.{backend}", rank=comm.rank, world_size=comm.size)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 4)
    )
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(comm.rank)
    for _ in range(5):
        optimizer.zero_grad()
        ddp(torch.randn(8, 16, generator=data)).square().mean().backward()
        optimizer.step()
    weights = [p.detach().flatten().tolist() for p in model.parameters()]
    dist.destroy_process_group()
    return weights


def find_wrong_torch_calls(comm, file) -> list:
    """The calls of torch.distributed, compared by value; returns the names of the wrong ones."""
    import torch
    import torch.distributed as dist

    import ridgeline.fabric.torch  # noqa: F401

    dist.init_process_group("ridgeline", init_method=f"file://{file}", rank=comm.rank, world_size=comm.size)
    me, n, wrong = comm.rank, comm.size, []

    def check(name, got, expected):
        if not torch.equal(torch.as_tensor(got), torch.as_tensor(expected, dtype=got.dtype)):
            wrong.append(name)

    x = torch.full((5,), float(me + 1))
    dist.all_reduce(x)
    check("all_reduce", x, [n * (n + 1) / 2] * 5)
    dist.all_reduce(y := torch.tensor([float(me)]), dist.ReduceOp.MAX)
    check("max", y, [n - 1.0])
    gathered = torch.empty(n * 3)
    dist.all_gather_into_tensor(gathered, torch.full((3,), float(me)))
    check("all_gather_into_tensor", gathered, [float(r) for r in range(n) for _ in range(3)])
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, torch.arange(2.0 * n))
    check("reduce_scatter_tensor", part, [n * 2.0 * me, n * (2.0 * me + 1)])
    parts = [torch.empty(2) for _ in range(n)]
    dist.all_gather(parts, torch.full((2,), float(me)))
    check("all_gather", torch.stack(parts), [[float(r)] * 2 for r in range(n)])
    out = torch.empty(n)
    dist.all_to_all_single(out, torch.arange(float(n)) + 10 * me)
    check("all_to_all_single", out, [10.0 * r + me for r in range(n)])
    dist.broadcast(z := torch.tensor([me]), 1)
    check("broadcast", z, [1])
    dist.reduce(r := torch.tensor([1.0]), 0)
    check("reduce", r, [float(n) if me == 0 else 1.0])
    if me == 0:
        dist.send(torch.tensor([7]), 1)
    elif me == 1:
        dist.recv(got := torch.empty(1, dtype=torch.int64), 0)
        check("recv", got, [7])
    works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(8)]
    [w.wait() for w in works]
    dist.barrier()
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": me})
    wrong += ["objects"] if objects != [{"rank": r} for r in range(n)] else []
    sub = dist.new_group([0, 1])
    if me < 2:
        dist.all_reduce(s := torch.tensor([1.0]), group=sub)
        check("new_group", s, [2.0])
    dist.destroy_process_group()
    return wrong


def train_with_fsdp(comm, backend, file) -> list:
    """Weights after steps of FSDP (fully_shard) on CPU."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import ridgeline.fabric.torch  # noqa: F401

    torch.manual_seed(0)
    dist.init_process_group(backend, init_method=f"file://{file}.fsdp.{backend}", rank=comm.rank, world_size=comm.size)
    mesh = dist.init_device_mesh("cpu", (comm.size,))
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(comm.rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8, generator=data)).square().mean().backward()
        optimizer.step()
    weights = [p.full_tensor().detach().flatten().tolist() for p in model.parameters()]
    dist.destroy_process_group()
    return weights


def use_tensor_and_checkpoint(comm, folder) -> list:
    """A DTensor in several layouts, a saved and loaded checkpoint, and a destroyed subgroup; the names of the wrong."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    import ridgeline.fabric.torch  # noqa: F401

    dist.init_process_group("ridgeline", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size)
    mesh, wrong = dist.init_device_mesh("cpu", (comm.size,)), []
    table = torch.arange(10.0).reshape(5, 2)  # five rows on two ranks: uneven
    by_rows = distribute_tensor(table, mesh, [Shard(0)])
    for layout in ([Replicate()], [Shard(1)], [Shard(0)]):
        if not torch.equal(by_rows.redistribute(mesh, layout).full_tensor(), table):
            wrong.append(f"redistribute to {layout}")
    by_columns = distribute_tensor(table.T, mesh, [Shard(0)])  # the product is a partial sum on each rank
    if not torch.equal((by_rows.redistribute(mesh, [Shard(1)]) @ by_columns).full_tensor(), table @ table.T):
        wrong.append("product")
    state = {"sharded": by_rows, "plain": torch.full((3,), 4.0)}
    checkpoint.save(state, checkpoint_id=folder / "checkpoint")
    loaded = {"sharded": distribute_tensor(torch.zeros(5, 2), mesh, [Shard(0)]), "plain": torch.zeros(3)}
    checkpoint.load(loaded, checkpoint_id=folder / "checkpoint")
    if not torch.equal(loaded["sharded"].full_tensor(), table) or not torch.equal(loaded["plain"], state["plain"]):
        wrong.append("checkpoint")
    gathered = [None] * comm.size if comm.rank == 1 else None
    dist.gather_object({"rank": comm.rank}, gathered, dst=1)
    scattered = [None]
    dist.scatter_object_list(scattered, ["a", "b"] if comm.rank == 0 else None, src=0)
    if scattered != ["ab"[comm.rank]] or (comm.rank == 1 and gathered != [{"rank": 0}, {"rank": 1}]):
        wrong.append("objects")
    subgroup = dist.new_group()
    dist.all_reduce(torch.ones(1), group=subgroup)
    dist.destroy_process_group(subgroup)
    dist.all_reduce(total := torch.ones(1))
    if total.item() != comm.size:
        wrong.append("all_reduce after the subgroup was destroyed")
    dist.destroy_process_group()
    return wrong
