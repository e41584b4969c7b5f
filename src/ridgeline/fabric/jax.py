"""Collectives inside JAX programs on CPUs: under jit, grad, vmap and scan, by XLA's foreign function interface.

    from ridgeline.fabric import jax as fabric_jax

    comm = fabric.init()
    step = jax.jit(lambda x: fabric_jax.all_reduce(x * 2, comm=comm))

Each call reads and writes the buffers of XLA. The calls of a process keep their order by an ordered effect of JAX, so
all ranks that run the same programs make the same calls; do not call `comm` directly while a program still runs
(`jax.block_until_ready` waits for it). Derivatives are those of `lax.psum`, `lax.all_gather` and `lax.psum_scatter`. A
failure is an error of JAX (JaxRuntimeError) with the text of FabricError.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np

from ridgeline.errors import InputError, MissingExtra
from ridgeline.fabric.arrays import BYTES, REDUCTION_CODES, TYPE_CODES, TYPES
from ridgeline.fabric.communicator import Communicator
from ridgeline.fabric.failure_messages import OPS
from ridgeline.fabric.group import OP_CODES, is_integer
from ridgeline.native import register_xla, unregister_xla, xla_handler

try:
    import jax
    import jax.numpy as jnp
    from jax import core
    from jax._src import effects
    from jax._src.ffi import build_ffi_lowering_function
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir
except ImportError:
    raise MissingExtra("ridgeline.fabric.jax", "jax") from None

__all__ = ["all_gather", "all_reduce", "broadcast", "reduce_scatter"]

TARGET = "ridgeline_fabric"
LINEAR = ("sum", "avg")  # reductions with a derivative
PACKED = ("int1", "int2", "int4", "uint1", "uint2", "uint4", "float4_e2m1fn")  # several elements in a byte


def all_reduce(x: Any, op: str = "sum", *, comm: Communicator) -> Any:
    """Every rank gets the sum (prod, min, max, avg) of x over all ranks."""
    return _bind("all_reduce", x, op, 0, comm)


def all_gather(x: Any, *, comm: Communicator) -> Any:
    """Every rank gets the arrays of all ranks: [size, *x.shape]."""
    return _bind("all_gather", x, None, 0, comm)


def reduce_scatter(x: Any, op: str = "sum", *, comm: Communicator) -> Any:
    """Rank r gets the rows r · n … of the sum of x [size · n, …] over all ranks: [n, …]."""
    return _bind("reduce_scatter", x, op, 0, comm)


def broadcast(x: Any, root: int = 0, *, comm: Communicator) -> Any:
    """Every rank gets x of the rank `root`."""
    return _bind("broadcast", x, None, root, comm)


class _CallEffect(effects.Effect):  # type: ignore[misc]
    """Keeps the calls of a process in the order of its programs."""

    def __str__(self) -> str:
        return "FabricCall"


_effect = _CallEffect()
for _allowed in (
    effects.ordered_effects,
    effects.lowerable_effects,
    effects.control_flow_allowed_effects,
    effects.custom_derivatives_allowed_effects,
    effects.remat_allowed_effects,
):
    _allowed.add_type(_CallEffect)

_call = Primitive("fabric_call")
_numbers = count(1)
_registered: dict[Communicator, int] = {}  # until they are closed


def _bind(name: str, x: Any, op: str | None, root: int, comm: Communicator) -> Any:
    if not isinstance(comm, Communicator):
        raise InputError(f"{name}: comm is {comm!r}; give the communicator of fabric.init() or fabric.spawn.")
    if comm.is_closed:
        raise InputError(f"{name}: this communicator is closed.")
    if not is_integer(root) or not 0 <= root < comm.size:
        raise InputError(f"{name}: root is {root!r}; it must be one of the ranks 0 to {comm.size - 1}.")
    x = jnp.asarray(x)
    kind = str(x.dtype)
    if jnp.issubdtype(x.dtype, jax.dtypes.extended) or kind in PACKED:
        raise InputError(f"{name}: {kind} has no bytes of its own; convert it first.")
    if op is not None and (not isinstance(op, str) or op not in REDUCTION_CODES):
        raise InputError(f"{name}: there is no reduction '{op}'; there are: {', '.join(REDUCTION_CODES)}.")
    if op is not None and TYPE_CODES.get(kind, BYTES) == BYTES:
        raise InputError(f"{name}: {kind} has no reduction; convert to one of {', '.join(TYPES[:-1])}.")
    if name == "reduce_scatter" and (not x.ndim or x.shape[0] % comm.size):
        raise InputError(f"{name}: {x.shape} cannot be cut into {comm.size} equal parts.")
    return _call.bind(x, name=name, op=op, root=int(root), comm=comm)


def _get_number(comm: Communicator) -> int:
    """The number by which compiled programs name a communicator, until it is closed."""
    if comm in _registered:
        return _registered[comm]
    number = _registered[comm] = next(_numbers)

    def forget() -> None:
        unregister_xla(number)
        _registered.pop(comm, None)

    comm.lend_engine(
        lambda engine, describe: register_xla(
            number, engine, lambda code, op: f"FabricError: {describe(code, OPS[op])}", comm.config.timeout
        ),
        forget,
    )
    return number


def _evaluate_shape(x: Any, *, name: str, op: str | None, root: int, comm: Communicator) -> tuple[Any, set[Any]]:
    del op, root
    shape = x.shape
    if name == "all_gather":
        shape = (comm.size, *shape)
    elif name == "reduce_scatter":
        shape = (shape[0] // comm.size, *shape[1:])
    return core.ShapedArray(shape, x.dtype), {_effect}


def _lower(ctx: Any, x: Any, *, name: str, op: str | None, root: int, comm: Communicator) -> Any:
    kind = str(ctx.avals_in[0].dtype)
    code = TYPE_CODES.get(kind, BYTES)
    inner = ctx.replace(avals_in=[core.abstract_token, *ctx.avals_in], avals_out=[core.abstract_token, *ctx.avals_out])
    result = build_ffi_lowering_function(TARGET, has_side_effect=True)(
        inner,
        ctx.tokens_in.get(_effect),
        x,
        communicator=np.int64(_get_number(comm)),
        op=np.int64(OP_CODES[name]),
        type=np.int64(code),
        how=np.int64(REDUCTION_CODES[op or "sum"]),
        root=np.int64(root),
        width=np.int64(ctx.avals_in[0].dtype.itemsize if code == BYTES else 1),
        name=kind if code == BYTES else "",
    )
    token, out = result.results
    ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({_effect: token})))
    return [out]


def _differentiate(primals: Any, tangents: Any, *, name: str, op: str | None, **params: Any) -> tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    out = _call.bind(x, name=name, op=op, **params)
    if type(tangent) is ad.Zero:
        return out, ad.Zero.from_primal_value(out)
    if op is not None and op not in LINEAR:
        raise InputError(f"{name}: the reduction '{op}' has no derivative; 'sum' and 'avg' have one.")
    return out, _call.bind(tangent, name=name, op=op, **params)


def _transpose(cotangent: Any, x: Any, *, name: str, op: str | None, root: int, comm: Communicator) -> list[Any]:
    if type(cotangent) is ad.Zero:
        return [ad.Zero(x.aval)]
    shape = x.aval.shape
    if name == "all_reduce":
        return [all_reduce(cotangent, op or "sum", comm=comm)]
    if name == "all_gather":
        part = reduce_scatter(jnp.reshape(cotangent, (comm.size, -1)), comm=comm)
        return [jnp.reshape(part, shape)]
    if name == "reduce_scatter":
        every = jnp.reshape(all_gather(cotangent, comm=comm), shape)
        return [every / comm.size if op == "avg" else every]
    total = all_reduce(cotangent, comm=comm)  # broadcast: the other ranks call, too
    return [total if comm.rank == root else jnp.zeros_like(total)]


def _batch(arguments: Any, dims: Any, *, name: str, **params: Any) -> tuple[Any, int]:
    (x,), (dim,) = arguments, dims
    if name == "reduce_scatter":
        return _call.bind(jnp.moveaxis(x, dim, 1), name=name, **params), 1
    x = jnp.moveaxis(x, dim, 0)
    return _call.bind(x, name=name, **params), 1 if name == "all_gather" else 0


def _run(x: Any, **params: Any) -> Any:
    """A call outside of `jit`."""
    return _run_compiled(x, tuple(params.items()))


def _apply(x: Any, params: tuple[tuple[str, Any], ...]) -> Any:
    return _call.bind(x, **dict(params))


_run_compiled = jax.jit(_apply, static_argnums=1)

_call.def_impl(_run)
_call.def_effectful_abstract_eval(_evaluate_shape)
jax.ffi.register_ffi_target(TARGET, xla_handler(), platform="cpu")
mlir.register_lowering(_call, _lower, platform="cpu")
ad.primitive_jvps[_call] = _differentiate
ad.primitive_transposes[_call] = _transpose
batching.primitive_batchers[_call] = _batch
