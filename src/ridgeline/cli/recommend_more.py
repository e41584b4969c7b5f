"""`ridgeline recommend demo|evaluate|serve`: what shows, judges and serves a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ridgeline.cli.recommend import DEFAULT, Data, Encoder, Fresh, MinRating, Penalty, encoding, recommend
from ridgeline.cli.recommend_sizing import sizing
from ridgeline.cli.speak import Device, Json, Quiet, note, print_json, status, stderr, stdout, tell
from ridgeline.errors import InputError

recommend.command()(sizing)
commands = recommend  # those of recommend.py and the ones below
METRICS = "recall@20,ndcg@10,ndcg@100,mrr,coverage"


@recommend.command()
def evaluate(
    data: Data,
    split: Annotated[
        str, typer.Option(metavar="KIND", help="random, temporal-user, temporal-global, strong or cold-items.")
    ] = "random",
    min_rating: MinRating = 4.0,
    metrics: Annotated[str, typer.Option(metavar="LIST", help="recall@K, ndcg@K, mrr, coverage.")] = METRICS,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the draw.")] = 0,
    penalty: Penalty = 100.0,
    encoder: Encoder = DEFAULT,
    fresh: Fresh = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="A page (.html) as well.")] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rank the whole catalogue by every model and say how good each one is.

    Nothing is tuned on what is held out; intervals are 95 %, over users.
    """
    from ridgeline.embed import Embedder
    from ridgeline.recommend import Settings, checked_metrics, read, split_of
    from ridgeline.recommend import evaluate as run
    from ridgeline.recommend.models import Ease

    names = checked_metrics(metrics)
    if seed < 0:
        raise InputError(f"--seed {seed} is below 0; give 0 or more.")
    if out is not None and out.suffix != ".html":
        raise InputError(f"--out '{out}' does not end in .html; give a name that does.")
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    if out is not None and out.is_dir():
        raise InputError(f"--out '{out}' is a folder; give the name of a file.")
    Ease(penalty)  # a wrong λ is said before anything is read
    dataset = read(data)
    split_of(dataset, split, min_rating, seed)  # what cannot be split is said before a model is loaded
    with status("evaluating") as say, Embedder(encoder, device=device) as embedder:
        solver = embedder.device if embedder.device.startswith("cuda") else "cpu"
        settings = Settings(split, min_rating, names, seed, penalty, device=solver)
        found = run(dataset, encoding(embedder, fresh, say), settings, say)
    if out is not None:
        from ridgeline.recommend import report
        from ridgeline.store import publish

        with publish(out) as tmp:
            tmp.write_text(report(found), encoding="utf-8")
    if as_json:
        print_json(found)
        return
    for sentence in dataset.problems.lines():
        note(sentence)
    _show(found, names)
    if out is not None and not quiet:
        tell(f"page → {out}", stderr())


def _show(found: dict[str, Any], names: list[str]) -> None:
    from rich.table import Table

    protocol = found["protocol"]
    tell(f"{protocol['dataset']}: held out {protocol['held_out']}; {protocol['users']:,} users")
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("paired difference to EASE")
    for model, told in found["models"].items():
        paired = told.get("paired_vs_ease", {})
        words = [f"{m} {d['mean']:+.4f} [{d['ci'][0]:+.4f}, {d['ci'][1]:+.4f}]" for m, d in list(paired.items())[:1]]
        table.add_row(model, *(f"{told[n]['mean']:.4f}" for n in names), ", ".join(words))
    stdout().print(table)


@recommend.command()
def demo(
    encoder: Encoder = DEFAULT,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Everything once, on films and made-up users that come with ridgeline: no data, no network."""
    from ridgeline.embed import Embedder
    from ridgeline.recommend import shown

    with status("fitting the demo") as say, Embedder(encoder, device=device) as embedder:
        told = shown(embedder, say)
    if as_json:
        print_json(told)
        return
    for question, found in told["answers"].items():
        tell(question)
        for a in found[:5]:
            because = f"   because of {', '.join(a['why'])}" if a["why"] else ""
            tell(f"  {a['score']:6.3f}  {a['title']}{because}")


@recommend.command()
def serve(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="What `recommend fit` wrote.")],
    host: Annotated[str, typer.Option(help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(help="'auto' makes one; needed for an address others can reach.")] = None,
    device: Device = "cpu",
) -> None:
    """A page and a REST interface, on this machine only unless told otherwise."""
    from ridgeline import web
    from ridgeline.recommend import Recommender, service

    with Recommender.load(model, device=device) as made:
        web.serve(service(made, token=token), host=host, port=port, announce=lambda line: tell(line, stderr()))
