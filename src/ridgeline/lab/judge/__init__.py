"""From records to verdicts: statistics, comparisons, limits, scaling laws, history, cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgeline._lazy import attach

if TYPE_CHECKING:
    from ridgeline.lab.judge.analyse import Limit as Limit
    from ridgeline.lab.judge.analyse import Row as Row
    from ridgeline.lab.judge.analyse import analyse_record as analyse_record
    from ridgeline.lab.judge.analyse import analysis_to_json as analysis_to_json
    from ridgeline.lab.judge.analyse import describe_ceilings as describe_ceilings
    from ridgeline.lab.judge.analyse import get_margin as get_margin
    from ridgeline.lab.judge.analyse import list_failures as list_failures
    from ridgeline.lab.judge.analyse import list_limits as list_limits
    from ridgeline.lab.judge.analyse import match_ceilings as match_ceilings
    from ridgeline.lab.judge.analyse import raise_ceilings as raise_ceilings
    from ridgeline.lab.judge.analyse import rate_unit as rate_unit
    from ridgeline.lab.judge.change_points import ALPHA as ALPHA
    from ridgeline.lab.judge.compare import Change as Change
    from ridgeline.lab.judge.compare import choose_exit_code as choose_exit_code
    from ridgeline.lab.judge.compare import compare_records as compare_records
    from ridgeline.lab.judge.compare import count_unmatched as count_unmatched
    from ridgeline.lab.judge.cost import TARGET as TARGET
    from ridgeline.lab.judge.cost import Calendar as Calendar
    from ridgeline.lab.judge.cost import CapacityPlan as CapacityPlan
    from ridgeline.lab.judge.cost import DeviceComparison as DeviceComparison
    from ridgeline.lab.judge.cost import Service as Service
    from ridgeline.lab.judge.cost import compare_devices as compare_devices
    from ridgeline.lab.judge.cost import list_services as list_services
    from ridgeline.lab.judge.cost import parse_hours as parse_hours
    from ridgeline.lab.judge.cost import parse_period as parse_period
    from ridgeline.lab.judge.cost import parse_rate as parse_rate
    from ridgeline.lab.judge.cost import parse_time as parse_time
    from ridgeline.lab.judge.cost import plan_capacity as plan_capacity
    from ridgeline.lab.judge.cost import select_records as select_records
    from ridgeline.lab.judge.findings import CEILINGS as CEILINGS
    from ridgeline.lab.judge.findings import PathSummary as PathSummary
    from ridgeline.lab.judge.findings import choose_digits as choose_digits
    from ridgeline.lab.judge.findings import describe_kind as describe_kind
    from ridgeline.lab.judge.findings import find_best_peer as find_best_peer
    from ridgeline.lab.judge.findings import format_interval as format_interval
    from ridgeline.lab.judge.findings import format_ratio as format_ratio
    from ridgeline.lab.judge.findings import rank_path as rank_path
    from ridgeline.lab.judge.findings import select_latest as select_latest
    from ridgeline.lab.judge.findings import summarise_paths as summarise_paths
    from ridgeline.lab.judge.history import Series as Series
    from ridgeline.lab.judge.history import build_history as build_history
    from ridgeline.lab.judge.laws import ONE as ONE
    from ridgeline.lab.judge.laws import CostLaw as CostLaw
    from ridgeline.lab.judge.laws import FitCost as FitCost
    from ridgeline.lab.judge.laws import Observation as Observation
    from ridgeline.lab.judge.laws import cross_validate as cross_validate
    from ridgeline.lab.judge.laws import fit_scaling_law as fit_scaling_law
    from ridgeline.lab.judge.laws import mean_error as mean_error
    from ridgeline.lab.judge.laws import power_law as power_law
    from ridgeline.lab.judge.laws import slowest_stage_law as slowest_stage_law
    from ridgeline.lab.judge.laws import sum_law as sum_law
    from ridgeline.lab.judge.laws import worst_error as worst_error
    from ridgeline.lab.judge.limits import COMPUTE as COMPUTE
    from ridgeline.lab.judge.limits import DOWN as DOWN
    from ridgeline.lab.judge.limits import MEMORY as MEMORY
    from ridgeline.lab.judge.limits import OVERHEAD as OVERHEAD
    from ridgeline.lab.judge.limits import RESOURCES as RESOURCES
    from ridgeline.lab.judge.limits import TRANSFER as TRANSFER
    from ridgeline.lab.judge.limits import UP as UP
    from ridgeline.lab.judge.limits import StageLimit as StageLimit
    from ridgeline.lab.judge.limits import clip_share as clip_share
    from ridgeline.lab.judge.limits import compute_floors as compute_floors
    from ridgeline.lab.judge.limits import find_limit as find_limit
    from ridgeline.lab.judge.limits import find_stage_limit as find_stage_limit
    from ridgeline.lab.judge.limits import percent as percent
    from ridgeline.lab.judge.limits import read_rates as read_rates
    from ridgeline.lab.judge.limits import select_ceilings as select_ceilings
    from ridgeline.lab.judge.prices import HOURS_PER_YEAR as HOURS_PER_YEAR
    from ridgeline.lab.judge.prices import MAX_AGE_DAYS as MAX_AGE_DAYS
    from ridgeline.lab.judge.prices import Price as Price
    from ridgeline.lab.judge.prices import find_price as find_price
    from ridgeline.lab.judge.prices import get_price as get_price
    from ridgeline.lab.judge.prices import load_prices as load_prices
    from ridgeline.lab.judge.scaling import CheckedLaw as CheckedLaw
    from ridgeline.lab.judge.scaling import Prediction as Prediction
    from ridgeline.lab.judge.scaling import Scaling as Scaling
    from ridgeline.lab.judge.scaling import draw_scaling as draw_scaling
    from ridgeline.lab.judge.scaling import find_scalings as find_scalings
    from ridgeline.lab.judge.stats import CONFIDENCE as CONFIDENCE
    from ridgeline.lab.judge.stats import HIGH_CONFIDENCE as HIGH_CONFIDENCE
    from ridgeline.lab.judge.stats import MIN_OBSERVATIONS as MIN_OBSERVATIONS
    from ridgeline.lab.judge.stats import Estimate as Estimate
    from ridgeline.lab.judge.stats import execution_ratios as execution_ratios
    from ridgeline.lab.judge.stats import geometric_mean_ratio as geometric_mean_ratio
    from ridgeline.lab.judge.stats import mean_execution_ratio as mean_execution_ratio
    from ridgeline.lab.judge.stats import median as median
    from ridgeline.lab.judge.stats import paired_ratio as paired_ratio
    from ridgeline.lab.judge.stats import t_quantile as t_quantile
    from ridgeline.lab.judge.stats import turn_medians as turn_medians
    from ridgeline.lab.judge.sweeps import MIN_POINTS as MIN_POINTS
    from ridgeline.lab.judge.sweeps import Sweep as Sweep
    from ridgeline.lab.judge.sweeps import find_sweeps as find_sweeps
    from ridgeline.lab.judge.sweeps import list_differing_parameters as list_differing_parameters
    from ridgeline.lab.judge.verdict import MARGIN as MARGIN
    from ridgeline.lab.judge.verdict import NOISY as NOISY
    from ridgeline.lab.judge.verdict import Assessment as Assessment
    from ridgeline.lab.judge.verdict import Comparison as Comparison
    from ridgeline.lab.judge.verdict import Validity as Validity
    from ridgeline.lab.judge.verdict import assess as assess
    from ridgeline.lab.judge.verdict import choose_confidence as choose_confidence
    from ridgeline.lab.judge.verdict import classify_ratio as classify_ratio
    from ridgeline.lab.judge.verdict import compare_versions as compare_versions
    from ridgeline.lab.judge.verdict import count_missing_executions as count_missing_executions
    from ridgeline.lab.judge.verdict import is_undecided as is_undecided
    from ridgeline.lab.judge.verdict import list_throttle_reasons as list_throttle_reasons

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "analyse": [
            "Limit",
            "Row",
            "analyse_record",
            "analysis_to_json",
            "describe_ceilings",
            "get_margin",
            "list_failures",
            "list_limits",
            "match_ceilings",
            "raise_ceilings",
            "rate_unit",
        ],
        "change_points": ["ALPHA"],
        "compare": ["Change", "choose_exit_code", "compare_records", "count_unmatched"],
        "cost": [
            "Calendar",
            "CapacityPlan",
            "DeviceComparison",
            "Service",
            "TARGET",
            "compare_devices",
            "list_services",
            "parse_hours",
            "parse_period",
            "parse_rate",
            "parse_time",
            "plan_capacity",
            "select_records",
        ],
        "findings": [
            "CEILINGS",
            "PathSummary",
            "choose_digits",
            "describe_kind",
            "find_best_peer",
            "format_interval",
            "format_ratio",
            "rank_path",
            "select_latest",
            "summarise_paths",
        ],
        "history": ["Series", "build_history"],
        "laws": [
            "CostLaw",
            "FitCost",
            "ONE",
            "Observation",
            "cross_validate",
            "fit_scaling_law",
            "mean_error",
            "power_law",
            "slowest_stage_law",
            "sum_law",
            "worst_error",
        ],
        "limits": [
            "COMPUTE",
            "DOWN",
            "MEMORY",
            "OVERHEAD",
            "RESOURCES",
            "StageLimit",
            "TRANSFER",
            "UP",
            "clip_share",
            "compute_floors",
            "find_limit",
            "find_stage_limit",
            "percent",
            "read_rates",
            "select_ceilings",
        ],
        "prices": ["HOURS_PER_YEAR", "MAX_AGE_DAYS", "Price", "find_price", "get_price", "load_prices"],
        "scaling": ["CheckedLaw", "Prediction", "Scaling", "draw_scaling", "find_scalings"],
        "stats": [
            "CONFIDENCE",
            "Estimate",
            "HIGH_CONFIDENCE",
            "MIN_OBSERVATIONS",
            "execution_ratios",
            "mean_execution_ratio",
            "geometric_mean_ratio",
            "median",
            "paired_ratio",
            "t_quantile",
            "turn_medians",
        ],
        "sweeps": ["MIN_POINTS", "Sweep", "find_sweeps", "list_differing_parameters"],
        "verdict": [
            "Assessment",
            "Comparison",
            "MARGIN",
            "NOISY",
            "Validity",
            "assess",
            "choose_confidence",
            "classify_ratio",
            "compare_versions",
            "count_missing_executions",
            "is_undecided",
            "list_throttle_reasons",
        ],
    },
)
