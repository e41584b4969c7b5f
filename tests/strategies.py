"""Hypothesis strategies that several parts share."""

from __future__ import annotations

from hypothesis import strategies as st

from ridgeline import fabric
from ridgeline.fabric.schedules import BY_HOSTS

# No lone surrogates: they are not valid text.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
exact_integers = st.integers(-(2**53) + 1, 2**53 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | exact_integers | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)
actions = st.lists(st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True), min_size=1, max_size=4).map(".".join)
events = st.fixed_dictionaries(
    {"source": texts.filter(bool), "action": actions},
    optional={
        "time": st.integers(0, 2**63 - 1),
        "actor": texts,
        "subject": texts,
        "attributes": st.dictionaries(texts, json_values, max_size=5),
    },
)

CALLS = [(op, name) for op, names in fabric.ALGORITHMS.items() for name in names]


@st.composite
def schedules(draw, most_ranks: int = 20, least_ranks: int = 1) -> fabric.Schedule:
    op, name = draw(st.sampled_from(CALLS))
    ranks = draw(st.integers(least_ranks, most_ranks))
    nodes = draw(st.sampled_from([None, *(n for n in range(1, ranks + 1) if ranks % n == 0)]))
    chunks = draw(st.none() | st.integers(1, 6))
    root = draw(st.integers(0, ranks - 1)) if op in ("broadcast", "reduce") else 0
    channels = draw(st.none() | st.integers(1, 4)) if name == "ring" else None
    hosts = None
    if name in BY_HOSTS and draw(st.booleans()):  # any number of ranks on each host, in any order
        nodes, hosts = None, draw(st.lists(st.integers(0, 4), min_size=ranks, max_size=ranks))
    return fabric.schedule(op, name, ranks=ranks, chunks=chunks, nodes=nodes, hosts=hosts, root=root, channels=channels)
