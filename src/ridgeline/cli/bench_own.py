"""`ridgeline bench` for what a user brings: commands after --, lines of the shell, HTTP endpoints."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ridgeline.cli import tables
from ridgeline.cli.bench_progress import show_progress
from ridgeline.cli.output import print_json, print_line, stderr, stdout
from ridgeline.errors import Exit, InputError

if TYPE_CHECKING:
    from ridgeline.lab import Case
    from ridgeline.lab.race import OwnRace, Plan
    from ridgeline.lab.record import Record

MOST_VALUES = 1000  # of one parameter
SIZES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class OwnOptions:
    """What the command line says about a user's own contenders."""

    commands: Sequence[Sequence[str]] = ()
    shell: int = 0  # how many of the commands, the last ones, are lines of the shell
    names: Sequence[str] = ()
    params: Sequence[str] = ()
    setup: str | None = None
    prepare: str | None = None
    cleanup: str | None = None
    warmup: int = 1
    same_output: bool = False
    check: str | None = None
    exit_codes: tuple[int, ...] = (0,)
    memory: str | None = None
    margin: float | None = None

    @property
    def used(self) -> bool:
        """Whether the command line names a contender of the user, or an option for one."""
        options = replace(self, commands=(), shell=0, margin=None)
        if self.commands or options == OwnOptions(names=options.names):
            return bool(self.commands)
        raise InputError("--param, --setup, --check and the like are for commands; name them after -- or with --sh.")


def split_commands(words: Sequence[str]) -> list[list[str]]:
    """Split the words after the first -- into command lines.

    >>> split_commands(["./old", "-v", "--", "./new"])
    [['./old', '-v'], ['./new']]
    """
    commands: list[list[str]] = [[]]
    for word in words:
        if word == "--":
            commands.append([])
        else:
            commands[-1].append(word)
    if not all(commands):
        raise InputError("there is no command between two --, or after the last one; write: bench -- ./old -- ./new.")
    return commands


def run_own(
    options: OwnOptions,
    *,
    names: Sequence[str],
    refused: Sequence[str],
    out: Path,
    budget_s: float | None,
    timeout_s: float,
    node: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Race the commands, print the result, exit with 1 if one of them is WRONG or INCOMPLETE."""
    from ridgeline.lab.race import OWN_MARGIN, OWN_PLAN, CommandOptions, iterate_cases, make_command_race
    from ridgeline.machine import Placement

    if names:
        raise InputError(f"'{names[0]}' is a workload, and commands race without workloads; use one of them.")
    if refused:
        raise InputError(f"{refused[0]} is for workloads; commands have --param for their cases.")
    params = _parse_params(options)
    placement = Placement(node=node, memory="bind" if node is not None else "local")
    race = make_command_race(
        options.commands,
        _name_contenders(options),
        CommandOptions(
            setup=options.setup,
            prepare=options.prepare,
            cleanup=options.cleanup,
            warmup=options.warmup,
            same_output=options.same_output,
            check=options.check,
            exit_codes=options.exit_codes,
            memory_bytes=parse_size(options.memory, "--memory") if options.memory else None,
            timeout_s=timeout_s,
        ),
        placement,
        shlex.join(["ridgeline", *sys.argv[1:]]),
        check_margin(options.margin, OWN_MARGIN),
    )
    plan = replace(OWN_PLAN, timeout_s=timeout_s, placement=placement)
    finish_own(race, list(iterate_cases(params)), plan, out, budget_s, as_json=as_json, quiet=quiet)


def run_http(
    urls: Sequence[str],
    *,
    rate: float,
    headers: Sequence[str],
    body: str | None,
    labels: Sequence[str],
    margin: float | None,
    refused: Sequence[str],
    out: Path,
    budget_s: float | None,
    timeout_s: float,
    as_json: bool,
    quiet: bool,
) -> None:
    """Race HTTP addresses in an open loop."""
    from ridgeline.lab import Case
    from ridgeline.lab.race import (
        HTTP_BUDGET_S,
        HTTP_MARGIN,
        OWN_PLAN,
        HttpOptions,
        choose_turn_s,
        make_http_race,
        name_contenders,
    )

    if refused:
        raise InputError(f"{refused[0]} has no meaning for --http; name addresses, --rate, --header and --data.")
    if not urls:
        raise InputError("--http has no address; write: ridgeline bench --http http://localhost:8000/ --rate 100.")
    if len(labels) > len(urls):
        raise InputError(f"--name is given {len(labels)} times for {len(urls)} addresses; one each at most.")
    pairs = [header.partition(":") for header in headers]
    for header, (name, colon, _) in zip(headers, pairs, strict=True):
        if not colon or not name.strip():
            raise InputError(f"--header '{header}' is not of the form 'Name: value'.")
    options = HttpOptions(
        rate=rate,
        turn_s=choose_turn_s(budget_s or HTTP_BUDGET_S, len(urls)),
        headers={name.strip(): value.strip() for name, _, value in pairs},
        body=body,
        timeout_s=timeout_s,
    )
    repeat = shlex.join(["ridgeline", *sys.argv[1:]])
    race = make_http_race(
        urls, name_contenders([*labels, *urls[len(labels) :]]), options, repeat, check_margin(margin, HTTP_MARGIN)
    )
    plan = replace(OWN_PLAN, timeout_s=timeout_s, target=0.0)
    budget_s = budget_s or HTTP_BUDGET_S
    finish_own(race, [Case({"rate": rate}, "cpu")], plan, out, budget_s, as_json=as_json, quiet=quiet)


def finish_own(
    race: OwnRace,
    cases: Sequence[Case],
    plan: Plan,
    out: Path,
    budget_s: float | None,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the race with progress; write the report; print tables or JSON; exit 1 after a failure."""
    from ridgeline.lab.race import DEFAULT_BUDGET_S, race_cases
    from ridgeline.lab.record import RECORDS_FILE
    from ridgeline.lab.report import write_report

    console, budget_s = stderr(), budget_s or DEFAULT_BUDGET_S
    try:
        with show_progress(console, live=console.is_terminal and not as_json, quiet=quiet) as progress:
            progress.total_s = budget_s
            records = race_cases(race, cases, plan, out, budget_s, progress.hooks)
            progress.show_activity("writing the report")
            page = write_report(records, out)
    except KeyboardInterrupt:
        file = out / RECORDS_FILE
        state = f"the records stay in {file}; the same command goes on from there"
        print_line(f"Stopped; {state if file.exists() else 'nothing was measured yet'}.", console)
        raise
    print_own(records, page, as_json=as_json)


def print_own(records: Sequence[Record], page: Path, *, as_json: bool) -> None:
    """Print the races of a user's contenders, and exit 1 if one of them is WRONG or INCOMPLETE."""
    from ridgeline.lab.judge import analysis_to_json, list_failures

    if as_json:
        print_json({"cases": [analysis_to_json(r) for r in records], "report": str(page)})
    else:
        console = stdout()
        for table in tables.list_race_tables(records, console.width):
            console.print(table)
        print_line(f"Report: {page}   all cases: ridgeline records show {page.parent}", console)
    failures = list_failures(list(records))
    for sentence in failures:
        stderr().print(sentence, style="red", markup=False, highlight=False)
    if failures:
        raise typer.Exit(Exit.FINDINGS)


def check_margin(margin: float | None, default: float) -> float:
    """Return the margin; raises InputError for one that is not between 0 and 1."""
    if margin is not None and not 0 < margin < 1:
        raise InputError(f"--margin {margin:g} is not between 0 and 1; 0.03 is three percent.")
    return margin or default


def parse_size(text: str, option: str) -> int:
    """Parse a size of memory: K, M, G and T are powers of 1024.

    >>> parse_size("1GiB", "--memory"), parse_size("500MB", "--memory"), parse_size("4096", "--memory")
    (1073741824, 524288000, 4096)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match or not float(match[1]):
        raise InputError(f"{option} '{text}' is no size; write 500MB or 2GiB.")
    return int(float(match[1]) * SIZES[match[2].upper()])


def _name_contenders(options: OwnOptions) -> tuple[str, ...]:
    from ridgeline.lab.race import name_contenders

    count = len(options.commands)
    if len(options.names) > count:
        raise InputError(f"--name is given {len(options.names)} times for {count} commands; one each at most.")
    texts = [shlex.join(c) if i < count - options.shell else c[2] for i, c in enumerate(options.commands)]
    return name_contenders([*options.names, *texts[len(options.names) :]])


def _parse_params(options: OwnOptions) -> dict[str, list[int | float | str]]:
    """Parse the parameters; raises InputError for one that no command uses."""
    texts = [w for c in options.commands for w in c]
    texts += [t for t in (options.setup, options.prepare, options.cleanup, options.check) if t]
    params: dict[str, list[int | float | str]] = {}
    for text in options.params:
        name, equals, values = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", name) or not values:
            raise InputError(f"--param '{text}' is not of the form NAME=VALUE,VALUE.")
        if name in ("device", "ranks") or name in params:
            raise InputError(f"--param {name} is taken already; choose another name.")
        if not any(f"{{{name}}}" in t for t in texts):
            raise InputError(f"--param {name}: no command contains {{{name}}}, so its values would change nothing.")
        params[name] = [value for part in values.split(",") for value in parse_values(part, text)]
    return params


def parse_values(part: str, text: str) -> list[int | float | str]:
    """Return the values of one part of --param: a range of whole numbers, or one value.

    >>> parse_values("1..4", ""), parse_values("10..50..20", ""), parse_values("gcc", "")
    ([1, 2, 3, 4], [10, 30, 50], ['gcc'])
    """
    match = re.fullmatch(r"(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?", part)
    if not match:
        return [_parse_value(part)]
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if step < 1 or last < first or (last - first) // step >= MOST_VALUES:
        raise InputError(
            f"--param '{text}': a range is FIRST..LAST or FIRST..LAST..STEP, upwards, {MOST_VALUES} values."
        )
    return [*range(first, last + 1, step)]


def _parse_value(text: str) -> Any:
    """Return a number if the text is exactly that number: 010 stays a text."""
    for kind in (int, float):
        try:
            if str(kind(text)) == text:
                return kind(text)
        except ValueError:
            continue
    return text
