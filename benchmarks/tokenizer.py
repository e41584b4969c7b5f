"""The tokenizer against the library `tokenizers` for each kind of text: both in turn, median of the ratios.

    python benchmarks/tokenizer.py FOLDER [--data DATASETS] [--rounds 7]

FOLDER is a model folder with a BERT tokenizer.json; DATASETS may hold movielens/ and logs/. Both use all CPUs this
process may use. Every kind is checked for equality before it is timed.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ridgeline.embed import Tokenizer, load_tokenizer

MAX_TOKENS = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    from tokenizers import Tokenizer as PeerTokenizer

    peer = PeerTokenizer.from_file(str(arguments.folder / "tokenizer.json"))
    peer.no_padding()
    ours = load_tokenizer(arguments.folder)
    print(f"{'texts':<26}{'count':>8}{'tokens':>10}{'peer ms':>11}{'ours ms':>9}{'M tokens/s':>12}{'ratio':>11}")
    words = [
        w for w in (arguments.folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[2000:20000] if w.isalpha()
    ]
    for name, texts, limit in kinds(words, arguments.data):
        race(name, texts, limit, ours, peer, arguments.rounds)
    latency(ours, "Toy Story (1995). Genres: Animation, Children's, Comedy")


def race(name: str, texts: list[str], limit: int, ours: Tokenizer, peer: Any, rounds: int) -> None:
    peer.enable_truncation(limit)
    tokens = ours.encode(texts, limit)
    for k, encoding in enumerate(peer.encode_batch_fast(texts)):
        if tokens[k].tolist() != encoding.ids:
            raise SystemExit(f"{name}: text {k} differs: {texts[k][:80]!r}")
    pairs = []
    for k in range(rounds):
        both: list[Callable[[], Any]] = [
            lambda: peer.encode_batch_fast(texts),
            lambda: ours.encode(texts, limit),
        ]
        times = {i: measure_s(both[i]) for i in ((0, 1) if k % 2 else (1, 0))}
        pairs.append((times[0], times[1]))
    a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(x / y for x, y in pairs)
    rate = len(tokens.ids) / b / 1e6
    print(f"{name:<26}{len(texts):>8}{len(tokens.ids):>10}{a * 1e3:>11.1f}{b * 1e3:>9.2f}{rate:>12.1f}{ratio:>11.1f}")


def latency(ours: Tokenizer, text: str) -> None:
    times = sorted(measure_s(lambda: ours.encode([text], MAX_TOKENS)) for _ in range(5000))
    print(f"one text: {times[2500] * 1e6:.1f} µs median, {times[4950] * 1e6:.1f} µs at 99 %")


def measure_s(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def kinds(words: list[str], data: Path | None) -> Iterator[tuple[str, list[str], int]]:
    R = random.Random(3)  # noqa: S311

    def some(count: int) -> list[str]:
        return R.choices(words, k=count)

    def spans(*ends: tuple[int, int]) -> str:
        return "".join(chr(R.randint(*R.choice(ends))) for _ in range(R.randint(8, 80)))

    yield "plain words, 8-40", [" ".join(R.choices(words, k=R.randint(8, 40))) for _ in range(20_000)], MAX_TOKENS
    dashed = [" ".join(some(R.randint(8, 40))).title() + " — ok" for _ in range(10_000)]
    yield "title case, a dash", dashed, MAX_TOKENS
    yield "words run together", ["".join(R.choices(words, k=R.randint(1, 9))) + " x" for _ in range(20_000)], MAX_TOKENS
    yield "512 tokens", [" ".join(R.choices(words, k=600)) for _ in range(1_000)], 512
    yield "accents", [" ".join(w[:2] + "é" + w[2:] for w in R.choices(words, k=20)) for _ in range(5_000)], MAX_TOKENS
    yield "Chinese", [spans((0x4E00, 0x9FA5)) for _ in range(10_000)], MAX_TOKENS
    yield "Japanese", [spans((0x4E00, 0x9FA5), (0x3041, 0x30FF), (0x3041, 0x30FF)) for _ in range(10_000)], MAX_TOKENS
    yield "Hangul", [" ".join(spans((0xAC00, 0xD7A3))[:5] for _ in range(12)) for _ in range(5_000)], MAX_TOKENS
    yield "Cyrillic", [" ".join(spans((0x410, 0x44F))[:8] for _ in range(12)) for _ in range(5_000)], MAX_TOKENS
    smiling = [" ".join(w + chr(R.randint(0x1F600, 0x1F64F)) for w in some(10)) for _ in range(5_000)]
    yield "emoji among words", smiling, MAX_TOKENS
    yield "300 times a", ["a" * 300] * 5_000, MAX_TOKENS
    yield "short: 1-3 words", [" ".join(R.choices(words, k=R.randint(1, 3))) for _ in range(30_000)], MAX_TOKENS
    hexes = [f"0x{R.getrandbits(64):016x} {R.getrandbits(32):08x}-{R.getrandbits(16):04x}" for _ in range(20_000)]
    yield "hexadecimal", hexes, MAX_TOKENS
    bus = []
    for _ in range(10_000):
        service, face, path, member = some(4)
        bus.append(
            f"org.freedesktop.{service}1.{face.title()} path=/org/freedesktop/{path}/_3{R.randint(0, 9)} "
            f"member={member.title()}Changed sender=:1.{R.randint(1, 999)}"
        )
    yield "D-Bus events", bus, MAX_TOKENS
    yield "10 MB, cut", ["word and " * 1_100_000], MAX_TOKENS
    if data is None:
        return
    with (data / "movielens" / "ml-latest-small" / "movies.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    yield "movie lines", [f"{title}. Genres: {genres.replace('|', ', ')}" for _, title, genres in rows], MAX_TOKENS
    for path in sorted((data / "logs").glob("*.log")):
        yield path.stem, path.read_text(encoding="utf-8", errors="replace").split("\n") * 5, MAX_TOKENS


if __name__ == "__main__":
    main()
