"""A race of versions that the lab's own second look goes on with, on made-up times and a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.lab.race.baton import Entrant
from ridgeline.lab.race.heats import START_S, Line, settle
from ridgeline.lab.race.plan import Lane, Plan, Race


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def line(ratios: Sequence[float], heat_s: float = START_S, *, looked: bool = False) -> Line:
    """One whose first heat had these ratios, round by round."""
    lanes = [Lane(Entrant(name, name), check={"ok": True}) for name in ("ours", "theirs")]
    lanes[0].samples_ns, lanes[1].samples_ns = [1.0] * len(ratios), list(ratios)
    return Line(None, Race(None, lanes, [len(ratios)], "budget", {}, Plan(versions=True), heat_s), looked, heat_s)


def gone_on(one: Line, more: Callable[[int | None], list[float]], heats: int) -> Line:
    """`one` with time for so many heats that take `START_S`, and a second for ten rounds."""
    clock = Clock()

    def race_on(race: Race, rounds: int | None, watch: object) -> None:
        found = more(rounds)
        race.lanes[0].samples_ns += [1.0] * len(found)
        race.lanes[1].samples_ns += found
        race.heats.append(len(found))
        clock.now += START_S + len(found) / 10

    (done,) = settle([one], heats * START_S, lambda line: None, clock, race_on)
    return done


def times(one: Line) -> tuple[list[float], list[float], list[int]]:
    """Theirs, ours and the heats, as verdicts want them."""
    ours, theirs = one.race.lanes
    return theirs.medians(), ours.medians(), one.race.heats
