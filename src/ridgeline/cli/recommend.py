"""`ridgeline recommend`: fit, query, evaluate and serve a recommender of a folder of ratings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.output import Device, Json, Quiet, print_json, print_line, print_note, status, stderr, stdout
from ridgeline.cli.placement import Place, stay_near
from ridgeline.cli.recommend_sizing import sizing
from ridgeline.cli.tokens import find_token, refuse_token
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.embed import Embedder, EmbedderPool
    from ridgeline.recommend import Options, Recommendation, Recommender, ServedModel

TOKEN = "RIDGELINE_RECOMMEND_TOKEN"  # noqa: S105  (the name of the variable)

recommend = typer.Typer(no_args_is_help=True, help="Recommend items by ratings and by the meaning of texts.")

Data = Annotated[Path, typer.Argument(metavar="DATA", help="A MovieLens folder, or one with items and interactions.")]
Model = Annotated[Path, typer.Option("--model", "-m", metavar="MODEL", help="The folder that `recommend fit` wrote.")]
K = Annotated[int, typer.Option("-k", metavar="N", help="Number of results.")]
Genre = Annotated[str | None, typer.Option("--genre", metavar="NAME", help="Only items of this genre.")]
Year = Annotated[
    str | None, typer.Option("--year", metavar="A-B", help="Only items of these years: 1980-1989, 1999, 2000-.")
]
Diversify = Annotated[
    float, typer.Option(metavar="W", help="Weight of differences between the results, 0 (none) to 1.")
]
Encoder = Annotated[str, typer.Option("--encoder", metavar="NAME", help="Model that encodes texts as vectors.")]
MinRating = Annotated[float, typer.Option(metavar="R", help="Ratings from R on are likes.")]
Penalty = Annotated[
    float | None,
    typer.Option("--ease-lambda", metavar="λ", help="EASE's penalty (default: chosen on a part of the training data)."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Encode every item text again, without the vector cache.")]
DEFAULT = "all-MiniLM-L6-v2"
POOL_TEXTS = 512  # item texts of one task, if several devices encode
METRICS = "recall@20,ndcg@10,ndcg@100,mrr,coverage"
BEYOND_ACCURACY = ("coverage", "novelty", "diversity", "popularity_bias")
BASIS_NOTES = {  # what a user without usable likes gets
    "popularity": "this user likes nothing yet, so these are the items that most users like.",
    "meaning": "no other user likes these items, so these are the items with the most similar texts.",
}


@recommend.command()
def describe(data: Data, as_json: Json = False) -> None:
    """Describe a folder of ratings, and the rows in it that cannot be used."""
    from ridgeline.recommend import read

    dataset = read(data)
    summary = dataset.describe()
    if as_json:
        print_json(summary)
        return
    for name, value in summary.items():
        if name == "stars":
            value = "  ".join(f"{stars}★ {count:,}" for stars, count in value.items())
        elif isinstance(value, dict):
            continue
        text = f"{value:.2%}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
        print_line(f"{name.replace('_', ' '):<20} {text}")
    for sentence in dataset.problems.lines():
        print_note(sentence)


@recommend.command()
def fit(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="Folder to write.")],
    min_rating: MinRating = 4.0,
    penalty: Penalty = None,
    template: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Template of item texts: {title} {year} …")
    ] = None,
    vectors: Annotated[
        Path | None,
        typer.Option("--vectors", metavar="DIR", help="Also write item and user vectors as .npy files to DIR."),
    ] = None,
    encoder: Encoder = DEFAULT,
    text: Annotated[
        bool, typer.Option("--text/--no-text", help="Use item texts; without them, ratings alone and no encoder.")
    ] = True,
    fresh: Fresh = False,
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="auto, cpu, cuda, cuda:N; several, as cuda:0,cuda:1 or cuda:all, encode item texts together, and the "
            "first one solves.",
        ),
    ] = "auto",
    place: Place = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model on a folder of ratings; it appears complete or not at all.

    After an interrupted fit, the next one uses the item vectors in the cache (with one device).
    """
    from ridgeline.embed import Embedder
    from ridgeline.machine import parse_devices
    from ridgeline.recommend import (
        TEMPLATE,
        Recommender,
        check_vectors,
        export_vectors,
        is_repeatable,
        item_texts,
        read,
    )
    from ridgeline.recommend.models import Ease

    for folder in (out, *([vectors] if vectors else [])):
        if not folder.absolute().parent.is_dir():
            raise InputError(f"there is no folder '{folder.parent}'; create it first.")
    if vectors is not None and not text:
        raise InputError("--vectors writes text vectors, and --no-text makes none; leave one of them out.")
    if vectors is not None:
        _check_folders(out, vectors)
    if penalty is not None:
        Ease(penalty)  # report a wrong λ before reading
    devices = parse_devices(device)
    device = devices[0]
    dataset = read(data)
    texts = item_texts(dataset.catalogue, template or TEMPLATE) if text else []  # report a wrong template at once
    with (
        stay_near(device, place and len(devices) == 1, quiet),  # the workers of a pool place themselves
        status("fitting") as progress,
        Embedder(encoder, device=device) if text else nullcontext() as embedder,
        _start_pool(encoder, devices if text else []) as embedders,
    ):
        model = Recommender.fit(
            dataset,
            embedder,
            min_rating=min_rating,
            penalty=penalty,
            template=template or TEMPLATE,
            encode=(
                None
                if embedder is None
                else choose_encode(embedder, fresh, progress)
                if embedders is None
                else embedders.encode
            ),
            device=_choose_solver(device),
            progress=progress,
        )
        is_same = embedder is None or is_repeatable(embedder.encode, texts, model.vectors)
        progress("writing")
        model.save(out)
        if vectors is not None:
            export_vectors(model, vectors)
    vector_checks = {**check_vectors(model.vectors), "repeatable": is_same} if text else None
    summary = {
        "out": str(out),
        "users": len(model.user_ids),
        "items": len(model.catalogue),
        "ease_lambda": model.hybrid.ease.penalty,
        "weights": model.hybrid.weights,
        "vectors": vector_checks,
    }
    if as_json:
        print_json(summary)
        return
    for sentence in dataset.problems.lines():
        print_note(sentence)
    if not quiet:
        print_line(f"{summary['users']:,} users, {summary['items']:,} items → {out}", stderr())
        if vector_checks is None:
            return
        verdict = "valid" if vector_checks["ok"] and is_same else "NOT valid (see --json)"
        size = f"{vector_checks['count']:,} × {vector_checks['dim']}, {vector_checks['bytes'] / 1e6:.1f} MB"
        print_line(f"vectors: {size}, {verdict}", stderr())


@recommend.command("for")
def for_user(
    user: Annotated[str, typer.Argument(metavar="USER", help="A user id of the data.")],
    model: Model,
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Name the user's most similar likes for each result.")
    ] = False,
    diversify: Diversify = 0.0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Recommend for a user of the data, without the items that they rated."""
    options = _parse_options(k, genre, year, diversify)
    with _load_model(model, device) as recommender:
        _print_recommendations(recommender.recommend(user, options, explain=explain or as_json), as_json, explain)


@recommend.command()
def similar(
    title: Annotated[str, typer.Argument(metavar="TITLE", help="A title; it may be misspelt.")],
    model: Model,
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Find items similar to a title, which may be misspelt."""
    with _load_model(model, device) as recommender:
        matched_title, exact, recommendations = recommender.similar(title, _parse_options(k, genre, year))
    if not exact:
        print_note(f"there is no title '{title}'; taken for '{matched_title}'.")
    _print_recommendations(recommendations, as_json, False)


@recommend.command()
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Description of the item.")],
    model: Model,
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Find items by the meaning of a text."""
    with _load_model(model, device) as recommender:
        _print_recommendations(recommender.search(text, _parse_options(k, genre, year)), as_json, False)


@recommend.command()
def new(
    model: Model,
    liked: Annotated[
        list[str] | None, typer.Option("--liked", metavar="TITLE", help="A liked title; the option may be repeated.")
    ] = None,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="Description of what the user likes.")] = "",
    text_weight: Annotated[
        float,
        typer.Option(
            metavar="W", help="Weight of the text beside liked titles: 0 uses the titles alone, 1 the text alone."
        ),
    ] = 0.5,
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Recommend for a new user by liked titles, by a text, or both, without a new fit."""
    with _load_model(model, device) as recommender:
        for title in liked or []:
            row, exact = recommender.titles.find(title)
            if not exact:
                print_note(f"there is no title '{title}'; taken for '{recommender.catalogue.titles[row]}'.")
        _print_recommendations(
            recommender.new(liked or [], text, _parse_options(k, genre, year), text_weight=text_weight), as_json, True
        )


@recommend.command()
def add(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that `recommend fit` wrote.")],
    items: Annotated[
        Path | None,
        typer.Option("--items", metavar="FILE", help="New items: JSONL with id, title, text, genres, year."),
    ] = None,
    ratings: Annotated[
        Path | None,
        typer.Option("--ratings", metavar="FILE", help="New ratings: JSONL, CSV or Parquet with user, item, rating."),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Add items and ratings to a model without a new fit: all of them, or none if one is wrong.

    A rating of an unknown item waits until the item comes.
    """
    from ridgeline.recommend import Recommender, read_new_items, read_new_ratings

    if items is None and ratings is None:
        raise InputError("there is nothing to add; give --items FILE or --ratings FILE.")
    new_items = [] if items is None else read_new_items(items)
    new_ratings = [] if ratings is None else read_new_ratings(ratings)
    with Recommender.load(model, device=device) as recommender, status("adding") as progress:
        progress(f"{len(new_items):,} items and {len(new_ratings):,} ratings")
        result = recommender.add(new_items, new_ratings, progress=progress)
    if as_json:
        print_json(result)
    elif not quiet:
        waiting = f", {result['waiting']:,} of unknown items wait" if result["waiting"] else ""
        print_line(f"{result['items']:,} items and {result['ratings']:,} ratings → {model}{waiting}", stderr())


@recommend.command("all")
def all_users(
    model: Model,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="A .parquet file with user, rank, item, title, score, basis.")
    ],
    k: K = 10,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the best items of every user to one file."""
    from ridgeline.recommend import write_recommendations

    if out.suffix != ".parquet":
        raise InputError(f"--out '{out}' does not end in .parquet; give a name that does.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    with _load_model(model, device) as recommender, status("ranking") as progress:
        rows = write_recommendations(recommender, out, _parse_options(k, None, None).k, progress)
        users = len(recommender.user_ids)
    if as_json:
        print_json({"out": str(out), "users": users, "rows": rows, "k": k})
    elif not quiet:
        print_line(f"{rows:,} recommendations for {users:,} users → {out}", stderr())


@recommend.command()
def evaluate(
    data: Data,
    split: Annotated[
        str,
        typer.Option(metavar="KIND", help="random, temporal-user, temporal-global, strong or cold-items."),
    ] = "random",
    train: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Learn from these ratings instead of those of DATA (.csv, .tsv, .parquet)."),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Hold out these ratings instead of a split: user, item [rating, time]."),
    ] = None,
    min_rating: MinRating = 4.0,
    metrics: Annotated[str, typer.Option(metavar="LIST", help="Metrics: recall@K, ndcg@K, mrr, coverage.")] = METRICS,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the split.")] = 0,
    penalty: Penalty = None,
    diversify: Annotated[
        float, typer.Option(metavar="W", help="Also measure the hybrid with lists that differ more, by this weight.")
    ] = 0.0,
    encoder: Encoder = DEFAULT,
    fresh: Fresh = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write a page (.html).")] = None,
    device: Device = "auto",
    place: Place = True,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Rank the complete catalogue by every model and measure the quality of each.

    No parameter is tuned on held-out likes. Intervals are 95 %, over users.

    [dim]With your own split:[/]

      ridgeline recommend evaluate ml-100k --train u1.base --test u1.test
    """
    from ridgeline.embed import Embedder
    from ridgeline.recommend import (
        EvaluationSettings,
        check_diversity,
        join_given,
        parse_metrics,
        read,
        read_ratings,
        split_dataset,
    )
    from ridgeline.recommend import evaluate as run
    from ridgeline.recommend.models import Ease

    names = parse_metrics(metrics)
    if seed < 0:
        raise InputError(f"--seed {seed} is below 0; give 0 or more.")
    if out is not None and out.suffix != ".html":
        raise InputError(f"--out '{out}' does not end in .html; give a name that does.")
    if out is not None and not out.absolute().parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    if out is not None and out.is_dir():
        raise InputError(f"--out '{out}' is a folder; give the name of a file.")
    if penalty is not None:
        Ease(penalty)  # report a wrong λ before reading
    check_diversity(diversify)
    if train is not None and test is None:
        raise InputError("--train needs the held-out ratings as well; give --test FILE.")
    dataset = read(data)
    if train is not None:
        dataset = read_ratings(train, dataset.catalogue)
    held_out = None if test is None else read_ratings(test, dataset.catalogue)
    # Report an impossible split before loading a model.
    if held_out is None:
        split_dataset(dataset, split, min_rating, seed)
    else:
        join_given(dataset, held_out, min_rating)
    with (
        stay_near(device, place, quiet),
        status("evaluating") as progress,
        Embedder(encoder, device=device) as embedder,
    ):
        solver = embedder.device if embedder.device.startswith("cuda") else "cpu"
        settings = EvaluationSettings(split, min_rating, names, seed, penalty, device=solver, diversify=diversify)
        evaluation = run(dataset, choose_encode(embedder, fresh, progress), settings, progress, test=held_out)
    if out is not None:
        from ridgeline.recommend import render_report
        from ridgeline.store import publish

        with publish(out) as tmp:
            tmp.write_text(render_report(evaluation), encoding="utf-8")
    if as_json:
        print_json(evaluation)
        return
    for sentence in (*dataset.problems.lines(), *(held_out.problems.lines() if held_out is not None else ())):
        print_note(sentence)
    _print_evaluation(evaluation, names)
    if out is not None and not quiet:
        print_line(f"page → {out}", stderr())


def _print_evaluation(evaluation: dict[str, Any], names: list[str]) -> None:
    from rich.table import Table

    protocol = evaluation["protocol"]
    print_line(f"{protocol['dataset']}: held out {protocol['held_out']}; {protocol['users']:,} users")
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("paired difference to EASE")
    for model, result in evaluation["models"].items():
        paired = result.get("paired_vs_ease", {})
        differences = [
            f"{m} {d['mean']:+.4f} [{d['ci'][0]:+.4f}, {d['ci'][1]:+.4f}]" for m, d in list(paired.items())[:1]
        ]
        table.add_row(model, *(f"{result[n]['mean']:.4f}" for n in names), ", ".join(differences))
    stdout().print(table)
    beyond = [name for name in BEYOND_ACCURACY if name in evaluation["models"]["hybrid"]]
    table = Table(box=None, pad_edge=False)
    table.add_column("first 10")
    for name in beyond:
        table.add_column(name.replace("_", " "), justify="right")
    for model, result in evaluation["models"].items():
        table.add_row(model, *(f"{result[name]['mean']:.3f}" for name in beyond))
    stdout().print(table)


@recommend.command()
def score(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Table of user, item, score; trec run file; or folder of two matrices."),
    ],
    truth: Annotated[
        Path, typer.Option("--truth", metavar="FILE", help="Table of held-out user, item [rating], or qrels.")
    ],
    against: Annotated[
        Path | None, typer.Option("--against", metavar="RUN2", help="Also measure the paired difference to this run.")
    ] = None,
    metrics: Annotated[
        str,
        typer.Option(metavar="LIST", help="Metrics: ndcg, map, mrr [@K], recall@K, precision@K, hit@K."),
    ] = "ndcg@10,recall@20,mrr,map",
    seen: Annotated[
        Path | None,
        typer.Option("--seen", metavar="FILE", help="Table of user, item that two matrices must not recommend."),
    ] = None,
    min_rating: Annotated[float, typer.Option(metavar="R", help="Ratings from R on are relevant.")] = 1.0,
    binary: Annotated[bool, typer.Option("--binary", help="Give every relevant item the gain 1.")] = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Score a ranking that any system wrote against held-out items, by trec_eval's rules.

    Equal scores are ordered by the item's id as text, descending. Intervals are 95 %, by bootstrap over users.
    """
    from ridgeline.recommend import parse_ranking_metrics, score_run

    names = parse_ranking_metrics(metrics)
    with status("scoring"):
        result = score_run(
            run, truth, names, against=against, seen=seen, min_rating=min_rating, binary=binary, device=device
        )
    if as_json:
        print_json(result)
        return
    from rich.table import Table

    print_line(f"{run}: {result['users']:,} users, {result['without_ranking']:,} of them without a ranking")
    table = Table(box=None, pad_edge=False)
    for title in ("metric", "mean", "95 %", *([f"difference to {against}"] if against else [])):
        table.add_column(title, justify="left" if title == "metric" else "right")
    for name, value in result["metrics"].items():
        cells = [name, f"{value['mean']:.4f}", f"[{value['ci'][0]:.4f}, {value['ci'][1]:.4f}]"]
        if against:
            d = result["paired"][name]
            cells.append(f"{d['mean']:+.4f} [{d['ci'][0]:+.4f}, {d['ci'][1]:+.4f}]")
        table.add_row(*cells)
    stdout().print(table)


@recommend.command()
def demo(
    encoder: Encoder = DEFAULT,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Run every kind of request on films and synthetic users that come with ridgeline: no data, no network."""
    from ridgeline.embed import Embedder
    from ridgeline.recommend import run_demo

    with status("fitting the demo") as progress, Embedder(encoder, device=device) as embedder:
        result = run_demo(embedder, progress)
    if as_json:
        print_json(result)
        return
    for question, recommendations in result["answers"].items():
        print_line(question)
        for a in recommendations[:5]:
            because = f"   because of {', '.join(a['why'])}" if a["why"] else ""
            print_line(f"  {a['score']:6.3f}  {a['title']}{because}")


@recommend.command()
def refit(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder that `recommend fit` wrote.")],
    device: Device = "cpu",
    background: Annotated[bool, typer.Option("--background", help="Let other processes go first.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model again with the items and ratings that arrived: a new version beside it, used from the next load on.

    A server that was started with `serve --refit` does this by itself.
    """
    from ridgeline.recommend import refit as run

    if background:
        os.nice(10)
    with status("fitting") as progress:
        version = run(model, device=_choose_solver(device), progress=progress)
    if as_json:
        print_json({"model": str(model), "version": version})
    elif not quiet:
        print_line(f"version {version} of {model}", stderr())


@recommend.command()
def serve(
    path: Annotated[
        Path | None, typer.Argument(metavar="[MODEL]", help="The folder that `recommend fit` wrote.")
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="NAME=DIR", help="A model by name; repeat it for models side by side."),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="A/B", help="Percentages of the users for each --model (default: all to the first)."),
    ] = None,
    refit: Annotated[
        str | None,
        typer.Option(metavar="RULE", help="Refit in the background: every=1h, after=10000 (changes), or both."),
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Append each list and each change as a JSON line.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(metavar="N", help="Requests per second of each client; more get 429 (default: no limit)."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8000,
    token: Annotated[str | None, typer.Option(hidden=True)] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask clients for the token in this file, which is created if it is missing "
            f"(default: {TOKEN}). Needed unless on loopback.",
        ),
    ] = None,
    device: Device = "cpu",
    place: Place = True,
) -> None:
    """Serve a web page and a REST interface, by default on this machine only."""
    from ridgeline import web
    from ridgeline.recommend import RefitRules, RequestRates, ServedModels, create_app, parse_refit, parse_shares

    if token is not None:
        raise refuse_token(TOKEN)
    folders = _parse_models(path, models or [])
    shares = [] if split is None else parse_shares(split, list(folders))
    rules = RefitRules() if refit is None else parse_refit(refit)
    if rate is not None:
        RequestRates(rate)  # report a wrong rate before loading
    with stay_near(device, place, quiet=False), ExitStack() as opened:
        served = ServedModels(_load_served(folders, device), shares, log)
        opened.callback(served.close)
        secret, where = find_token(token_file, TOKEN)
        note = f"; the token is in {where}, once as /?token=… in a browser" if secret is not None else ""
        app = create_app(served, token=secret, refit=rules, rate=rate)
        web.serve(app, host=host, port=port, announce=lambda line: print_line(f"{line}{note}", stderr()))


recommend.command()(sizing)


def _parse_models(path: Path | None, named: Sequence[str]) -> dict[str, Path]:
    """Return the folders of the models to serve, by name."""
    if (path is None) == (not named):
        raise InputError("give one MODEL, or models side by side: --model a=DIR --model b=DIR.")
    if path is not None:
        return {path.absolute().name: path}
    folders: dict[str, Path] = {}
    for text in named:
        name, equals, folder = text.partition("=")
        if not equals or not folder or not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
            raise InputError(f"--model '{text:.80}' is not NAME=DIR; write --model a=DIR, names of letters and digits.")
        if name in folders:
            raise InputError(f"two models are named '{name}'; give each its own name.")
        if Path(folder).resolve() in [other.resolve() for other in folders.values()]:
            raise InputError(f"--model '{text:.80}' is the folder of another model; give each its own folder.")
        folders[name] = Path(folder)
    return folders


def _load_served(folders: Mapping[str, Path], device: str) -> list[ServedModel]:
    """Load models; those with the same encoder share it."""
    from ridgeline.recommend import Recommender, ServedModel

    encoders: dict[str, Any] = {}
    served = []
    for name, folder in folders.items():
        model = Recommender.load(folder, device=device)
        model._loaded_encoder = encoders.setdefault(model.encoder, model._loaded_encoder)
        served.append(ServedModel(name, model, path=folder.absolute()))
    return served


def _choose_solver(device: str) -> str:
    """Return the device that solves a fit without texts."""
    if device not in ("auto", "cuda"):
        return device
    from ridgeline.machine import topology

    gpus = len(topology().gpus)
    if device == "cuda" and not gpus:
        raise InputError("there is no GPU here; use --device cpu.")
    return "cuda" if gpus else "cpu"


def _start_pool(encoder: str, devices: list[str]) -> EmbedderPool | nullcontext[None]:
    """Return a worker for each device, or no pool for a single one."""
    if len(devices) < 2:
        return nullcontext()
    from ridgeline.embed import EmbedderPool

    return EmbedderPool(encoder, devices=devices, chunk=POOL_TEXTS)


def choose_encode(embedder: Embedder, fresh: bool, progress: Callable[[str], object]) -> Callable[[Sequence[str]], Any]:
    """Return the function that encodes item texts: with the vector cache, or without it if `fresh`."""
    from ridgeline.recommend import encode_cached

    return embedder.encode if fresh else lambda texts: encode_cached(embedder, texts, progress)


def _check_folders(out: Path, vectors: Path) -> None:
    """Refuse folders that are equal or nested: the second output would replace the first."""
    model, vector_folder = out.resolve(), vectors.resolve()
    if model == vector_folder or model in vector_folder.parents or vector_folder in model.parents:
        relation = "are the same folder" if model == vector_folder else "lie within each other"
        raise InputError(f"--out '{out}' and --vectors '{vectors}' {relation}; give two folders side by side.")


def _load_model(folder: Path, device: str) -> Recommender:
    from ridgeline.recommend import Recommender

    return Recommender.load(folder, device=device)


def _parse_options(k: int, genre: str | None, year: str | None, diversify: float = 0.0) -> Options:
    from ridgeline.recommend import Options, parse_years

    return Options(k, genre, parse_years(year), diversify)


def _print_recommendations(recommendations: list[Recommendation], as_json: bool, explain: bool) -> None:
    if as_json:
        print_json([a.to_json() for a in recommendations])
        return
    if not recommendations:
        print_note("no item fits; give more years or another genre.")
        return
    from rich.markup import escape
    from rich.table import Table

    print_note(BASIS_NOTES.get(recommendations[0].basis))
    ranks = list(recommendations[0].ranks)
    table = Table(box=None, pad_edge=False)
    for name in ("score", *(f"by {name}" for name in ranks)):
        table.add_column(name, justify="right")
    for name in ("title", "genres", *(["because of"] if explain else [])):
        table.add_column(name)
    for a in recommendations:
        numbers = [f"{a.score:.3f}", *(f"{a.ranks[name]:,}" for name in ranks)]
        cells = [escape(a.title), escape(", ".join(a.genres))]
        table.add_row(*numbers, *cells, *([escape(", ".join(a.why))] if explain else []))
    stdout().print(table)
