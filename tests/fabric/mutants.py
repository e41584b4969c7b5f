"""Schedules as JSON documents, and random changes of them."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.strategies import CALLS

from ridgeline import fabric
from ridgeline.errors import RidgelineError
from ridgeline.fabric import Schedule

Document = dict[str, Any]


def make_document(op: str, algorithm: str, ranks: int, **options: Any) -> Document:
    return json.loads(fabric.schedule(op, algorithm, ranks=ranks, **options).to_json())


def mutate(document: Document, generator: random.Random) -> Document:
    """A copy with one to three random changes, of which some do no harm."""
    document = json.loads(json.dumps(document))
    programs, chunks, ranks = document["programs"], document["chunks"], document["ranks"]
    draw = generator.randrange

    def insert(rank: int, *steps: list[Any]) -> None:
        at = generator.randint(0, len(programs[rank]))
        programs[rank][at:at] = steps

    for _ in range(generator.choice((1, 1, 2, 3))):
        rank = draw(ranks)
        program, chunk = programs[rank], draw(chunks)
        step = generator.choice(program) if program else None
        how = draw(14)
        if how == 0:
            insert(rank, ["copy", draw(chunks), chunk, 1])
        elif how == 1:
            insert(rank, ["copy", chunk, chunk, 1])
        elif how == 2:  # one more message
            peer = draw(ranks)
            insert(rank, ["send", peer, chunk, 1])
            insert(peer, [generator.choice(("recv", "recv", "reduce")), rank, chunk, 1])
        elif how == 3:  # an excursion through another slot
            other = draw(chunks)
            insert(rank, ["copy", chunk, other, 1], ["copy", other, chunk, 1])
        elif how == 4:
            document["root"] = draw(ranks)
        elif how == 5 and not draw(8):
            document["op"] = generator.choice([op for op, _ in CALLS])
        elif how == 6 and not draw(8):
            document["chunks"] = max(1, chunks + generator.choice((-1, 1)))
        elif step is None:
            continue
        elif how == 7:
            step[1] = draw(ranks)
        elif how == 8:
            step[2] = chunk
        elif how == 9:
            step[3] += generator.choice((-1, 1))
        elif how == 10:
            step[0] = {"recv": "reduce", "reduce": "recv"}.get(step[0], step[0])
        elif how == 11:
            program.remove(step)
        else:
            program.remove(step)
            insert(rank, step)
    return document


def is_proved(document: Document) -> bool:
    try:
        fabric.prove(Schedule.from_json(json.dumps(document)))
    except RidgelineError:
        return False
    return True
