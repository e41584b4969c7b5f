"""The HTML page of an evaluation: the protocol, a table, and every metric with its intervals."""

from __future__ import annotations

from typing import Any

from ridgeline.web import Axis, Bar, build_page, draw_bars, render_template


def render_report(evaluation: dict[str, Any]) -> str:
    """Return the HTML document for the result of `evaluate`."""
    protocol, models = evaluation["protocol"], evaluation["models"]
    metrics = [name for name in models["ease"] if not name.startswith("paired_vs_")]
    charts = [
        draw_bars(
            [Bar(m, result[metric]["mean"], _interval_ends(result[metric]["ci"])) for m, result in models.items()],
            title=metric,
            axis=Axis(metric),
            caption="Means over users with 95 % intervals." if metric != "coverage" else "One value for all users.",
        )
        for metric in metrics
    ]
    paired = [
        draw_bars(
            [
                Bar(m, result["paired_vs_ease"][metric]["mean"], _interval_ends(result["paired_vs_ease"][metric]["ci"]))
                for m, result in models.items()
                if "paired_vs_ease" in result and m != "random"
            ],
            title=f"{metric}: difference to EASE, same users",
            axis=Axis(metric),
            caption="An interval that contains 0 shows no difference.",
        )
        for metric in metrics
        if metric in models["hybrid"]["paired_vs_ease"]
    ]
    paired += [
        draw_bars(
            [
                Bar(name.removeprefix("paired_vs_"), d[metric]["mean"], _interval_ends(d[metric]["ci"]))
                for name, d in models["hybrid"].items()
                if name.startswith("paired_vs_") and name != "paired_vs_random"
            ],
            title=f"{metric}: hybrid − each model, same users",
            axis=Axis(metric),
            caption="An interval above 0: the hybrid is better.",
        )
        for metric in metrics
        if metric in models["hybrid"]["paired_vs_ease"]
    ]
    rows = [(m, [_format_cell(result[metric]) for metric in metrics]) for m, result in models.items()]
    body = render_template(
        "evaluation.html",
        templates="ridgeline.recommend",
        protocol={key.replace("_", " "): value for key, value in protocol.items()},
        metrics=metrics,
        rows=rows,
        charts=[*charts, *paired],
        title=f"{protocol['dataset']}: {protocol['split']}",
    )
    return build_page(f"Recommenders on {protocol['dataset']}", body)


def _interval_ends(ci: Any) -> tuple[float, float] | None:
    return None if ci is None else (float(ci[0]), float(ci[1]))


def _format_cell(result: dict[str, Any]) -> str:
    ci = result["ci"]
    return f"{result['mean']:.4f}" if ci is None else f"{result['mean']:.4f} [{ci[0]:.4f}, {ci[1]:.4f}]"
