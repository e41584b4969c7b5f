"""The price book: the cost of an hour of a machine, rented or owned, from TOML files.

    ridgeline cost --show-prices

The first match counts, in this order: the file of --prices, ./prices.toml, prices.toml in the user's configuration
folder, the list prices that ship with the package. Every entry has a date and a source.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from datetime import date as Day
from pathlib import Path
from typing import Any

from ridgeline.errors import InputError, unknown
from ridgeline.web import read_asset

HOURS_PER_YEAR = 8766.0  # leap years included
MAX_AGE_DAYS = 180
FILE = "prices.toml"
RENTED = ("usd_per_hour",)
OWNED = ("capex_usd", "years", "power_w", "pue", "usd_per_kwh")
SHIPPED = "list prices that ship with ridgeline"


@dataclass(frozen=True)
class Price:
    """The price of an hour of a machine. Rented: `usd_per_hour`. Owned: capital, years, power, cooling, electricity."""

    name: str
    device: str  # cpu | cuda
    date: Day
    source: str
    book: str = ""  # the file that defines it
    gpu: str = ""  # part of the GPU's name in a record
    gpus: int = 1  # the number of GPUs the price covers; each costs an equal part
    cpu: str = ""  # part of the CPU's name in a record
    cpus: int | None = None  # usable CPUs of the machine
    usd_per_hour: float | None = None
    capex_usd: float | None = None
    years: float | None = None
    power_w: float | None = None  # at full load
    idle_w: float | None = None  # at rest; default: the same as at full load
    pue: float | None = None  # site power over machine power: cooling and losses
    usd_per_kwh: float | None = None
    usd_per_year: float = 0.0  # hosting, support
    egress_usd_per_gb: float = 0.0

    @property
    def owned(self) -> bool:
        """Whether the machine is owned, not rented."""
        return self.usd_per_hour is None

    def hourly(self, utilisation: float = 1.0) -> float:
        """Return dollars per hour of one unit: the machine, or one of its GPUs."""
        if self.usd_per_hour is not None:
            machine = self.usd_per_hour
        else:
            capex, years, full_w, pue, kwh = (float(getattr(self, name)) for name in OWNED)
            idle_w = full_w if self.idle_w is None else self.idle_w
            power_w = idle_w + (full_w - idle_w) * min(1.0, max(0.0, utilisation))
            machine = (capex / years + self.usd_per_year) / HOURS_PER_YEAR + power_w / 1000 * pue * kwh
        return machine / self.gpus if self.device == "cuda" else machine

    def off_hourly(self) -> float:
        """Return dollars per hour of one unit that is switched off: what is owned has been paid for."""
        if self.capex_usd is None or self.years is None:
            return 0.0
        machine = (self.capex_usd / self.years + self.usd_per_year) / HOURS_PER_YEAR
        return machine / self.gpus if self.device == "cuda" else machine

    @property
    def shipped(self) -> bool:
        """Whether this is a list price that ships with the package."""
        return self.book == SHIPPED

    def fits(self, machine: Mapping[str, Any], device: str) -> bool:
        """Whether this is the price of the machine of a record."""
        return self.device == device and not self.find_difference(machine) and bool(self.gpu or self.cpu or self.cpus)

    def find_difference(self, machine: Mapping[str, Any]) -> str:
        """Say how the machine of a record differs from the machine of this price; empty if it does not."""
        if self.device == "cuda":
            names = [str(g["name"]) for g in machine["gpus"]]
            matches = not self.gpu or any(_contains_word(name, self.gpu) for name in names)
            return "" if matches else f"it is for {self.gpu}, the record is from {', '.join(names) or 'no GPU'}"
        if self.cpu and not _contains_word(str(machine["cpu"]), self.cpu):
            return f"it is for {self.cpu}, the record is from {machine['cpu']}"
        if self.cpus is not None and self.cpus != machine["usable_cpus"]:
            return f"it is for {self.cpus} CPUs, the record is from {machine['usable_cpus']}"
        return ""

    def age_days(self, today: Day | None = None) -> int:
        """Return the age of the price in days."""
        return ((today or datetime.now(UTC).date()) - self.date).days

    def to_json(self) -> dict[str, Any]:
        """Return the price as a dict for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "date": self.date.isoformat(), "usd_per_unit_hour": self.hourly(), "owned": self.owned}


def load_prices(file: Path | None = None) -> list[Price]:
    """Load all prices: those of `file`, of ./prices.toml, of the user's configuration, of the package, in this order.

    Raises InputError if a price book cannot be read.
    """
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ridgeline" / FILE
    prices: list[Price] = []
    if file is not None:
        if not file.is_file():
            raise InputError(f"there is no price book '{file}'; docs/cost.md shows how to write one.")
        prices += read_price_book(file)
    for path in (Path(FILE), home):
        if path.is_file() and (file is None or path.resolve() != file.resolve()):
            prices += read_price_book(path)
    return prices + parse_price_book(read_asset(FILE, "ridgeline.lab"), SHIPPED)


def read_price_book(path: Path) -> list[Price]:
    """Read the prices of a TOML file."""
    try:
        return parse_price_book(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the price book '{path}' cannot be read: {error}.") from None


def parse_price_book(text: str, book: str) -> list[Price]:
    """Parse TOML tables [price.NAME]; `book` names the file in messages.

    Raises InputError for an unknown key, a missing key or a wrong value, and names it.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the price book '{book}' is not TOML: {error}.") from None
    tables = document.pop("price", None)
    if document or not isinstance(tables, dict) or not tables:
        raise InputError(f"the price book '{book}' must hold tables [price.NAME] and nothing else; see docs/cost.md.")
    return [_parse_price(name, table, book) for name, table in tables.items()]


def find_price(prices: Iterable[Price], machine: Mapping[str, Any], device: str) -> Price | None:
    """Return the first price for this kind of machine, or None."""
    return next((p for p in prices if p.fits(machine, device)), None)


def get_price(prices: Sequence[Price], name: str) -> Price:
    """Return the price of that name. Raises InputError if there is none."""
    price = next((p for p in prices if p.name == name), None)
    if price is None:
        raise unknown("price", name, dict.fromkeys(p.name for p in prices))
    return price


def _parse_price(name: str, table: Any, book: str) -> Price:
    place = f"price '{name}' of '{book}'"
    if not isinstance(table, dict):
        raise InputError(f"{place} is not a table; write [price.{name}] and its keys below.")
    known = [f.name for f in fields(Price) if f.name not in ("name", "book")]
    for key in table:
        if key not in known:
            raise InputError(f"{place}: {unknown('key', key, known)}")
    missing = [key for key in ("device", "date", "source") if not table.get(key)]
    kind = RENTED if "usd_per_hour" in table else OWNED
    missing += [key for key in kind if key not in table]
    if missing:
        both = " (rented needs usd_per_hour, owned all of these)" if kind is OWNED else ""
        raise InputError(f"{place} lacks {', '.join(missing)}{both}.")
    if kind is RENTED and any(key in table for key in OWNED):
        raise InputError(f"{place} has usd_per_hour and the keys of owned hardware; it is the one or the other.")
    if table["device"] not in ("cpu", "cuda"):
        raise InputError(f'{place}: device is {table["device"]!r}; it is "cpu" or "cuda".')
    _parse_date(table, place)
    for key, value in table.items():
        if key not in ("device", "date", "source", "gpu", "cpu"):
            _check_number(key, value, place)
        elif key != "date" and not isinstance(value, str):
            raise InputError(f"{place}: {key} is {value!r}; it is a text in quotes.")
    if table.get("idle_w", 0) > table.get("power_w", math.inf):
        raise InputError(f"{place}: idle_w is above power_w.")
    return Price(name=name, book=book, **table)


def _parse_date(table: dict[str, Any], place: str) -> None:
    date = table["date"]
    if isinstance(date, str):
        try:
            date = Day.fromisoformat(date)
        except ValueError:
            date = None
    if not isinstance(date, Day) or isinstance(date, datetime):
        raise InputError(f"{place}: date is {table['date']!r}; write it as 2026-10-02.")
    table["date"] = date


def _check_number(key: str, value: Any, place: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    least = {"years": 1e-6, "pue": 1.0, "gpus": 1, "cpus": 1}.get(key, 0.0)
    integer = key in ("gpus", "cpus")
    if not number or value < least or (integer and not isinstance(value, int)):
        what = "a whole number" if integer else "a number"
        raise InputError(f"{place}: {key} is {value!r}; it is {what} from {least:g} up.")


def _contains_word(name: str, part: str) -> bool:
    """L4 is a word of "NVIDIA L4", not of "NVIDIA L40S"."""
    return re.search(rf"(?<![0-9A-Za-z]){re.escape(part)}(?![0-9A-Za-z])", name, re.IGNORECASE) is not None
