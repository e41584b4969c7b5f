"""`ridgeline recommend`: films by taste and by meaning, from a folder of ratings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.speak import Device, Json, Quiet, note, print_json, status, stderr, stdout, tell
from ridgeline.errors import InputError

if TYPE_CHECKING:
    from ridgeline.embed import Embedder
    from ridgeline.recommend import Answer, Recommender, Wish

recommend = typer.Typer(no_args_is_help=True, help="Recommend by taste and by meaning.")

Data = Annotated[Path, typer.Argument(metavar="DATA", help="A MovieLens folder, or items + interactions.")]
Model = Annotated[Path, typer.Option("--model", "-m", metavar="MODEL", help="What `recommend fit` wrote.")]
K = Annotated[int, typer.Option("-k", metavar="N", help="How many.")]
Genre = Annotated[str | None, typer.Option("--genre", metavar="NAME", help="Only of this genre.")]
Year = Annotated[str | None, typer.Option("--year", metavar="A-B", help="Only of these years: 1980-1989, 1999, 2000-.")]
Encoder = Annotated[str, typer.Option("--encoder", metavar="NAME", help="The model that turns texts into vectors.")]
MinRating = Annotated[float, typer.Option(metavar="R", help="A rating from here on is a like.")]
Penalty = Annotated[float, typer.Option("--ease-lambda", metavar="λ", help="EASE's penalty.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Encode every item text anew, and keep none of the vectors.")]
DEFAULT = "all-MiniLM-L6-v2"


@recommend.command()
def describe(data: Data, as_json: Json = False) -> None:
    """What a folder of ratings holds, and what in it cannot be used."""
    from ridgeline.recommend import read

    dataset = read(data)
    told = dataset.describe()
    if as_json:
        print_json(told)
        return
    for name, value in told.items():
        if name == "stars":
            value = "  ".join(f"{stars}★ {count:,}" for stars, count in value.items())
        elif isinstance(value, dict):
            continue
        shown = f"{value:.2%}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
        tell(f"{name.replace('_', ' '):<20} {shown}")
    for sentence in dataset.problems.lines():
        note(sentence)


@recommend.command()
def fit(
    data: Data,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="MODEL", help="The folder to write.")],
    min_rating: MinRating = 4.0,
    penalty: Penalty = 100.0,
    template: Annotated[str | None, typer.Option(metavar="TEXT", help="Of item texts: {title} {year} …")] = None,
    vectors: Annotated[
        Path | None, typer.Option("--vectors", metavar="DIR", help="Item and user vectors as .npy, too.")
    ] = None,
    encoder: Encoder = DEFAULT,
    fresh: Fresh = False,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Learn from a folder of ratings; the model appears whole or not at all.

    A fit that was stopped goes on with the item vectors it had made.
    """
    from ridgeline.embed import Embedder
    from ridgeline.recommend import TEMPLATE, Recommender, export, integrity, item_texts, read, repeatable
    from ridgeline.recommend.models import Ease

    for place in (out, *([vectors] if vectors else [])):
        if not place.absolute().parent.is_dir():
            raise InputError(f"there is no folder '{place.parent}'; create it first.")
    if vectors is not None:
        _apart(out, vectors)
    Ease(penalty)  # a wrong λ is said before anything is read
    dataset = read(data)
    texts = item_texts(dataset.catalogue, template or TEMPLATE)  # a wrong template is said before a model is loaded
    with status("fitting") as say, Embedder(encoder, device=device) as embedder:
        model = Recommender.fit(
            dataset,
            embedder,
            min_rating=min_rating,
            penalty=penalty,
            template=template or TEMPLATE,
            encode=encoding(embedder, fresh, say),
            tell=say,
        )
        same = repeatable(embedder.encode, texts, model.vectors)
        say("writing")
        model.save(out)
        if vectors is not None:
            export(model, vectors)
    health = {**integrity(model.vectors), "repeatable": same}
    told = {
        "out": str(out),
        "users": len(model.user_ids),
        "items": len(model.catalogue),
        "weights": model.hybrid.weights,
        "vectors": health,
    }
    if as_json:
        print_json(told)
        return
    for sentence in dataset.problems.lines():
        note(sentence)
    if not quiet:
        tell(f"{told['users']:,} users, {told['items']:,} items → {out}", stderr())
        sound = "sound" if health["ok"] and same else "NOT sound (--json says why)"
        tell(f"vectors: {health['count']:,} × {health['dim']}, {health['bytes'] / 1e6:.1f} MB, {sound}", stderr())


@recommend.command("for")
def for_user(
    user: Annotated[str, typer.Argument(metavar="USER", help="An id of the data.")],
    model: Model,
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say which of the user's own likes are nearest.")] = False,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """For a user of the data; what they rated is left out."""
    with _loaded(model, device) as made:
        _answer(made.recommend(user, _wish(k, genre, year), explain=explain or as_json), as_json, explain)


@recommend.command()
def similar(
    title: Annotated[str, typer.Argument(metavar="TITLE", help="Roughly as it is written.")],
    model: Model,
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Like a title, which may be misspelt."""
    with _loaded(model, device) as made:
        meant, exact, found = made.similar(title, _wish(k, genre, year))
    if not exact:
        note(f"there is no title '{title}'; taken for '{meant}'.")
    _answer(found, as_json, False)


@recommend.command()
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What it should be about.")],
    model: Model,
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """By what a text means."""
    with _loaded(model, device) as made:
        _answer(made.search(text, _wish(k, genre, year)), as_json, False)


@recommend.command()
def new(
    model: Model,
    liked: Annotated[list[str] | None, typer.Option("--liked", metavar="TITLE", help="May be repeated.")] = None,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="What they say they like.")] = "",
    k: K = 10,
    genre: Genre = None,
    year: Year = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """For somebody who is not in the data: titles, or words, or both; nothing is fitted anew."""
    with _loaded(model, device) as made:
        for title in liked or []:
            row, exact = made.titles.find(title)
            if not exact:
                note(f"there is no title '{title}'; taken for '{made.catalogue.titles[row]}'.")
        _answer(made.new(liked or [], text, _wish(k, genre, year)), as_json, True)


@recommend.command("all")
def all_users(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help=".parquet: user, rank, item, title, score.")],
    k: K = 10,
    device: Device = "cpu",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """The best for every user, into one file."""
    from ridgeline.recommend import write_all

    if out.suffix != ".parquet":
        raise InputError(f"--out '{out}' does not end in .parquet; give a name that does.")
    if not out.absolute().parent.is_dir():
        raise InputError(f"there is no folder '{out.parent}'; create it first.")
    with _loaded(model, device) as made, status("ranking") as say:
        rows = write_all(made, out, _wish(k, None, None).k, say)
        users = len(made.user_ids)
    if as_json:
        print_json({"out": str(out), "users": users, "rows": rows, "k": k})
    elif not quiet:
        tell(f"{rows:,} recommendations for {users:,} users → {out}", stderr())


def encoding(embedder: Embedder, fresh: bool, say: Callable[[str], object]) -> Callable[[Sequence[str]], Any]:
    """How item texts become vectors: from those that are kept where they are, unless all are wanted fresh."""
    from ridgeline.recommend import encode_kept

    return embedder.encode if fresh else lambda texts: encode_kept(embedder, texts, say)


def _apart(out: Path, vectors: Path) -> None:
    """Neither may be the other, or lie in it: the one written last would replace the first."""
    model, beside = out.resolve(), vectors.resolve()
    if model == beside or model in beside.parents or beside in model.parents:
        where = "are the same folder" if model == beside else "lie within each other"
        raise InputError(f"--out '{out}' and --vectors '{vectors}' {where}; give two folders side by side.")


def _loaded(folder: Path, device: str) -> Recommender:
    from ridgeline.recommend import Recommender

    return Recommender.load(folder, device=device)


def _wish(k: int, genre: str | None, year: str | None) -> Wish:
    from ridgeline.recommend import Wish, years_of

    return Wish(k, genre, years_of(year))


def _answer(found: list[Answer], as_json: bool, why: bool) -> None:
    if as_json:
        print_json([a.to_json() for a in found])
        return
    if not found:
        note("nothing fits; ask for more years or another genre.")
        return
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("score", justify="right")
    for name in ("title", "genres", *(["because of"] if why else [])):
        table.add_column(name)
    for a in found:
        cells = [f"{a.score:.3f}", escape(a.title), escape(", ".join(a.genres))]
        table.add_row(*cells, *([escape(", ".join(a.why))] if why else []))
    stdout().print(table)
