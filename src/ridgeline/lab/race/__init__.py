"""Race a workload against its peers: one warm process per contender, timed in turn, in shuffled order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.race.against import build_version as build_version
    from ridgeline.lab.race.against import copy_working_tree as copy_working_tree
    from ridgeline.lab.race.benchmark import BenchResult as BenchResult
    from ridgeline.lab.race.benchmark import ProgressHooks as ProgressHooks
    from ridgeline.lab.race.benchmark import create_output_folder as create_output_folder
    from ridgeline.lab.race.benchmark import run_benchmark as run_benchmark
    from ridgeline.lab.race.bisection import BisectResult as BisectResult
    from ridgeline.lab.race.bisection import find_slow_commit as find_slow_commit
    from ridgeline.lab.race.commands import CommandOptions as CommandOptions
    from ridgeline.lab.race.commands import make_command_race as make_command_race
    from ridgeline.lab.race.commit_history import CaseHistory as CaseHistory
    from ridgeline.lab.race.commit_history import CommitHistory as CommitHistory
    from ridgeline.lab.race.commit_history import measure_history as measure_history
    from ridgeline.lab.race.contender import read_peaks as read_peaks
    from ridgeline.lab.race.contender import reset_peaks as reset_peaks
    from ridgeline.lab.race.endpoints import HTTP_BUDGET_S as HTTP_BUDGET_S
    from ridgeline.lab.race.endpoints import HTTP_MARGIN as HTTP_MARGIN
    from ridgeline.lab.race.endpoints import HttpOptions as HttpOptions
    from ridgeline.lab.race.endpoints import choose_turn_s as choose_turn_s
    from ridgeline.lab.race.endpoints import make_http_race as make_http_race
    from ridgeline.lab.race.functions import RaceResult as RaceResult
    from ridgeline.lab.race.functions import race as race
    from ridgeline.lab.race.loader import load_workload as load_workload
    from ridgeline.lab.race.measure import Plan as Plan
    from ridgeline.lab.race.own_race import DEFAULT_BUDGET_S as DEFAULT_BUDGET_S
    from ridgeline.lab.race.own_race import OWN_MARGIN as OWN_MARGIN
    from ridgeline.lab.race.own_race import OWN_PLAN as OWN_PLAN
    from ridgeline.lab.race.own_race import OwnRace as OwnRace
    from ridgeline.lab.race.own_race import iterate_cases as iterate_cases
    from ridgeline.lab.race.own_race import name_contenders as name_contenders
    from ridgeline.lab.race.own_race import race_cases as race_cases
    from ridgeline.lab.race.process import ContenderSpec as ContenderSpec
    from ridgeline.lab.race.repository import SUITE_MARGIN as SUITE_MARGIN
    from ridgeline.lab.race.repository import add_packages as add_packages
    from ridgeline.lab.race.repository import choose_repository as choose_repository
    from ridgeline.lab.race.repository import export_versions as export_versions
    from ridgeline.lab.race.request import BenchRequest as BenchRequest
    from ridgeline.lab.race.request import Point as Point
    from ridgeline.lab.race.request import list_contenders as list_contenders
    from ridgeline.lab.race.suites import find_suite as find_suite

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "against": ["build_version", "copy_working_tree"],
        "benchmark": ["BenchResult", "ProgressHooks", "create_output_folder", "run_benchmark"],
        "bisection": ["BisectResult", "find_slow_commit"],
        "commit_history": ["CaseHistory", "CommitHistory", "measure_history"],
        "commands": ["CommandOptions", "make_command_race"],
        "contender": ["read_peaks", "reset_peaks"],
        "endpoints": ["HTTP_BUDGET_S", "HTTP_MARGIN", "HttpOptions", "choose_turn_s", "make_http_race"],
        "functions": ["RaceResult", "race"],
        "loader": ["load_workload"],
        "measure": ["Plan"],
        "own_race": [
            "DEFAULT_BUDGET_S",
            "OWN_MARGIN",
            "OWN_PLAN",
            "OwnRace",
            "iterate_cases",
            "name_contenders",
            "race_cases",
        ],
        "process": ["ContenderSpec"],
        "repository": ["SUITE_MARGIN", "add_packages", "choose_repository", "export_versions"],
        "suites": ["find_suite"],
        "request": ["BenchRequest", "Point", "list_contenders"],
    },
)
