"""Modules that need a library which is not installed are not searched for doctests."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("jax") else ["src/ridgeline/fabric/jax.py"]
