"""SHA-256 by every way this CPU has, against hashlib."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from hashlib import sha256

import pytest

from ridgeline.native import bundle_hashes, encode_events, merkle_root, sha256_engines

SIZES = [*range(200), 1000, 4095, 65_535]


def test_the_portable_way_is_always_there():
    assert sha256_engines()[0] == "portable"


@pytest.mark.parametrize("engine", sha256_engines())
def test_leaf_hashes_of_every_length(engine):
    rng = random.Random(0)
    for size in SIZES:
        data = rng.randbytes(size)
        assert bundle_hashes(size.to_bytes(2, "big") + data, engine) == sha256(b"\0" + data).digest()


@pytest.mark.parametrize("engine", sha256_engines())
def test_node_hashes(engine):
    rng = random.Random(1)
    for _ in range(100):
        pair = rng.randbytes(64)
        assert merkle_root(pair, engine) == sha256(b"\1" + pair).digest()


@pytest.mark.parametrize("engine", sha256_engines())
def test_a_whole_bundle_at_once(engine):
    rng = random.Random(2)
    entries = [rng.randbytes(rng.randrange(400)) for _ in range(5000)]
    bundle = b"".join(len(e).to_bytes(2, "big") + e for e in entries)
    assert bundle_hashes(bundle, engine) == b"".join(sha256(b"\0" + e).digest() for e in entries)


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="not on this CPU"):
        merkle_root(bytes(32), "abacus")


def test_the_environment_can_force_the_portable_way():
    code = "from ridgeline.native import merkle_root; print(merkle_root(bytes(64)).hex())"
    env = {**os.environ, "RIDGELINE_ISA": "baseline"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == sha256(b"\1" + bytes(64)).hexdigest()


def test_events_must_be_a_list():
    with pytest.raises(TypeError):
        encode_events({}, 0)
