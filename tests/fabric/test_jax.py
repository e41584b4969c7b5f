"""Collectives inside JAX programs: values beside NumPy, derivatives beside jax.lax, order, errors."""

from __future__ import annotations

import pytest
from tests.fabric import ranks_jax

from ridgeline import fabric

pytestmark = pytest.mark.ranks
pytest.importorskip("jax")


def test_collectives_in_jax_programs_equal_numpy_and_lax():
    """jit, grad, scan, and independent calls."""
    assert fabric.spawn(ranks_jax.find_jax_differences, 2, args=(False,), timeout=300) == [[]] * 2


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
def test_all_transformations_of_jax_and_all_types(hosts):
    """Also vmap and checkpoint, refused arguments, different calls, and use after close."""
    assert fabric.spawn(ranks_jax.find_jax_differences, 2, args=(True,), hosts=hosts, timeout=600) == [[]] * 2
