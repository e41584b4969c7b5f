"""A race of versions with artificial times and an artificial clock, continued by the rules of `confirm_cases`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.lab.race.confirmation import START_S, OpenCase, confirm_cases
from ridgeline.lab.race.measure import Lane, Plan, Race
from ridgeline.lab.race.process import ContenderSpec


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def open_case(ratios: Sequence[float], execution_s: float = START_S, *, differs: bool = False) -> OpenCase:
    """Make a case whose first execution had these ratios, round by round."""
    lanes = [Lane(ContenderSpec(name, name), check={"ok": True}) for name in ("ours", "theirs")]
    lanes[0].samples_ns, lanes[1].samples_ns = [1.0] * len(ratios), list(ratios)
    race = Race(None, lanes, [len(ratios)], "budget", {}, Plan(versions=True), execution_s)
    return OpenCase(None, race, differs, execution_s)


def repeat_case(case: OpenCase, draw_ratios: Callable[[int | None], list[float]], executions: int) -> OpenCase:
    """Repeat `case` with time for this many executions of `START_S`; ten rounds take one second."""
    clock = Clock()

    def repeat(case: OpenCase, rounds: int | None) -> None:
        ratios = draw_ratios(rounds)
        case.race.lanes[0].samples_ns += [1.0] * len(ratios)
        case.race.lanes[1].samples_ns += ratios
        case.race.executions.append(len(ratios))
        clock.now += START_S + len(ratios) / 10

    (done,) = confirm_cases([case], executions * START_S, repeat, clock)
    return done


def get_times(case: OpenCase) -> tuple[list[float], list[float], list[int]]:
    """Return the times of the peer, our times, and the executions, as verdicts take them."""
    ours, peer = case.race.lanes
    return peer.turn_medians(), ours.turn_medians(), case.race.executions
