"""The engine: every call compared with NumPy, over ranks, types, algorithms and memory layouts."""

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
from tests.fabric import ranks as jobs

from ridgeline import fabric, native
from ridgeline.errors import InputError
from ridgeline.fabric.arrays import REDUCTION_CODES, TYPE_CODES
from ridgeline.fabric.config import read_config

pytestmark = pytest.mark.ranks

COUNTS = [0, 1, 3, 1000, 5000, 100_003]
TYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"]


@given(
    st.sampled_from(TYPES),
    st.sampled_from(list(REDUCTION_CODES)),
    st.integers(1, 5),
    st.integers(0, 1100),
    st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_loops_equal_numpy(dtype, op, sources, count, seed):
    given = [jobs.make_values(r, count, dtype, seed) for r in range(sources)]
    out = np.empty(count, dtype)
    address = [g.ctypes.data for g in given]
    native.reduce_arrays(out.ctypes.data, address, count, TYPE_CODES[dtype], REDUCTION_CODES[op])
    expected = jobs.REDUCE[op](np.stack(given).astype("f8"), axis=0)
    if op in ("sum", "prod") and np.dtype(dtype).kind in "iu":
        expected = expected.astype("i8").astype(dtype).astype("f8")  # both overflow
    if np.dtype(dtype).kind in "iu":
        expected = np.trunc(expected)
    if dtype == "uint8" and op == "avg":
        return  # a mean of sums that overflowed
    np.testing.assert_allclose(out.astype("f8"), expected, rtol=2e-3 if dtype == "float16" else 1e-6)


def test_loops_propagate_nan_and_round_halves_to_even():
    a, b = np.array([np.nan, 1, np.inf, -0.0], "f4"), np.array([1, np.nan, 1, 0.0], "f4")
    out = np.empty(4, "f4")
    for op, expected in (("min", [np.nan, np.nan, 1, 0]), ("max", [np.nan, np.nan, np.inf, 0]), ("sum", a + b)):
        native.reduce_arrays(
            out.ctypes.data, [a.ctypes.data, b.ctypes.data], 4, TYPE_CODES["float32"], REDUCTION_CODES[op]
        )
        np.testing.assert_array_equal(out, expected)
    brain = (ctypes.c_uint16 * 2)(0x3F80, 0x3F81)  # 1.0 and the next number
    small = (ctypes.c_uint16 * 2)(0x3B80, 0x3B80)  # 2⁻⁸: half a step of both
    addresses = [ctypes.addressof(brain), ctypes.addressof(small)]
    native.reduce_arrays(addresses[0], addresses, 2, TYPE_CODES["bfloat16"], REDUCTION_CODES["sum"])
    assert list(brain) == [0x3F80, 0x3F82]


@pytest.mark.parametrize("ranks", [1, 2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_all_reduce_is_right_for_every_layout(ranks):
    cases = [
        (n, "float32", "sum", None, layout)
        for n in COUNTS
        for layout in ("plain", "registered", "strided", "out of place")
    ]
    cases += [
        (777, dtype, op, None, "plain") for dtype in TYPES for op in REDUCTION_CODES if (dtype, op) != ("uint8", "avg")
    ]
    cases += [(40_000, dtype, op, None, "plain") for dtype in ("float16", "int16", "float64") for op in ("avg", "max")]
    assert fabric.spawn(jobs.find_wrong_reductions, ranks, args=(cases,), timeout=120) == [[]] * ranks


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(6, marks=pytest.mark.slow)])
def test_all_reduce_by_every_schedule(ranks):
    names = fabric.ALGORITHMS["all_reduce"]
    cases = [(n, "float32", op, name, "plain") for n in COUNTS for name in names for op in ("sum", "avg")]
    assert fabric.spawn(jobs.find_wrong_reductions, ranks, args=(cases,), timeout=120) == [[]] * ranks


@pytest.mark.slow
@pytest.mark.parametrize("foreign", [False, True])
def test_megabytes_with_and_without_reading_the_memory_of_other_ranks(foreign):
    config = fabric.FabricConfig(foreign=foreign, foreign_bytes=1 << 16, foreign_move_bytes=1 << 16)
    cases = [(n, "float32", "sum", None, layout) for n in (1 << 20, 1_234_567) for layout in ("plain", "registered")]
    assert fabric.spawn(jobs.find_wrong_reductions, 3, args=(cases,), config=config, timeout=120) == [[]] * 3
    counts = ([70_001], {op: [None] for op in fabric.ALGORITHMS})
    assert fabric.spawn(jobs.find_wrong_moves, 3, args=counts, config=config, timeout=120) == [[]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_the_other_collectives_by_every_algorithm(ranks):
    algorithms = {op: [None, *names] for op, names in fabric.ALGORITHMS.items()}
    counts = [1, 300, 5000, 300_001]
    assert fabric.spawn(jobs.find_wrong_moves, ranks, args=(counts, algorithms), timeout=120) == [[]] * ranks


def test_moves_are_right_for_every_layout():
    assert fabric.spawn(jobs.find_wrong_layouts, 3, timeout=60) == [[]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_adding_small_data_in_parts_gives_the_same_bits(ranks):
    cases = [(n, "float32", "sum") for n in (0, 1, 15, 16, 17, 255, 1000, 2048)]
    cases += [(777, dtype, op) for dtype in TYPES for op in REDUCTION_CODES]
    assert fabric.spawn(jobs.compare_small_methods, ranks, args=(cases,), timeout=120) == [[]] * ranks
    config = fabric.FabricConfig(whole_bytes=0)
    small = [
        (n, "float32", op, None, layout)
        for n in (1, 40, 1500)
        for op in REDUCTION_CODES
        for layout in ("plain", "strided")
    ]
    assert fabric.spawn(jobs.find_wrong_reductions, ranks, args=(small,), config=config, timeout=120) == [[]] * ranks


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "slice_bytes"), [(2, 4096), (3, 4096), (5, 4096), (3, 65536)])
def test_slices_are_not_overwritten_before_all_ranks_have_read_them(ranks, slice_bytes):
    config = fabric.FabricConfig(slice_bytes=slice_bytes)
    assert (
        fabric.spawn(jobs.find_wrong_hurried_calls, ranks, args=(150, ranks), config=config, timeout=120)
        == [[]] * ranks
    )


def test_a_mailbox_keeps_messages_until_they_are_read():
    assert (
        fabric.spawn(jobs.exchange_many_messages, 3, args=([0, 1, 9, 10, 11, 1033, 1034, 1035], 7), timeout=60)
        == [0] * 3
    )
    assert fabric.spawn(jobs.exchange_many_messages, 2, args=([20, 40_000, 1034], 40), timeout=60) == [0] * 2


def test_a_message_of_another_length_is_an_error_and_the_next_is_right():
    _, errors = fabric.spawn(jobs.receive_other_lengths, 2, timeout=60)
    assert len(errors) == 5
    for message, total in errors:
        assert "rank 0 sent another length or type than rank 1 receives" in message
        assert total == 35


def test_other_threads_run_while_a_rank_waits():
    assert fabric.spawn(jobs.count_thread_turns, 2, timeout=60)[1] > 50


def test_threads_of_a_rank_take_turns():
    assert fabric.spawn(jobs.call_from_threads, 2, timeout=60) == [[], list(range(600))]


def test_messages_go_around_the_ring():
    assert fabric.spawn(jobs.send_around_ring, 3, args=([0, 1, 9_000, 400_000],), timeout=60) == [0] * 3


def test_split_makes_groups_in_the_order_of_their_keys():
    assert fabric.spawn(jobs.split_into_groups, 4, timeout=60) == [
        (1, 2, 2, 4, False), (1, 2, 4, 4, True), (0, 2, 2, 4, True), (0, 2, 4, 4, True)
    ]  # fmt: skip


def test_calls_can_be_asynchronous():
    assert fabric.spawn(jobs.call_asynchronously, 2, timeout=60) == [[1.0] * 16] * 2


def test_stats_count_calls_and_name_the_straggler():
    first, _, third = fabric.spawn(jobs.get_stats, 3, timeout=60)
    assert first["ops"]["all_reduce"]["calls"] >= 2
    assert first["ops"]["all_reduce"]["algorithms"]["ring"] == 1
    assert first["straggler"] == third["straggler"] == 1


@pytest.mark.slow
def test_torch_tensors_are_reduced():
    sums = [(45.0, 48.0)] * 4
    assert fabric.spawn(jobs.reduce_tensors, 2, timeout=120) == [[*sums, [[True, True], [False, True]]]] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "message"),
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
        ("memory", "1,125,899,906,842,624 bytes requested"),
    ],
)
def test_wrong_arguments_are_an_error_before_any_rank_waits(call, message):
    for error in fabric.spawn(jobs.get_error, 2, args=(call,), timeout=60):
        assert re.search(message, error), error


def test_init_joins_the_ranks_of_a_launcher():
    code = "from tests.fabric.ranks import run_launched; run_launched()"
    processes = []
    for rank in range(2):
        variables = {
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "RIDGELINE_FABRIC_JOB": f"test-{os.getpid()}",
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", code], env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True
            )
        )
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert answers == ["rank 0 of 2: 3 1", "rank 1 of 2: 3 1"]


@pytest.mark.parametrize(
    ("launcher", "variables"),
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
def test_several_hosts_are_refused(monkeypatch, launcher, variables):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{launcher} started 4 ranks, 2 of them here"):
        fabric.init()


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK is 'one'; give a whole number"),
        ({"RANK": "0", "WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2'; give a whole number"),
        ({"RANK": "5", "WORLD_SIZE": "2"}, "RANK is 5, WORLD_SIZE is 2; ranks count from 0"),
        ({"PMI_RANK": "", "PMI_SIZE": "2"}, "PMI_RANK is ''"),
    ],
)
def test_wrong_numbers_of_a_launcher_are_named(monkeypatch, variables, text):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=text):
        fabric.init()


def test_a_variable_without_a_meaning_is_refused():
    with pytest.raises(InputError, match=r"no setting RIDGELINE_FABRIC_… 'INTERFCE'; did you mean 'INTERFACE'"):
        read_config({"RIDGELINE_FABRIC_INTERFCE": "eth1"})
    kubernetes = {"RIDGELINE_FABRIC_PORT": "tcp://10.0.0.1:80", "RIDGELINE_FABRIC_PORT_80_TCP_PROTO": "tcp"}
    known = {"RIDGELINE_FABRIC_SECRET": "x", "RIDGELINE_FABRIC_HOST": "a", "RIDGELINE_FABRIC_JOB": "b"}
    assert read_config(kubernetes | known | {"RIDGELINE_FABRIC_SERVICE_HOST": "10.0.0.1"}) == fabric.FabricConfig()


def test_shared_memory_needs_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    with fabric.init():
        assert fabric.empty(3).shape == (3,)
    with pytest.raises(fabric.FabricError, match="call it inside fabric"):
        fabric.empty(3)
