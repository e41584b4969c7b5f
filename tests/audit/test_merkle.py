"""Trees and proofs against a naive RFC 6962, and the test vectors of Certificate Transparency."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit import naive

from ridgeline.audit.ledger import merkle
from ridgeline.errors import Unverified
from ridgeline.native import merkle_root

LEAVES = [bytes.fromhex(h) for h in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657")]
LEAVES.append(bytes.fromhex("606162636465666768696a6b6c6d6e6f"))
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def tree(count: int) -> list[bytes]:
    return [naive.leaf(str(i).encode()) for i in range(count)]


def make_node(leaves: list[bytes]) -> merkle.Node:
    def node(level: int, index: int) -> bytes:
        part = leaves[index << level : (index + 1) << level]
        assert len(part) == 1 << level, "only complete subtrees may be asked for"
        return naive.root(part)

    return node


@pytest.mark.parametrize("size", range(1, 9))
def test_the_roots_are_those_of_certificate_transparency(size):
    hashes = [naive.leaf(entry) for entry in LEAVES[:size]]
    assert merkle.root(size, make_node(hashes)).hex() == ROOTS[size - 1]
    assert merkle_root(b"".join(hashes)).hex() == ROOTS[size - 1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 520))
def test_a_root_is_the_naive_one(size):
    leaves = tree(size)
    assert merkle.root(size, make_node(leaves)) == naive.root(leaves) == merkle_root(b"".join(leaves))


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_an_inclusion_proof_is_the_naive_one_and_leads_to_the_root(data):
    size = data.draw(st.integers(1, 300))
    index = data.draw(st.integers(0, size - 1))
    leaves = tree(size)
    path = merkle.inclusion_path(index, size, make_node(leaves))
    assert path == naive.path(index, leaves)
    assert merkle.root_from_inclusion(index, size, leaves[index], path) == naive.root(leaves)
    assert naive.root_by_path(index, size, leaves[index], path) == naive.root(leaves)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_a_consistency_proof_is_the_naive_one_and_verifies(data):
    new = data.draw(st.integers(1, 300))
    old = data.draw(st.integers(0, new))
    leaves = tree(new)
    path = merkle.consistency_path(old, new, make_node(leaves))
    assert path == naive.consistency(old, leaves)
    merkle.check_consistency(old, new, naive.root(leaves[:old]), naive.root(leaves), path)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_proof_with_anything_changed_does_not_hold(data):
    size = data.draw(st.integers(2, 200))
    index = data.draw(st.integers(0, size - 1))
    leaves = tree(size)
    path = merkle.inclusion_path(index, size, make_node(leaves))
    kind = data.draw(st.sampled_from(["hash", "index", "longer", "shorter", "leaf"]))
    leaf = leaves[index]
    if kind == "hash":
        at = data.draw(st.integers(0, len(path) - 1))
        path[at] = bytes([path[at][0] ^ 1]) + path[at][1:]
    elif kind == "index":
        other = data.draw(st.integers(0, size - 1).filter(lambda i: i != index))
        index = other
    elif kind == "longer":
        path.append(path[-1])
    elif kind == "shorter":
        path.pop()
    else:
        leaf = bytes([leaf[0] ^ 1]) + leaf[1:]
    try:
        root = merkle.root_from_inclusion(index, size, leaf, path)
    except Unverified:
        return
    assert root != naive.root(leaves)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_forked_tree_is_never_consistent(data):
    new = data.draw(st.integers(2, 200))
    old = data.draw(st.integers(1, new))
    leaves = tree(new)
    forked = list(leaves)
    forked[data.draw(st.integers(0, old - 1))] = naive.leaf(b"another")
    path = merkle.consistency_path(old, new, make_node(forked))
    with pytest.raises(Unverified):
        merkle.check_consistency(old, new, naive.root(leaves[:old]), naive.root(forked), path)


def test_a_smaller_tree_is_truncated():
    with pytest.raises(Unverified) as caught:
        merkle.check_consistency(5, 4, bytes(32), bytes(32), [])
    assert caught.value.kind == "truncated"


@pytest.mark.parametrize(("change", "word"), [(lambda p: p[:-1], "fewer"), (lambda p: [*p, p[0]], "more")])
def test_a_proof_of_the_wrong_length_is_refused(change, word):
    leaves = tree(100)
    path = merkle.inclusion_path(7, 100, make_node(leaves))
    with pytest.raises(Unverified, match=word):
        merkle.root_from_inclusion(7, 100, leaves[7], change(path))
