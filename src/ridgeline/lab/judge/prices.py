"""The price book: what an hour of a machine costs, rented or owned, from TOML files; the user's own come first.

    ridgeline cost --show-prices

Searched in this order, the first match counts: the file of --prices, ./prices.toml, prices.toml in the user's
configuration folder, the list prices that ship with the package. Every entry has a date and a source.
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
from ridgeline.web import asset

HOURS_A_YEAR = 8766.0  # leap years included
OLD_DAYS = 180
FILE = "prices.toml"
RENTED = ("usd_per_hour",)
OWNED = ("capex_usd", "years", "power_w", "pue", "usd_per_kwh")
SHIPPED = "list prices that ship with ridgeline"


@dataclass(frozen=True)
class Price:
    """An hour of a machine. Rented: `usd_per_hour`. Owned: capital, years, power, cooling and electricity."""

    name: str
    device: str  # cpu | cuda
    date: Day
    source: str
    book: str = ""  # the file it stands in
    gpu: str = ""  # part of the GPU's name in a record
    gpus: int = 1  # how many the price is for; it is shared out among them
    cpu: str = ""  # part of the CPU's name in a record
    cpus: int | None = None  # usable CPUs of the machine it is for
    usd_per_hour: float | None = None
    capex_usd: float | None = None
    years: float | None = None
    power_w: float | None = None  # drawn at full work
    idle_w: float | None = None  # drawn at rest; left out: as much as at work
    pue: float | None = None  # site power over machine power: cooling and losses
    usd_per_kwh: float | None = None
    usd_per_year: float = 0.0  # hosting, support
    egress_usd_per_gb: float = 0.0

    @property
    def owned(self) -> bool:
        return self.usd_per_hour is None

    def hourly(self, utilisation: float = 1.0) -> float:
        """Dollars for an hour of one unit: the machine, or one of its GPUs."""
        if self.usd_per_hour is not None:
            whole = self.usd_per_hour
        else:
            capex, years, work, pue, kwh = (float(getattr(self, name)) for name in OWNED)
            idle = work if self.idle_w is None else self.idle_w
            drawn = idle + (work - idle) * min(1.0, max(0.0, utilisation))
            whole = (capex / years + self.usd_per_year) / HOURS_A_YEAR + drawn / 1000 * pue * kwh
        return whole / self.gpus if self.device == "cuda" else whole

    @property
    def shipped(self) -> bool:
        return self.book == SHIPPED

    def fits(self, machine: Mapping[str, Any], device: str) -> bool:
        """Whether it is the price of the machine a record was made on."""
        return self.device == device and not self.differs(machine) and bool(self.gpu or self.cpu or self.cpus)

    def differs(self, machine: Mapping[str, Any]) -> str:
        """In what that machine is another, in words; empty if in nothing that is stated."""
        if self.device == "cuda":
            names = [str(g["name"]) for g in machine["gpus"]]
            same = not self.gpu or any(_word(self.gpu, name) for name in names)
            return "" if same else f"it is for {self.gpu}, the record is from {', '.join(names) or 'no GPU'}"
        if self.cpu and not _word(self.cpu, str(machine["cpu"])):
            return f"it is for {self.cpu}, the record is from {machine['cpu']}"
        if self.cpus is not None and self.cpus != machine["usable_cpus"]:
            return f"it is for {self.cpus} CPUs, the record is from {machine['usable_cpus']}"
        return ""

    def age_days(self, today: Day | None = None) -> int:
        return ((today or datetime.now(UTC).date()) - self.date).days

    def to_json(self) -> dict[str, Any]:
        told = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**told, "date": self.date.isoformat(), "usd_per_unit_hour": self.hourly(), "owned": self.owned}


def books(file: Path | None = None) -> list[Price]:
    """All prices, the most personal first."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "ridgeline" / FILE
    found: list[Price] = []
    if file is not None:
        if not file.is_file():
            raise InputError(f"there is no price book '{file}'; docs/cost.md shows how to write one.")
        found += read(file)
    for path in (Path(FILE), home):
        if path.is_file() and (file is None or path.resolve() != file.resolve()):
            found += read(path)
    return found + parse(asset(FILE, "ridgeline.lab"), SHIPPED)


def read(path: Path) -> list[Price]:
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the price book '{path}' cannot be read: {error}.") from None


def parse(text: str, book: str) -> list[Price]:
    """The prices of a TOML text: tables [price.NAME]; an unknown key, a missing one and a number that is none are
    refused by name.
    """
    try:
        whole = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the price book '{book}' is not TOML: {error}.") from None
    tables = whole.pop("price", None)
    if whole or not isinstance(tables, dict) or not tables:
        raise InputError(f"the price book '{book}' must hold tables [price.NAME] and nothing else; see docs/cost.md.")
    return [_price(name, table, book) for name, table in tables.items()]


def find(prices: Iterable[Price], machine: Mapping[str, Any], device: str) -> Price | None:
    """The first price of this kind of machine."""
    return next((p for p in prices if p.fits(machine, device)), None)


def named(prices: Sequence[Price], name: str) -> Price:
    found = next((p for p in prices if p.name == name), None)
    if found is None:
        raise unknown("price", name, dict.fromkeys(p.name for p in prices))
    return found


def _price(name: str, table: Any, book: str) -> Price:
    where = f"price '{name}' of '{book}'"
    if not isinstance(table, dict):
        raise InputError(f"{where} is no table; write [price.{name}] and its keys below.")
    known = [f.name for f in fields(Price) if f.name not in ("name", "book")]
    for key in table:
        if key not in known:
            raise InputError(f"{where}: {unknown('key', key, known)}")
    lacking = [key for key in ("device", "date", "source") if not table.get(key)]
    kind = RENTED if "usd_per_hour" in table else OWNED
    lacking += [key for key in kind if key not in table]
    if lacking:
        both = " (rented needs usd_per_hour, owned all of these)" if kind is OWNED else ""
        raise InputError(f"{where} lacks {', '.join(lacking)}{both}.")
    if kind is RENTED and any(key in table for key in OWNED):
        raise InputError(f"{where} has usd_per_hour and the keys of owned hardware; it is the one or the other.")
    if table["device"] not in ("cpu", "cuda"):
        raise InputError(f'{where}: device is {table["device"]!r}; it is "cpu" or "cuda".')
    _dated(table, where)
    for key, value in table.items():
        if key not in ("device", "date", "source", "gpu", "cpu"):
            _number(key, value, where)
        elif key != "date" and not isinstance(value, str):
            raise InputError(f"{where}: {key} is {value!r}; it is a text in quotes.")
    if table.get("idle_w", 0) > table.get("power_w", math.inf):
        raise InputError(f"{where}: idle_w is above power_w.")
    return Price(name=name, book=book, **table)


def _dated(table: dict[str, Any], where: str) -> None:
    told = table["date"]
    if isinstance(told, str):
        try:
            told = Day.fromisoformat(told)
        except ValueError:
            told = None
    if not isinstance(told, Day) or isinstance(told, datetime):
        raise InputError(f"{where}: date is {table['date']!r}; write it as 2026-10-02.")
    table["date"] = told


def _number(key: str, value: Any, where: str) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    least = {"years": 1e-6, "pue": 1.0, "gpus": 1, "cpus": 1}.get(key, 0.0)
    whole = key in ("gpus", "cpus")
    if not number or value < least or (whole and not isinstance(value, int)):
        what = "a whole number" if whole else "a number"
        raise InputError(f"{where}: {key} is {value!r}; it is {what} from {least:g} up.")


def _word(part: str, name: str) -> bool:
    """L4 is a word of "NVIDIA L4", not of "NVIDIA L40S"."""
    return re.search(rf"(?<![0-9A-Za-z]){re.escape(part)}(?![0-9A-Za-z])", name, re.IGNORECASE) is not None
