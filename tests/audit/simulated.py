"""Simulated labelled sets: ordinary days with one kind of anomaly each, and an encoder that needs no model."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from random import Random

import numpy as np

from ridgeline.audit.anomaly.evaluate import Labelled, Unit

BASE = 1_700_000_000_000_000_000
STEPS = [
    "request accepted from 10.0.0.{n}",
    "user {n} authenticated",
    "row {n} read from table orders",
    "row {n} written to table orders",
    "cache {n} refreshed",
    "reply {n} sent",
    "connection {n} closed",
]
STRANGE = ["segment {n} is corrupt", "quota of user {n} exceeded", "fallback to secondary {n}", "checksum {n} differs"]


def words(texts: list[str]) -> np.ndarray:
    """Unit vectors by the words of a text: texts that share words are near each other."""
    vectors = np.zeros((len(texts), 64), np.float32)
    for row, text in zip(vectors, texts, strict=True):
        for word in text.lower().replace(".", " ").split():
            row += np.random.default_rng(zlib.crc32(word.encode())).standard_normal(64).astype(np.float32)
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def ordinary(rng: Random) -> list[str]:
    """A session: reads and writes vary in number, the cache is refreshed now and then."""
    body = [STEPS[2]] * rng.randint(1, 3) + [STEPS[3]] * rng.randint(0, 2)
    if rng.random() < 0.1:
        body.append(STEPS[4])
    return [STEPS[0], STEPS[1], *body, STEPS[5], STEPS[6]]


def new_step(rng: Random, session: list[str]) -> list[str]:
    session.insert(rng.randrange(1, len(session)), rng.choice(STRANGE))
    return session


def burst(rng: Random, session: list[str]) -> list[str]:
    at = session.index(STEPS[2])
    return session[:at] + [STEPS[2]] * rng.randint(8, 30) + session[at:]


def missing(rng: Random, session: list[str]) -> list[str]:
    session.remove(rng.choice([STEPS[1], STEPS[5], STEPS[6]]))
    return session


def wrong_order(rng: Random, session: list[str]) -> list[str]:
    return [session[0], *session[2:-2], session[1], *session[-2:]]  # authenticated after the data was touched


def any_of_them(rng: Random, session: list[str]) -> list[str]:
    return rng.choice([new_step, burst, missing, wrong_order])(rng, session)


def sessions(break_it: Callable, seed: int = 0, count: int = 1200, share: float = 0.04) -> Labelled:
    rng = Random(seed)
    units = []
    for i in range(count):
        bad = rng.random() < share
        texts = break_it(rng, ordinary(rng)) if bad else ordinary(rng)
        units.append(
            Unit(
                bad,
                tuple(
                    {
                        "time": BASE + (i * 100 + k) * 10**9,
                        "source": "app",
                        "actor": "svc",
                        "action": "log.line",
                        "subject": text.format(n=rng.randrange(10**6)),
                        "attributes": {"session": f"s{i}"},
                    }
                    for k, text in enumerate(texts)
                ),
            )
        )
    half = count // 2
    return Labelled(break_it.__name__, "session", "first half", units[:half], units[half:])


ACTIONS = {
    "unit.start": (["root", "deploy"], [f"web{n}.service" for n in range(9)]),
    "user.login": (["ann", "bob", "cyd", "dan"], ["console", "ssh"]),
    "file.read": (["ann", "bob", "backup"], ["/srv/data/a", "/srv/data/b", "/srv/data/c"]),
    "firewall.reload": (["root"], ["nftables"]),
}


def event(rng: Random, i: int, action: str | None = None, actor: str | None = None) -> dict:
    action = action or rng.choices(list(ACTIONS), [50, 20, 28, 2])[0]
    actors, subjects = ACTIONS[action]
    return {
        "time": BASE + i * 20 * 10**9,
        "source": "host",
        "actor": actor or rng.choice(actors),
        "action": action,
        "subject": rng.choice(subjects),
        "attributes": {"pid": rng.randrange(30_000)},
    }


def strange_actor(seed: int = 0, count: int = 4000, share: float = 0.01) -> Labelled:
    """Every actor has usual actions; an anomaly is a known actor with an action of another."""
    rng = Random(seed)
    units = []
    for i in range(count):
        if rng.random() < share:
            units.append(Unit(True, (event(rng, i, "unit.start", rng.choice(["ann", "bob", "backup"])),)))
        else:
            units.append(Unit(False, (event(rng, i),)))
    return Labelled("strange_actor", "event", "first half", units[: count // 2], units[count // 2 :])


KINDS = [new_step, burst, missing, wrong_order, any_of_them]
