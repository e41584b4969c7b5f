"""Paths and sizes of tiles, as c2sp.org/tlog-tiles specifies them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.audit import naive

from ridgeline.audit.ledger.tiles import Edge, Tiles, extend_edge, list_levels, parse_tile_path, split_bundle, tile_path
from ridgeline.errors import Unverified
from ridgeline.native import bundle_hashes, entry_ends, merkle_root


@pytest.mark.parametrize(
    ("tile", "path"),
    [
        ((0, 1234067, 256), "tile/0/x001/x234/067"),
        ((0, 0, 256), "tile/0/000"),
        ((1, 999, 256), "tile/1/999"),
        ((1, 1000, 17), "tile/1/x001/000.p/17"),
        (("entries", 273, 112), "tile/entries/273.p/112"),
    ],
)
def test_paths_are_those_of_the_specification(tile, path):
    assert tile_path(*tile) == path
    assert parse_tile_path(path) == tile


@pytest.mark.parametrize("path", ["tile/0/00", "tile/0/x000/000", "tile/0/000.p/0", "tile/0/000.p/256", "tile/00/000"])
def test_a_path_that_no_log_would_have_is_none(path):
    assert parse_tile_path(path) is None


@settings(max_examples=200)
@given(st.integers(0, 10**12))
def test_a_path_leads_back_to_its_number(number):
    assert parse_tile_path(tile_path(3, number)) == (3, number, 256)
    assert tile_path(3, number) == f"tile/3/{naive.name(number)}"


@settings(max_examples=200)
@given(st.text(max_size=30))
def test_any_text_is_a_path_or_none(text):
    parsed = parse_tile_path("tile/" + text)
    assert parsed is None or tile_path(*parsed) == "tile/" + text


def test_a_tree_of_70000_has_the_tiles_of_the_specification():
    assert list(list_levels(70_000)) == [(0, 273, 112), (1, 1, 17), (2, 0, 1)]
    assert list(list_levels(256)) == [(0, 1, 0), (1, 0, 1)]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 700), min_size=1, max_size=5))
def test_an_edge_that_grows_in_steps_is_the_naive_tree(steps):
    edge, every, files = Edge(), [], {}
    for count in steps:
        more = [f"entry {len(every) + k}".encode() for k in range(count)]
        every += more
        body = naive.make_bundle(more)
        growth = extend_edge(edge, body, bundle_hashes(body))
        edge = growth.edge
        files |= growth.full
        assert edge.root() == naive.root([naive.leaf(e) for e in every])
    assert edge.size == len(every)
    files |= edge.partials()
    for number in range(-(-len(every) // 256)):
        part = every[256 * number : 256 * (number + 1)]
        assert files[tile_path("entries", number, len(part))] == naive.make_bundle(part)


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_bytes_are_a_bundle_or_an_error(data):
    try:
        ends = entry_ends(data).tolist()
    except ValueError:
        for read in (bundle_hashes, lambda d: split_bundle(d, "it")):
            with pytest.raises((ValueError, Unverified)):
                read(data)
        return
    entries = naive.bundle(data)
    assert split_bundle(data, "it") == entries
    assert len(ends) == len(entries)
    assert bundle_hashes(data) == b"".join(naive.leaf(e) for e in entries)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_root_needs_whole_hashes(size):
    with pytest.raises(ValueError, match="32 bytes"):
        merkle_root(bytes(size))


def test_a_cut_tile_and_a_missing_tile_are_different_faults(tmp_path):
    (tmp_path / "tile/0").mkdir(parents=True)
    (tmp_path / "tile/0/000").write_bytes(bytes(8191))
    with pytest.raises(Unverified, match="8191 bytes instead of 8192") as caught:
        Tiles(tmp_path).hashes(0, 0)
    assert caught.value.kind == "altered"
    with pytest.raises(Unverified, match="tile/0/001 is missing") as caught:
        Tiles(tmp_path).hashes(0, 1)
    assert caught.value.kind == "missing"


def test_a_partial_tile_that_was_outgrown_is_read_from_the_full_one(tmp_path):
    (tmp_path / "tile/0").mkdir(parents=True)
    (tmp_path / "tile/0/000").write_bytes(bytes(range(256)) * 32)
    assert Tiles(tmp_path).hashes(0, 0, 3) == (bytes(range(256)) * 32)[:96]
