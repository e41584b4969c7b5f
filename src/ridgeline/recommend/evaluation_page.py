"""What an evaluation found, as one page: the protocol, a table, and every metric with its intervals."""

from __future__ import annotations

from typing import Any

from ridgeline.web import Axis, Bar, bars, page, render


def report(found: dict[str, Any]) -> str:
    """The whole HTML document for what `evaluate` gave."""
    protocol, models = found["protocol"], found["models"]
    metrics = [name for name in models["ease"] if name != "paired_vs_ease"]
    charts = [
        bars(
            [Bar(m, told[metric]["mean"], _ends(told[metric]["ci"])) for m, told in models.items()],
            title=metric,
            axis=Axis(metric),
            caption="Means over users with 95 % intervals." if metric != "coverage" else "One value for all users.",
        )
        for metric in metrics
    ]
    paired = [
        bars(
            [
                Bar(m, told["paired_vs_ease"][metric]["mean"], _ends(told["paired_vs_ease"][metric]["ci"]))
                for m, told in models.items()
                if "paired_vs_ease" in told and m != "random"
            ],
            title=f"{metric}: difference to EASE, same users",
            axis=Axis(metric),
            caption="An interval that holds 0 means: no difference was shown.",
        )
        for metric in metrics
        if metric in models["hybrid"]["paired_vs_ease"]
    ]
    rows = [(m, [_cell(told[metric]) for metric in metrics]) for m, told in models.items()]
    body = render(
        "evaluation.html",
        templates="ridgeline.recommend",
        protocol={key.replace("_", " "): value for key, value in protocol.items()},
        metrics=metrics,
        rows=rows,
        charts=[*charts, *paired],
        title=f"{protocol['dataset']}: {protocol['split']}",
    )
    return page(f"Recommenders on {protocol['dataset']}", body)


def _ends(ci: Any) -> tuple[float, float] | None:
    return None if ci is None else (float(ci[0]), float(ci[1]))


def _cell(told: dict[str, Any]) -> str:
    ci = told["ci"]
    return f"{told['mean']:.4f}" if ci is None else f"{told['mean']:.4f} [{ci[0]:.4f}, {ci[1]:.4f}]"
