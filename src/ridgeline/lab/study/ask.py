"""Ask a study for a point nobody has run: its time by a law of the setting it would be run in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ridgeline.errors import InputError
from ridgeline.lab.judge.stats import Estimate
from ridgeline.lab.study.scaling import Fitted, filled
from ridgeline.lab.study.sweep import apart
from ridgeline.lab.study.table import Columns, level


def ask(laws: Sequence[Fitted], amounts: Mapping[str, float], setting: Mapping[str, Any], columns: Columns) -> Estimate:
    """Seconds per batch, with the interval in which 95 % of such runs are expected.

    Of the setting's laws the best that can do with the amounts that are told.
    """
    unknown = [name for name in setting if name not in columns.setting]
    if unknown:
        raise InputError(f"'{unknown[0]}' is no part of a setting; those are {', '.join(columns.setting)}.")
    able = [one for one in laws if one.best is not None]
    fit = [one for one in able if all(one.setting[n] == level(v) for n, v in setting.items())]
    if len(fit) != 1:
        names = "; ".join(name or "the only one" for name in apart([one.setting for one in able])) or "none"
        many = f"{len(fit)} settings have" if fit else "no setting has"
        raise InputError(f"{many} a law for what was asked; name one. There are laws for: {names}.")
    known = filled(amounts, columns)
    told = (law.predict(known) for law, _ in fit[0].laws)
    found = next((e for e in told if e.value > 0), None)  # NaN where a law needs more than was told
    if found is None:
        needed = ", ".join(sorted(set().union(*(d.amounts for d in fit[0].data))))
        raise InputError(f"no law can do with {', '.join(amounts) or 'nothing'}; of these they ask for some: {needed}.")
    return found
