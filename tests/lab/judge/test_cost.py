"""Dollars and queues: by hand, against a simulation, and by properties of any price.

python -m pytest tests/lab/judge/test_cost.py
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
from ridgeline.lab.judge import Calendar, Price, Service, cost, plan_capacity, prices
from ridgeline.lab.judge.cost import SECONDS, find_break_even, parse_hours, parse_rate, parse_time

DAY = date(2026, 1, 1)
RENTED = Price("rented", "cuda", DAY, "made up", gpu="H200", usd_per_hour=3.6)
OWNED = Price(
    "owned", "cpu", DAY, "made up", cpu="Xeon", capex_usd=8766.0, years=2.0, power_w=500.0, pue=1.2, usd_per_kwh=0.25
)
amounts = st.floats(1e-6, 1e6)


def make_service(seconds: float = 5e-4, batch: float = 1, device: str = "cuda", devices: int = 1) -> Service:
    return Service("made", device, batch, seconds, (seconds * 0.9, seconds * 1.1), devices)


def test_a_million_events_a_day_at_half_a_millisecond_need_0_006_of_a_gpu():
    plan = plan_capacity(make_service(parse_time("0.5ms")), parse_rate("1e6/day"))
    assert plan.busy == pytest.approx(1e6 * 0.5e-3 / 86400)
    assert round(plan.busy, 3) == 0.006
    assert plan.units == 1


@pytest.mark.parametrize(
    ("values", "busy"),
    [(("1e6/day", "48.3ms"), 0.559), (("28800/day", "48.3ms"), 0.0161), (("10000/h", "48.3ms"), 0.134)],
)
def test_cores_are_rate_times_time(values, busy):
    """Three sums that reports get wrong by factors of 7 to 1000."""
    rate, time = values
    assert plan_capacity(make_service(parse_time(time), device="cpu"), parse_rate(rate)).busy == pytest.approx(
        busy, rel=5e-3
    )


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
def test_rates_have_many_forms(text, value):
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
def test_an_invalid_rate_is_refused(text):
    with pytest.raises(InputError):
        parse_rate(text)


@pytest.mark.parametrize("text", ["", "5", "0ms", "-1s", "5 parsec", "ms", "infs"])
def test_an_invalid_time_is_refused(text):
    with pytest.raises(InputError):
        parse_time(text)


@settings(deadline=None)
@given(st.floats(1e-3, 1e9), st.sampled_from(sorted(SECONDS)), st.sampled_from(sorted(SECONDS)))
def test_a_rate_is_the_same_in_every_unit(value, one, other):
    same = value * SECONDS[other] / SECONDS[one]
    assert parse_rate(f"{value!r}/{one}") == pytest.approx(parse_rate(f"{same!r}/{other}"), rel=1e-9)


def test_dollars_by_hand_for_rented_hardware():
    """3.6 $/h is 0.001 $/s; 2000 items/s: 0.5 $ per million when full, 3.6 / 36,000 items an hour when not."""
    plan = plan_capacity(make_service(), 10.0, RENTED)
    assert plan.usd_per_million_full == pytest.approx((0.5, 0.45, 0.55))
    assert plan.usd_per_hour == pytest.approx(3.6)
    assert plan.usd_per_million == pytest.approx(100.0)
    assert plan.to_json()["usd_per_month"] == pytest.approx(3.6 * 730.5)


def test_a_calendar_by_hand_for_rented_and_for_owned_hardware():
    """8 h of 24 for half a year of 30.4375-day months; what is owned costs 0.5 $/h when it is off."""
    calendar = Calendar(parse_hours("8/day"), months=6)
    rented = plan_capacity(make_service(), 10.0, RENTED, calendar=calendar)
    assert rented.usd_per_month == pytest.approx(3.6 * 8 * 30.4375)
    assert rented.usd_total == pytest.approx(6 * 3.6 * 8 * 30.4375)
    assert rented.usd_per_million == pytest.approx(100.0), "hours without work cost nothing"
    owned = plan_capacity(make_service(device="cpu"), 10.0, OWNED, calendar=calendar)
    assert owned.usd_per_month == pytest.approx((8 * 0.65 + 16 * 0.5) * 30.4375)
    assert owned.usd_per_million == pytest.approx((8 * 0.65 + 16 * 0.5) / (8 * 36000) * 1e6)
    assert plan_capacity(make_service(), 10.0, RENTED).usd_total is None


def test_a_job_takes_its_items_over_the_rate_of_all_units():
    plan = plan_capacity(make_service(), 4000.0, RENTED, items=60_000)
    assert (plan.units, plan.job_s) == (3, pytest.approx(10.0))
    assert plan.usd_per_job == pytest.approx(0.03), "60,000 items at 0.5 $ per million"
    assert plan_capacity(make_service(), 10.0, RENTED).job_s is None


@pytest.mark.parametrize("text", ["", "8", "8/month", "25/day", "169/week", "0/day", "-1/day", "eight/day"])
def test_invalid_working_hours_are_refused(text):
    with pytest.raises(InputError):
        parse_hours(text)


def test_dollars_by_hand_for_owned_hardware():
    """8766 $ over two years of 8766 h: 0.5 $/h; 500 W × 1.2 × 0.25 $/kWh: 0.15 $/h."""
    assert OWNED.hourly() == pytest.approx(0.65)
    idle = replace(OWNED, idle_w=100.0)
    assert idle.hourly(0.0) == pytest.approx(0.5 + 0.03)
    assert idle.hourly(0.5) == pytest.approx(0.5 + 0.09)
    assert replace(OWNED, usd_per_year=876.6).hourly() == pytest.approx(0.75)


def test_a_price_of_eight_gpus_is_divided_and_several_ranks_pay_for_several():
    eight = replace(RENTED, gpus=8)
    assert eight.hourly() == pytest.approx(0.45)
    assert plan_capacity(make_service(devices=4), 10.0, eight).usd_per_hour == pytest.approx(1.8)
    assert replace(OWNED, gpus=8).hourly() == OWNED.hourly(), "a machine by its CPUs is one unit"


def test_egress_is_paid_per_item():
    """1000 bytes at 0.09 $/GB: 9e-8 $ an item, 0.09 $ a million."""
    out = replace(RENTED, egress_usd_per_gb=0.09)
    with_egress, without = (plan_capacity(make_service(), 10.0, out, egress_bytes=b) for b in (1000, 0))
    assert with_egress.usd_per_million_full[0] - without.usd_per_million_full[0] == pytest.approx(0.09)
    assert with_egress.usd_per_hour - without.usd_per_hour == pytest.approx(9e-8 * 36000)


@settings(deadline=None)
@given(amounts, amounts, amounts, st.floats(0.05, 0.95), st.floats(1, 10))
def test_a_plan_meets_its_target_with_the_smallest_number_of_units(rate, more, seconds, target, peak):
    assume(rate * seconds * peak < 1e8)
    plan = plan_capacity(make_service(seconds), rate, RENTED, target=target, peak=peak)
    assert plan.utilisation_at_peak <= target * (1 + 1e-9)
    assert plan.units == 1 or peak * plan.busy / (plan.units - 1) > target * (1 - 1e-9)
    assert 0 <= plan.wait_s < math.inf
    assert plan.drain >= 0
    assert plan.backlog == pytest.approx(plan.peak * plan.wait_s)
    assert plan.usd_per_million >= plan.usd_per_million_full[0] * (1 - 1e-9), "idle hours cost money"
    if (rate + more) * seconds * peak < 1e8:
        larger = plan_capacity(make_service(seconds), rate + more, RENTED, target=target, peak=peak)
        assert larger.units >= plan.units
        assert larger.usd_per_hour >= plan.usd_per_hour
        assert larger.busy >= plan.busy


@settings(deadline=None)
@given(amounts, st.integers(1, 4096), amounts)
def test_a_batch_costs_its_share(seconds, batch, rate):
    """b items in b times the time: the same dollars, the same utilisation, never a shorter latency."""
    assume(rate * seconds < 1e8)
    one, many = (plan_capacity(make_service(seconds * b, batch=b), rate, RENTED) for b in (1, batch))
    assert many.busy == pytest.approx(one.busy)
    assert many.usd_per_million_full == pytest.approx(one.usd_per_million_full)
    assert many.latency_s >= many.service.seconds


def simulate_wait(rho: float, batch: int, n: int = 200_000, seed: int = 0) -> float:
    """Mean wait in units of the step, simulated: every batch-th Poisson arrival starts a step of time 1."""
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(batch, 1 / (rho * batch), n)  # batches come every 1 / ρ on average
    walk = np.concatenate([[0.0], np.cumsum(1.0 - gaps)])
    return float(np.mean(walk - np.minimum.accumulate(walk)))


@pytest.mark.parametrize("rho", [0.2, 0.5, 0.7, 0.85])
def test_the_wait_equals_that_of_a_simulated_queue(rho):
    plan = cost.CapacityPlan(make_service(1.0), rho, rho, None, 1, 0.9)
    assert plan.wait_s == pytest.approx(simulate_wait(rho, 1), rel=0.08)
    batched = cost.CapacityPlan(make_service(1.0, batch=8), 8 * rho, 8 * rho, None, 1, 0.9)
    assert batched.utilisation_at_peak == pytest.approx(rho)
    assert simulate_wait(rho, 8) <= batched.wait_s * 1.08, "with batches it is an upper bound"


def test_the_time_to_fill_a_batch_is_the_mean_wait_of_its_items():
    """Four items come at 0, 1, 2, 3 s: they wait 3, 2, 1, 0 for the last, 1.5 on average."""
    assert cost.CapacityPlan(make_service(0.1, batch=4), 1.0, 1.0, None, 1).fill_s == pytest.approx(1.5)


def scan_break_even(small, large, end: int):
    """Try rates in small steps: from where is the larger unit not more expensive, first and always?"""
    (c1, m1), (c2, m2) = small, large
    rates = [n + 0.5 for n in range(end)]
    good = [math.ceil(r / m2) * c2 <= math.ceil(r / m1) * c1 for r in rates]
    first = next((math.floor(r) for r, g in zip(rates, good, strict=True) if g), None)
    last_bad = max((math.ceil(r) for r, g in zip(rates, good, strict=True) if not g), default=0)
    return first, last_bad


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 40), st.integers(1, 40))
def test_break_even_equals_a_scan(c1, m1, c2, m2):
    plan = find_break_even((c1, m1), (c2, m2))
    gap = c1 / m1 - c2 / m2
    bound = max(c1, c2) / abs(gap) if gap else 400
    first, last_bad = scan_break_even((c1, m1), (c2, m2), int(bound) + 2 * (m1 + m2) + 2)
    assert plan.first == first
    if gap > 0:
        assert plan.always == last_bad
    elif gap < 0:
        assert plan.always is None


def test_a_cpu_can_be_cheaper_at_every_rate():
    assert find_break_even((1, 10), (100, 10)).first is None
    assert find_break_even((5, 10), (5, 10)) == find_break_even((5, 10), (4, 20))
    assert find_break_even((5, 10), (5, 10)).always == 0


@pytest.mark.parametrize(
    ("name", "value"), [("rate", 0.0), ("rate", math.inf), ("target", 1.0), ("peak", 0.5), ("egress_bytes", -1.0)]
)
def test_an_impossible_plan_is_refused(name, value):
    arguments = {"rate": 1.0, name: value}
    with pytest.raises(InputError, match="makes no plan"):
        plan_capacity(make_service(), arguments.pop("rate"), **arguments)


def make_case(record, device: str, **changes):
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
    old, new = make_case(record, "cpu"), make_case(record, "cpu")
    plan, skipped = cost.list_services([wrong, old, new])
    assert [s.record.id for s in plan] == [new.id]
    assert plan[0].rate == pytest.approx(8 / 1e-3)
    assert "WRONG" in skipped[0]
    newest = replace(new, time="2026-02-01T00:00:00+00:00")
    assert cost.list_services([newest, wrong, old])[0][0].record is newest  # by its time, not by its line
    assert cost.list_services([new], "peer")[0][0].rate == pytest.approx(8 / 2e-3)
    assert "no contender 'unknown'" in cost.list_services([new], "unknown")[1][0]


def test_only_devices_that_do_the_same_work_are_compared(record):
    records = [make_case(record, "cpu"), make_case(record, "cuda", batch=64), make_case(record, "cuda", stage="half")]
    plan, _ = cost.list_services(records)
    plans = [plan_capacity(s, 10.0, OWNED if s.device == "cpu" else RENTED) for s in plan]
    pairs = cost.compare_devices(plans)
    assert [(p.cpu.service.record.id, p.gpu.service.record.id) for p in pairs] == [(records[0].id, records[1].id)]
    assert pairs[0].difference == "batch 8 and 64"
    assert pairs[0].break_even.always == pytest.approx(pairs[0].break_even.first)


BOOK = """
[price.mine]
device = "cuda"
gpu = "H200"
usd_per_hour = 2.0
date = 2026-05-01
source = "our contract"
"""


def test_the_prices_of_the_user_come_first(tmp_path, monkeypatch, record):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    machine = make_case(record, "cuda").machine
    names = [prices.find_price(prices.load_prices(), machine, "cuda").name]
    for place, name in (("config/ridgeline/prices.toml", "home"), ("prices.toml", "folder"), ("other.toml", "option")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(BOOK.replace("mine", name))
        known = prices.load_prices(tmp_path / place if name == "option" else None)
        names.append(prices.find_price(known, machine, "cuda").name)
    assert names == ["hf-aws-h200-x1", "home", "folder", "option"]


def test_a_price_fits_only_the_machine_it_names(record):
    machine = make_case(record, "cuda").machine
    h200 = next(p for p in prices.load_prices() if p.gpu == "H200")
    assert h200.fits(machine, "cuda")
    assert not h200.fits(machine, "cpu")
    assert not replace(h200, gpu="H20").fits(machine, "cuda"), "H20 is another GPU than H200"
    assert not replace(OWNED, cpus=4).fits(machine, "cpu")
    assert "4 CPUs" in replace(OWNED, cpus=4).find_difference(machine)
    assert replace(OWNED, cpus=2).fits(machine, "cpu")


def test_every_price_that_ships_has_a_source_and_a_date():
    shipped = [p for p in prices.load_prices() if p.shipped]
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
        ((BOOK, "price.mine = 3"), "is not a table"),
    ],
)
def test_a_price_book_with_a_mistake_is_refused_by_name(tmp_path, change, says):
    book = tmp_path / "prices.toml"
    book.write_text(BOOK.replace(*change))
    with pytest.raises(InputError, match=says) as refusal:
        prices.read_price_book(book)
    assert str(book) in str(refusal.value)


def test_a_missing_or_binary_price_book_is_refused(tmp_path):
    with pytest.raises(InputError, match="no price book"):
        prices.load_prices(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(bytes(range(128, 256)))
    with pytest.raises(InputError, match="cannot be read"):
        prices.load_prices(tmp_path / "binary.toml")


@settings(deadline=None)
@given(st.floats(0, 1e5), st.floats(0.1, 20), st.floats(0, 1e4), st.floats(1, 3), st.floats(0, 2), st.floats(0, 1))
def test_owned_hardware_costs_more_with_everything_except_years(capex, years, watts, pue, kwh, load):
    def hour(**change):
        values = {"capex_usd": capex, "years": years, "power_w": watts, "pue": pue, "usd_per_kwh": kwh, **change}
        return Price("p", "cpu", DAY, "s", **values).hourly(load)

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
        plan, _ = cost.list_services([make_case(record, device)])
        json.dumps(plan_capacity(plan[0], 3.0, price).to_json(), allow_nan=False)
