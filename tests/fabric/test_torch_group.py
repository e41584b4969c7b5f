"""The process group of the torch back end, its ranks in threads of this process: values, refusals, errors."""

from __future__ import annotations

import gc
import os
import random
import re
import secrets
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from ridgeline.errors import FabricError, InputError, RidgelineError

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from ridgeline.fabric.torch_backend import RidgelineGroup  # noqa: E402

GUARD = timedelta(seconds=30)
ARENA = 2 << 20
R = dist.ReduceOp
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]


class Groups:
    """A group of `ranks` ranks; `run` calls a function with each of them at once."""

    def __init__(self, ranks: int, timeout: float = 20.0) -> None:
        self.ranks, name = ranks, f"ridgeline-test-{secrets.token_hex(8)}"
        self._pool = ThreadPoolExecutor(ranks)

        def make(rank: int) -> RidgelineGroup:
            return RidgelineGroup(name, rank, ranks, timeout, ARENA if rank == 0 else None)

        self.groups = list(self._pool.map(make, range(ranks)))

    def run(self, function):
        """Return what function(group, rank) returns or raises, by rank."""

        def call(rank: int):
            try:
                return function(self.groups[rank], rank)
            except RidgelineError as error:
                return error

        return list(self._pool.map(call, range(self.ranks)))

    def check_usable(self) -> None:
        assert (
            self.run(lambda group, rank: all_reduce(group, torch.tensor([rank + 1.0])).item())
            == [self.ranks * (self.ranks + 1) / 2] * self.ranks
        )

    def close(self) -> None:
        list(self._pool.map(lambda group: group.shutdown(), self.groups))
        self._pool.shutdown()


@pytest.fixture(scope="module")
def three():
    groups = Groups(3)
    yield groups
    groups.close()


@pytest.fixture
def brief():
    groups = Groups(2, timeout=0.3)
    yield groups
    groups.close()


def options(kind: str, **fields):
    result = getattr(dist, kind)()
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def all_reduce(group, tensor, op=R.SUM):
    group.allreduce([tensor], options("AllreduceOptions", reduceOp=op)).wait(GUARD)
    return tensor


def all_reduce_at_once(group, tensor):
    """What a synchronous call of torch.distributed does."""
    group.allreduce([tensor], options("AllreduceOptions", asyncOp=False)).wait(GUARD)
    return tensor


def reduce_plainly(tensors, op):
    """The result that all ranks should have, in exact numbers."""
    rows = torch.stack(tensors)
    if rows.dtype == torch.bool:
        return rows.any(0) if op in (R.SUM, R.MAX, R.BOR) else rows.all(0) if op != R.BXOR else rows.sum(0) % 2 == 1
    exact = rows.double() if rows.dtype.is_floating_point else rows.to(torch.int64)
    if op in (R.BAND, R.BOR, R.BXOR):
        combine = {R.BAND: torch.bitwise_and, R.BOR: torch.bitwise_or, R.BXOR: torch.bitwise_xor}[op]
        result = exact[0]
        for row in exact[1:]:
            result = combine(result, row)
    else:
        result = {
            R.SUM: lambda: exact.sum(0),
            R.PRODUCT: lambda: exact.prod(0),
            R.MIN: lambda: exact.amin(0),
            R.MAX: lambda: exact.amax(0),
            R.AVG: lambda: exact.double().mean(0).trunc() if not rows.dtype.is_floating_point else exact.mean(0),
        }[op]()
    return result.to(rows.dtype)


CASES = [
    *((kind, op) for kind in FLOATS for op in (R.SUM, R.AVG, R.PRODUCT, R.MIN, R.MAX)),
    *((kind, op) for kind in INTEGERS for op in (R.SUM, R.AVG, R.PRODUCT, R.MIN, R.MAX, R.BAND, R.BOR, R.BXOR)),
    *((kind, op) for kind in UNSIGNED for op in (R.SUM, R.PRODUCT, R.MIN, R.MAX, R.BAND, R.BOR, R.BXOR)),
    *((torch.bool, op) for op in (R.SUM, R.PRODUCT, R.MIN, R.MAX, R.BAND, R.BOR, R.BXOR)),
    *((torch.float8_e4m3fn, op) for op in (R.SUM, R.PRODUCT, R.MIN, R.MAX)),
    (torch.float8_e5m2, R.SUM),
]


@pytest.mark.parametrize(("kind", "op"), CASES, ids=lambda value: str(value).rpartition(".")[2])
def test_reductions_have_the_values_of_a_plain_one(three, kind, op):
    generator = torch.Generator().manual_seed(3)
    values = [torch.randint(0, 4, (3, 7), generator=generator).to(kind) for _ in range(three.ranks)]
    expected = reduce_plainly(values, op).double()
    for result in three.run(lambda group, rank: all_reduce(group, values[rank].clone(), op)):
        assert torch.equal(result.double(), expected)
    chosen = options("ReduceOptions", reduceOp=op, rootRank=1)

    def reduce(group, rank):
        group.reduce([tensor := values[rank].clone()], chosen).wait(GUARD)
        return tensor

    for rank, result in enumerate(three.run(reduce)):
        assert torch.equal(result.double(), expected if rank == 1 else values[rank].double())

    def reduce_scatter(group, rank):
        out = torch.zeros(7, dtype=kind)
        group._reduce_scatter_base(out, values[rank], options("ReduceScatterOptions", reduceOp=op)).wait(GUARD)
        return out

    for rank, result in enumerate(three.run(reduce_scatter)):
        assert torch.equal(result.double(), expected[rank])


def test_long_and_strided_tensors_are_reduced_piece_by_piece(three):
    values = [torch.arange(2_000_003 * 2, dtype=torch.int32).view(-1, 2)[:, 0] * (rank + 1) for rank in range(3)]
    expected = values[0] ^ values[1] ^ values[2]
    for result in three.run(lambda group, rank: all_reduce(group, values[rank], R.BXOR)):
        assert torch.equal(result, expected)


@pytest.mark.parametrize(
    ("tensor", "op", "words"),
    [
        (torch.ones(2, dtype=torch.complex64), R.SUM, "complex64"),
        (torch.ones(2, dtype=torch.bool), R.AVG, "bool has no reduction AVG"),
        (torch.ones(2), R.BAND, "float32 has no reduction BAND"),
        (torch.ones(2, dtype=torch.uint16), R.AVG, "uint16 has no reduction AVG"),
        (torch.ones(2), dist._make_nccl_premul_sum(2.0), "no reduction"),
        (torch.ones(2).to_sparse(), R.MAX, "sparse"),
        (torch.empty(2, device="meta"), R.SUM, "CPU tensors"),
        (torch.ones(2).cfloat().conj().imag, R.SUM, "resolve_neg"),
    ],
)
def test_a_type_without_a_reduction_is_refused_by_name_and_the_group_works_on(three, tensor, op, words):
    for outcome in three.run(lambda group, rank: all_reduce(group, tensor, op)):
        assert isinstance(outcome, InputError)
        assert words in str(outcome)
    three.check_usable()


def test_uneven_parts_arrive_in_full(three):
    def call(group, rank):
        gathered = [torch.zeros(1 + k) for k in range(3)]
        group.allgather([gathered], [torch.full((1 + rank,), rank + 1.0)]).wait(GUARD)
        part = torch.zeros(2 * rank)
        group.reduce_scatter([part], [[torch.full((2 * k,), k + rank + 0.0) for k in range(3)]]).wait(GUARD)
        sent = torch.cat([torch.full((rank + k, 2), 10.0 * rank + k) for k in range(3)])
        received = torch.zeros(sum(k + rank for k in range(3)), 2)
        sizes = [k + rank for k in range(3)]
        group.alltoall_base(received, sent, sizes, sizes).wait(GUARD)
        return torch.cat(gathered).tolist(), part.tolist(), received[:, 0].tolist()

    for rank, (gathered, part, received) in enumerate(three.run(call)):
        assert gathered == [1, 2, 2, 3, 3, 3]
        assert part == [3.0 * rank + 3] * (2 * rank)
        assert received == [10.0 * k + rank for k in range(3) for _ in range(k + rank)]


def test_inputs_and_outputs_may_be_the_same_memory(three):
    def call(group, rank):
        parts = torch.arange(6.0) + 10 * rank
        group.alltoall_base(parts, parts, [1, 2, 3] if rank == 2 else [2, 2, 2], [2, 2, 2]).wait(GUARD)

    for outcome in three.run(call):
        assert "all_to_all: rank 0 sends 2 elements to rank 2" in str(outcome)

    def exchange(group, rank):
        parts = torch.arange(6.0) + 10 * rank
        group.alltoall_base(parts, parts, [2, 2, 2], [2, 2, 2]).wait(GUARD)
        sums = [torch.full((1 + k,), rank + 1.0) for k in range(3)]
        group.reduce_scatter([sums[rank]], [sums]).wait(GUARD)
        gathered = [torch.full((1 + k,), rank + 1.0) for k in range(3)]
        group.allgather([gathered], [gathered[rank]]).wait(GUARD)
        return parts.tolist(), sums[rank].tolist(), torch.cat(gathered).tolist()

    for rank, (parts, part, gathered) in enumerate(three.run(exchange)):
        assert parts == [10.0 * k + 2 * rank + j for k in range(3) for j in range(2)]
        assert part == [6.0] * (1 + rank)
        assert gathered == [1, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("kind", [torch.bool, torch.float8_e5m2, torch.complex64, torch.uint16, torch.bfloat16])
def test_messages_and_copies_have_any_type_and_length(three, kind):
    def call(group, rank):
        wrong = []
        for shape in ((), (0,), (3, 2), (70_000,)):
            sent = torch.ones(shape).to(kind)
            received, copied = torch.zeros(shape).to(kind), sent.clone() if rank == 2 else torch.zeros(shape).to(kind)
            works = [group.recv([received], (rank - 1) % 3), group.send([sent], (rank + 1) % 3)]
            works.append(group.broadcast([copied], options("BroadcastOptions", rootRank=2)))
            gathered = [torch.zeros(shape).to(kind) for _ in range(3)]
            works.append(group.allgather([gathered], [sent]))
            for work in works:
                work.wait(GUARD)
            wrong += [
                shape
                for x in (received, copied, *gathered)
                if not torch.equal(x.to(torch.complex64), sent.to(torch.complex64))
            ]
        return wrong

    assert three.run(call) == [[]] * 3


def test_lists_and_roots(three):
    def call(group, rank):
        tensor = torch.full((2, 2), rank + 1.0)
        lists = [[torch.zeros(2, 2).t() for _ in range(3)]] if rank == 2 else []
        group.gather(lists, [tensor], options("GatherOptions", rootRank=2)).wait(GUARD)
        part = torch.zeros(2)
        parts = [[torch.full((2,), 5.0 + k) for k in range(3)]] if rank == 1 else []
        group.scatter([part], parts, options("ScatterOptions", rootRank=1)).wait(GUARD)
        received = [torch.zeros(k + rank + 1) for k in range(3)]
        group.alltoall(received, [torch.full((rank + k + 1,), 10.0 * rank + k) for k in range(3)]).wait(GUARD)
        coalesced = [[torch.zeros(1), torch.zeros(2)] for _ in range(3)]
        group.allgather_coalesced(coalesced, [torch.full((1,), rank + 0.0), torch.full((2,), rank + 4.0)]).wait(GUARD)
        into = torch.zeros(3), torch.zeros(6, dtype=torch.int64)
        group.allgather_into_tensor_coalesced(list(into), [torch.ones(1) * rank, torch.tensor([rank, 7])]).wait(GUARD)
        return [t.sum().item() for t in (lists or [[]])[0]], part, received, coalesced, into

    for rank, (gathered, part, received, coalesced, into) in enumerate(three.run(call)):
        assert gathered == ([4, 8, 12] if rank == 2 else [])
        assert part.tolist() == [5.0 + rank] * 2
        assert [t.tolist() for t in received] == [[10.0 * k + rank] * (k + rank + 1) for k in range(3)]
        assert [[t.tolist() for t in tensors] for tensors in coalesced] == [[[k], [k + 4] * 2] for k in range(3)]
        assert [t.tolist() for t in into] == [[0, 1, 2], [0, 7, 1, 7, 2, 7]]


def test_sparse_tensors_are_summed(three):
    def make(rank):
        rows = torch.tensor([[0, rank + 1, rank + 1]])  # one index twice
        return torch.sparse_coo_tensor(
            rows[:, : 3 * (rank != 1)], torch.ones(3 * (rank != 1), 2), (5, 2), check_invariants=True
        )

    expected = sum(make(rank).to_dense() for rank in range(3))
    for result in three.run(lambda group, rank: all_reduce(group, make(rank))):
        assert torch.equal(result.to_dense(), expected)


DIFFERENT = {
    "all_reduce": lambda group, rank: group.allreduce([torch.ones(4 + rank)]),
    "all_reduce of sparse": lambda group, rank: group.allreduce([torch.ones(4 + rank).to_sparse()]),
    "all_reduce of 2": lambda group, rank: group.allreduce([torch.ones(2, dtype=UNSIGNED[rank])]),
    "all_gather": lambda group, rank: group.allgather(
        [[torch.ones(1 + (k == rank)) for k in range(3)]], [torch.ones(2)]
    ),
    "reduce_scatter": lambda group, rank: group.reduce_scatter(
        [torch.ones(2)], [[torch.ones(1 + (k == rank)) for k in range(3)]]
    ),
    "gather": lambda group, rank: group.gather(
        [[torch.ones(2)] * 3], [torch.ones(2)], options("GatherOptions", rootRank=rank)
    ),
    "scatter": lambda group, rank: group.scatter(
        [torch.ones(2 + rank)], [[torch.ones(2)] * 3], options("ScatterOptions", rootRank=0)
    ),
    "all_to_all": lambda group, rank: group.alltoall_base(torch.ones(3), torch.ones(3), [rank, 3 - rank, 0], [1, 1, 1]),
    "all_gather or reduce": lambda group, rank: (
        group.allgather([[torch.ones(k) for k in range(3)]], [torch.ones(rank)])
        if rank
        else group.reduce([torch.ones(3)])
    ),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_calls_raise_on_every_rank_and_the_group_works_on(three, name):
    def call(group, rank):
        work = DIFFERENT[name](group, rank)
        with pytest.raises(FabricError) as caught:
            work.wait(GUARD)
        assert work.is_completed()
        assert not work.is_success()
        assert work.exception() is caught.value
        return str(caught.value)

    for outcome in three.run(call):
        assert name.split()[0] in outcome
        assert outcome.count("rank ") > 1
    three.check_usable()


@pytest.mark.parametrize(
    "call",
    [
        lambda group: group.allgather([[torch.ones(2)] * 2], [torch.ones(2)]),
        lambda group: group.allgather([[torch.ones(2)] * 3], [torch.ones(2, dtype=torch.int32)]),
        lambda group: group.reduce_scatter([torch.ones(2)], [[torch.ones(3)] * 3]),
        lambda group: group._reduce_scatter_base(torch.ones(2), torch.ones(7)),
        lambda group: group._allgather_base(torch.ones(7), torch.ones(2)),
        lambda group: group.alltoall_base(torch.ones(3), torch.ones(3), [1, 1], [1, 1, 1]),
        lambda group: group.alltoall([torch.ones(1)] * 2, [torch.ones(1)] * 3),
        lambda group: group.broadcast([torch.ones(1)], options("BroadcastOptions", rootRank=3)),
        lambda group: group.gather(
            [[torch.ones(2)] * 3], [torch.ones(3)], options("GatherOptions", rootRank=group.rank())
        ),
    ],
)
def test_wrong_arguments_are_refused_before_data_moves(three, call):
    for outcome in three.run(lambda group, rank: call(group).wait(GUARD)):
        assert isinstance(outcome, InputError), outcome
    three.check_usable()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (
            lambda group: group.allreduce([torch.ones(2)]),
            lambda group: group.allreduce([torch.ones(2).to_sparse(), torch.ones(2)]),
        ),
        (lambda group: group.allreduce([torch.ones(2)]), lambda group: group.allreduce([torch.ones(2).cfloat()])),
        (
            lambda group: group.alltoall([torch.ones(1)] * 3, [torch.ones(1)] * 3),
            lambda group: group.alltoall([torch.ones(1)] * 2, [torch.ones(1)] * 3),
        ),
        (
            lambda group: group.scatter([torch.ones(1)], []),
            lambda group: group.scatter([torch.ones(1)], [[torch.ones(2)] * 3]),
        ),
    ],
)
def test_the_other_ranks_do_not_wait_for_a_rank_that_refuses_its_arguments(three, right, wrong):
    def call(group, rank):
        for _ in range(3):
            with pytest.raises(RidgelineError) as caught:
                (right if rank else wrong)(group).wait(GUARD)
        return str(caught.value)

    outcomes = three.run(call)
    assert all("rank 0 calls" in outcome and "refuses" in outcome for outcome in outcomes[1:]), outcomes
    three.check_usable()


def test_messages_in_any_order_with_tags_beside_collectives(three):
    choice = random.Random(9)
    jobs = [(*choice.sample(range(3), 2), choice.randrange(4), n) for n in range(60)]

    def call(group, rank):
        works, targets = [], []
        order = list(jobs)
        random.Random(rank).shuffle(order)
        for source, to, tag, _ in order:
            if to == rank:
                targets.append((source, tag, torch.zeros(50_000, dtype=torch.float64).view(2, -1).t()))
                works.append(group.recv([targets[-1][2]], source, tag))
        total = group.allreduce([torch.ones(3)])
        for source, to, tag, number in jobs:
            if source == rank:
                works.append(group.send([torch.full((25_000, 2), float(number), dtype=torch.float64)], to, tag))
        for work in [*works, total]:
            work.wait(GUARD)
        return targets

    for rank, targets in enumerate(three.run(call)):
        for source in range(3):
            for tag in range(4):
                expected = [job[3] for job in jobs if job[:3] == (source, rank, tag)]
                received = [t for s, g, t in targets if (s, g) == (source, tag)]
                assert [t[0, 0].item() for t in received] == expected
                assert all((t == t[0, 0]).all() for t in received)


def test_a_receive_from_any_source_names_it(three):
    def call(group, rank):
        if rank:
            group.send([torch.tensor([rank])], 0, rank).wait(GUARD)
            return None
        work = group.recv_anysource([tensor := torch.zeros(1, dtype=torch.int64)], 2)
        work.wait(GUARD)
        group.recv([torch.zeros(1, dtype=torch.int64)], 1, 1).wait(GUARD)
        return tensor.item(), work._source_rank()

    assert three.run(call)[0] == (2, 2)


def test_an_error_is_an_error_for_code_in_cpp_too(three):
    """DDP reads the future in C++: an exception that is stored as a value would be taken for tensors."""

    def call(group, rank):
        work = group.allreduce([torch.ones(4 + rank)])
        future = work.get_future()
        later = future.then(lambda done: done.value())
        failures = []
        for each in (future, later):
            try:
                each.wait()
            except RuntimeError as error:
                failures.append("all_reduce" in str(error))
        good = group.allreduce([tensor := torch.ones(2)]).get_future().wait()
        return [*failures, good[0] is tensor or torch.equal(good[0], tensor)]

    assert three.run(call) == [[True] * 3] * 3


def test_a_callback_may_wait_for_a_later_call(three):
    def call(group, rank):
        first = group.allreduce([torch.ones(2)]).get_future()
        chained = first.then(lambda _: all_reduce(group, torch.ones(3)).sum().item())
        return chained.wait()

    assert three.run(call) == [9.0] * 3


def test_synchronous_calls_run_after_those_in_progress(three):
    choice = random.Random(4)
    kinds = [choice.choice(["wait", "go on", "go on", "at once"]) for _ in range(300)]

    def call(group, rank):
        total, works = torch.ones(1, dtype=torch.float64), []
        for kind in kinds:
            # The mean of equal values is the value: a call that ran too early or twice would give another sum.
            group.broadcast([total], options("BroadcastOptions", rootRank=len(works) % 3, asyncOp=True))
            works.append(
                group.allreduce([total], options("AllreduceOptions", reduceOp=R.AVG, asyncOp=kind != "at once"))
            )
            if kind != "go on":
                works[-1].wait(GUARD)
                total += rank + 1
        for work in works:
            work.wait(GUARD)
        return total.item()

    expected = [1.0] * 3
    for number, kind in enumerate(kinds):
        expected = [expected[number % 3]] * 3
        if kind != "go on":
            expected = [value + rank + 1 for rank, value in enumerate(expected)]
    assert three.run(call) == expected


def test_synchronous_calls_need_no_thread():
    groups = Groups(2)
    threads = threading.active_count()
    assert [x.item() for x in groups.run(lambda group, rank: all_reduce_at_once(group, torch.ones(1)))] == [2.0] * 2
    assert threading.active_count() == threads
    groups.check_usable()
    assert threading.active_count() > threads
    groups.close()


class Interruption(Exception):
    """What a signal handler raises."""


def interrupt(groups, handle):
    """Rank 0 makes a synchronous call in this thread, and a signal handler runs `handle` in the middle of it; then
    rank 1 makes the same call. Return the results of both, or their errors."""
    in_call = groups.groups[0]._calls

    def call_late(group):
        while not in_call._in_call:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGUSR1)
        handled.wait(30)
        return all_reduce_at_once(group, torch.ones(1)).item()

    def handler(*_):
        handled.set()
        handle()

    handled, before = threading.Event(), signal.signal(signal.SIGUSR1, handler)
    try:
        other = groups._pool.submit(call_late, groups.groups[1])
        try:
            result = all_reduce_at_once(groups.groups[0], torch.ones(1)).item()
        except (RidgelineError, Interruption) as error:
            result = error
        return result, other.exception(30) or other.result()
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.fixture
def two():
    groups = Groups(2)
    yield groups
    groups.close()


def test_a_signal_handler_cannot_make_a_synchronous_call_during_another(two):
    errors = []

    def handle():
        with pytest.raises(FabricError, match="signal handler") as raised:
            all_reduce_at_once(two.groups[0], torch.ones(1))
        errors.append(raised)

    assert interrupt(two, handle) == (2.0, 2.0)
    assert len(errors) == 1
    two.check_usable()


def test_a_signal_handler_may_destroy_the_group_during_a_call(two):
    assert interrupt(two, two.groups[0].shutdown) == (2.0, 2.0)
    with pytest.raises(FabricError, match="rank 0 has destroyed it"):
        all_reduce_at_once(two.groups[0], torch.ones(1))


def test_an_exception_in_a_signal_handler_ends_the_group_of_all_ranks(two):
    def handle():
        raise Interruption

    mine, other = interrupt(two, handle)
    assert isinstance(mine, Interruption)
    # Rank 1 may come to the call before rank 0 has left it: then its result is right. Otherwise it reads one of two
    # reasons: that rank 0 left its wait, or that its group then ended this one.
    ended = r"rank 0 was interrupted in all_reduce|rank 0 aborted it"
    assert other == 2.0 or re.search(ended, str(other))
    with pytest.raises(FabricError, match=ended):
        all_reduce(two.groups[1], torch.ones(1))
    with pytest.raises(FabricError, match="this group has ended: all_reduce of rank 0 was interrupted by Interruption"):
        all_reduce(two.groups[0], torch.ones(1))


def test_an_interrupt_between_the_steps_of_a_call_ends_the_group_of_all_ranks(two, monkeypatch):
    """Without that, the next call of this rank would meet the rest of this one in the other rank."""
    comm = two.groups[0]._comm
    steps, gather = [], comm.all_gather

    def gather_once(*arguments, **chosen):
        steps.append(1)
        if len(steps) == 2:
            raise KeyboardInterrupt
        return gather(*arguments, **chosen)

    monkeypatch.setattr(comm, "all_gather", gather_once)

    def call(group, rank):
        try:
            group.allreduce([torch.ones(160, dtype=torch.uint8)], options("AllreduceOptions", reduceOp=R.BAND)).wait(
                GUARD
            )
        except KeyboardInterrupt:
            return "interrupted"

    mine, other = two.run(call)
    assert mine == "interrupted"
    assert "rank 0 aborted it" in str(other)
    for error in two.run(lambda group, rank: group.barrier().wait(GUARD)):
        assert "this group has ended" in str(error)


def test_abort_ends_the_calls_in_progress_of_all_ranks(two):
    work = two.groups[0].allreduce([torch.ones(1)])
    with pytest.raises(FabricError, match="was not done within"):
        work.wait(timedelta(seconds=0.01))
    two.groups[0].abort()
    with pytest.raises(FabricError, match="rank 0 aborted it; its last call was all_reduce"):
        work.wait(GUARD)
    with pytest.raises(FabricError, match="rank 0 has aborted it"):
        two.groups[0].barrier()
    with pytest.raises(FabricError, match="rank 0 aborted it"):
        all_reduce(two.groups[1], torch.ones(1))


def test_outputs_whose_elements_share_memory_are_refused_before_data_moves(three):
    def call(group, rank):
        x, one = torch.arange(6.0), torch.zeros(1)
        calls = [
            lambda: group.allreduce([one.expand(4)]),
            lambda: group.allreduce([torch.zeros(1, dtype=torch.uint16).expand(4)]),
            lambda: group.reduce([torch.as_strided(x, (4, 2), (1, 1))]),
            lambda: group._allgather_base(one.expand(6), torch.ones(2)),
            lambda: group.allgather([[one.expand(2)] * 3], [torch.ones(2)]),
            lambda: group._reduce_scatter_base(one.expand(2), x),
            lambda: group.alltoall_base(one.expand(6), x, [], []),
            lambda: group.alltoall([one.expand(2)] * 3, [torch.ones(2)] * 3),
        ]
        for make_call in calls:
            with pytest.raises(InputError, match="elements of this array share memory"):
                make_call().wait(GUARD)
        out = torch.zeros(3, 2).T  # strided, but each element has its own place
        group._allgather_base(out, one.expand(2) + rank).wait(GUARD)
        return out.T.reshape(-1).sum().item()

    assert three.run(call) == [6.0] * 3
    three.check_usable()


def test_a_missed_deadline_raises_and_ends_the_group(brief):
    def call(group, rank):
        if rank == 1:
            return None
        message = group.recv([torch.ones(1)], 1)
        with pytest.raises(FabricError, match=r"rank 1 did not come to .* of rank 0 within the timeout of 0.3 s"):
            group.barrier().wait(GUARD)
        with pytest.raises(FabricError, match="rank 1 did not come"):
            message.wait(GUARD)
        for later in (lambda: group.allreduce([torch.ones(1)]), lambda: group.send([torch.ones(1)], 1)):
            with pytest.raises(FabricError, match=r"of rank 0: this group has ended: rank 1 did not come"):
                later().wait(GUARD)
        return "ended"

    assert brief.run(call)[0] == "ended"


def test_a_late_message_ends_the_collectives_too(brief):
    def call(group, rank):
        if rank == 1:
            return None
        with pytest.raises(FabricError, match="did not come to recv"):
            group.recv([torch.ones(1)], 1).wait(GUARD)
        with pytest.raises(FabricError, match="this group has ended"):
            group.barrier()
        return "ended"

    assert brief.run(call)[0] == "ended"


def test_a_late_wait_raises_and_the_call_goes_on(three):
    start = threading.Barrier(3)

    def call(group, rank):
        if rank == 0:
            work = group.allreduce([tensor := torch.ones(1)])
            with pytest.raises(FabricError, match=r"all_reduce of rank 0 was not done within 0.05 s"):
                work.wait(timedelta(seconds=0.05))
            assert not work.is_completed()
            assert work.exception() is None
            start.wait(30)
            assert work.wait(GUARD)
        else:
            start.wait(30)
            tensor = all_reduce(group, torch.ones(1))
        return tensor.item()

    assert three.run(call) == [3.0] * 3


def test_a_destroyed_group_leaves_nothing_and_refuses_calls():
    groups = Groups(2)  # starts what is started once per process
    groups.close()
    del groups
    gc.collect()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    groups = Groups(2)
    groups.check_usable()
    groups.run(lambda group, rank: (group.send if rank else group.recv)([torch.ones(1)], 1 - rank).wait(GUARD))
    groups.close()
    group = groups.groups[0]
    with pytest.raises(FabricError, match="barrier of rank 0: this group has ended: rank 0 has destroyed it"):
        group.barrier()
    with pytest.raises(FabricError, match="rank 0 has destroyed it"):
        group.send([torch.ones(1)], 1).wait()
    group.shutdown()
    del groups, group
    gc.collect()
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == files


def test_a_forked_process_is_refused_and_does_not_end_the_group_of_its_parent(three):
    group = three.groups[0]
    if (child := os.fork()) == 0:
        refused = 0
        for call in (group.barrier, lambda: group.send([torch.ones(1)], 1)):
            try:
                call()
            except FabricError as error:
                refused += "forked" in str(error)
        group.shutdown()
        os._exit(0 if refused == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    three.check_usable()
    assert three.run(lambda group, rank: group.barrier().wait(GUARD)) == [True] * 3
