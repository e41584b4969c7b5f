"""The function that ranks run in test_jax.py, in a module that new processes can import."""

from __future__ import annotations

from functools import partial

import numpy as np


def find_jax_differences(comm, thorough) -> list[str]:
    """The names of all checks that fail: values beside NumPy in float64, derivatives beside those of jax.lax.

    thorough  more types, more transformations; compiling them takes seconds
    """
    import jax
    import jax.numpy as jnp

    from ridgeline.errors import InputError
    from ridgeline.fabric import jax as fabric_jax

    n, me, wrong = comm.size, comm.rank, []
    call = {
        "all_reduce": partial(fabric_jax.all_reduce, comm=comm),
        "all_gather": partial(fabric_jax.all_gather, comm=comm),
        "reduce_scatter": partial(fabric_jax.reduce_scatter, comm=comm),
        "broadcast": partial(fabric_jax.broadcast, root=1, comm=comm),
    }
    from_lax = {
        "all_reduce": lambda v: jax.lax.psum(v, "i"),
        "all_gather": lambda v: jax.lax.all_gather(v, "i"),
        "reduce_scatter": lambda v: jax.lax.psum_scatter(v, "i", tiled=True),
        "broadcast": lambda v: jax.lax.psum(jnp.where(jax.lax.axis_index("i") == 1, v, 0), "i"),
    }

    def check(name, got, want, exact=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        same = got.shape == want.shape and (np.array_equal(got, want) if exact else np.allclose(got, want, rtol=1e-5))
        wrong.extend([] if same else [name])

    rng = np.random.default_rng(5)
    types = (("float32", (2 * n, 3)), ("bfloat16", (n,)), ("int8", (n, 2)), ("float16", (2 * n, 0)))
    for dtype, shape in types[: None if thorough else 1]:
        every = rng.integers(-9, 9, (n, *shape))
        x = jnp.asarray(every[me], dtype)
        results = {"all_reduce": every.sum(0), "all_gather": every, "broadcast": every[1]}
        results["reduce_scatter"] = np.split(every.sum(0), n)[me]
        for name, want in results.items():
            check(f"{name} {dtype}", jax.jit(call[name])(x), want)
        if every.size:
            check(f"max {dtype}", fabric_jax.all_reduce(x, "max", comm=comm), every.max(0))
    flags = jnp.arange(4) > me  # types without a sum move as bytes
    check("all_gather bool", call["all_gather"](flags), np.stack([np.arange(4) > r for r in range(n)]))

    every = jnp.asarray(rng.normal(size=(n, 2 * n, 3)), jnp.float32)
    weight = jnp.arange(1.0, n + 1)[:, None, None]
    for name, run in call.items():
        if name in ("all_gather", "broadcast") and not thorough:
            continue  # the transposed calls of the other two

        def loss(v, run=run):
            return (jnp.sin(run(v)) * (me + 1)).sum()

        def loss_lax(v, w, name=name):
            return (jnp.sin(from_lax[name](v)) * w.sum()).sum()

        want = jax.vmap(jax.grad(loss_lax), axis_name="i")(every, weight)[me]
        check(f"grad {name}", jax.jit(jax.grad(loss))(every[me]), want, exact=False)
        if not thorough:
            continue
        check(f"grad through checkpoint {name}", jax.grad(jax.checkpoint(loss))(every[me]), want, exact=False)
        batch = jnp.stack([every, every * 2, every + 1], -1)  # [n, 2n, 3, batch]
        stacked = [run(batch[me, ..., k]) for k in range(3)]
        check(f"vmap {name}", jax.jit(jax.vmap(run, in_axes=-1))(batch[me]), jnp.stack(stacked))

    def step(v, _):
        v = call["all_reduce"](v) / n
        return v, call["all_gather"](v[0])

    last, gathered = jax.jit(lambda v: jax.lax.scan(step, v, None, length=4))(jnp.full(3, me + 1.0))
    check("scan", last, np.full(3, (n + 1) / 2))
    check("scan gathers", gathered, np.full((4, n), (n + 1) / 2))

    @jax.jit
    def many(v):  # independent calls: only their order keeps the ranks in step
        return [call["all_reduce"](v + k) if k % 2 else call["all_gather"](v + k).sum(0) for k in range(6)]

    for k, got in enumerate(many(jnp.full(5, 1.0 + me))):
        check(f"order {k}", got, np.full(5, n * (n + 1) / 2 + n * k))

    if not thorough:
        return wrong
    for text, function, value in (
        ("no reduction", fabric_jax.all_reduce, flags),
        ("cannot be cut", fabric_jax.reduce_scatter, jnp.ones(n + 1)),
        ("'mean'", lambda v, comm: fabric_jax.all_reduce(v, "mean", comm=comm), jnp.ones(2)),
        ("root is 9", lambda v, comm: fabric_jax.broadcast(v, 9, comm=comm), jnp.ones(2)),
        (
            "no derivative",
            lambda v, comm: jax.grad(lambda u: fabric_jax.all_reduce(u, "max", comm=comm)[0])(v),
            flags * 1.0,
        ),
    ):
        try:
            function(value, comm=comm)
            wrong.append(f"no error: {text}")
        except InputError as error:
            wrong.extend([] if text in str(error) else [str(error)])
    try:
        jax.block_until_ready(call["all_reduce"](jnp.ones(3 + me)))
        wrong.append("no error for different lengths")
    except jax.errors.JaxRuntimeError as error:
        wrong.extend([] if "rank 0 calls all_reduce" in str(error) else [str(error)])
    check("after an error", jax.jit(call["all_reduce"])(jnp.ones(2)), np.full(2, n))
    compiled = jax.jit(call["all_reduce"])
    compiled(jnp.ones(7))
    part = comm.split(0)
    check("a part", fabric_jax.all_reduce(jnp.ones(2), comm=part), np.full(2, n))
    comm.close()
    try:
        jax.block_until_ready(compiled(jnp.ones(7)))
        wrong.append("no error after close")
    except jax.errors.JaxRuntimeError as error:
        wrong.extend([] if "closed" in str(error) else [str(error)])
    return wrong
