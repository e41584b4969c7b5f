"""The engine: every call against NumPy, over ranks, types, algorithms and the ways data lies in memory."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fabric import ranks as work

from ridgeline import fabric, native
from ridgeline.errors import InputError
from ridgeline.fabric.arrays import CODES, HOW

pytestmark = pytest.mark.ranks

COUNTS = [0, 1, 3, 1000, 5000, 100_003]
TYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]


@given(st.sampled_from(TYPES), st.sampled_from(list(HOW)), st.integers(1, 5), st.integers(0, 1100), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_loops_equal_numpy(dtype, op, sources, count, seed):
    given = [work.values(r, count, dtype, seed) for r in range(sources)]
    out = np.empty(count, dtype)
    address = [g.ctypes.data for g in given]
    native.reduce_arrays(out.ctypes.data, address, count, CODES[dtype], HOW[op])
    wanted = work.REDUCE[op](np.stack(given).astype("f8"), axis=0)
    if op in ("sum", "prod") and np.dtype(dtype).kind in "iu":
        wanted = wanted.astype("i8").astype(dtype).astype("f8")  # both wrap round
    if np.dtype(dtype).kind in "iu":
        wanted = np.trunc(wanted)
    if dtype == "uint8" and op == "avg":
        return  # a mean of sums that wrapped
    np.testing.assert_allclose(out.astype("f8"), wanted, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_loops_pass_nan_on_and_round_halves_to_even():
    a, b = np.array([np.nan, 1, np.inf, -0.0], "f4"), np.array([1, np.nan, 1, 0.0], "f4")
    out = np.empty(4, "f4")
    for op, wanted in (("min", [np.nan, np.nan, 1, 0]), ("max", [np.nan, np.nan, np.inf, 0]), ("sum", a + b)):
        native.reduce_arrays(out.ctypes.data, [a.ctypes.data, b.ctypes.data], 4, CODES["float32"], HOW[op])
        np.testing.assert_array_equal(out, wanted)
    brain = (ctypes.c_uint16 * 2)(0x3F80, 0x3F81)  # 1.0 and the next one
    small = (ctypes.c_uint16 * 2)(0x3B80, 0x3B80)  # 2⁻⁸: half a step of both
    addresses = [ctypes.addressof(brain), ctypes.addressof(small)]
    native.reduce_arrays(addresses[0], addresses, 2, CODES["bfloat16"], HOW["sum"])
    assert list(brain) == [0x3F80, 0x3F82]


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_all_reduce_is_right_however_the_data_lies(ranks):
    cases = [
        (n, "float32", "sum", None, lies) for n in COUNTS for lies in ("plain", "registered", "strided", "out of place")
    ]
    cases += [(777, dtype, op, None, "plain") for dtype in TYPES for op in HOW if (dtype, op) != ("uint8", "avg")]
    cases += [(40_000, dtype, op, None, "plain") for dtype in ("float16", "int16", "float64") for op in ("avg", "max")]
    assert fabric.spawn(work.wrong_reductions, ranks, args=(cases,), timeout=120) == [[]] * ranks


@pytest.mark.parametrize("ranks", [2, 3, 6])
def test_all_reduce_by_every_schedule(ranks):
    names = fabric.ALGORITHMS["all_reduce"]
    cases = [(n, "float32", op, name, "plain") for n in COUNTS for name in names for op in ("sum", "avg")]
    assert fabric.spawn(work.wrong_reductions, ranks, args=(cases,), timeout=120) == [[]] * ranks


@pytest.mark.parametrize("foreign", [False, True])
def test_megabytes_with_and_without_reading_the_others_memory(foreign):
    config = fabric.FabricConfig(foreign=foreign, foreign_bytes=1 << 16, foreign_move_bytes=1 << 16)
    cases = [(n, "float32", "sum", None, lies) for n in (1 << 20, 1_234_567) for lies in ("plain", "registered")]
    assert fabric.spawn(work.wrong_reductions, 3, args=(cases,), config=config, timeout=120) == [[]] * 3
    counts = ([70_001], {op: [None] for op in fabric.ALGORITHMS})
    assert fabric.spawn(work.wrong_moves, 3, args=counts, config=config, timeout=120) == [[]] * 3


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_other_collectives_by_every_algorithm(ranks):
    algorithms = {op: [None, *names] for op, names in fabric.ALGORITHMS.items()}
    counts = [1, 300, 5000, 300_001]
    assert fabric.spawn(work.wrong_moves, ranks, args=(counts, algorithms), timeout=120) == [[]] * ranks


def test_moves_are_right_however_the_data_lies():
    assert fabric.spawn(work.wrong_lies, 3, timeout=60) == [[]] * 3


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_parts_of_small_data_give_the_same_bits_as_the_whole(ranks):
    cases = [(n, "float32", "sum") for n in (0, 1, 15, 16, 17, 255, 1000, 2048)]
    cases += [(777, dtype, op) for dtype in TYPES for op in HOW]
    assert fabric.spawn(work.both_ways, ranks, args=(cases,), timeout=120) == [[]] * ranks
    config = fabric.FabricConfig(whole_bytes=0)
    small = [(n, "float32", op, None, lies) for n in (1, 40, 1500) for op in HOW for lies in ("plain", "strided")]
    assert fabric.spawn(work.wrong_reductions, ranks, args=(small,), config=config, timeout=120) == [[]] * ranks


@pytest.mark.parametrize(("ranks", "slice_bytes"), [(2, 4096), (3, 4096), (5, 4096), (3, 65536)])
def test_slices_are_not_overwritten_before_all_have_taken_them(ranks, slice_bytes):
    config = fabric.FabricConfig(slice_bytes=slice_bytes)
    assert fabric.spawn(work.hurried, ranks, args=(150, ranks), config=config, timeout=120) == [[]] * ranks


def test_mail_holds_what_nobody_has_taken_yet():
    assert fabric.spawn(work.many_messages, 3, args=([0, 1, 9, 10, 11, 1033, 1034, 1035], 7), timeout=60) == [0] * 3
    assert fabric.spawn(work.many_messages, 2, args=([20, 40_000, 1034], 40), timeout=60) == [0] * 2


def test_a_message_of_another_length_is_said_and_the_next_is_right():
    _, said = fabric.spawn(work.other_lengths, 2, timeout=60)
    assert len(said) == 5
    for words, total in said:
        assert "rank 0 sent another length or type than rank 1 receives" in words
        assert total == 35


def test_a_rank_that_waits_lets_its_other_threads_run():
    assert fabric.spawn(work.busy_beside, 2, timeout=60)[1] > 50


def test_threads_of_a_rank_take_turns():
    assert fabric.spawn(work.threads_call, 2, timeout=60) == [[], list(range(600))]


def test_messages_go_round():
    assert fabric.spawn(work.round_trip, 3, args=([0, 1, 9_000, 400_000],), timeout=60) == [0] * 3


def test_split_makes_groups_in_the_order_of_their_keys():
    assert fabric.spawn(work.groups, 4, timeout=60) == [
        (1, 2, 2, 4, False), (1, 2, 4, 4, True), (0, 2, 2, 4, True), (0, 2, 4, 4, True)
    ]  # fmt: skip


def test_calls_may_be_waited_for_later():
    assert fabric.spawn(work.later, 2, timeout=60) == [[1.0] * 16] * 2


def test_stats_count_calls_and_name_the_straggler():
    first, _, third = fabric.spawn(work.counted, 3, timeout=60)
    assert first["ops"]["all_reduce"]["calls"] >= 2
    assert first["ops"]["all_reduce"]["algorithms"]["ring"] == 1
    assert first["straggler"] == third["straggler"] == 1


def test_tensors_of_torch_go_as_they_are():
    sums = [(45.0, 48.0)] * 4
    assert fabric.spawn(work.tensors, 2, timeout=120) == [[*sums, [[True, True], [False, True]]]] * 2


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("complex", "complex64 has no reduction"),
        ("byte order", ">f4 has no reduction; convert to one of"),
        ("no such op", "no reduction 'median'"),
        ("objects", "Python objects"),
        ("read-only", "cannot be written to"),
        ("list", "not list"),
        ("out", "out has 3 elements where 16 are needed"),
        ("out's type", "int32"),
        ("read-only recv", "cannot be written to"),
        ("closed", "closed"),
        ("cut", r"\(5,\) cannot be cut into 2 equal parts"),
        ("root", "root is 9"),
        ("algorithm", "did you mean 'ring'"),
        ("memory", "1,125,899,906,842,624 bytes asked for"),
    ],
)
def test_bad_input_is_said_before_anyone_waits(call, says):
    for said in fabric.spawn(work.fails, 2, args=(call,), timeout=60):
        assert re.search(says, said), said


def test_init_joins_what_a_launcher_started():
    code = "from tests.fabric.ranks import joined; joined()"
    started = []
    for rank in range(2):
        told = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "RIDGELINE_FABRIC_JOB": f"test-{os.getpid()}",
        }
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code], env={**os.environ, **told}, stdout=subprocess.PIPE, text=True
            )
        )
    answers = [process.communicate(timeout=60)[0].strip() for process in started]
    assert answers == ["rank 0 of 2: 3 1", "rank 1 of 2: 3 1"]


@pytest.mark.parametrize(
    ("launcher", "told"),
    [
        ("torchrun", {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}),
        ("Slurm", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}),
        ("Slurm", {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "2,1(x2)"}),
        (
            "OpenMPI",
            {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
        ),
    ],
)
def test_more_than_one_host_is_said(monkeypatch, launcher, told):
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{launcher} started 4 ranks, 2 of them here"):
        fabric.init()


def test_shared_memory_needs_ranks():
    with pytest.raises(fabric.FabricError, match="call it inside fabric"):
        fabric.empty(3)
