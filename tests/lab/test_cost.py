"""Dollars and queues: by hand, against a simulation, and by properties that any price must keep.

python -m pytest tests/lab/test_cost.py
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.lab.judge import cost, prices
from ridgeline.lab.judge.break_even import break_even
from ridgeline.lab.judge.cost import Service, plan
from ridgeline.lab.judge.prices import Price
from ridgeline.lab.judge.rates import SECONDS, parse_rate, parse_time

DAY = date(2026, 1, 1)
RENTED = Price("rented", "cuda", DAY, "made up", gpu="H200", usd_per_hour=3.6)
OWNED = Price(
    "owned", "cpu", DAY, "made up", cpu="Xeon", capex_usd=8766.0, years=2.0, power_w=500.0, pue=1.2, usd_per_kwh=0.25
)
amounts = st.floats(1e-6, 1e6)


def service(seconds: float = 5e-4, batch: float = 1, device: str = "cuda", devices: int = 1) -> Service:
    return Service("made", device, batch, seconds, (seconds * 0.9, seconds * 1.1), devices)


def test_a_million_events_a_day_at_half_a_millisecond_need_0_006_of_a_gpu():
    found = plan(service(parse_time("0.5ms")), parse_rate("1e6/day"))
    assert found.busy == pytest.approx(1e6 * 0.5e-3 / 86400)
    assert round(found.busy, 3) == 0.006
    assert found.units == 1


@pytest.mark.parametrize(
    ("told", "busy"),
    [(("1e6/day", "48.3ms"), 0.559), (("28800/day", "48.3ms"), 0.0161), (("10000/h", "48.3ms"), 0.134)],
)
def test_cores_are_rate_times_time(told, busy):
    """Three sums that reports get wrong by factors of 7 to 1000."""
    rate, time = told
    assert plan(service(parse_time(time), device="cpu"), parse_rate(rate)).busy == pytest.approx(busy, rel=5e-3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e6/day", 1e6 / 86400),
        ("1200/h", 1 / 3),
        ("5000/s", 5000),
        ("1,000,000/d", 1e6 / 86400),
        ("2M per hour", 2e6 / 3600),
        ("1_000 / minutes", 1000 / 60),
        ("5k/sec", 5000),
        ("7/weeks", 7 / 604800),
        ("12/Month", 12 / 2629800),
        (".5/s", 0.5),
    ],
)
def test_rates_are_read_as_people_write_them(text, value):
    assert parse_rate(text) == pytest.approx(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "/s",
        "5/",
        "five/s",
        "-1/s",
        "0/s",
        "1e999/s",
        "5/parsec",
        "1/s/s",
        "nan/s",
        "5 s",
        "1,5/s",
        "1,00/s",
        "./s",
        "e5/s",
    ],
)
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(InputError):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "5", "0ms", "-1s", "5 parsec", "ms", "infs"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(InputError):
        parse_time(text)


@settings(deadline=None)
@given(st.floats(1e-3, 1e9), st.sampled_from(sorted(SECONDS)), st.sampled_from(sorted(SECONDS)))
def test_a_rate_is_the_same_in_every_unit(value, one, other):
    same = value * SECONDS[other] / SECONDS[one]
    assert parse_rate(f"{value!r}/{one}") == pytest.approx(parse_rate(f"{same!r}/{other}"), rel=1e-9)


def test_dollars_by_hand_for_rented_hardware():
    """3.6 $/h is 0.001 $/s; 2000 items/s: 0.5 $ per million when full, 3.6 / 36,000 items an hour when not."""
    found = plan(service(), 10.0, RENTED)
    assert found.usd_per_million_full == pytest.approx((0.5, 0.45, 0.55))
    assert found.usd_per_hour == pytest.approx(3.6)
    assert found.usd_per_million == pytest.approx(100.0)
    assert found.to_json()["usd_per_month"] == pytest.approx(3.6 * 730.5)


def test_dollars_by_hand_for_owned_hardware():
    """8766 $ over two years of 8766 h: 0.5 $/h; 500 W × 1.2 × 0.25 $/kWh: 0.15 $/h."""
    assert OWNED.hourly() == pytest.approx(0.65)
    resting = replace(OWNED, idle_w=100.0)
    assert resting.hourly(0.0) == pytest.approx(0.5 + 0.03)
    assert resting.hourly(0.5) == pytest.approx(0.5 + 0.09)
    assert replace(OWNED, usd_per_year=876.6).hourly() == pytest.approx(0.75)


def test_a_price_of_eight_gpus_is_shared_out_and_several_ranks_pay_for_several():
    eight = replace(RENTED, gpus=8)
    assert eight.hourly() == pytest.approx(0.45)
    assert plan(service(devices=4), 10.0, eight).usd_per_hour == pytest.approx(1.8)
    assert replace(OWNED, gpus=8).hourly() == OWNED.hourly(), "a machine by its CPUs is one unit"


def test_egress_is_paid_per_item():
    """1000 bytes at 0.09 $/GB: 9e-8 $ an item, 0.09 $ a million."""
    out = replace(RENTED, egress_usd_per_gb=0.09)
    with_it, without = (plan(service(), 10.0, out, egress_bytes=b) for b in (1000, 0))
    assert with_it.usd_per_million_full[0] - without.usd_per_million_full[0] == pytest.approx(0.09)
    assert with_it.usd_per_hour - without.usd_per_hour == pytest.approx(9e-8 * 36000)


@settings(deadline=None)
@given(amounts, amounts, amounts, st.floats(0.05, 0.95), st.floats(1, 10))
def test_a_plan_keeps_its_promise_with_no_unit_to_spare(rate, more, seconds, target, peak):
    assume(rate * seconds * peak < 1e8)
    found = plan(service(seconds), rate, RENTED, target=target, peak=peak)
    assert found.at_peak <= target * (1 + 1e-9)
    assert found.units == 1 or peak * found.busy / (found.units - 1) > target * (1 - 1e-9)
    assert 0 <= found.wait_s < math.inf
    assert found.drain >= 0
    assert found.backlog == pytest.approx(found.peak * found.wait_s)
    assert found.usd_per_million >= found.usd_per_million_full[0] * (1 - 1e-9), "idle hours are paid for"
    if (rate + more) * seconds * peak < 1e8:
        larger = plan(service(seconds), rate + more, RENTED, target=target, peak=peak)
        assert larger.units >= found.units
        assert larger.usd_per_hour >= found.usd_per_hour
        assert larger.busy >= found.busy


@settings(deadline=None)
@given(amounts, st.integers(1, 4096), amounts)
def test_a_batch_costs_its_share(seconds, batch, rate):
    """b items in b times the time: the same dollars, the same busy share, never a shorter wait for an item."""
    assume(rate * seconds < 1e8)
    one, many = (plan(service(seconds * b, batch=b), rate, RENTED) for b in (1, batch))
    assert many.busy == pytest.approx(one.busy)
    assert many.usd_per_million_full == pytest.approx(one.usd_per_million_full)
    assert many.latency_s >= many.service.seconds


def lindley(rho: float, batch: int, n: int = 200_000, seed: int = 0) -> float:
    """Mean wait in units of the step, simulated: every batch-th Poisson arrival starts a step of time 1."""
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(batch, 1 / (rho * batch), n)  # batches come every 1 / ρ on average
    walk = np.concatenate([[0.0], np.cumsum(1.0 - gaps)])
    return float(np.mean(walk - np.minimum.accumulate(walk)))


@pytest.mark.parametrize("rho", [0.2, 0.5, 0.7, 0.85])
def test_the_wait_is_that_of_a_simulated_queue(rho):
    found = cost.Plan(service(1.0), rho, rho, None, 1, 0.9)
    assert found.wait_s == pytest.approx(lindley(rho, 1), rel=0.08)
    batched = cost.Plan(service(1.0, batch=8), 8 * rho, 8 * rho, None, 1, 0.9)
    assert batched.at_peak == pytest.approx(rho)
    assert lindley(rho, 8) <= batched.wait_s * 1.08, "with batches it is an upper bound"


def test_the_time_to_fill_a_batch_is_that_of_its_mean_item():
    """Four items come at 0, 1, 2, 3 s: they wait 3, 2, 1, 0 for the last, 1.5 on average."""
    assert cost.Plan(service(0.1, batch=4), 1.0, 1.0, None, 1).fill_s == pytest.approx(1.5)


def by_scanning(small, large, end: int):
    """Rates in small steps: where is the larger kind not dearer, and from where for good?"""
    (c1, m1), (c2, m2) = small, large
    rates = [n + 0.5 for n in range(end)]
    good = [math.ceil(r / m2) * c2 <= math.ceil(r / m1) * c1 for r in rates]
    first = next((math.floor(r) for r, g in zip(rates, good, strict=True) if g), None)
    last_bad = max((math.ceil(r) for r, g in zip(rates, good, strict=True) if not g), default=0)
    return first, last_bad


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_break_even_is_what_a_scan_finds(c1, m1, c2, m2):
    found = break_even((c1, m1), (c2, m2))
    gap = c1 / m1 - c2 / m2
    bound = max(c1, c2) / abs(gap) if gap else 400
    first, last_bad = by_scanning((c1, m1), (c2, m2), int(bound) + 2 * (m1 + m2) + 2)
    assert found.first == first
    if gap > 0:
        assert found.always == last_bad
    elif gap < 0:
        assert found.always is None


def test_a_cpu_that_is_cheaper_at_every_rate_is_said_to_be():
    assert break_even((1, 10), (100, 10)).first is None
    assert break_even((5, 10), (5, 10)) == break_even((5, 10), (4, 20))
    assert break_even((5, 10), (5, 10)).always == 0


@pytest.mark.parametrize(
    ("name", "value"), [("rate", 0.0), ("rate", math.inf), ("target", 1.0), ("peak", 0.5), ("egress_bytes", -1.0)]
)
def test_a_plan_that_makes_no_sense_is_refused(name, value):
    whole = {"rate": 1.0, name: value}
    with pytest.raises(InputError, match="makes no plan"):
        plan(service(), whole.pop("rate"), **whole)


def case(record, device: str, **changes):
    machine = {
        "fingerprint": device,
        "cpu": "Xeon",
        "usable_cpus": 2,
        "gpus": [{"name": "NVIDIA H200"}],
        "nics": [],
        "nodes": [],
        "llc_domains": [],
        "memory_bytes": 1,
    }
    one = {"batch": 8, "stage": "all", "device": device, "ranks": 1, **changes}
    return record({"ridgeline": [1e6] * 8, "peer": [2e6] * 8}, case=one, machine=machine)


def test_the_rate_comes_from_the_newest_valid_record(record):
    wrong = record({"ridgeline": [1.0] * 8}, checks={"ridgeline": {"ok": False, "error": 1.0}})
    old, new = case(record, "cpu"), case(record, "cpu")
    found, silent = cost.services([wrong, old, new])
    assert [s.record.id for s in found] == [new.id]
    assert found[0].rate == pytest.approx(8 / 1e-3)
    assert "WRONG" in silent[0]
    newest = replace(new, time="2026-02-01T00:00:00+00:00")
    assert cost.services([newest, wrong, old])[0][0].record is newest  # by its time, not by its line
    assert cost.services([new], "peer")[0][0].rate == pytest.approx(8 / 2e-3)
    assert "no contender 'nobody'" in cost.services([new], "nobody")[1][0]


def test_only_what_does_the_same_thing_is_set_against_each_other(record):
    made = [case(record, "cpu"), case(record, "cuda", batch=64), case(record, "cuda", stage="half")]
    found, _ = cost.services(made)
    plans = [plan(s, 10.0, OWNED if s.device == "cpu" else RENTED) for s in found]
    pairs = cost.versus(plans)
    assert [(p.cpu.service.record.id, p.gpu.service.record.id) for p in pairs] == [(made[0].id, made[1].id)]
    assert pairs[0].differ == "batch 8 and 64"
    assert pairs[0].even.always == pytest.approx(pairs[0].even.first)


BOOK = """
[price.mine]
device = "cuda"
gpu = "H200"
usd_per_hour = 2.0
date = 2026-05-01
source = "our contract"
"""


def test_the_users_own_prices_come_first(tmp_path, monkeypatch, record):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    machine = case(record, "cuda").machine
    names = [prices.find(prices.books(), machine, "cuda").name]
    for place, name in (("config/ridgeline/prices.toml", "home"), ("prices.toml", "here"), ("other.toml", "told")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(BOOK.replace("mine", name))
        names.append(prices.find(prices.books(tmp_path / place if name == "told" else None), machine, "cuda").name)
    assert names == ["hf-aws-h200-x1", "home", "here", "told"]


def test_a_price_fits_the_machine_it_names_and_no_other(record):
    machine = case(record, "cuda").machine
    h200 = next(p for p in prices.books() if p.gpu == "H200")
    assert h200.fits(machine, "cuda")
    assert not h200.fits(machine, "cpu")
    assert not replace(h200, gpu="H20").fits(machine, "cuda"), "H20 is another GPU than H200"
    assert not replace(OWNED, cpus=4).fits(machine, "cpu")
    assert "4 CPUs" in replace(OWNED, cpus=4).differs(machine)
    assert replace(OWNED, cpus=2).fits(machine, "cpu")


def test_every_price_that_ships_has_a_source_and_a_date():
    shipped = [p for p in prices.books() if p.shipped]
    assert shipped
    for p in shipped:
        assert "pricing page" in p.source
        assert p.date.year >= 2026
        assert p.hourly() > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("[price.mine]", "[[price"), "is not TOML"),
        (("[price.mine]", "[cost.mine]"), "must hold tables"),
        (("usd_per_hour = 2.0", "usd_per_hours = 2.0"), "did you mean 'usd_per_hour'"),
        (("usd_per_hour = 2.0", ""), "lacks capex_usd, years, power_w, pue, usd_per_kwh"),
        (("usd_per_hour = 2.0", "usd_per_hour = 2.0\ncapex_usd = 1"), "one or the other"),
        (("usd_per_hour = 2.0", 'usd_per_hour = "2"'), "usd_per_hour is '2'"),
        (("usd_per_hour = 2.0", "usd_per_hour = -1"), "from 0 up"),
        (("usd_per_hour = 2.0", "usd_per_hour = nan"), "usd_per_hour is nan"),
        (("usd_per_hour = 2.0", "usd_per_hour = true"), "usd_per_hour is True"),
        (('device = "cuda"', 'device = "tpu"'), "device is 'tpu'"),
        (('gpu = "H200"', "gpu = 200"), "gpu is 200"),
        (('gpu = "H200"', "gpus = 0"), "gpus is 0"),
        (("date = 2026-05-01", 'date = "May"'), "date is 'May'"),
        (("date = 2026-05-01", ""), "lacks date"),
        (('source = "our contract"', 'source = ""'), "lacks source"),
        ((BOOK, ""), "must hold tables"),
        ((BOOK, "price = 3"), "must hold tables"),
        ((BOOK, "price.mine = 3"), "is no table"),
    ],
)
def test_a_book_with_a_mistake_is_refused_by_name(tmp_path, change, says):
    book = tmp_path / "prices.toml"
    book.write_text(BOOK.replace(*change))
    with pytest.raises(InputError, match=says) as refusal:
        prices.read(book)
    assert str(book) in str(refusal.value)


def test_a_book_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="no price book"):
        prices.books(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(bytes(range(128, 256)))
    with pytest.raises(InputError, match="cannot be read"):
        prices.books(tmp_path / "binary.toml")


@settings(deadline=None)
@given(st.floats(0, 1e5), st.floats(0.1, 20), st.floats(0, 1e4), st.floats(1, 3), st.floats(0, 2), st.floats(0, 1))
def test_owned_hardware_costs_more_with_everything_but_years(capex, years, watts, pue, kwh, load):
    def hour(**change):
        told = {"capex_usd": capex, "years": years, "power_w": watts, "pue": pue, "usd_per_kwh": kwh, **change}
        return Price("p", "cpu", DAY, "s", **told).hourly(load)

    base = hour()
    for key, value in (
        ("capex_usd", capex + 1),
        ("power_w", watts + 1),
        ("pue", pue + 0.1),
        ("usd_per_kwh", kwh + 0.1),
    ):
        assert hour(**{key: value}) >= base
    assert hour(years=years + 1) <= base
    assert hour(idle_w=0.0) <= base


def test_all_plans_can_be_written_as_json(record):
    for device, price in product(("cpu", "cuda"), (None, RENTED, OWNED)):
        found, _ = cost.services([case(record, device)])
        json.dumps(plan(found[0], 3.0, price).to_json(), allow_nan=False)
