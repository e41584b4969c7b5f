"""CPU time of a Parquet part with vectors, all by pyarrow and by `VectorParquetWriter`: to write it, and to read it.

    python benchmarks/parquet_vectors.py > benchmarks/records/NAME-parquet-vectors.txt

65,536 rows of a number, a title of 19 words and a vector of 384 numbers. Both take turns. pyarrow reads both files and
must find the same table.
"""

from __future__ import annotations

import io
import statistics
import time
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet

from ridgeline.bulk.parts import encode_parquet

ROWS, DIM, ROUNDS = 65_536, 384, 9


def main() -> None:
    random = np.random.default_rng(0)
    titles = [" ".join(f"w{number}" for number in row) for row in random.integers(0, 5000, (ROWS, 19)).tolist()]
    print(f"# {ROWS:,} rows, vectors of {DIM}; CPU ms of a part, least and median of {ROUNDS} in turn")
    for dtype in ("float16", "float32"):
        numbers = random.standard_normal((ROWS, DIM)).astype(dtype)
        vectors = arrow.FixedSizeListArray.from_arrays(arrow.array(numbers.reshape(-1)), DIM)
        table = arrow.table({"id": np.arange(ROWS), "title": titles, "vector": vectors})
        writing: dict[str, list[float]] = {"pyarrow": [], "ours": []}
        reading: dict[str, list[float]] = {"pyarrow": [], "ours": []}
        for _ in range(ROUNDS):
            for name, encode in (("pyarrow", encode_by_pyarrow), ("ours", encode_parquet)):
                started = time.process_time()
                data = encode(table)
                written = time.process_time()
                same = parquet.read_table(arrow.BufferReader(data), use_threads=False)
                reading[name].append(1e3 * (time.process_time() - written))
                writing[name].append(1e3 * (written - started))
                if not same.equals(table):
                    raise SystemExit(f"the table of {name} is another one")
        print(f"{dtype}, write: {describe(writing)}")
        print(f"{dtype}, read: {describe(reading)}")


def describe(samples: dict[str, list[float]]) -> str:
    medians = {name: statistics.median(values) for name, values in samples.items()}
    times = ", ".join(f"{name} {min(samples[name]):.0f}, {medians[name]:.0f}" for name in samples)
    return f"{times}; pyarrow / ours {medians['pyarrow'] / medians['ours']:.1f}"


def encode_by_pyarrow(table: Any) -> bytes:
    """Write without compressing vectors and without their statistics: the fastest that pyarrow offers."""
    sink = io.BytesIO()
    plain = ["id", "title"]
    parquet.write_table(
        table,
        sink,
        compression=dict.fromkeys(plain, "zstd"),
        use_dictionary=False,
        write_statistics=plain,
        row_group_size=len(table),
    )
    return sink.getvalue()


if __name__ == "__main__":
    main()
