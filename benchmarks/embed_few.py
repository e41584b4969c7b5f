"""Few texts on this CPU: the short way of `Embedder.encode` beside the stages that many texts go through.

    python benchmarks/embed_few.py MODEL [--calls 300]

Both take turns call by call, in a random order: `encode(texts)` and `encode(texts, batch_tokens=4096)`, which is one
batch, too, but goes through windows and a stream of batches. The times are medians of the calls; `saved` is the median
of the differences of neighbours.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from pathlib import Path

from serve_load import WORDS

CASES = ((1, 1), (1, 30), (8, 3), (8, 30))  # texts, words of each


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--calls", type=int, default=300)
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as `ridgeline serve` has it
    import ridgeline

    draw = random.Random(1)  # noqa: S311  the same every time
    print("texts  words    short ms     long ms    saved ms")
    with ridgeline.Embedder(options.model, device="cpu", dtype="float32", batch_invariant=True) as embedder:
        ways = {"short": lambda t: embedder.encode(t), "long": lambda t: embedder.encode(t, batch_tokens=4096)}
        for count, words in CASES:
            texts = [" ".join(draw.choices(WORDS, k=words)) for _ in range(count)]
            if (ways["short"](texts) != ways["long"](texts)).any():
                raise SystemExit("the bits differ")
            times: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(options.calls):
                for name in draw.sample(list(ways), len(ways)):
                    start_s = time.perf_counter()
                    ways[name](texts)
                    times[name].append(1e3 * (time.perf_counter() - start_s))
            saved = statistics.median(b - a for a, b in zip(times["short"], times["long"], strict=True))
            short, long = (statistics.median(times[name]) for name in ("short", "long"))
            print(f"{count:5d}  {words:5d}  {short:10.3f}  {long:10.3f}  {saved:10.3f}", flush=True)


if __name__ == "__main__":
    main()
